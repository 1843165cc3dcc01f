package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

func (e *environment) newImageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Publish a version, wait for it, see where it is, start it over", Args: cobra.NoArgs}
	cmd.AddCommand(e.newPublishCommand(), e.newWaitCommand(), e.newWhereCommand(), e.newRetryCommand())
	return cmd
}

// getFleetImage reads a FleetDiskImage of the hub.
func getFleetImage(ctx context.Context, hub *connect.Cluster, name string) (*v1alpha1.FleetDiskImage, error) {
	img := &v1alpha1.FleetDiskImage{}
	if err := hub.Get(ctx, types.NamespacedName{Name: name}, img); err != nil {
		return nil, err
	}
	return img, nil
}

func (e *environment) newWaitCommand() *cobra.Command {
	goal := ""
	cmd := &cobra.Command{
		Use:   "wait NAME [--for ready|finished|wave=NAME|in=CLUSTER]",
		Short: "Wait for a FleetDiskImage's version",
		Long: `wait prints a line for each change, and last, on standard error, what the hub says and what to do.
Only a status about the spec as it is now counts. Exit codes: 0 it is so; 1 it failed, or a person
has to correct something; 3 not by --timeout; 4 it waits for an approval or is paused, which
--until-hold accepts; 5 clusters are unknown, which --allow-unknown waits for.`,
		Example: "  kubectl ot image wait ubuntu --for wave=canary --timeout 2h",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&goal, "for", rollout.GoalReady, "ready, finished (waits also while the rollout is Stalled), wave=NAME or in=CLUSTER")
	e.addWaitFlags(cmd)
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		parsed, err := rollout.ParseGoal(goal)
		if err != nil {
			return err
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		return e.waitForRollout(ctx, hub, args[0], parsed, rollout.Want{})
	})
	return cmd
}

// waitForRollout waits until a goal is decided, for one version: want, or the one that is there at
// first. It prints lines where a screen would be, else the
// last state alone: -o markdown is a summary.
func (e *environment) waitForRollout(ctx context.Context, hub *connect.Cluster, name string, goal rollout.Goal, want rollout.Want) error {
	ctx, look, lookTime, cancel := boundWait(ctx, e.timeout)
	defer cancel()
	var img *v1alpha1.FleetDiskImage
	var verdict rollout.Verdict
	printed, note := "", retryNote{e: e}
	for reading := look; ; reading = ctx {
		var in *rollout.InCluster
		next, err := within(reading, func(ctx context.Context) (next *v1alpha1.FleetDiskImage, err error) {
			next, in, err = e.gatherWait(ctx, hub, name, goal)
			return next, err
		})
		switch {
		case err != nil && img == nil:
			return notWithin(look, lookTime, err)
		case errors.Is(err, errMemberGone):
			return exit.Because(exit.Unknown, err)
		case apierrors.IsNotFound(err):
			return exit.Because(exit.No, fmt.Errorf("FleetDiskImage %s was deleted", name))
		case err != nil:
			note.print(ctx, err)
		default:
			img = next
			note.reset()
			if want == (rollout.Want{}) {
				want = rollout.WantOf(img)
			}
			verdict = rollout.JudgeWait(img, want, goal, in, rollout.WaitOptions{UntilHold: e.untilHold, AllowUnknown: e.allowUnknown})
			if line := rollout.NewProgress(img, e.now()).Summary(); line != printed && e.format.Screen() {
				if _, err := fmt.Fprintln(e.Out, e.printable(e.now().Format("15:04:05")+"  "+line)); err != nil {
					return err
				}
				printed = line
			}
			if verdict.End {
				return e.endWait(img, verdict.Code, verdict.Message)
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return e.endWait(img, exit.NotYet, fmt.Sprintf("not within %s: %s", e.timeout, verdict.Message))
			}
			return ctx.Err()
		case <-time.After(watchInterval):
		}
	}
}

// errMemberGone is about the cluster, where the FleetDiskImage is there.
var errMemberGone = errors.New("the fleet has no such cluster, or no longer")

func (e *environment) endWait(img *v1alpha1.FleetDiskImage, code exit.Code, message string) error {
	var err error
	if !e.format.Screen() {
		err = e.format.Write(e.Out, rollout.NewProgress(img, e.now()), e.options())
	}
	e.printNote("%s", message)
	return endPrinted(code, err)
}

func (e *environment) gatherWait(ctx context.Context, hub *connect.Cluster, name string, goal rollout.Goal) (*v1alpha1.FleetDiskImage, *rollout.InCluster, error) {
	img, err := getFleetImage(ctx, hub, name)
	if err != nil || goal.Kind != rollout.GoalIn {
		return img, nil, err
	}
	member, err := hub.GetMember(ctx, goal.Target)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, fmt.Errorf("%w: %s", errMemberGone, goal.Target)
	case err != nil:
		return nil, nil, err
	}
	placement, err := rollout.NewPlacement(&img.Spec.Placement)
	if err != nil {
		return nil, nil, err
	}
	reported, err := e.listReported(ctx, hub, goal.Target)
	if err != nil {
		return nil, nil, err
	}
	overrides, err := override.Parse(img)
	if err != nil {
		return nil, nil, err
	}
	why := rollout.WhyUnknown(member)
	return img, &rollout.InCluster{
		Effective: overrides.For(member.Name, member.Labels),
		Known:     why == "", WhyUnknown: why, Placed: placement.Selects(member),
		Image: rollout.FindReported(reported, img.Spec.TargetNamespace, img.ImageNameForVersion(img.Spec.Version)),
	}, nil
}

