package memberclient

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A hub that wakes up for each probe on its own takes several times the CPU.
func TestMembersAreProbedTogether(t *testing.T) {
	require.True(t, New(Options{}).options.AlignProbes)
}
