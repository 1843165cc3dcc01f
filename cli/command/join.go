package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/doctor"
	"github.com/pelotech/ot-fleet/cli/doctor/gather"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/join"
	"github.com/pelotech/ot-fleet/cli/join/execute"
	"github.com/pelotech/ot-fleet/cli/render"
)

// joinFlags are those of join, accept and leave.
type joinFlags struct {
	labels  []string
	timeout string
	dryRun  bool
	yes     bool
}

func (e *environment) newJoinCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "join",
		Short:   "Let a cluster join the fleet: join push NAME, join pull NAME",
		Example: "  kubectl ot join push frankfurt --member frankfurt -- --set image.tag=<version>",
		Args: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("join is followed by push or pull, and the cluster's name: %q is neither", slices.Concat(args, []string{""})[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(e.newJoinPushCommand(), e.newJoinPullCommand())
	return cmd
}

const afterDash = `Arguments after -- are passed to helm: values of chart ot-agent, which this program has, and
which is installed or upgraded in the member. Omit -- where the agent is installed by other means.

After a failure, run it again: what exists is kept.`

func (e *environment) newJoinPushCommand() *cobra.Command {
	request, flags := join.Request{Mode: join.Push}, joinFlags{}
	cmd := &cobra.Command{
		Use:   "push NAME --member CONTEXT [-- HELM ARGUMENTS]",
		Short: "The hub connects to the cluster",
		Long: `The hub connects to the cluster. It gets a token of the ServiceAccount that the agent's chart
creates for it, valid for a day, and none of your own credentials. The hub replaces the token by
one that it renews.

` + afterDash,
		Example: "  kubectl ot join push frankfurt --member frankfurt -- --set image.tag=<version>",
	}
	e.addJoinFlags(cmd, &request, &flags)
	cmd.Flags().StringVar(&request.Server, "server", "", "URL of the cluster's API server for the hub, if not the context's")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return e.join(cmd, args, request, flags) }
	return cmd
}

func (e *environment) newJoinPullCommand() *cobra.Command {
	request, flags := join.Request{Mode: join.Pull}, joinFlags{}
	cmd := &cobra.Command{
		Use:   "pull NAME [--member CONTEXT -- HELM ARGUMENTS]",
		Short: "The cluster's agent connects to the hub",
		Long: `The cluster's agent connects to the hub with a join token. Without --member the token is
written to a file, to install the agent with.

` + afterDash,
		Example: "  kubectl ot join pull frankfurt --member frankfurt -- --set image.tag=<version>",
	}
	e.addJoinFlags(cmd, &request, &flags)
	cmd.Flags().BoolVar(&request.AutoAccept, "auto-accept", false, "accept the first agent that presents the join token")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "accept the agent without asking, if its key is the one that the hub was sent")
	// --output is the file here; -o stays the format.
	cmd.Flags().StringVar(&request.Output, "output", "join.kubeconfig", "file for the join token")
	cmd.Flags().StringVarP(&e.output, "format", "o", "", "format of what is printed, as -o elsewhere")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := render.ParseFormat(request.Output); err == nil && request.Output != "" {
			return fmt.Errorf("--output %s: here it is the file for the join token; the format is -o %s", request.Output, request.Output)
		}
		return e.join(cmd, args, request, flags)
	}
	return cmd
}

func (e *environment) addJoinFlags(cmd *cobra.Command, request *join.Request, flags *joinFlags) {
	useScopeFlags(cmd, "member-context")
	cmd.Flags().StringVar(&request.MemberContext, "member", "", "kubectl context of the cluster")
	cmd.Flags().StringArrayVar(&flags.labels, "label", nil, "label of the MemberCluster as KEY=VALUE, by which overrides and waves select it; repeat it for more")
	addStepFlags(cmd, flags)
}

// addStepFlags adds what every command has that does steps on both sides.
func addStepFlags(cmd *cobra.Command, flags *joinFlags) {
	cmd.Flags().StringVar(&flags.timeout, "timeout", "300", "timeout of each step, in seconds or as 5m; exit code 3 after it")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "print what would be done on each side, and do nothing")
}

