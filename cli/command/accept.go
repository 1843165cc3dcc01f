package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/join"
	"github.com/pelotech/ot-fleet/cli/join/execute"
	"github.com/pelotech/ot-fleet/cli/render"
)

func (e *environment) newAcceptCommand() *cobra.Command {
	request, flags, key := join.Request{Mode: join.Pull}, joinFlags{}, ""
	cmd := &cobra.Command{
		Use:   "accept NAME [--member CONTEXT | --key SHA256:…]",
		Short: "Accept the agent that asks to be let in, in pull mode",
		Long: `accept shows the key that the hub was sent beside the one that the agent shows in its own
cluster, and asks. A key that is not the agent's is refused: somebody else has the join token.
-y accepts without asking, but only where both are known and the same.`,
		Example: "  kubectl ot accept frankfurt --member frankfurt",
		Args:    cobra.ExactArgs(1),
	}
	useScopeFlags(cmd, "member-context")
	cmd.Flags().StringVar(&request.MemberContext, "member", "", "kubectl context of the cluster, to read what its agent shows")
	cmd.Flags().StringVar(&key, "key", "", "the key that the agent shows, where its cluster is not reached from here")
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "accept without asking")
	cmd.Flags().StringVar(&flags.timeout, "timeout", "300", "how long requests may take, in seconds or as 5m")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		request.Name = args[0]
		if err := join.ValidateName(request.Name); err != nil {
			return err
		}
		request.MemberContext = cmp.Or(request.MemberContext, e.Member)
		x, hub, err := e.newExecutor(request, flags)
		if err != nil {
			return err
		}
		state, err := execute.ReadHub(ctx, hub.Client, e.HubNamespace, request.Name)
		if err != nil {
			return hub.Explain(err)
		}
		x.AgentNamespace = join.AgentNamespace(state.Member)
		result, err := x.AcceptAgent(ctx, state, key)
		if _, ok := errors.AsType[execute.PersonError](err); ok {
			return exit.Because(exit.Held, err)
		}
		if _, refused := errors.AsType[join.OtherAgentError](err); refused {
			return exit.Because(exit.No, err)
		}
		if err != nil {
			return err
		}
		e.printStep(render.Done.With("%s", result))
		return nil
	})
	return cmd
}

func (e *environment) newLeaveCommand() *cobra.Command {
	request, flags, agentNamespace := join.Request{}, joinFlags{}, ""
	cmd := &cobra.Command{
		Use:   "leave NAME [--member CONTEXT]",
		Short: "Let a cluster leave the fleet",
		Long: `leave removes a member from the hub, in the order in which nothing is made again and in which
the hub can still remove its plan from the member; then what hub and agent could log in with.
Images, machines and the agent stay in the cluster.`,
		Example: "  kubectl ot leave frankfurt --member frankfurt --dry-run",
		Args:    cobra.ExactArgs(1),
	}
	useScopeFlags(cmd, "member-context")
	cmd.Flags().StringVar(&request.MemberContext, "member", "", "kubectl context of the cluster; without it, what is to be done there is printed")
	cmd.Flags().StringVar(&agentNamespace, "agent-namespace", "", "namespace of the agent in the member. Default: what the MemberCluster says, else "+join.DefaultAgentNamespace)
	cmd.Flags().BoolVarP(&flags.yes, "yes", "y", false, "do not ask")
	addStepFlags(cmd, &flags)
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		request.Name = args[0]
		if err := join.ValidateName(request.Name); err != nil {
			return err
		}
		request.MemberContext = cmp.Or(request.MemberContext, e.Member)
		return e.leaveFleet(ctx, request, flags, agentNamespace)
	})
	return cmd
}

func (e *environment) leaveFleet(ctx context.Context, request join.Request, flags joinFlags, agentNamespace string) error {
	x, hub, err := e.newExecutor(request, flags)
	if err != nil {
		return err
	}
	leaving, err := execute.ReadLeaving(ctx, hub.Client, e.HubNamespace, request.Name)
	if err != nil {
		return hub.Explain(err)
	}
	x.AgentNamespace = cmp.Or(agentNamespace, join.AgentNamespace(leaving.Member))
	if err := e.readMember(ctx, x); err != nil {
		return err
	}
	leaving.HubKubectl, leaving.InMember, leaving.Context, leaving.AgentNamespace = x.HubKubectl, x.State, request.MemberContext, x.AgentNamespace
	departure, err := join.PlanLeave(leaving)
	if err != nil {
		return err
	}
	plan := &join.Plan{
		Envelope: render.NewEnvelope("Leave"), Name: request.Name, Hub: hub.Context, Member: request.MemberContext, DryRun: true,
		Steps: departure.Steps, Stays: departure.Stays, ByHand: departure.ByHand,
	}
	if flags.dryRun {
		return e.show(plan, exit.Yes)
	}
	if !flags.yes {
		e.printAside(plan.Draw)
		agreed, err := e.askWhether(hub.Context, "Leave?")
		if err != nil {
			return exit.Because(exit.Held, err)
		}
		if !agreed {
			return exit.Because(exit.No, fmt.Errorf("%s stays in the fleet", request.Name))
		}
	}
	if err := e.runSteps(ctx, x, plan.Steps); err != nil {
		// The hub may go on by itself, and forget what would lead to the rest.
		e.printAside(func(page *render.Page) {
			join.DrawRest(page, nil, append(join.CommandsOf(plan.Steps[x.Finished:]), plan.ByHand...))
		})
		return err
	}
	plan.DryRun = false
	if !e.format.Screen() {
		return e.show(plan, exit.Yes)
	}
	page := &render.Page{}
	page.Line(render.Done.With("%s has left the fleet", request.Name)...)
	join.DrawRest(page, plan.Stays, plan.ByHand)
	_, err = fmt.Fprint(e.Out, render.Print(page, e.options()))
	return err
}
