package vm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestIsStopped is of machines whose networks are not looked for.
func TestIsStopped(t *testing.T) {
	for _, tt := range []struct {
		run     string
		created bool
		want    bool
	}{
		{"Halted", false, true},
		{"Manual", false, true},
		{"Manual", true, false}, // somebody has started it
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
