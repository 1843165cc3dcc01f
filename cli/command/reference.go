package command

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newReferenceCommand prints docs/reference/cli.md, so that the page says what --help says.
func newReferenceCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "reference", Hidden: true, Args: cobra.NoArgs, Short: "Print the reference page of all commands",
		RunE: func(cmd *cobra.Command, _ []string) error { return writeReference(cmd.OutOrStdout(), root) },
	}
}

func writeReference(out io.Writer, root *cobra.Command) error {
	var b strings.Builder
	b.WriteString("<!-- Written by make generate. -->\n# kubectl ot\n\nEvery command prints this with `--help`. [kubectl ot](../cli.md) says what they are for.\n\n")
	b.WriteString("Every command also has the flags of kubectl that are about the connection, as `--context`, `--namespace` and `--as`, and these. Each command lists which of `--cluster`, `--live` and `--member-context` it uses, and refuses the others.\n\n")
	var own []*pflag.Flag
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains(ownFlags, f.Name) {
			own = append(own, f)
		}
	})
	writeFlags(&b, own)
	for _, cmd := range root.Commands() {
		writeCommand(&b, cmd)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// ownFlags are the flags of every command that kubectl does not have.
var ownFlags = []string{"hub", "hub-namespace", "read-api", "member-context", "cluster", "live", "output", "no-headers", "quiet", "color", "ascii"}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	if !cmd.IsAvailableCommand() {
		return
	}
	if cmd.Runnable() && !isGroup(cmd) {
		fmt.Fprintf(b, "\n## %s\n\n%s\n\n```\n%s\n```\n", cmd.CommandPath(), asSentence(cmp.Or(cmd.Long, cmd.Short)), cmd.UseLine())
		if used := usedScopeFlags(cmd); len(used) > 0 {
			fmt.Fprintf(b, "\nUses `--%s`.\n", strings.Join(used, "`, `--"))
		}
		if cmd.Example != "" {
			fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.Example)
		}
		var flags []*pflag.Flag
		add := func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				flags = append(flags, f)
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(add)
		for parent := cmd; parent.HasParent(); parent = parent.Parent() {
			parent.PersistentFlags().VisitAll(add)
		}
		if len(flags) > 0 {
			b.WriteByte('\n')
			writeFlags(b, flags)
		}
	}
	for _, sub := range cmd.Commands() {
		writeCommand(b, sub)
	}
}

// asSentence ends a text with a full stop. Its exit codes are a paragraph of their own.
func asSentence(text string) string {
	text = strings.NewReplacer("\nExit codes:", "\n\nExit codes:", " Exit codes:", "\n\nExit codes:").Replace(text)
	text = strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(strings.TrimSpace(text))
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

func writeFlags(b *strings.Builder, flags []*pflag.Flag) {
	slices.SortFunc(flags, func(x, y *pflag.Flag) int { return strings.Compare(x.Name, y.Name) })
	b.WriteString("| Flag | Default | Meaning |\n| --- | --- | --- |\n")
	for _, f := range flags {
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name += ", `-" + f.Shorthand + "`"
		}
		byDefault := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
			byDefault = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, byDefault, strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;").Replace(asSentence(f.Usage)))
	}
}
