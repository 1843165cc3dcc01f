package command

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/cli/connect"
)

// Two commands of one name hide each other.
func TestEachVerbIsThereOnce(t *testing.T) {
	e := &environment{IOStreams: StandardStreams(), Flags: connect.NewFlags()}
	var walk func(*cobra.Command)
	walk = func(parent *cobra.Command) {
		seen := map[string]bool{}
		for _, cmd := range parent.Commands() {
			assert.False(t, seen[cmd.Name()], "%s is there twice", cmd.CommandPath())
			seen[cmd.Name()] = true
			walk(cmd)
		}
	}
	walk(e.newRoot())
}
