package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// groupAnnotation marks commands that only lead to others.
const groupAnnotation = "pelotech.ot/group"

// maxTypingDistance is how many letters of a command may be wrong for it to be suggested.
const maxTypingDistance = 2

func isGroup(cmd *cobra.Command) bool { return cmd.Annotations[groupAnnotation] != "" }

// finishCommands adds what all commands have. It comes after all of them.
func finishCommands(root *cobra.Command) {
	for _, cmd := range allCommands(root) {
		if cmd.HasSubCommands() && !cmd.Runnable() {
			refuseUnknownCommands(cmd)
		}
		if check := cmd.Args; check != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
				}
				return nil
			}
		}
	}
}

// refuseUnknownCommands has a group print its help, and refuse what is none of its commands. Without
// RunE, cobra prints the help of either and ends with 0: a script would take a misspelled command
// for one that was done.
func refuseUnknownCommands(group *cobra.Command) {
	if group.Annotations == nil {
		group.Annotations = map[string]string{}
	}
	group.Annotations[groupAnnotation] = "true"
	group.SuggestionsMinimumDistance = maxTypingDistance
	group.Args, group.DisableFlagsInUseLine = nil, true
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		hint := ""
		if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
			hint = " (did you mean " + strings.Join(names, " or ") + "?)"
		}
		return fmt.Errorf("%s has no command %s%s: see %s --help", cmd.CommandPath(), args[0], hint, cmd.CommandPath())
	}
}
