package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hub-namespace,resources=leases,verbs=get;list;create;update;delete

const (
	// LabelReplica stands on the Leases of the replicas. Its value is empty: a name
	// may be longer than a label's value.
	LabelReplica = "pelotech.ot/replica"
	// LeasePrefix and the name of a replica are the name of its Lease.
	LeasePrefix = "ot-hub-replica-"
	// leaseDeleteTimeout is how long the deletion of the Lease may take at an orderly end.
	leaseDeleteTimeout = 5 * time.Second
)

// Options of a Replica.
type Options struct {
	// Name tells it from the others; one that begins under the name of another takes
	// its place.
	Name string
	// Namespace of the hub.
	Namespace string
	// LeaseDuration is how long the others wait for one that is silent,
	// RenewDeadline how long one goes on that cannot renew, RetryPeriod how often it
	// tries.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Replica is this process among the replicas of the hub: it keeps its Lease, and
// knows by it whether it may carry.
type Replica struct {
	Options
	live      client.Client
	challenge string

	// startedAt is when this process did.
	startedAt time.Time

	mu sync.Mutex
	// until is when this process stops carrying by itself: RenewDeadline after it
	// sent the renewal that was stored last. The elected replica has seen that one
	// later, and waits for longer. untilWall is the same by the clock on the wall.
	until, untilWall time.Time
	// carried: the hooks know that it carries.
	notifiedHolding bool
	timer           *time.Timer
	annotations     map[string]string
	onLeaseChange   []func()
	renewNow        chan struct{}
}

// NewReplica returns one that carries nothing before it is started and holds its
// Lease. live must not read from a cache.
func NewReplica(live client.Client, o Options) *Replica {
	return &Replica{
		Options: o, live: live, challenge: string(uuid.NewUUID()), startedAt: time.Now(),
		annotations: map[string]string{}, renewNow: make(chan struct{}, 1),
	}
}

// Name of the replica.
func (r *Replica) Name() string { return r.Options.Name }

// Challenge identifies this process. Where it is the elected one, it is the
// challenge of all MemberLinks.
func (r *Replica) Challenge() string { return r.challenge }

// HoldsLease tells whether this process holds its Lease by its own clocks. The monotonic
// one goes on while the process is stopped, and cannot be set; it stands still while
// the machine sleeps, after which the one on the wall is right again. Of a virtual
// machine that is frozen from outside both may stand still: it wakes, carries what it
// knows of, and is told by what it meets. What it writes then is guarded by the state
// that it was decided upon, as is all that two replicas do at the same time.
func (r *Replica) HoldsLease() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remaining(time.Now()) > 0
}

// remaining of the time that this process carries for, by the clock that has less of it;
// r.mu is held.
func (r *Replica) remaining(now time.Time) time.Duration {
	return min(r.until.Sub(now), r.untilWall.Sub(now.Round(0)))
}

// State of this process as a replica. It knows that sooner than others see it by its
// Lease: one that cannot write it for as long is dead to itself as well, also where it
// is the elected one.
func (r *Replica) State() PeerState {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, since := time.Now(), r.until
	if since.Before(r.startedAt) {
		since = r.startedAt
	}
	switch {
	case r.remaining(now) > 0:
		return PeerAlive
	case now.Sub(since) < r.LeaseDuration:
		return PeerUnknown
	}
	return PeerDead
}

// OnLeaseChange has something done, without blocking, when this process begins to carry
// or stops; Carries tells which. Call it before the Replica is started.
func (r *Replica) OnLeaseChange(do func()) { r.onLeaseChange = append(r.onLeaseChange, do) }

// Annotate has an annotation on the Lease, which Peers shows to the other replicas.
func (r *Replica) Annotate(key, value string) {
	r.mu.Lock()
	same := r.annotations[key] == value
	r.annotations[key] = value
	r.mu.Unlock()
	if !same {
		select {
		case r.renewNow <- struct{}{}:
		default:
		}
	}
}

// NeedLeaderElection is false: every replica has a Lease.
func (r *Replica) NeedLeaderElection() bool { return false }

// errReplaced ends a process in whose place another one runs.
var errReplaced = errors.New("another process runs under the same name: give each replica a --replica-name of its own")