// join lets a cluster join, or says what that would take.
func (e *environment) join(cmd *cobra.Command, args []string, request join.Request, flags joinFlags) error {
	ctx := cmd.Context()
	helmArguments := []string(nil)
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		request.Install, args, helmArguments = true, args[:dash], args[dash:]
	}
	if len(args) != 1 {
		return fmt.Errorf("join %s is followed by the cluster's name on the hub, and only that: there are %d arguments", request.Mode, len(args))
	}
	request.Name = args[0]
	request.MemberContext = cmp.Or(request.MemberContext, e.Member)
	var err error
	if request.Labels, err = join.ParseLabels(flags.labels); err != nil {
		return err
	}
	if err := request.Validate(); err != nil {
		return err
	}
	if request.Install {
		if _, err := exec.LookPath("helm"); err != nil {
			return errors.New("helm is missing: install it, 3.14 or later, or install the agent by other means and leave out --")
		}
	}
	x, hub, err := e.newExecutor(request, flags)
	if err != nil {
		return err
	}
	state, err := execute.ReadHub(ctx, hub.Client, e.HubNamespace, request.Name)
	if err != nil {
		return hub.Explain(err)
	}
	x.AgentNamespace = join.AgentNamespace(state.Member)
	if err := e.readMember(ctx, x); err != nil {
		return err
	}
	x.InstallChart = e.installChart(request.MemberContext, helmArguments)

	plan := &join.Plan{Envelope: render.NewEnvelope("Join"), Name: request.Name, Hub: hub.Context, Member: request.MemberContext, DryRun: flags.dryRun}
	plan.Warnings = e.examineMember(ctx, x)
	if request.Mode == join.Push {
		plan.Steps, err = join.PlanPush(request, state, *x.State)
		if server := request.Access(*x.State); server.IsLocal() {
			plan.Warnings = append(plan.Warnings, fmt.Sprintf("warning: a hub elsewhere does not reach %s: say with --server where it does", server.Server))
		}
	} else {
		plan.Steps, err = join.PlanPull(request, state, x.State)
	}
	if err != nil {
		return err
	}
	if flags.dryRun {
		return e.show(plan, exit.Yes)
	}
	for _, warning := range plan.Warnings {
		e.printNote("%s", warning)
	}
	if err := e.runSteps(ctx, x, plan.Steps); err != nil {
		return err
	}
	if request.Mode == join.Pull && x.Member == nil {
		if err := e.explainTokenFile(ctx, request, x); err != nil {
			return err
		}
	}
	return e.showUnlessScreen(plan)
}

// showUnlessScreen prints what was done where -o asks for data; a person has seen it already.
func (e *environment) showUnlessScreen(view render.View) error {
	if e.format.Screen() {
		return nil
	}
	return e.show(view, exit.Yes)
}

// newExecutor connects to both sides.
func (e *environment) newExecutor(request join.Request, flags joinFlags) (*execute.Executor, *connect.Cluster, error) {
	timeout, err := join.ParseTimeout(flags.timeout)
	if err != nil {
		return nil, nil, err
	}
	x := &execute.Executor{
		Request: request, Namespace: e.HubNamespace, Timeout: timeout, AgentNamespace: join.DefaultAgentNamespace,
		Begin: e.beginStep, End: e.endStep,
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, nil, fmt.Errorf("the hub is not reached: %w", err)
	}
	x.Hub, x.Accept = hub.Client, e.acceptAgent(hub.Context, request, flags.yes)
	if request.MemberContext != "" {
		e.Member = request.MemberContext
		member, err := e.Flags.ConnectMember("")
		if err != nil {
			return nil, nil, fmt.Errorf("the cluster is not reached by context %s: %w", request.MemberContext, err)
		}
		x.Member = member.Client
	}
	x.HubKubectl = e.HubKubectl()
	return x, hub, nil
}

// readMember reads what the member has, where it is reached from here.
func (e *environment) readMember(ctx context.Context, x *execute.Executor) error {
	if x.Member == nil {
		return nil
	}
	access, err := e.accessOf(x.Request.MemberContext)
	if err != nil {
		return err
	}
	x.State, err = execute.ReadMember(ctx, x.Member, x.Request.MemberContext, x.AgentNamespace, access)
	return err
}

// doctorTimeout bounds what doctor reads before a cluster joins.
const doctorTimeout = 20 * time.Second

// examineMember returns what doctor finds in a member that is to join. None of it stops the join:
// an agent waits for what is missing, and says so.
func (e *environment) examineMember(ctx context.Context, x *execute.Executor) []string {
	if x.Member == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	member, err := e.Flags.ConnectMember("")
	if err != nil {
		return []string{"doctor: " + err.Error()}
	}
	snapshot, err := gather.Member(ctx, member, gather.Options{Cluster: x.Request.Name, CLIVersion: e.version, AgentNamespace: x.AgentNamespace, Now: e.now})
	if err != nil {
		return []string{"doctor: " + err.Error()}
	}
	return doctor.Examine(snapshot).BeforeJoin(x.Request.MemberContext)
}

