package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// groupAnnotation marks commands that only lead to others.
const groupAnnotation = "pelotech.ot/group"

// maxTypingDistance is how many letters of a command may be wrong for it to be suggested.
const maxTypingDistance = 2

func isGroup(cmd *cobra.Command) bool { return cmd.Annotations[groupAnnotation] != "" }

// finishCommands adds what all commands have. It comes after all of them.
func finishCommands(root *cobra.Command) {
	root.SuggestionsMinimumDistance = maxTypingDistance
	refuseUnknownCommands(root)
	root.Args = cobra.ArbitraryArgs // otherwise cobra refuses them in words of its own, before RunE does
	for _, cmd := range allCommands(root) {
		cmd.SuggestionsMinimumDistance = maxTypingDistance
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
	refuseUnknownTopics(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
}

// refuseUnknownCommands has a group print its help, and refuse what is none of its commands. Without
// RunE, cobra prints the help of either and ends with 0: a script would take a misspelled command
// for one that was done.
func refuseUnknownCommands(group *cobra.Command) {
	if group.Annotations == nil {
		group.Annotations = map[string]string{}
	}
	group.Annotations[groupAnnotation] = "true"
	group.Args, group.DisableFlagsInUseLine = nil, true
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommandError(cmd, args[0])
	}
}

// refuseUnknownTopics has help refuse what is no command. What a command takes as its arguments is
// none of help's business, unless it is nearly a command below it.
func refuseUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		cmd.Example = "  kubectl ot help rollout pause"
		cmd.Args = func(_ *cobra.Command, words []string) error {
			topic, rest, err := root.Find(words)
			if err != nil || len(rest) == 0 || !topic.HasSubCommands() {
				return err
			}
			if !isGroup(topic) && topic.ValidateArgs(rest) == nil && len(topic.SuggestionsFor(rest[0])) == 0 {
				return nil
			}
			return unknownCommandError(topic, rest[0])
		}
	}
}

func unknownCommandError(parent *cobra.Command, name string) error {
	hint := ""
	if names := parent.SuggestionsFor(name); len(names) > 0 {
		hint = " (did you mean " + strings.Join(names, " or ") + "?)"
	}
	return fmt.Errorf("%s has no command %s%s: see %s --help", parent.CommandPath(), name, hint, parent.CommandPath())
}
