package vm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestAtRest is of machines whose networks are not looked for.
func TestAtRest(t *testing.T) {
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
		got := atRest(&unstructured.Unstructured{Object: map[string]any{
			"spec": map[string]any{"runStrategy": tt.run}, "status": map[string]any{"created": tt.created},
		}})
		assert.Equal(t, tt.want, got, "%+v", tt)
	}
}
