package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

func (e *environment) newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rollout", Short: "See, approve, pause, resume and abort the rollout of a FleetDiskImage", Args: cobra.NoArgs}
	cmd.AddCommand(e.newRolloutStatusCommand(), e.newRolloutWatchCommand(), e.newApproveCommand(), e.newPauseCommand(true), e.newPauseCommand(false),
		e.newAbortCommand(), e.newHistoryCommand())
	return cmd
}

// pollRollout reads a rollout. It ends when it has finished, failed or waits for a person.
func (e *environment) pollRollout(hub *connect.Cluster, name string) pollFunc {
	want := rollout.Want{}
	return func(ctx context.Context) (watchState, error) {
		img, err := getFleetImage(ctx, hub, name)
		if err != nil {
			return watchState{}, err
		}
		if want == (rollout.Want{}) {
			want = rollout.WantOf(img)
		}
		code, ended := rollout.ExitCodeOf(img, want, rollout.WaitOptions{UntilHold: e.untilHold, AllowUnknown: e.allowUnknown})
		return watchState{view: rollout.NewProgress(img, e.now()), code: code, end: ended}, nil
	}
}

func (e *environment) newRolloutStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status NAME",
		Short:   "How far a rollout is",
		Long:    `status shows a rollout. Exit codes: 0 it has succeeded; 1 it failed or is stalled; 3 it goes on; 4 it waits for a person; 5 for clusters that are offline.`,
		Example: "  kubectl ot rollout status ubuntu",
		Args:    cobra.ExactArgs(1),
	}
	e.addWatchFlag(cmd)
	e.addWaitFlags(cmd)
	addNeed(cmd, "watch", "timeout")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error { return e.showRollout(ctx, args[0], e.watching) })
	return cmd
}

func (e *environment) newRolloutWatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "watch NAME",
		Short:   "Watch a rollout until it has ended or waits for a person",
		Long:    `watch is status -w: it ends with the rollout, or where that waits for a person. Exit codes as status, and 3 after --timeout.`,
		Example: "  kubectl ot rollout watch ubuntu --timeout 2h",
		Args:    cobra.ExactArgs(1),
	}
	e.addWaitFlags(cmd)
	cmd.RunE = e.run(func(ctx context.Context, args []string) error { return e.showRollout(ctx, args[0], true) })
	return cmd
}

func (e *environment) showRollout(ctx context.Context, name string, watching bool) error {
	hub, err := e.ConnectHub()
	if err != nil {
		return err
	}
	return e.showOrWatchWithin(ctx, watching, e.timeout, e.pollRollout(hub, name))
}

func (e *environment) newHistoryCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "history NAME", Short: "The versions that a FleetDiskImage remembers, and whether one can go back to them", Example: "  kubectl ot rollout history ubuntu", Args: cobra.ExactArgs(1)}
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		img, err := getFleetImage(ctx, hub, args[0])
		if err != nil {
			return err
		}
		return e.show(rollout.NewHistory(img, e.now()), exit.Yes)
	})
	return cmd
}

// approverRole is the ClusterRole of chart ot-hub that may approve waves.
const approverRole = "ot-fleet-approver"

// change is a person's change of a FleetDiskImage. fields are those that it writes: where GitOps
// owns one, it is refused. ask is a question; empty for none.
type change struct {
	fields []string
	do     func(*v1alpha1.FleetDiskImage) (*rollout.Action, error)
	force  bool
	ask    func(*rollout.Action) string
	yes    bool
	// check says what the API server did not store; nil for none.
	check func(stored *v1alpha1.FleetDiskImage) error
}

// changedMeanwhile refuses to do to another version what a person was asked about.
func changedMeanwhile(img *v1alpha1.FleetDiskImage) error {
	return exit.Because(exit.No, fmt.Errorf("FleetDiskImage %s has changed since it was shown, and is at version %s now: review it again", img.Name, img.Spec.Version))
}

// askToGoOn asks a question about the cluster of a context; any answer but yes ends with exit code No.
func (e *environment) askToGoOn(context, question string) error {
	switch yes, err := e.askWhether(context, question); {
	case err != nil:
		return err
	case !yes:
		return exit.With(exit.No)
	default:
		return nil
	}
}

// renamedFields returns the fields of the images' names that differ.
func renamedFields(a, b *v1alpha1.FleetDiskImage) (fields []string) {
	if a.Spec.TargetNamespace != b.Spec.TargetNamespace {
		fields = append(fields, "spec.targetNamespace")
	}
	if a.Spec.ImageName != b.Spec.ImageName {
		fields = append(fields, "spec.imageName")
	}
	return fields
}

// checkOwner refuses to change fields that GitOps owns. With force it returns what to do about them
// instead.
func checkOwner(stored *v1alpha1.FleetDiskImage, fields []string, force bool) (notes []string, err error) {
	owner := ownership.FindOwner(stored, fields...)
	switch {
	case owner == nil:
		return nil, nil
	case !force:
		return nil, owner.Refusal("FleetDiskImage " + stored.Name)
	default:
		return []string{fmt.Sprintf("%s still has the former value: change it in Git, or it comes back", owner)}, nil
	}
}

