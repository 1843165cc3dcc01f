// Package relay carries the mailbox between the hub and one member: ClusterPlan
// and TransferGrant down, ClusterReport up, nothing else.
//
// It holds nothing that must be kept. Several relays may carry for one member at
// the same time, and one that was paused at any point may go on later: a copy is
// written only with the resourceVersion under which it was read, after the source
// was found to be newer by its own version, or was read past any cache after the
// copy. So what is written never was replaced at the source before what it
// replaces was read there.
package relay

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

// End is one side of a member's mailbox.
type End struct {
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
	Hub, Member End
	// Seen spares reads of copies that have not changed since this process found
	// them equal to their source. It is kept from call to call and is of one
	// member. Without it every copy is read every time.
	Seen *Seen
}

// Down is what came of carrying plan and grant to the member.
type Down struct {
	// Carried are the kinds that were written.
	Carried []string
	// Ahead is the version of the member's plan, where that is newer than the
	// hub's for the same cluster: the hub was restored to an older state, or
	// somebody changed the copy. It was left alone.
	Ahead *v1alpha1.PlanVersion
	// AheadGrant is the sequence of the member's grant, where that is newer than
	// the hub's for the same cluster. It was left alone.
	AheadGrant *int64
	// Another is the UID of the cluster that the member's agent reports to be,
	// where plan or grant are for another. That was not carried.
	Another types.UID
	// Dropped are fields of plan and grant that the member's API server does not store,
	// because its kinds are older: the first of them, by kind and path. What was Carried
	// is not known to be stored before the next time.
	Dropped []string
}

// Up is what came of carrying the report to the hub.
type Up struct {
	// Carried is how many objects on the hub were written or deleted.
	Carried int
	// Another is the clusterUID of the report, where it is not of the cluster that
	// the hub knows. Nothing was carried.
	Another types.UID
	// Older: the member shows a report that is older than the hub's copy, because
	// the member was restored to an older state, or somebody changed the copy.
	// Nothing was carried. It ends with the agent's next write, unless that
	// cluster's clock is behind what it was; then the hub's copy of the root is to
	// be deleted by hand.
	Older bool
	// Missing: there is no report in the member. The hub's copy was left alone.
	Missing bool
	// Root is the sequence of the hub's copy of the root after that; 0 where
	// Another or Missing tell that there was nothing to compare it with.
	Root int64
}

// Down carries plan and grant to the member. What the hub does not have, or is
// deleting, is left as it is in the member.
//
// An error that apierrors.IsConflict tells means that somebody else wrote the
// copy at the same time: call Down again. A missing namespace, or kinds that are
// not served, are errors that say so; apierrors.IsNotFound or meta.IsNoMatchError
// tells them.
func (r Relay) Down(ctx context.Context) (Down, error) {
	reported, boot, err := r.reported(ctx, r.Member.Cached)
	if err != nil {
		return Down{}, err
	}
	r.Seen.readBy(boot)
	plan, planErr := carryDown(ctx, r, plans, reported)
	grant, grantErr := carryDown(ctx, r, grants, reported)
	var down Down
	if plan.verdict == write {
		down.Carried = append(down.Carried, plans.name)
	}
	if grant.verdict == write {
		down.Carried = append(down.Carried, grants.name)
	}
	if plan.verdict == ahead {
		version := plan.target.Spec.PlanVersion
		down.Ahead = &version
	}
	if grant.verdict == ahead {
		sequence := grant.target.Spec.Sequence
		down.AheadGrant = &sequence
	}
	if plan.verdict == another {
		down.Another = plan.reported
	}
	if grant.verdict == another {
		down.Another = grant.reported
	}
	down.Dropped = slices.Concat(plan.dropped, grant.dropped)
	down.Dropped = down.Dropped[:min(len(down.Dropped), v1alpha1.MaxDroppedFields)]
	return down, errors.Join(planErr, grantErr)
}