// accessOf returns how a context reaches its cluster.
func (e *environment) accessOf(name string) (join.Access, error) {
	config, err := e.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return join.Access{}, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config = *config.DeepCopy()
	config.CurrentContext = name
	if err := clientcmdapi.MinifyConfig(&config); err != nil {
		return join.Access{}, fmt.Errorf("context %s: %w", name, err)
	}
	if err := clientcmd.ResolveLocalPaths(&config); err != nil {
		return join.Access{}, fmt.Errorf("context %s: %w", name, err)
	}
	if err := clientcmdapi.FlattenConfig(&config); err != nil {
		return join.Access{}, fmt.Errorf("context %s: %w", name, err)
	}
	return join.AccessOf(config)
}

// runSteps does steps, and gives what stopped them its exit code.
func (e *environment) runSteps(ctx context.Context, x *execute.Executor, steps []join.Step) error {
	err := x.Run(ctx, steps)
	if _, ok := errors.AsType[execute.TimeoutError](err); ok {
		return exit.Because(exit.NotYet, err)
	}
	if _, ok := errors.AsType[execute.PersonError](err); ok {
		return exit.Because(exit.Held, err)
	}
	return err
}

// beginStep tells of a step that takes its time.
func (e *environment) beginStep(s join.Step) {
	switch s.Action {
	case join.AwaitToken, join.AwaitAgent, join.AwaitReady, join.AwaitRotated, join.AwaitGone, join.InstallAgent:
		e.printStep(s.Line(render.Waiting, ""))
	}
}

func (e *environment) endStep(s join.Step, result string) {
	if s.Action == join.AwaitToken {
		result = "the join token is there"
	}
	e.printStep(s.Line(render.Done, result))
}

// printStep prints a line on standard error.
func (e *environment) printStep(line render.Line) {
	e.printAside(func(page *render.Page) { page.Line(line...) })
}

// printAside prints on standard error: standard output may be for data.
func (e *environment) printAside(draw func(*render.Page)) {
	page := &render.Page{}
	draw(page)
	fmt.Fprint(e.ErrOut, render.Print(page, e.options()))
}

// acceptAgent returns how a person decides about an agent that asks the hub of a context to be let in.
func (e *environment) acceptAgent(hub string, request join.Request, yes bool) func(join.Acceptance) error {
	return func(a join.Acceptance) error {
		e.printAside(a.Draw)
		command := shellword.FormatCommand("kubectl ot accept %s", request.Name)
		if request.MemberContext != "" {
			command += shellword.FormatCommand(" --member %s", request.MemberContext)
		}
		switch {
		case yes && a.Compared:
			return nil
		case yes:
			return execute.PersonError{Text: "-y accepts only a key that is known to be the agent's own: name the cluster's context with --member, or with --key the key that its agent shows: " + command}
		}
		agreed, err := e.askWhether(hub, "Accept?")
		switch {
		case err != nil:
			return execute.PersonError{Text: fmt.Sprintf("the agent waits to be accepted: %s (%v)", command, err)}
		case !agreed:
			return exit.Because(exit.No, fmt.Errorf("the agent is not accepted: accept it by %s, or have the hub make another join token", command))
		}
		return nil
	}
}

// explainTokenFile says what to do with the join token that was written to a file.
func (e *environment) explainTokenFile(ctx context.Context, request join.Request, x *execute.Executor) error {
	access, err := registration.ParseHubAccess(x.Token())
	if err != nil {
		return fmt.Errorf("the join token of the hub cannot be read: %w. Ask for another: %s", err, join.NewTokenCommand(request.Name))
	}
	e.printNote("%s works once and expires, by default after an hour: the agent connects in pull mode to %s, which is pull.apiURL of chart ot-hub", request.Output, access.Server)
	e.printNote("in the cluster: %s", shellword.FormatCommand("helm install ot-agent charts/ot-agent --namespace %s --create-namespace --set image.tag=<version> --set-file hub.join.kubeconfig=%s", x.AgentNamespace, request.Output))
	member, err := execute.ReadHub(ctx, x.Hub, x.Namespace, request.Name)
	if err == nil && member.Member != nil && member.Member.Spec.Connection.Pull != nil && !member.Member.Spec.Connection.Pull.AutoAccept {
		e.printNote("then accept the agent's key: %s", shellword.FormatCommand("kubectl ot accept %s", request.Name))
	}
	return nil
}

// helmGrace is how long helm may take to end after ctrl-C.
const helmGrace = 15 * time.Second
