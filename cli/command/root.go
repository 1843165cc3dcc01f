package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// environment is what all verbs share: streams, and the flags that every verb has.
type environment struct {
	genericiooptions.IOStreams
	*connect.Flags
	version string
	now     func() time.Time
	// interrupted is closed by ctrl-C.
	interrupted <-chan struct{}

	cluster      string
	live         bool
	output       string
	noHeaders    bool
	quiet        bool
	color        string
	ascii        bool
	watching     bool
	timeout      time.Duration
	untilHold    bool
	allowUnknown bool

	format render.Format
	// compared: --member-context was compared with --cluster, and is not known to be another one; identified:
	// it is that one.
	compared, identified bool
	// checked: the flags were found to fit the command.
	checked bool
	// api is the read API, once it was asked.
	api *connect.ReadAPI
	// reportsForbidden: the caller may not read ClusterReports.
	reportsForbidden bool
	// fallbackNamespace is that of -n where a command reads a namespace only if it may not read all.
	fallbackNamespace string
	// toldUnread: what may not be read was said, and is not said again by a watch.
	toldUnread bool
}

// StandardStreams are those of the process.
func StandardStreams() genericiooptions.IOStreams {
	return genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
}

// Run runs one command line and returns its exit code. Ctrl-C cancels what it waits for.
func Run(args []string, streams genericiooptions.IOStreams, version string) exit.Code {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second ctrl-C ends what does not look at the first
	e := &environment{IOStreams: streams, Flags: connect.NewFlags(), version: version, now: time.Now, interrupted: ctx.Done()}
	root := e.newRoot()
	root.SetArgs(args)
	defer e.closeReadAPI()
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exit.Yes
	case ctx.Err() != nil:
		return exit.Interrupted
	}
	if message := exit.MessageOf(err); message != "" {
		fmt.Fprintln(streams.ErrOut, "error: "+e.printable(message))
	}
	return exit.CodeOf(err)
}

