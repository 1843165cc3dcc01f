// Package mailbox carries the mailbox between the hub and one member: ClusterPlan
// and TransferGrant down, ClusterReport up, nothing else.
//
// It holds nothing that must be kept. Several relays may carry for one member at
// the same time, and one that was paused at any point may go on later: a copy is
// written only with the resourceVersion under which it was read, after the source
// was found to be newer by its own version, or was read past any cache after the
// copy. So what is written never was replaced at the source before what it
// replaces was read there.
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
	// Cached is where sources are read from. It may be old.
	Cached client.Reader
	// Live is where copies are read and written, and where a source is read again
	// when a cache is not good enough. It must not answer from a cache.
	Live client.Client
	// Namespace of the mailbox: on the hub the member's, in the member the agent's.
	Namespace string
}

// Relay carries for one member.
type Relay struct {
	Hub, Member Side
	// Copies spares reads of copies that have not changed since this process found
	// them equal to their source. It is kept from call to call and is of one
	// member. Without it every copy is read every time.
	Copies *EqualCopies
}

// DownResult is what came of carrying plan and grant to the member.
type DownResult struct {
	// Written are the kinds that were written.
	Written []string
	// NewerPlan is the version of the member's plan, where that is newer than the
	// hub's for the same cluster: the hub was restored to an older state, or
	// somebody changed the copy. It was left alone.
	NewerPlan *v1alpha1.PlanVersion
	// NewerGrant is the sequence of the member's grant, where that is newer than
	// the hub's for the same cluster. It was left alone.
	NewerGrant *int64
	// OtherCluster is the UID of the cluster that the member's agent reports to be,
	// where plan or grant are for another. That was not carried.
	OtherCluster types.UID
	// DroppedFields are fields of plan and grant that the member's API server does not store,
	// because its kinds are older: the first of them, by kind and path. What was Carried
	// is not known to be stored before the next time.
	DroppedFields []string
}

// UpResult is what came of carrying the report to the hub.
type UpResult struct {
	// Written is how many objects on the hub were written or deleted.
	Written int
	// OtherCluster is the clusterUID of the report, where it is not of the cluster that
	// the hub knows. Nothing was carried.
	OtherCluster types.UID
	// Older: the member shows a report that is older than the hub's copy, because
	// the member was restored to an older state, or somebody changed the copy.
	// Nothing was carried. It ends with the agent's next write, unless that
	// cluster's clock is behind what it was; then the hub's copy of the root is to
	// be deleted by hand.
	ReportOlder bool
	// Missing: there is no report in the member. The hub's copy was left alone.
	ReportMissing bool
	// RootSequence is the sequence of the hub's copy of the root after that; 0 where
	// Another or Missing tell that there was nothing to compare it with.
	RootSequence int64
}

// SyncDown carries plan and grant to the member. What the hub does not have, or is
// deleting, is left as it is in the member.
//
// An error that apierrors.IsConflict tells means that somebody else wrote the
// copy at the same time: call Down again. A missing namespace, or kinds that are
// not served, are errors that say so; apierrors.IsNotFound or meta.IsNoMatchError
// tells them.
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

// readReportedCluster is the cluster that the member's agent says it is in, and the boot of that
// agent; empty where it has not said so yet.
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

// syncOutcome of carrying one object.
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

// Where an object is, for people.
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

// writeCopy makes the copy what the source is, unless somebody else wrote it since it
// was read as target.
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

// asConflict says of an answer that it means no more than that somebody was faster.
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