func (e *environment) newWhereCommand() *cobra.Command {
	selector := ""
	cmd := &cobra.Command{
		Use:   "where NAME",
		Short: "Which clusters have which version of a FleetDiskImage",
		Long: `where reads what each cluster has reported to the hub. Where spec.overrides give clusters others
than the template, and with -o wide, it shows the source and storage class of each, and which
override they are from; with --cluster, each field. Exit codes: 0; 5 where a cluster that is to have
it is unknown.`,
		Example: "  kubectl ot image where ubuntu -l region=nordics",
		Args:    cobra.ExactArgs(1),
	}
	useScopeFlags(cmd, "cluster")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "clusters by their labels, as in region=nordics")
	cmd.Flags().BoolVar(&e.allowUnknown, "allow-unknown", false, "exit code 0 where clusters are unknown")
	e.addWatchFlag(cmd)
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		if err := e.checkSelector(selector); err != nil {
			return err
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		return e.showOrWatch(ctx, e.watching, func(ctx context.Context) (watchState, error) { return e.pollWhere(ctx, hub, args[0], selector) })
	})
	return cmd
}

// pollWhere reads where a FleetDiskImage is.
func (e *environment) pollWhere(ctx context.Context, hub *connect.Cluster, name, selector string) (state watchState, err error) {
	img, err := getFleetImage(ctx, hub, name)
	if err != nil {
		return state, err
	}
	members, err := hub.ListMembers(ctx, selector)
	if err != nil {
		return state, err
	}
	placement, err := rollout.NewPlacement(&img.Spec.Placement)
	if err != nil {
		return state, err
	}
	where, err := rollout.NewWhere(img)
	if err != nil {
		return state, err
	}
	for i := range members {
		m := &members[i]
		if e.cluster != "" && m.Name != e.cluster {
			continue
		}
		where.Add(m, placement.Selects(m))
		if placement.Selects(m) && rollout.WhyUnknown(m) != "" && !e.allowUnknown {
			state.code = exit.Unknown
		}
	}
	if e.cluster != "" && !slices.ContainsFunc(members, func(m v1alpha1.MemberCluster) bool { return m.Name == e.cluster }) {
		return state, hub.NoMember(e.cluster)
	}
	if err := e.gatherWhere(ctx, hub, where, img); err != nil {
		return state, err
	}
	where.DropOthers()
	state.view = where
	return state, nil
}

func (e *environment) newRetryCommand() *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "retry NAME [--cluster CLUSTER [--live]]",
		Short: "Start an image over where it has failed, with all attempts",
		Long: `retry writes spec.retry of a FleetDiskImage: its image starts over in the clusters where it has
failed, or in --cluster alone. With --live, NAME is a VMDiskImage of the member, in the namespace
of -n, and its annotation pelotech.ot/retry is set.`,
		Example: "  kubectl ot image retry ubuntu --cluster bergen",
		Args:    cobra.ExactArgs(1),
	}
	useScopeFlags(cmd, objectFlags...)
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "also where GitOps owns spec.retry")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		if err := e.requireLive(); err != nil {
			return err
		}
		if e.live {
			return e.retryInMember(ctx, args[0])
		}
		if namespace := e.namespace(); namespace != "" {
			return fmt.Errorf("-n %s: a FleetDiskImage has no namespace; to retry a VMDiskImage of a member, add --live", namespace)
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		var clusters []string
		if e.cluster != "" {
			if _, err := hub.GetMember(ctx, e.cluster); err != nil {
				return err
			}
			clusters = []string{e.cluster}
		}
		err = e.changeRollout(ctx, hub, args[0], change{fields: []string{"spec.retry"}, force: force, check: rollout.CheckRetryStored, do: func(img *v1alpha1.FleetDiskImage) (*rollout.Action, error) {
			return rollout.Retry(img, clusters, e.now())
		}})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w; to retry a VMDiskImage of a member, add --live and its -n", err)
		}
		return err
	})
	return cmd
}

// retryInMember sets the annotation of one VMDiskImage.
func (e *environment) retryInMember(ctx context.Context, name string) error {
	member, err := e.ConnectMember(ctx, e.cluster)
	if err != nil {
		return err
	}
	img := &v1alpha1.VMDiskImage{}
	if err := member.Get(ctx, types.NamespacedName{Namespace: member.Namespace, Name: name}, img); err != nil {
		return err
	}
	action, err := rollout.RetryImage(img)
	if err != nil {
		return err
	}
	base := img.DeepCopy()
	metav1.SetMetaDataAnnotation(&img.ObjectMeta, v1alpha1.AnnotationRetry, e.now().UTC().Format(time.RFC3339Nano))
	if err := member.Client.Patch(ctx, img, client.MergeFrom(base), client.FieldOwner(ownership.FieldManager)); err != nil {
		return member.Explain(err)
	}
	return e.show(action, exit.Yes)
}
