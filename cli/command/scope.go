package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// scopeFlags are the flags of every command that name one cluster, rather than the fleet.
var scopeFlags = []string{"cluster", "live", "member-context"}

// scopeAnnotation of a command names the scopeFlags that it uses.
const scopeAnnotation = "pelotech.ot/scope-flags"

// useScopeFlags declares which of scopeFlags a command uses: checkScope refuses the others.
func useScopeFlags(cmd *cobra.Command, flags ...string) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[scopeAnnotation] = strings.Join(flags, " ")
	return cmd
}

// usedScopeFlags returns what useScopeFlags declared.
func usedScopeFlags(cmd *cobra.Command) []string {
	return strings.Fields(cmd.Annotations[scopeAnnotation])
}

// checkScope refuses a flag that names one cluster where the command would go by the whole fleet.
func (e *environment) checkScope(cmd *cobra.Command) error {
	used := usedScopeFlags(cmd)
	for _, name := range scopeFlags {
		flag := cmd.Flags().Lookup(name)
		switch {
		case flag == nil || !flag.Changed, name == "live" && !e.live:
		case !slices.Contains(used, name) && name != "live" && cmd.Flags().Lookup("clusters") != nil:
			return fmt.Errorf("%s does not use --%s: name clusters with --clusters", cmd.CommandPath(), name)
		case !slices.Contains(used, name):
			return fmt.Errorf("%s does not use --%s: leave it out", cmd.CommandPath(), name)
		case flag.Value.String() == "": // as by a variable of a script that is not set
			return fmt.Errorf("--%s is empty: give it a name, or leave it out", name)
		}
	}
	return nil
}

// requireLive refuses --member-context where a command asks the hub unless --live is given.
func (e *environment) requireLive() error {
	if e.Flags != nil && e.Member != "" && !e.live {
		return fmt.Errorf("--member-context %s: add --live, which asks the member itself", e.Member)
	}
	return nil
}
