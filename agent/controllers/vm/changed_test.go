package vm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestChanged(t *testing.T) {
	conflict := func(resource string) error {
		return fmt.Errorf("making: %w", apierrors.NewConflict(schema.GroupResource{Resource: resource}, "x", errors.New("changed")))
	}
	assert.True(t, changed(conflict("virtualmachines")))
	assert.True(t, changed(fmt.Errorf("making: %w", errChanged)))
	assert.False(t, changed(conflict("resourcequotas")), "no event of the machine's tells when that has passed")
	assert.False(t, changed(apierrors.NewInternalError(errors.New("failed calling webhook"))))
	assert.False(t, changed(errors.New("connection refused")))
	assert.False(t, changed(nil))
}