// reported is the cluster that the member's agent says it is in, and the boot of that
// agent; empty where it has not said so yet.
func (r Relay) reported(ctx context.Context, from client.Reader) (cluster types.UID, boot string, err error) {
	root, found, err := get(ctx, from, reports, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil || !found {
		return "", "", err
	}
	if root.Root != nil {
		boot = root.Root.BootID
	}
	return root.ClusterUID, boot, nil
}

// outcome of carrying one object.
type outcome[T client.Object] struct {
	verdict  verdict
	target   T
	reported types.UID
	dropped  []string
}

func carryDown[T client.Object](ctx context.Context, r Relay, k kind[T], reported types.UID) (outcome[T], error) {
	nothing := outcome[T]{verdict: leave}
	source, found, err := get(ctx, r.Hub.Cached, k, r.Hub, onHub, v1alpha1.MailboxName)
	if err != nil || !found || !source.GetDeletionTimestamp().IsZero() {
		return nothing, err
	}
	target, exists, err := get(ctx, r.Member.Live, k, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil {
		return nothing, err
	}
	look := k.compare(source, target, exists, r.Seen)
	v := decideDown(look, reported, k.cluster(source))
	if v == ask {
		if source, found, err = get(ctx, r.Hub.Live, k, r.Hub, onHub, v1alpha1.MailboxName); err != nil || !found || !source.GetDeletionTimestamp().IsZero() {
			return nothing, err
		}
		if reported, _, err = r.reported(ctx, r.Member.Live); err != nil {
			return nothing, err
		}
		look = k.compare(source, target, exists, r.Seen)
		look.live = true
		v = decideDown(look, reported, k.cluster(source))
	}
	done := outcome[T]{verdict: v, target: target, reported: reported}
	switch v {
	case leave:
		r.Seen.equal(k.name, source, target)
		done.dropped, err = r.Seen.loss(k.name, source, target, func() ([]string, error) {
			if k.same(source, target) {
				return nil, nil
			}
			return schema.Dropped(k.name, source, target)
		})
		if err != nil {
			return nothing, err
		}
	case write:
		if done.target, err = put(ctx, k, r.Member, inMember, source, target, exists); err != nil {
			return nothing, err
		}
		r.Seen.equal(k.name, source, done.target)
	}
	return done, nil
}

// Where an object is, for people.
const (
	onHub    = "on the hub"
	inMember = "in the member"
)

func get[T client.Object](ctx context.Context, from client.Reader, k kind[T], end End, where, name string) (object T, found bool, err error) {
	object = k.empty()
	err = from.Get(ctx, client.ObjectKey{Namespace: end.Namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return object, false, nil
	case err != nil:
		return object, false, fmt.Errorf("reading %s %s/%s %s%s: %w", k.name, end.Namespace, name, where, hint(err, where), err)
	}
	return object, true, nil
}

// put makes the copy what the source is, unless somebody else wrote it since it
// was read as target.
func put[T client.Object](ctx context.Context, k kind[T], end End, where string, source, target T, exists bool) (T, error) {
	name := source.GetName()
	if !exists {
		created := k.empty()
		created.SetNamespace(end.Namespace)
		created.SetName(name)
		k.fill(created, source)
		if err := end.Live.Create(ctx, created); err != nil {
			if apierrors.IsAlreadyExists(err) {
				err = conflict(k.resource, name, err)
			}
			return created, fmt.Errorf("creating %s %s/%s %s%s: %w", k.name, end.Namespace, name, where, hint(err, where), err)
		}
		return created, nil
	}
	updated := target.DeepCopyObject().(T)
	k.fill(updated, source)
	if err := end.Live.Update(ctx, updated); err != nil {
		if apierrors.IsNotFound(err) {
			err = conflict(k.resource, name, err)
		}
		return updated, fmt.Errorf("updating %s %s/%s %s: %w", k.name, end.Namespace, name, where, err)
	}
	return updated, nil
}

// conflict says of an answer that it means no more than that somebody was faster.
func conflict(resource, name string, err error) error {
	return apierrors.NewConflict(apischema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: resource}, name, err)
}

func hint(err error, where string) string {
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
