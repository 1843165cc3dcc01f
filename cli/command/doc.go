// Package command has the verbs of kubectl ot. Each is a list of steps: parse flags, gather
// what clusters say, decide in a pure package (cli/status, cli/why …), print the View, end
// with an exit code of package exit.
//
//	func (e *environment) newStatusCommand() *cobra.Command {
//		cmd := &cobra.Command{Use: "status", Short: "…", Args: cobra.NoArgs}
//		cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
//			…gather…
//			view := status.New(snapshot)
//			return e.show(view, view.ExitCode())
//		})
//		return cmd
//	}
//
// With -w, a verb is run again and again: e.watch.
package command
