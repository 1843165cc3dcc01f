// Package mailbox syncs the mailbox between the hub and one member: ClusterPlan and
// TransferGrant down, ClusterReport up, nothing else.
//
// A Relay keeps no state that must survive. Several relays may sync for one member at
// the same time, and one that was paused may continue at any later time.
//
// Invariant: a copy is written only with the resourceVersion it was read with, and only
// after the source was found newer by its own version, or was read live after the copy.
// So an older state of the source never replaces a newer one.
package mailbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/schema"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Side is one side of a member's mailbox.
type Side struct {
	// Cached reads sources. It may be stale.
	Cached client.Reader
	// Live reads and writes copies, and re-reads a source if the cache may be stale. It
	// must not answer from a cache.
	Live client.Client
	// Namespace of the mailbox: the member's on the hub, the agent's in the member.
	Namespace string
}

// Relay syncs the mailbox of one member.
type Relay struct {
	Hub, Member Side
	// Copies avoids reading copies that have not changed since this process found them
	// equal to their source. Keep it across calls, one per member. Without it, every
	// copy is read every time.
	Copies *EqualCopies
}

// DownResult is the outcome of SyncDown.
type DownResult struct {
	// Written lists the kinds that were written.
	Written []string
	// NewerPlan is the version of the member's plan if it is newer than the hub's for
	// the same cluster: the hub was restored from a backup, or somebody changed the
	// copy. The copy is left alone.
	NewerPlan *v1alpha1.PlanVersion
	// NewerGrant is the sequence of the member's grant if it is newer than the hub's
	// for the same cluster. The copy is left alone.
	NewerGrant *int64
	// OtherCluster is the UID that the member's agent reports if plan or grant are for
	// another cluster. They are not copied.
	OtherCluster types.UID
	// DroppedFields lists the first fields of plan and grant, as Kind.path, that the
	// member's API server dropped because its CustomResourceDefinitions are older. For
	// kinds in Written it is known only after the next sync.
	DroppedFields []string
}

// UpResult is the outcome of SyncUp.
type UpResult struct {
	// Written is how many objects on the hub were written or deleted.
	Written int
	// OtherCluster is the clusterUID of the report if it is not the cluster that the
	// hub knows. Nothing is copied.
	OtherCluster types.UID
	// ReportOlder: the member's report is older than the hub's copy, because the member
	// was restored from a backup, or somebody changed the copy. Nothing is copied. It
	// ends with the agent's next write, unless the cluster's clock went back; then
	// somebody must delete the hub's copy of the root.
	ReportOlder bool
	// ReportMissing: the member has no report. The hub's copy is left alone.
	ReportMissing bool
	// RootSequence is the sequence of the hub's copy of the root afterwards; 0 with
	// OtherCluster or ReportMissing.
	RootSequence int64
}

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
	action          action
	target          T
	reportedCluster types.UID
	droppedFields   []string
}

func syncObjectDown[T client.Object](ctx context.Context, r Relay, k kindInfo[T], reported types.UID) (syncOutcome[T], error) {
	nothing := syncOutcome[T]{action: keepCopy}
	source, found, err := readObject(ctx, r.Hub.Cached, k, r.Hub, onHub, v1alpha1.MailboxName)
	if err != nil || !found || !source.GetDeletionTimestamp().IsZero() {
		return nothing, err
	}
	target, exists, err := readObject(ctx, r.Member.Live, k, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil {
		return nothing, err
	}
	look := k.compareObjects(source, target, exists, r.Copies)
	v := decideDown(look, reported, k.clusterOf(source))
	if v == rereadSource {
		if source, found, err = readObject(ctx, r.Hub.Live, k, r.Hub, onHub, v1alpha1.MailboxName); err != nil || !found || !source.GetDeletionTimestamp().IsZero() {
			return nothing, err
		}
		if reported, _, err = r.readReportedCluster(ctx, r.Member.Live); err != nil {
			return nothing, err
		}
		look = k.compareObjects(source, target, exists, r.Copies)
		look.sourceLive = true
		v = decideDown(look, reported, k.clusterOf(source))
	}
	done := syncOutcome[T]{action: v, target: target, reportedCluster: reported}
	switch v {
	case keepCopy:
		r.Copies.recordEqual(k.name, source, target)
		done.droppedFields, err = r.Copies.droppedFields(k.name, source, target, func() ([]string, error) {
			if k.equalContent(source, target) {
				return nil, nil
			}
			return schema.DroppedFields(k.name, source, target)
		})
		if err != nil {
			return nothing, err
		}
	case overwriteCopy:
		if done.target, err = writeCopy(ctx, k, r.Member, inMember, source, target, exists); err != nil {
			return nothing, err
		}
		r.Copies.recordEqual(k.name, source, done.target)
	}
	return done, nil
}

// Locations of an object for error messages.
const (
	onHub    = "on the hub"
	inMember = "in the member"
)

func readObject[T client.Object](ctx context.Context, from client.Reader, k kindInfo[T], end Side, where, name string) (object T, found bool, err error) {
	object = k.newObject()
	err = from.Get(ctx, client.ObjectKey{Namespace: end.Namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return object, false, nil
	case err != nil:
		return object, false, fmt.Errorf("reading %s %s/%s %s%s: %w", k.name, end.Namespace, name, where, missingKindHint(err, where), err)
	}
	return object, true, nil
}

// writeCopy gives the copy the content of the source, unless somebody else wrote the
// copy since it was read as target.
func writeCopy[T client.Object](ctx context.Context, k kindInfo[T], end Side, where string, source, target T, exists bool) (T, error) {
	name := source.GetName()
	if !exists {
		created := k.newObject()
		created.SetNamespace(end.Namespace)
		created.SetName(name)
		k.copyContent(created, source)
		if err := end.Live.Create(ctx, created); err != nil {
			if apierrors.IsAlreadyExists(err) {
				err = asConflict(k.resource, name, err)
			}
			return created, fmt.Errorf("creating %s %s/%s %s%s: %w", k.name, end.Namespace, name, where, missingKindHint(err, where), err)
		}
		return created, nil
	}
	updated := target.DeepCopyObject().(T)
	k.copyContent(updated, source)
	if err := end.Live.Update(ctx, updated); err != nil {
		if apierrors.IsNotFound(err) {
			err = asConflict(k.resource, name, err)
		}
		return updated, fmt.Errorf("updating %s %s/%s %s: %w", k.name, end.Namespace, name, where, err)
	}
	return updated, nil
}

// asConflict turns an error into a conflict: somebody else created or deleted the copy
// at the same time.
func asConflict(resource, name string, err error) error {
	return apierrors.NewConflict(apischema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: resource}, name, err)
}

func missingKindHint(err error, where string) string {
	chart := "ot-agent"
	if where == onHub {
		chart = "ot-hub"
	}
	switch {
	case meta.IsNoMatchError(err):
		return " (the kind is not served there: install the CustomResourceDefinitions of chart " + chart + ")"
	case apierrors.IsNotFound(err) && where == inMember:
		return " (namespace or kind are missing there: install chart ot-agent, or correct agentNamespace of the MemberCluster)"
	case apierrors.IsNotFound(err):
		return " (namespace or kind are missing there)"
	}
	return ""
}