// changeRollout changes what is stored, not what was read once: another person's change that
// comes in between is seen, and decided about again.
func (e *environment) changeRollout(ctx context.Context, hub *connect.Cluster, name string, c change) error {
	asked := c.ask == nil || c.yes
	var shown *v1alpha1.FleetDiskImage
	for tries := 0; ; tries++ {
		img, err := getFleetImage(ctx, hub, name)
		if err != nil {
			return err
		}
		if shown == nil {
			shown = img.DeepCopy()
		}
		if c.ask != nil && !rollout.IsSameRollout(shown, img) {
			return changedMeanwhile(img)
		}
		base := img.DeepCopy()
		action, err := c.do(img)
		if err != nil {
			return err
		}
		notes, err := checkOwner(base, append(renamedFields(base, img), c.fields...), c.force)
		if err != nil {
			return err
		}
		action.Notes = append(action.Notes, notes...)
		if !asked {
			if err := e.askToGoOn(hub.Context, c.ask(action)); err != nil {
				return err
			}
			asked = true
			continue // what was read before the answer may be old
		}
		err = hub.Client.Patch(ctx, img, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), client.FieldOwner(ownership.FieldManager))
		if apierrors.IsConflict(err) && tries < maxTries {
			continue
		}
		if err != nil {
			return hub.Explain(err)
		}
		if c.check != nil {
			if err := c.check(img); err != nil {
				return err
			}
		}
		return e.show(action, exit.Yes)
	}
}

func (e *environment) newPauseCommand(pause bool) *cobra.Command {
	reason, force := "", false
	cmd := &cobra.Command{Use: "resume NAME", Short: "Let a paused rollout go on", Example: "  kubectl ot rollout resume ubuntu", Args: cobra.ExactArgs(1)}
	if pause {
		cmd.Use, cmd.Short = "pause NAME [-m REASON]", "Start no more clusters; clusters in progress will finish"
		cmd.Example = "  kubectl ot rollout pause ubuntu -m 'the guests lose their clock'"
		cmd.Flags().StringVarP(&reason, "message", "m", "", "why, for others")
	}
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "also where GitOps owns spec.rollout.paused")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		who, err := hub.CallerName(ctx)
		if err != nil {
			return err
		}
		return e.changeRollout(ctx, hub, args[0], change{fields: []string{"spec.rollout.paused"}, force: force, do: func(img *v1alpha1.FleetDiskImage) (*rollout.Action, error) {
			return rollout.SetPaused(img, pause, who, reason), nil
		}})
	})
	return cmd
}

func (e *environment) newAbortCommand() *cobra.Command {
	backTo, reason, force, yes := "", "", false, false
	cmd := &cobra.Command{
		Use:   "abort NAME [--back-to VERSION] [-m REASON]",
		Short: "Stop the rollout of a version, and go back to one before",
		Long: `abort pauses a rollout: clusters in progress will finish, no other begins. With --back-to,
a former version is wanted again by the template and overrides that the status has recorded of it:
no other cluster gets the newer one, nothing is deleted, and where the former one still is, nothing is
downloaded.`,
		Example: "  kubectl ot rollout abort ubuntu --back-to 2.0.0 -m 'it does not boot'",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&backTo, "back-to", "", "a version that kubectl ot rollout history lists")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why, for others")
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "also where GitOps owns the fields")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		who, err := hub.CallerName(ctx)
		if err != nil {
			return err
		}
		caller := rollout.Caller{Name: who, MayApprove: hub.CheckMay(ctx, "approve", "fleetdiskimages", args[0], approverRole) == nil}
		c := change{fields: []string{"spec.rollout.paused"}, force: force, yes: yes, do: func(img *v1alpha1.FleetDiskImage) (*rollout.Action, error) {
			return rollout.Abort(img, backTo, caller, reason, e.now())
		}}
		if backTo != "" {
			c.fields = []string{"spec.version", "spec.template", "spec.overrides", "spec.rollout.paused", "spec.approvals"}
			c.ask = func(a *rollout.Action) string {
				return fmt.Sprintf("%s. Go back from %s to %s?", strings.Join(a.Notes, ". "), a.FromVersion, a.BackTo)
			}
		}
		return e.changeRollout(ctx, hub, args[0], c)
	})
	return cmd
}

