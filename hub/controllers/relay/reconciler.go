// Package relay syncs the mailboxes of the members that are assigned to this replica:
// plan and grant down, reports up. It writes the result to the status of each MemberLink.
// Two replicas that sync one member do no harm.
package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;transfergrants,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters;memberlinks,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks/status,verbs=update

// Reconciler syncs one member per request.
type Reconciler struct {
	// Cached and Live reach the hub's API server. Cached has only the metadata of plans
	// and grants. MeasureUploads wraps the transport of Live.
	Cached  client.Reader
	Live    client.Client
	Members *memberclient.Provider
	Replica *shard.Replica
	Links   *shard.Links
	Metrics *metrics.Metrics
	// Heartbeats says whether all replicas read what this one publishes.
	Heartbeats *heartbeat.Received

	wholeReads chan struct{} // see mailbox.Relay
	conflicts  trigger.ConflictTracker
	mu         sync.Mutex
	states     map[string]*connectionState
}

// connectionState is what the relay knows from one connection to a member.
type connectionState struct {
	member *memberclient.Member
	mailbox.EqualCopies
	mailbox  mailboxReader
	failures hubclient.SyncFailures
	memberState
}

// memberState outlasts the connections to a member.
type memberState struct {
	cleanUp   cleanUpAttempts
	uploads   reportThrottle
	downloads copyThrottle
}

// Reconcile syncs a member if this replica owns it, and writes the result to its
// MemberLink.
func (r *Reconciler) Reconcile(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
	name := string(request.ClusterName)
	member := &v1alpha1.MemberCluster{}
	err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, member, client.UnsafeDisableDeepCopy) // it is not changed
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	link, linkErr := r.Links.Get(ctx, name)
	if linkErr != nil {
		return ctrl.Result{}, linkErr
	}
	if err != nil || !r.Replica.OwnsMember(link) || !link.DeletionTimestamp.IsZero() {
		r.forgetMember(name)
		return ctrl.Result{RequeueAfter: r.Replica.RecheckAfter(link)}, nil
	}
	ctx, cancel := r.Replica.WhileHoldingLease(ctx)
	defer cancel()
	connected, err := r.Members.GetMember(name)
	if err != nil && !errors.Is(err, multicluster.ErrClusterNotFound) {
		return ctrl.Result{}, err
	}
	next := link.Status.DeepCopy()
	var after time.Duration
	switch {
	case link.Spec.Leaving:
		after = r.cleanUpMember(ctx, name, connected, next)
	case connected != nil && member.DeletionTimestamp.IsZero() && member.Spec.Quarantine == nil:
		after, err = r.syncMailbox(ctx, member, connected, link, next)
	default:
		// The member is enqueued when it is connected. A member that is being removed
		// gets nothing more, since its plan is about to be deleted, and one in quarantine
		// neither.
		err = nil
		mailbox.FindingsFromStatus(&link.Status, link.Spec.Challenge).SetStatus(next, link.Spec.Challenge)
	}
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the hub stops, or has lost its Lease
	}
	status, statusErr := r.conflicts.Result(ctx, trigger.Requests(name)[0], ctrl.Result{}, r.updateLinkStatus(ctx, name, link, next))
	if err := errors.Join(err, statusErr); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: trigger.Earliest(after, status.RequeueAfter)}, nil
}

// updateLinkStatus writes the status of a MemberLink if it has changed. The write is
// guarded: once the member is assigned to another replica, it is refused.
func (r *Reconciler) updateLinkStatus(ctx context.Context, name string, link *v1alpha1.MemberLink, next *v1alpha1.MemberLinkStatus) error {
	state := r.Members.State(name)
	// Until the first attempt of this replica has ended, the status of the former replica
	// stays: a move is no outage.
	if !state.Known {
		return nil
	}
	next.ObservedGeneration, next.Carrier, next.Connection = link.Generation, r.Replica.Name(), state.ConnectionID
	next.Known, next.Reachable, next.Reason, next.Message = true, state.Reachable, state.Reason, v1alpha1.SanitizeText(state.Message, 1024)
	if equality.Semantic.DeepEqual(&link.Status, next) {
		return nil
	}
	link = link.DeepCopy()
	link.Status = *next
	err := r.Live.Status().Update(ctx, link)
	if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil && !apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("updating the MemberLink of MemberCluster %s: %w", name, err)
}

// ensureState returns the state of this connection, a new one after a reconnect; a nil member is
// one that is not connected.
func (r *Reconciler) ensureState(name string, member *memberclient.Member) *connectionState {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.states[name]
	if before != nil && before.member == member {
		return before
	}
	state := &connectionState{member: member, mailbox: mailboxReader{Reader: r.Cached, live: r.Live}}
	if before != nil {
		state.memberState = before.memberState
	}
	if r.states == nil {
		r.states = map[string]*connectionState{}
	}
	r.states[name] = state
	return state
}

func (r *Reconciler) forgetMember(name string) {
	r.Replica.Heartbeats.Set(name, nil)
	r.conflicts.Forget(trigger.Requests(name)[0])
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, name)
}
