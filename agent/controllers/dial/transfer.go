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
	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/relay"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// soon is when carrying goes on that somebody else was faster than.
	soon = 50 * time.Millisecond
	// The wait before it is tried again doubles between these.
	leastBackoff = 100 * time.Millisecond
	mostBackoff  = 10 * time.Second
	// farewellAttempts are so many before the hub is told that plan and grant may be
	// left.
	farewellAttempts = 3
	// settled is how long what was deleted at a farewell must stay away.
	settled = 300 * time.Millisecond
	// maxError is how much of an error goes into a MemberLink.
	maxError = 1024
)

// transfer carries over one connection.
type transfer struct {
	carrier   *Carrier
	hub       *dial.Connection
	namespace string

	// seen and result are of what was carried since challenge was read.
	seen      *relay.Seen
	challenge string
	result    relay.Result
	farewells int
}

// carry carries what there is to be carried, if it is for this agent to do. again
// is when to go on, 0 for when something happens.
func (t *transfer) carry(ctx context.Context) (again time.Duration, err error) {
	if err := t.carrier.Leader.Leads(ctx); err != nil {
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
		t.seen, t.challenge = &relay.Seen{}, link.Spec.Challenge
		t.result = relay.Told(&link.Status, t.challenge)
	}
	next := *link.Status.DeepCopy()
	next.ObservedGeneration, next.Carrier = link.Generation, "agent/"+t.carrier.BootID
	next.Known, next.Reachable = true, true
	next.Reason, next.Message = v1alpha1.ReasonConnected, "the agent dials in"
	if link.Spec.Leaving {
		err = t.farewell(ctx, &next)
	} else {
		next.CleanedUp, next.CleanUpError = false, ""
		again, err = t.relay(ctx)
		t.result.Tell(&next, t.challenge)
	}
	told, tellErr := t.tell(ctx, link, next)
	switch {
	case err != nil:
		return 0, err
	case tellErr != nil:
		return 0, tellErr
	case !told:
		again = soon
	}
	return again, nil
}

// relay carries the report up, and plan and grant down.
func (t *transfer) relay(ctx context.Context) (again time.Duration, err error) {
	m := t.carrier.Member
	r := relay.Relay{
		Hub:    relay.End{Cached: t.hub.GetCache(), Live: t.hub.GetClient(), Namespace: t.namespace},
		Member: relay.End{Cached: m.Cached, Live: m.Live, Namespace: m.Namespace},
		Seen:   t.seen,
	}
	known, err := t.known(ctx)
	if err != nil {
		return 0, err
	}
	// Up first: what the member says may be what a plan waits for.
	up, upErr := r.Up(ctx, known)
	t.carrier.Metrics.Carried(metrics.Up, up.Carried)
	down, downErr := r.Down(ctx)
	t.carrier.Metrics.Carried(metrics.Down, len(down.Carried))
	t.result = t.result.Merge(up, upErr, down, downErr)

	conflict := false
	for direction, failed := range map[string]error{metrics.Up: upErr, metrics.Down: downErr} {
		switch {
		case failed == nil || ctx.Err() != nil:
		case apierrors.IsConflict(failed):
			conflict = true
		default:
			t.carrier.Metrics.NotCarried(direction)
			err = failed
		}
	}
	if conflict {
		again = soon
	}
	return again, err
}

// known is the cluster that the hub plans for: what another one reports is not
// carried. Before there is a plan the hub's copy of the report tells.
func (t *transfer) known(ctx context.Context) (types.UID, error) {
	plan := &v1alpha1.ClusterPlan{}
	err := t.hub.GetCache().Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: v1alpha1.MailboxName}, plan)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading ClusterPlan %s/%s on the hub: %w", t.namespace, v1alpha1.MailboxName, err)
	}
	return plan.Spec.ClusterUID, nil
}

// farewell removes plan and grant in this cluster: the hub lets go of it.
func (t *transfer) farewell(ctx context.Context, status *v1alpha1.MemberLinkStatus) error {
	if status.CleanedUp || status.CleanUpError != "" {
		return nil
	}
	err := t.remove(ctx)
	t.farewells++
	switch {
	case err == nil:
		status.CleanedUp = true
	case t.farewells >= farewellAttempts:
		status.CleanUpError = err.Error()[:min(len(err.Error()), maxError)]
	}
	return err
}

// remove deletes them twice: an agent that was paused may have brought back what was
// deleted.
func (t *transfer) remove(ctx context.Context) error {
	m := t.carrier.Member
	for range 2 {
		for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
			o.SetNamespace(m.Namespace)
			o.SetName(v1alpha1.MailboxName)
			if err := m.Live.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting %T %s/%s: %w", o, m.Namespace, v1alpha1.MailboxName, err)
			}
		}
		dial.Await(ctx, nil, settled)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// tell writes the status where it has changed; not told is what somebody else has
// changed meanwhile.
func (t *transfer) tell(ctx context.Context, link *v1alpha1.MemberLink, next v1alpha1.MemberLinkStatus) (told bool, err error) {
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