func (e *environment) newApproveCommand() *cobra.Command {
	var waves []string
	version, all, yes, force := "", false, false, false
	cmd := &cobra.Command{
		Use:   "approve NAME [--wave WAVE | --all-waves] [--version VERSION]",
		Short: "Approve a version for a wave",
		Long: `approve shows what the wave reaches, asks, and adds an approval in your name, as the API server
knows it. Without --wave it is the wave that waits. An approval that is there already is shown, with
who gave it; exit code 0. One of a version that has changed meanwhile is refused.

Where spec.overrides or labels give clusters other sources than the template's, the approval names
them: another source waits for another approval.`,
		Example: "  kubectl ot rollout approve ubuntu --wave production --version 2.1.0",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringSliceVar(&waves, "wave", nil, "the wave; may be repeated. Default: the one that waits")
	cmd.Flags().BoolVar(&all, "all-waves", false, "every wave that needs approval")
	cmd.Flags().StringVar(&version, "version", "", "refuse where the version is another one")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "also where GitOps owns spec.approvals")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		if all && len(waves) > 0 {
			return errors.New("--wave and --all-waves exclude each other")
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		if err := hub.CheckMay(ctx, "approve", "fleetdiskimages", args[0], approverRole); err != nil {
			return err
		}
		who, err := hub.CallerName(ctx)
		if err != nil {
			return err
		}
		decide := func(img *v1alpha1.FleetDiskImage, shown *rollout.Approval) (*rollout.Approval, error) {
			var members v1alpha1.MemberClusterList
			if rollout.NeedsMembers(img) {
				if err := hub.List(ctx, &members); err != nil {
					return nil, err
				}
			}
			return decideApproval(img, members.Items, shown, waves, all, version, who, e.now())
		}
		return e.approve(ctx, hub, args[0], decide, force, yes)
	})
	return cmd
}

// showBeforeAsking shows what a question is about: on standard error where standard output is for
// data.
func (e *environment) showBeforeAsking(view render.View, yes bool) error {
	if e.format.Screen() {
		return e.format.Write(e.Out, view, e.options())
	}
	if yes {
		return nil
	}
	page := &render.Page{}
	view.Draw(page)
	_, err := fmt.Fprint(e.ErrOut, render.Print(page, e.options()))
	return err
}

// maxTries bounds how often a change is tried again that others were faster with.
const maxTries = 20

// observeInterval is how often the hub's answer to the newest spec is looked for.
const observeInterval = 500 * time.Millisecond

// decideApproval decides about the waves that flags name, and again about those that were shown.
func decideApproval(img *v1alpha1.FleetDiskImage, members []v1alpha1.MemberCluster, shown *rollout.Approval, waves []string, all bool, version, by string, now time.Time) (*rollout.Approval, error) {
	if shown != nil {
		waves, all = shown.WaveNames(), false
	}
	return rollout.NewApproval(img, members, waves, all, version, by, now)
}

// approve adds approvals to what is stored. Invariant: what is approved is what was shown, and
// no approval of somebody else is lost: the patch adds entries, to a generation that was read.
func (e *environment) approve(ctx context.Context, hub *connect.Cluster, name string, decide func(*v1alpha1.FleetDiskImage, *rollout.Approval) (*rollout.Approval, error), force, yes bool) error {
	var shown *v1alpha1.FleetDiskImage
	var first *rollout.Approval
	for tries := 0; ; tries++ {
		img, err := getFleetImage(ctx, hub, name)
		if err != nil {
			return err
		}
		if shown != nil && !rollout.IsSameRollout(shown, img) {
			return changedMeanwhile(img)
		}
		if owner := ownership.FindOwner(img, "spec.approvals"); owner != nil && !force {
			return owner.Refusal("FleetDiskImage " + name)
		}
		approval, err := decide(img, first)
		if errors.Is(err, rollout.ErrNotObserved) && tries < maxTries {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(observeInterval):
			}
			continue
		}
		if err != nil {
			return err
		}
		if len(approval.Waves) == 0 {
			return e.show(approval, exit.Yes)
		}
		if first != nil && !approval.HasSameSources(first) {
			return changedMeanwhile(img)
		}
		if shown == nil {
			shown, first = img, approval
			if err := e.showBeforeAsking(approval, yes); err != nil {
				return err
			}
			if !yes {
				if err := e.askToGoOn(hub.Context, "Approve?"); err != nil {
					return err
				}
				continue
			}
		}
		patch, err := json.Marshal(approval.Patch(img))
		if err != nil {
			return fmt.Errorf("encoding the approval: %w", err)
		}
		err = hub.Client.Patch(ctx, img, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(ownership.FieldManager))
		switch {
		case err == nil:
			approval.Given, approval.Command = true, shellword.FormatCommand("kubectl ot rollout watch %s", name)
			return e.show(approval, exit.Yes)
		case apierrors.IsConflict(err), isOutdatedPatch(err):
			if tries == maxTries {
				return fmt.Errorf("others keep changing FleetDiskImage %s: nothing was approved; try again: %w", name, err)
			}
		default:
			return hub.Explain(err)
		}
	}
}

// isOutdatedPatch reports whether a test of a JSON patch did not hold: somebody else has
// changed the object. The API server then says this sentence, and no more.
func isOutdatedPatch(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "the server rejected our request due to an error in our request")
}
