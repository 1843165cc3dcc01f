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
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hub-namespace,resources=leases,verbs=get;list;create;update;delete;watch

const (
	// LabelReplica marks the Leases of replicas. Its value is empty, since a name may be
	// longer than a label value.
	LabelReplica = "pelotech.ot/replica"
	// leaseDeleteTimeout bounds the deletion of the Lease at an orderly end.
	leaseDeleteTimeout = 5 * time.Second
)

// Options of a Replica.
type Options struct {
	// Name of the replica. A process that starts under an existing name replaces the
	// other one.
	Name string
	// Namespace of the hub.
	Namespace string
	// LeaseDuration is how long others wait for a silent replica, RenewDeadline how long
	// a replica works that cannot renew its Lease, RetryPeriod the wait between attempts.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Replica is this process among the replicas of the hub. It keeps its Lease, and knows by
// it whether it may sync members.
type Replica struct {
	Options
	// Heartbeats are what the Lease says of members.
	Heartbeats heartbeat.Published

	live      client.Client
	challenge string

	// startedAt is the start of this process.
	startedAt time.Time

	mu sync.Mutex
	// until is when this process stops syncing: RenewDeadline after it sent the last
	// stored renewal. The elected replica has seen that renewal later, and waits longer.
	// untilWall is the same by the wall clock.
	until, untilWall time.Time
	// notifiedHolding: the last notification was that the Lease is held.
	notifiedHolding bool
	timer           *time.Timer
	annotations     map[string]string
	onLeaseChange   []func()
	renewNow        chan struct{}
}

// NewReplica returns a Replica that does not hold its Lease yet. live must not read from
// a cache.
func NewReplica(live client.Client, o Options) *Replica {
	return &Replica{
		Options: o, live: live, challenge: string(uuid.NewUUID()), startedAt: time.Now(),
		annotations: map[string]string{}, renewNow: make(chan struct{}, 1),
	}
}

// Name of the replica.
func (r *Replica) Name() string { return r.Options.Name }

// Challenge identifies this process. The elected process writes it to all MemberLinks.
func (r *Replica) Challenge() string { return r.challenge }

// HoldsLease reports whether this process holds its Lease by both of its clocks. The
// monotonic clock runs on while the process is stopped, but stands still while the
// machine sleeps; then the wall clock is right. In a virtual machine that is frozen from
// outside both may stand still: the process then syncs what it knows, and its guarded
// writes are refused.
func (r *Replica) HoldsLease() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remaining(time.Now()) > 0
}

// remaining time for which the Lease is held, by the clock that has less of it. The
// caller holds r.mu.
func (r *Replica) remaining(now time.Time) time.Duration {
	return min(r.until.Sub(now), r.untilWall.Sub(now.Round(0)))
}

// State of this process as a replica. Invariant: it classifies itself dead before others
// do, also if it is the elected one.
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

// OnLeaseChange registers a function that is called when HoldsLease changes. It must not
// block. Call OnLeaseChange before the Replica is started.
func (r *Replica) OnLeaseChange(do func()) { r.onLeaseChange = append(r.onLeaseChange, do) }

// Annotate sets an annotation of the Lease, for the other replicas.
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

// errReplaced ends a process that another one has replaced.
var errReplaced = errors.New("another process runs under the same name: give each replica a --replica-name of its own")

// Start keeps the Lease until ctx ends and then deletes it, so that no replica waits for
// it to expire.
func (r *Replica) Start(ctx context.Context) error {
	defer r.dropLease()
	var lease *coordinationv1.Lease
	for ctx.Err() == nil {
		sent := time.Now()
		next, err := r.renewLease(ctx, lease)
		switch {
		case errors.Is(err, errReplaced):
			return fmt.Errorf("keeping Lease %s/%s: %w", r.Namespace, readapi.LeasePrefix+r.Name(), err)
		case err == nil:
			lease = next
			r.extendLease(sent.Add(r.RenewDeadline))
		case ctx.Err() == nil:
			log.FromContext(ctx).Info("Failed to renew the Lease of this replica; retrying", "lease", readapi.LeasePrefix+r.Name(), "error", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-r.renewNow:
		case <-time.After(r.RetryPeriod):
		}
	}
	r.dropLease()
	if err := r.deleteLease(context.WithoutCancel(ctx)); err != nil {
		log.FromContext(ctx).Info("Failed to delete the Lease of this replica; others wait until it expires", "lease", readapi.LeasePrefix+r.Name(), "error", err.Error())
	}
	return nil
}

// deleteLease deletes the Lease unless another process has replaced this one. It reads the Lease,
// since a renewal that Start did not wait for may have changed it, and may still do so.
func (r *Replica) deleteLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseDeleteTimeout)
	defer cancel()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease, err := r.getLease(ctx)
		if err != nil || ptr.Deref(lease.Spec.HolderIdentity, "") != r.challenge {
			return err
		}
		return client.IgnoreNotFound(r.live.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}))
	})
}

// renewLease renews the Lease as it was last written. The first write of a process takes
// the Lease over from any holder; a later one that finds another holder ends this
// process.
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
	// The previous write may have been stored and its response lost, or somebody has
	// deleted or changed the Lease.
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

// getLease returns the stored Lease, or a new one.
func (r *Replica) getLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: readapi.LeasePrefix + r.Name()}, lease)
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: readapi.LeasePrefix + r.Name()}}, nil
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
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, heartbeat.Annotation, r.Heartbeats.Text())
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(lease.Annotations, r.annotations)
}

// extendLease sets until when this process holds the Lease. A clock that jumps ends that without the timer,
// and what was stopped meanwhile starts again by the hooks only.
func (r *Replica) extendLease(until time.Time) {
	r.mu.Lock()
	r.notifiedHolding = r.notifiedHolding && r.remaining(time.Now()) > 0
	r.until, r.untilWall = until, until.Round(0)
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(until), r.notifyLeaseChange)
	} else {
		r.timer.Reset(time.Until(until))
	}
	r.mu.Unlock()
	r.notifyLeaseChange()
}

// dropLease has this process stop syncing.
func (r *Replica) dropLease() {
	r.mu.Lock()
	r.until = time.Time{}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.notifyLeaseChange()
}

// notifyLeaseChange calls the hooks if HoldsLease has changed.
func (r *Replica) notifyLeaseChange() {
	r.mu.Lock()
	holds := r.remaining(time.Now()) > 0
	same := r.notifiedHolding == holds
	r.notifiedHolding = holds
	r.mu.Unlock()
	if same {
		return
	}
	for _, do := range r.onLeaseChange {
		do()
	}
}

// WhileHoldingLease returns a context that ends with ctx, or when this process loses its
// Lease.
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
