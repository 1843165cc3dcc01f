package command

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/exit"
)

func TestPartlyPreloaded(t *testing.T) {
	refused := exit.Because(exit.No, errors.New("it has changed"))
	assert.Equal(t, refused, noteWritten(refused, nil))
	err := noteWritten(refused, []string{"ubuntu", "debian"})
	require.EqualError(t, err, "it has changed; written before: ubuntu, debian")
	assert.Equal(t, exit.No, exit.CodeOf(err))
}
