package dial

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// conflictRetryDelay is when carrying goes on that somebody else was faster than.
	conflictRetryDelay = 50 * time.Millisecond
	// The wait before it is tried again doubles between these.
	minSyncBackoff = 100 * time.Millisecond
	maxSyncBackoff = 10 * time.Second
	// maxCleanUpAttempts are so many before the hub is told that plan and grant may be
	// left.
	maxCleanUpAttempts = 3
	// recreationWait is how long what was deleted at a farewell must stay away.
	recreationWait = 300 * time.Millisecond
	// maxErrorBytes is how much of an error goes into a MemberLink.
	maxErrorBytes = 1024
)

// connectionSync carries over one connection.
type connectionSync struct {
	syncer    *Syncer
	hub       *hubclient.Connection
	namespace string

	// seen and result are of what was carried since challenge was read.
	seen            *mailbox.EqualCopies
	challenge       string
	result          mailbox.Findings
	cleanUpAttempts int
}

// syncOnce carries what there is to be carried, if it is for this agent to do. again
// is when to go on, 0 for when something happens.
func (t *connectionSync) syncOnce(ctx context.Context) (again time.Duration, err error) {
	if err := t.syncer.Leader.Confirm(ctx); err != nil {
		return 0, err
	}
	link := &v1alpha1.MemberLink{}
	err = t.hub.GetCache().Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: v1alpha1.MailboxName}, link)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil // its coming brings us back
	case err != nil:
		return 0, fmt.Errorf("reading MemberLink %s/%s on the hub: %w", t.namespace, v1alpha1.MailboxName, err)
	case link.Spec.Mode != v1alpha1.LinkPull || !link.DeletionTimestamp.IsZero():
		t.seen = nil
		return 0, nil // a replica of the hub carries
	}
	if t.seen == nil || t.challenge != link.Spec.Challenge {
		t.seen, t.challenge = &mailbox.EqualCopies{}, link.Spec.Challenge
		t.result = mailbox.FindingsFromStatus(&link.Status, t.challenge)
	}
	next := *link.Status.DeepCopy()
	next.ObservedGeneration, next.Carrier = link.Generation, "agent/"+t.syncer.BootID
	next.Known, next.Reachable = true, true
	next.Reason, next.Message = v1alpha1.ReasonConnected, "the agent dials in"
	if link.Spec.Leaving {
		err = t.cleanUpMember(ctx, &next)
	} else {
		next.CleanedUp, next.CleanUpError = false, ""
		again, err = t.syncMailbox(ctx)
		t.result.SetStatus(&next, t.challenge)
	}
	told, tellErr := t.updateLinkStatus(ctx, link, next)
	switch {
	case err != nil:
		return 0, err
	case tellErr != nil:
		return 0, tellErr
	case !told:
		again = conflictRetryDelay
	}
	return again, nil
}

// syncMailbox carries the report up, and plan and grant down.
func (t *connectionSync) syncMailbox(ctx context.Context) (again time.Duration, err error) {
	m := t.syncer.Member
	r := mailbox.Relay{
		Hub:    mailbox.Side{Cached: t.hub.GetCache(), Live: t.hub.GetClient(), Namespace: t.namespace},
		Member: mailbox.Side{Cached: m.Cached, Live: m.Live, Namespace: m.Namespace},
		Copies: t.seen,
	}
	known, err := t.knownClusterUID(ctx)
	if err != nil {
		return 0, err
	}
	// Up first: what the member says may be what a plan waits for.
	up, upErr := r.SyncUp(ctx, known)
	t.syncer.Metrics.CountCopied(metrics.DirectionUp, up.Written)
	down, downErr := r.SyncDown(ctx)
	t.syncer.Metrics.CountCopied(metrics.DirectionDown, len(down.Written))
	t.result = t.result.Merge(up, upErr, down, downErr)

	conflict := false
	for direction, failed := range map[string]error{metrics.DirectionUp: upErr, metrics.DirectionDown: downErr} {
		switch {
		case failed == nil || ctx.Err() != nil:
		case apierrors.IsConflict(failed):
			conflict = true
		default:
			t.syncer.Metrics.CountCopyFailure(direction)
			err = failed
		}
	}
	if conflict {
		again = conflictRetryDelay
	}
	return again, err
}

// knownClusterUID is the cluster that the hub plans for: what another one reports is not
// carried. Before there is a plan the hub's copy of the report tells.
func (t *connectionSync) knownClusterUID(ctx context.Context) (types.UID, error) {
	plan := &v1alpha1.ClusterPlan{}
	err := t.hub.GetCache().Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: v1alpha1.MailboxName}, plan)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading ClusterPlan %s/%s on the hub: %w", t.namespace, v1alpha1.MailboxName, err)
	}
	return plan.Spec.ClusterUID, nil
}

// cleanUpMember removes plan and grant in this cluster: the hub lets go of it.
func (t *connectionSync) cleanUpMember(ctx context.Context, status *v1alpha1.MemberLinkStatus) error {
	if status.CleanedUp || status.CleanUpError != "" {
		return nil
	}
	err := t.deletePlanAndGrant(ctx)
	t.cleanUpAttempts++
	switch {
	case err == nil:
		status.CleanedUp = true
	case t.cleanUpAttempts >= maxCleanUpAttempts:
		status.CleanUpError = err.Error()[:min(len(err.Error()), maxErrorBytes)]
	}
	return err
}

// deletePlanAndGrant deletes them twice: an agent that was paused may have brought back what was
// deleted.
func (t *connectionSync) deletePlanAndGrant(ctx context.Context) error {
	m := t.syncer.Member
	for range 2 {
		for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
			o.SetNamespace(m.Namespace)
			o.SetName(v1alpha1.MailboxName)
			if err := m.Live.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting %T %s/%s: %w", o, m.Namespace, v1alpha1.MailboxName, err)
			}
		}
		hubclient.WaitForTrigger(ctx, nil, recreationWait)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// updateLinkStatus writes the status where it has changed; not told is what somebody else has
// changed meanwhile.
func (t *connectionSync) updateLinkStatus(ctx context.Context, link *v1alpha1.MemberLink, next v1alpha1.MemberLinkStatus) (told bool, err error) {
	if equality.Semantic.DeepEqual(link.Status, next) {
		return true, nil
	}
	link.Status = next
	err = t.hub.GetClient().Status().Update(ctx, link)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("updating the status of MemberLink %s/%s on the hub: %w", link.Namespace, link.Name, err)
	}
	return true, nil
}
