package vm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestIsConflict(t *testing.T) {
	conflict := func(resource string) error {
		return fmt.Errorf("applying: %w", apierrors.NewConflict(schema.GroupResource{Resource: resource}, "x", errors.New("changed")))
	}
	assert.True(t, isConflict(conflict("virtualmachines")))
	assert.True(t, isConflict(fmt.Errorf("applying: %w", errObjectChanged)))
	assert.False(t, isConflict(conflict("resourcequotas")), "no event of the machine follows")
	assert.False(t, isConflict(apierrors.NewInternalError(errors.New("failed calling webhook"))))
	assert.False(t, isConflict(errors.New("connection refused")))
	assert.False(t, isConflict(nil))
}