// Start keeps the Lease until ctx ends, and deletes it then, so that nobody waits
// for it to run out.
func (r *Replica) Start(ctx context.Context) error {
	defer r.dropLease()
	var lease *coordinationv1.Lease
	for ctx.Err() == nil {
		sent := time.Now()
		next, err := r.renewLease(ctx, lease)
		switch {
		case errors.Is(err, errReplaced):
			return fmt.Errorf("keeping Lease %s/%s: %w", r.Namespace, LeasePrefix+r.Name(), err)
		case err == nil:
			lease = next
			r.extendLease(sent.Add(r.RenewDeadline))
		case ctx.Err() == nil:
			log.FromContext(ctx).Info("The Lease of this replica could not be renewed", "lease", LeasePrefix+r.Name(), "error", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-r.renewNow:
		case <-time.After(r.RetryPeriod):
		}
	}
	r.dropLease()
	if lease == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseDeleteTimeout)
	defer cancel()
	// One that took this one's place has another resourceVersion.
	err := r.live.Delete(bounded, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		log.FromContext(ctx).Info("The Lease of this replica stays until it has run out", "lease", lease.Name, "error", err.Error())
	}
	return nil
}

// renewLease renews the Lease as it was written last. The first write of a process takes
// the Lease of its name over, whoever holds it; a later one that finds another
// process there ends this one.
func (r *Replica) renewLease(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.RetryPeriod, r.RenewDeadline/2))
	defer cancel()
	next := last.DeepCopy()
	if next == nil {
		var err error
		if next, err = r.getLease(ctx); err != nil {
			return nil, err
		}
	}
	r.fillLease(next)
	err := r.createOrUpdate(ctx, next)
	if err == nil || last == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return next, err
	}
	// The write before may have been stored and its answer lost, or somebody has
	// deleted the Lease, or changed it.
	if next, err = r.getLease(ctx); err != nil {
		return nil, err
	}
	if holder := ptr.Deref(next.Spec.HolderIdentity, r.challenge); holder != r.challenge {
		return nil, errReplaced
	}
	r.fillLease(next)
	return next, r.createOrUpdate(ctx, next)
}

func (r *Replica) createOrUpdate(ctx context.Context, lease *coordinationv1.Lease) error {
	if lease.ResourceVersion == "" {
		return r.live.Create(ctx, lease)
	}
	return r.live.Update(ctx, lease)
}

// getLease is the Lease as it is there, or an empty one.
func (r *Replica) getLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: LeasePrefix + r.Name()}, lease)
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: LeasePrefix + r.Name()}}, nil
	}
	return lease, err
}

func (r *Replica) fillLease(lease *coordinationv1.Lease) {
	now := metav1.NowMicro()
	if ptr.Deref(lease.Spec.HolderIdentity, "") != r.challenge {
		lease.Spec.AcquireTime = &now
		lease.Spec.LeaseTransitions = ptr.To(ptr.Deref(lease.Spec.LeaseTransitions, -1) + 1)
		lease.Annotations = nil
	}
	lease.Spec.HolderIdentity = &r.challenge
	lease.Spec.LeaseDurationSeconds = ptr.To(max(1, int32(r.LeaseDuration/time.Second)))
	lease.Spec.RenewTime = &now
	metav1.SetMetaDataLabel(&lease.ObjectMeta, LabelReplica, "")
	r.mu.Lock()
	defer r.mu.Unlock()
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	maps.Copy(lease.Annotations, r.annotations)
}

// extendLease says until when this process carries unless it is told again.
func (r *Replica) extendLease(until time.Time) {
	r.mu.Lock()
	r.until, r.untilWall = until, until.Round(0)
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(until), r.notifyLeaseChange)
	} else {
		r.timer.Reset(time.Until(until))
	}
	r.mu.Unlock()
	r.notifyLeaseChange()
}

// dropLease has this process carry nothing any more.
func (r *Replica) dropLease() {
	r.mu.Lock()
	r.until = time.Time{}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.notifyLeaseChange()
}

// notifyLeaseChange tells the hooks where what they know does not hold any more.
func (r *Replica) notifyLeaseChange() {
	r.mu.Lock()
	carries := r.remaining(time.Now()) > 0
	same := r.notifiedHolding == carries
	r.notifiedHolding = carries
	r.mu.Unlock()
	if same {
		return
	}
	for _, do := range r.onLeaseChange {
		do()
	}
}

// WhileHoldingLease is a context that ends with ctx, and when this process stops carrying.
func (r *Replica) WhileHoldingLease(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for ctx.Err() == nil {
			r.mu.Lock()
			left := r.remaining(time.Now())
			r.mu.Unlock()
			if left <= 0 || trigger.Sleep(ctx, left) != nil {
				cancel()
			}
		}
	}()
	return ctx, cancel
}
