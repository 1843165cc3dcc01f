// Package relay carries every member's mailbox: plan and grant down, reports up.
// It runs in every replica: that two carry for one member does no harm.
package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/relay"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/members"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;transfergrants,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// soon is when a relay goes on that somebody else was faster than.
const soon = 50 * time.Millisecond

// Reconciler carries for one member at a request.
type Reconciler struct {
	// Cached and Live reach the hub's API server.
	Cached  client.Reader
	Live    client.Client
	Members *members.Provider
	Reports *report.Store
	Metrics *metrics.Metrics
	Results *Results

	mu   sync.Mutex
	seen map[string]*seen
}

// seen is what the relay of one connection remembers.
type seen struct {
	member *members.Member
	relay.Seen
}

// Reconcile carries what there is to carry for the member of a request.
func (r *Reconciler) Reconcile(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
	name := string(request.ClusterName)
	member := &v1alpha1.MemberCluster{}
	if err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, member); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	// What leaves is not told anything any more: its plan is being removed.
	if !member.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	// The namespace comes after the MemberCluster, and brings the request back.
	ns := &corev1.Namespace{}
	err := r.Cached.Get(ctx, client.ObjectKey{Name: v1alpha1.MemberNamespacePrefix + name}, ns)
	if err != nil || ns.Labels[v1alpha1.LabelMember] != name || !ns.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	connected, err := r.Members.Member(name)
	if errors.Is(err, multicluster.ErrClusterNotFound) {
		return ctrl.Result{}, nil // the request comes again when it is connected
	} else if err != nil {
		return ctrl.Result{}, err
	}
	carrier := relay.Relay{
		Hub:    relay.End{Cached: r.Cached, Live: r.Live, Namespace: v1alpha1.MemberNamespacePrefix + name},
		Member: relay.End{Cached: connected.GetCache(), Live: connected.GetClient(), Namespace: connected.Namespace},
		Seen:   r.remembered(name, connected),
	}
	known := fleet.ClusterUID(member, r.Reports.Root(name).ClusterUID)
	holder, err := claim.Holder(ctx, r.Cached, member, known)
	if err != nil {
		return ctrl.Result{}, err
	}
	if holder != "" {
		known = "" // it may become another cluster, without anybody's consent
	}

	// Up first: what the member says may be what a plan waits for.
	up, upErr := carrier.Up(ctx, known)
	r.Metrics.Carried(metrics.Up, up.Carried)
	another := up.Another
	if upErr != nil {
		another = r.Results.Of(name).Another
	}
	var down relay.Down
	var downErr error
	if holder == "" && (another == "" || another == known) { // else it may be another member's plan that is there
		down, downErr = carrier.Down(ctx)
	}
	r.Metrics.Carried(metrics.Down, len(down.Carried))
	r.Results.set(name, up, upErr, down, downErr)
	return r.outcome(ctx, upErr, downErr)
}

func (r *Reconciler) outcome(ctx context.Context, upErr, downErr error) (ctrl.Result, error) {
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the hub stops
	}
	var failed []error
	conflicts := 0
	for direction, err := range map[string]error{metrics.Up: upErr, metrics.Down: downErr} {
		switch {
		case err == nil:
		case apierrors.IsConflict(err):
			conflicts++
			log.FromContext(ctx).V(1).Info("Somebody else carried at the same time", "direction", direction, "error", err.Error())
		default:
			r.Metrics.NotCarried(direction)
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 && conflicts > 0 {
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return ctrl.Result{}, errors.Join(failed...)
}

// remembered is what was seen of the copies over this connection.
func (r *Reconciler) remembered(name string, member *members.Member) *relay.Seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]*seen{}
	}
	if s := r.seen[name]; s != nil && s.member == member {
		return &s.Seen
	}
	s := &seen{member: member}
	r.seen[name] = s
	return &s.Seen
}

func (r *Reconciler) forget(name string) {
	r.mu.Lock()
	delete(r.seen, name)
	r.mu.Unlock()
	r.Results.forget(name)
}

// Results of the last carrying, by member.
type Results struct {
	mu      sync.Mutex
	last    map[string]relay.Result
	changed []func(member string)
}

// Of a member; the zero Result before anything was carried.
func (r *Results) Of(member string) relay.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[member]
}

// OnChange has something done, without blocking, when the Result of a member has
// changed. Call it before the controller starts.
func (r *Results) OnChange(do func(member string)) { r.changed = append(r.changed, do) }

// set keeps what was known where carrying failed: that says nothing new.
func (r *Results) set(member string, up relay.Up, upErr error, down relay.Down, downErr error) {
	r.mu.Lock()
	before := r.last[member]
	next := before.Merge(up, upErr, down, downErr)
	if r.last == nil {
		r.last = map[string]relay.Result{}
	}
	r.last[member] = next
	r.mu.Unlock()
	if next != before {
		for _, do := range r.changed {
			do(member)
		}
	}
}

func (r *Results) forget(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, member)
}
