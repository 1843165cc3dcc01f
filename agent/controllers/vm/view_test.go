package vm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestIsStopped(t *testing.T) {
	for _, tt := range []struct {
		run     string
		created bool
		want    bool
	}{
		{"Halted", false, true},
		{"Manual", false, true},
		{"Manual", true, false}, // it was started
		{"Halted", true, false}, // it is being stopped
		{"Always", false, false},
		{"RerunOnFailure", false, false},
	} {
		got := isStopped(&unstructured.Unstructured{Object: map[string]any{
			"spec": map[string]any{"runStrategy": tt.run}, "status": map[string]any{"created": tt.created},
		}})
		assert.Equal(t, tt.want, got, "%+v", tt)
	}
}