func (e *environment) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-ot",
		Short: "Disk images of KubeVirt machines across clusters",
		Long: `kubectl ot answers what people ask of OT Fleet: how the fleet is, why something waits and
for how long, what can go, and what a change would cost before it is made.

Exit codes: 0 yes, done; 1 no, it failed; 2 the question could not be answered; 3 not within
--timeout; 4 it waits for a person; 5 clusters are unknown.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ot"},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := e.checkScope(cmd); err != nil {
				return err
			}
			e.format, err = render.ParseFormat(e.output)
			switch {
			case err != nil:
				return err
			case e.quiet && e.output != "":
				return errors.New("-q prints no answer: leave out -o, or -q")
			case e.noHeaders && e.output == "markdown":
				return errors.New("tables of -o markdown have titles: leave out --no-headers, or -o")
			case e.quiet:
				e.Out = io.Discard // one place for all verbs
			}
			if e.color != "auto" && e.color != "always" && e.color != "never" {
				return fmt.Errorf("--color %s: must be auto, always or never", e.color)
			}
			e.checked = true
			return nil
		},
	}
	root.SetIn(e.In)
	root.SetOut(e.Out)
	root.SetErr(e.ErrOut)
	flags := root.PersistentFlags()
	e.AddFlags(flags)
	flags.StringVar(&e.cluster, "cluster", "", "a cluster of the fleet, by the name of its MemberCluster; refused where a command does not use it")
	flags.BoolVar(&e.live, "live", false, "ask the member itself, not what it has reported to the hub; refused where a command does not use it")
	flags.StringVarP(&e.output, "output", "o", "", "format: "+strings.Join(render.Formats, ", "))
	flags.BoolVar(&e.noHeaders, "no-headers", false, "tables without a line of titles; what stands beside a list goes to standard error")
	flags.BoolVarP(&e.quiet, "quiet", "q", false, "print no answer: the exit code is the answer. Errors and notes stay on standard error")
	flags.StringVar(&e.color, "color", "auto", "auto, always or never; auto honours NO_COLOR and TERM=dumb")
	flags.BoolVar(&e.ascii, "ascii", false, "signs and lines in ASCII")
	root.AddCommand(
		e.newStatusCommand("kubectl ot status"),
		e.newFleetCommand(),
		e.newTreeCommand(),
		e.newGetCommand(),
		e.newImageCommand(),
		e.newRolloutCommand(),
		e.newPreloadCommand(),
		e.newPolicyCommand(),
		e.newWhyCommand(),
		e.newTopCommand(),
		e.newDashboardCommand(),
		e.newPruneCommand(),
		e.newJoinCommand(),
		e.newAcceptCommand(),
		e.newLeaveCommand(),
		e.newDoctorCommand(),
		e.newSupportBundleCommand(),
		e.newQuarantineCommand(),
		e.newVersionCommand(),
		e.newEventsCommand(),
		e.newLogsCommand(),
		newReferenceCommand(root),
	)
	e.addCompletion(root)
	finishCommands(root)
	return root
}

// run adapts a verb to cobra.
func (e *environment) run(verb func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return verb(cmd.Context(), args) }
}

// addWatchFlag adds -w to a verb.
func (e *environment) addWatchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&e.watching, "watch", "w", false, "show it anew when it changes, until it ends")
}

// addWaitFlags adds what verbs that wait have.
func (e *environment) addWaitFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	addDuration(flags, &e.timeout, "timeout", 6*time.Hour, "how long to wait; exit code 3 after it")
	flags.BoolVar(&e.untilHold, "until-hold", false, "exit code 0 instead of 4 where an approval is awaited, or somebody has paused it")
	flags.BoolVar(&e.allowUnknown, "allow-unknown", false, "go on waiting for clusters that are unknown instead of ending with exit code 5")
}

// show prints a View and returns its exit code as an error.
func (e *environment) show(view render.View, code exit.Code) error {
	return endPrinted(code, e.format.Write(e.Out, view, e.options()))
}

// endPrinted ends a verb whose answer was printed, or could not be. Invariant: a pipeline that
// branches on the exit code reads the answer, whatever -o makes of it.
func endPrinted(code exit.Code, err error) error {
	switch {
	case err == nil:
		return exit.With(code)
	case code == exit.Yes:
		return fmt.Errorf("the command succeeded, but its output cannot be printed: %w", err)
	default:
		return exit.Because(code, fmt.Errorf("the answer cannot be printed: %w", err))
	}
}

// options of the terminal that is written to.
func (e *environment) options() render.Options {
	width, isTerminal := e.terminalWidth()
	options := render.Options{Width: width, ASCII: e.ascii, NoHeaders: e.noHeaders, Asides: e.ErrOut, Completion: e.completion(), Color: isTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	switch e.color {
	case "always":
		options.Color = true
	case "never":
		options.Color = false
	}
	return options
}

// completion returns what commands to copy need beside their own flags: those that this command was
// given. Before it is known whether they may be used, it is none.
func (e *environment) completion() render.Completion {
	if !e.checked || e.Flags == nil {
		return render.Completion{}
	}
	hub, member, every := e.KubectlFlags()
	return render.Completion{OT: e.CommandFlags(), Hub: hub, Member: member, Any: every}
}

// printable returns a message with commands that are complete, and safe to print.
func (e *environment) printable(text string) string {
	return render.Printable(e.completion().Complete(text))
}

// terminalWidth returns the width of the terminal; 0 and false where the output is none.
func (e *environment) terminalWidth() (int, bool) {
	file, ok := e.Out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 20 {
		width = 80
	}
	return width, true
}

// printNote tells the user something beside the answer, on standard error.
func (e *environment) printNote(format string, args ...any) {
	fmt.Fprintln(e.ErrOut, e.printable(fmt.Sprintf(format, args...)))
}

// describeCluster names the cluster of a context: --server replaces the address of the hub's.
func (e *environment) describeCluster(context string) string {
	if e.Flags != nil && e.APIServer != nil && *e.APIServer != "" {
		if hub, err := e.HubContext(); err != nil || context == hub {
			return "API server " + *e.APIServer
		}
	}
	if context == "" {
		return "Current cluster"
	}
	return "Context " + context
}

// askWhether asks a question about the cluster of a context. It is no wherever nobody can answer.
func (e *environment) askWhether(context, question string) (bool, error) {
	if e.quiet {
		return false, errors.New("cannot ask about what -q does not show: add -y, or leave out -q")
	}
	file, ok := e.In.(*os.File)
	if ok && !term.IsTerminal(int(file.Fd())) {
		return false, errors.New("cannot prompt without a terminal: add -y")
	}
	fmt.Fprintf(e.ErrOut, "%s: %s [y/N] ", render.Printable(e.describeCluster(context)), e.printable(question))
	type reply struct {
		text string
		err  error
	}
	answered := make(chan reply, 1)
	go func() {
		var r reply
		_, r.err = fmt.Fscanln(e.In, &r.text)
		answered <- r
	}()
	select {
	case <-e.interrupted: // a read from a terminal does not end by itself
		fmt.Fprintln(e.ErrOut)
		return false, exit.With(exit.Interrupted)
	case r := <-answered:
		if r.err != nil && !errors.Is(r.err, io.EOF) && r.text != "" {
			return false, r.err
		}
		return strings.EqualFold(r.text, "y") || strings.EqualFold(r.text, "yes"), nil
	}
}
