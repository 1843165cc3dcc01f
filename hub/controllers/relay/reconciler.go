// Package relay carries the mailbox of the members that are assigned to this replica:
// plan and grant down, reports up. It says in the status of each one's MemberLink how
// that goes. That two replicas carry for one member does no harm.
package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;transfergrants,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters;memberlinks,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks/status,verbs=update

// conflictRetryDelay is when a relay goes on that somebody else was faster than.
const conflictRetryDelay = 50 * time.Millisecond

// Reconciler carries for one member at a request.
type Reconciler struct {
	// Cached and Live reach the hub's API server. Cached has no content of plans and
	// grants.
	Cached  client.Reader
	Live    client.Client
	Members *memberclient.Provider
	Replica *shard.Replica
	Links   *shard.Links
	Metrics *metrics.Metrics

	mu     sync.Mutex
	states map[string]*connectionState
}

// connectionState is what the relay of one connection remembers.
type connectionState struct {
	member *memberclient.Member
	mailbox.EqualCopies
	mailbox mailboxReader
	cleanUp cleanUpAttempts
}

// Reconcile carries what there is to carry for the member of a request, if it is
// this replica's, and says how that went.
func (r *Reconciler) Reconcile(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
	name := string(request.ClusterName)
	member := &v1alpha1.MemberCluster{}
	err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, member)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	link, linkErr := r.Links.Get(ctx, name)
	if linkErr != nil {
		return ctrl.Result{}, linkErr
	}
	if err != nil || !r.Replica.OwnsMember(link) || !link.DeletionTimestamp.IsZero() {
		r.forgetMember(name)
		return ctrl.Result{}, nil
	}
	ctx, cancel := r.Replica.WhileHoldingLease(ctx)
	defer cancel()
	connected, err := r.Members.GetMember(name)
	if err != nil && !errors.Is(err, multicluster.ErrClusterNotFound) {
		return ctrl.Result{}, err
	}
	next := link.Status.DeepCopy()
	var result ctrl.Result
	switch {
	case link.Spec.Leaving:
		result.RequeueAfter = r.cleanUpMember(ctx, name, connected, next)
	case connected != nil && member.DeletionTimestamp.IsZero():
		result, err = r.syncMailbox(ctx, member, connected, link, next)
	default:
		// It comes again when it is connected. What leaves is not told anything any more:
		// its plan is being removed.
		err = nil
		mailbox.FindingsFromStatus(&link.Status, link.Spec.Challenge).SetStatus(next, link.Spec.Challenge)
	}
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the hub stops, or has stopped carrying
	}
	told, tellErr := r.updateLinkStatus(ctx, name, link, next)
	if told.RequeueAfter > 0 && (result.RequeueAfter == 0 || told.RequeueAfter < result.RequeueAfter) {
		result = told
	}
	if err := errors.Join(err, tellErr); err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

// syncMailbox carries up and down, and puts what that has shown into the status.
func (r *Reconciler) syncMailbox(ctx context.Context, member *v1alpha1.MemberCluster, connected *memberclient.Member, link *v1alpha1.MemberLink, status *v1alpha1.MemberLinkStatus) (ctrl.Result, error) {
	kept := r.ensureState(member.Name, connected)
	carrier := mailbox.Relay{
		Hub:    mailbox.Side{Cached: &kept.mailbox, Live: r.Live, Namespace: link.Namespace},
		Member: mailbox.Side{Cached: connected.GetCache(), Live: connected.GetClient(), Namespace: connected.Namespace},
		Copies: &kept.EqualCopies,
	}
	// Where the hub knows no cluster, its copy of the report tells it. Whether the
	// cluster that answers is another member's may be known before that is there.
	known := memberstatus.ResolveClusterUID(member, "")
	answers, err := getReportedCluster(ctx, connected)
	if err != nil {
		return ctrl.Result{}, err
	}
	holder, err := claim.FindHolder(ctx, r.Cached, member, memberstatus.ResolveClusterUID(member, answers))
	if err != nil {
		return ctrl.Result{}, err
	}
	if holder != "" {
		known = "" // it may become another cluster, without anybody's consent
	}

	// Up first: what the member says may be what a plan waits for.
	before := mailbox.FindingsFromStatus(&link.Status, link.Spec.Challenge)
	up, upErr := carrier.SyncUp(ctx, known)
	r.Metrics.CountSynced(metrics.DirectionUp, up.Written)
	another := up.OtherCluster
	if upErr != nil {
		another = before.OtherCluster
	}
	var down mailbox.DownResult
	var downErr error
	if holder == "" && (another == "" || another == known) { // else it may be another member's plan that is there
		down, downErr = carrier.SyncDown(ctx)
	}
	r.Metrics.CountSynced(metrics.DirectionDown, len(down.Written))
	before.Merge(up, upErr, down, downErr).SetStatus(status, link.Spec.Challenge)
	return r.resultOf(ctx, upErr, downErr)
}

func (r *Reconciler) resultOf(ctx context.Context, upErr, downErr error) (ctrl.Result, error) {
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the hub stops
	}
	var failed []error
	conflicts := 0
	for direction, err := range map[string]error{metrics.DirectionUp: upErr, metrics.DirectionDown: downErr} {
		switch {
		case err == nil:
		case apierrors.IsConflict(err):
			conflicts++
			log.FromContext(ctx).V(1).Info("Somebody else carried at the same time", "direction", direction, "error", err.Error())
		default:
			r.Metrics.CountSyncError(direction)
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 && conflicts > 0 {
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	return ctrl.Result{}, errors.Join(failed...)
}

// updateLinkStatus writes the status of a MemberLink where it says something new. It is written
// against the state that it was worked out from: where the member was assigned to
// another replica since, this one's word is refused.
func (r *Reconciler) updateLinkStatus(ctx context.Context, name string, link *v1alpha1.MemberLink, next *v1alpha1.MemberLinkStatus) (ctrl.Result, error) {
	state := r.Members.State(name)
	// What was true of the connection of another replica is, until this one's has come
	// to an end of its first attempt: a move is no outage.
	if !state.Known {
		return ctrl.Result{}, nil
	}
	next.ObservedGeneration, next.Carrier = link.Generation, r.Replica.Name()
	next.Known, next.Reachable, next.Reason, next.Message = true, state.Reachable, state.Reason, v1alpha1.Truncate(state.Message, 1024)
	if equality.Semantic.DeepEqual(&link.Status, next) {
		return ctrl.Result{}, nil
	}
	link.Status = *next
	err := r.Live.Status().Update(ctx, link)
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	case ctx.Err() != nil:
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, fmt.Errorf("saying in the MemberLink of %s how it is carried: %w", name, err)
}

// getReportedCluster is the cluster that a member's report is of; empty for no report.
func getReportedCluster(ctx context.Context, member *memberclient.Member) (types.UID, error) {
	root := &v1alpha1.ClusterReport{}
	err := member.GetCache().Get(ctx, client.ObjectKey{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, root)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading the report of a member: %w", err)
	}
	return root.ClusterUID, nil
}

// ensureState is what was seen of the copies over this connection.
func (r *Reconciler) ensureState(name string, member *memberclient.Member) *connectionState {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states == nil {
		r.states = map[string]*connectionState{}
	}
	if kept := r.states[name]; kept != nil && kept.member == member {
		return kept
	}
	kept := &connectionState{member: member, mailbox: mailboxReader{Reader: r.Cached, live: r.Live}}
	if before := r.states[name]; before != nil {
		kept.cleanUp = before.cleanUp
	}
	r.states[name] = kept
	return kept
}

func (r *Reconciler) forgetMember(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, name)
}
