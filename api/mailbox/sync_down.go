package mailbox

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SyncDown copies plan and grant to the member. Objects that the hub does not have, or
// is deleting, are left alone in the member.
//
// If apierrors.IsConflict(err), somebody else wrote the copy at the same time: call
// SyncDown again. If apierrors.IsNotFound(err) or meta.IsNoMatchError(err), the
// namespace does not exist or the kinds are not served, and the error says so.
func (r Relay) SyncDown(ctx context.Context) (DownResult, error) {
	reported, boot, err := r.readReportedCluster(ctx, r.Member.Cached)
	if err != nil {
		return DownResult{}, err
	}
	r.Copies.resetForBoot(boot)
	plan, planErr := syncObjectDown(ctx, r, planKind, reported)
	grant, grantErr := syncObjectDown(ctx, r, grantKind, reported)
	var down DownResult
	if plan.action == overwriteCopy {
		down.Written = append(down.Written, planKind.name)
	}
	if grant.action == overwriteCopy {
		down.Written = append(down.Written, grantKind.name)
	}
	if plan.action == copyIsNewer {
		version := plan.target.Spec.PlanVersion
		down.NewerPlan = &version
	}
	if grant.action == copyIsNewer {
		sequence := grant.target.Spec.Sequence
		down.NewerGrant = &sequence
	}
	if plan.action == otherCluster {
		down.OtherCluster = plan.reportedCluster
	}
	if grant.action == otherCluster {
		down.OtherCluster = grant.reportedCluster
	}
	down.DroppedFields = slices.Concat(plan.droppedFields, grant.droppedFields)
	down.DroppedFields = down.DroppedFields[:min(len(down.DroppedFields), v1alpha1.MaxDroppedFields)]
	return down, errors.Join(planErr, grantErr)
}

// readReportedCluster returns the cluster UID and boot ID that the member's agent
// reports; empty before its first report.
func (r Relay) readReportedCluster(ctx context.Context, from client.Reader) (cluster types.UID, boot string, err error) {
	root, found, err := readObject(ctx, from, reportKind, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil || !found {
		return "", "", err
	}
	if root.Root != nil {
		boot = root.Root.BootID
	}
	return root.ClusterUID, boot, nil
}

// syncOutcome is the outcome of syncing one object.
type syncOutcome[T client.Object] struct {
	action          syncAction
	target          T
	reportedCluster types.UID
	droppedFields   []string
}

func syncObjectDown[T client.Object](ctx context.Context, r Relay, k kindInfo[T], reported types.UID) (syncOutcome[T], error) {
	unchanged := syncOutcome[T]{action: keepCopy}
	source, found, err := readObject(ctx, r.Hub.Cached, k, r.Hub, onHub, v1alpha1.MailboxName)
	if err != nil || !found || !source.GetDeletionTimestamp().IsZero() {
		return unchanged, err
	}
	target, exists, err := readDownCopy(ctx, r, k, source)
	if err != nil {
		return unchanged, err
	}
	diff := k.compareObjects(source, target, exists, r.Copies)
	next := decideDown(diff, reported, k.clusterOf(source))
	if next == rereadSource {
		if source, found, err = readObject(ctx, r.Hub.Live, k, r.Hub, onHub, v1alpha1.MailboxName); err != nil || !found || !source.GetDeletionTimestamp().IsZero() {
			return unchanged, err
		}
		if reported, _, err = r.readReportedCluster(ctx, r.Member.Live); err != nil {
			return unchanged, err
		}
		diff = k.compareObjects(source, target, exists, r.Copies)
		diff.sourceLive = true
		next = decideDown(diff, reported, k.clusterOf(source))
	}
	outcome := syncOutcome[T]{action: next, target: target, reportedCluster: reported}
	switch next {
	case keepCopy:
		r.Copies.recordEqual(k.name, source, target)
		outcome.droppedFields, err = r.Copies.droppedFields(k.name, source, target, func() ([]string, error) {
			return findDroppedFields(ctx, r, k, source, target)
		})
		if err != nil {
			return unchanged, err
		}
	case overwriteCopy:
		if outcome.target, err = writeCopy(ctx, k, r.Member, inMember, source, target, exists); err != nil {
			return unchanged, err
		}
		r.Copies.recordEqual(k.name, source, outcome.target)
	}
	return outcome, nil
}

// findDroppedFields lists the fields that a copy lacks. It asks the API server: for some time
// after a CustomResourceDefinition was changed, watches that began before deliver what is stored
// without its new fields (seen with Kubernetes 1.36).
func findDroppedFields[T client.Object](ctx context.Context, r Relay, k kindInfo[T], source, target T) ([]string, error) {
	if k.equalContent(source, target) {
		return nil, nil
	}
	live, exists, err := readObject(ctx, r.Member.Live, k, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil || !exists || k.equalContent(source, live) {
		return nil, err
	}
	return DroppedFields(k.name, source, live)
}

// readDownCopy reads the copy of a plan or grant in the member: from the cache where that
// shows it as it was when it was equal to this source, and else live.
func readDownCopy[T client.Object](ctx context.Context, r Relay, k kindInfo[T], source T) (target T, exists bool, err error) {
	if !r.readsLiveDown() {
		target, exists, err = readObject(ctx, r.Member.Cached, k, r.Member, inMember, v1alpha1.MailboxName)
		if err != nil || exists && r.Copies.isEqual(k.name, source, target) {
			return target, exists, err
		}
	}
	return readObject(ctx, r.Member.Live, k, r.Member, inMember, v1alpha1.MailboxName)
}
