package shard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
)

// watchDuration is after how long the API server ends a watch. The client, whose requests end after
// transport.RequestTimeout, would break it.
const watchDuration = transport.RequestTimeout * 2 / 3

// Peer is a replica as this process knows it.
type Peer struct {
	Name  string
	State PeerState
	// Process that holds the Lease. Another process of the same name is another replica.
	Process string
}

// PeerState is whether a replica is alive.
type PeerState uint8

const (
	// PeerAlive: its Lease has changed recently.
	PeerAlive PeerState = iota
	// PeerUnknown: its Lease has not changed since this process started, so the replica
	// may have died before. It keeps its members and gets no others.
	PeerUnknown
	// PeerDead: its Lease has not changed for LeaseDuration.
	PeerDead
)

// expiredLeaseDurations is the number of lease durations without a change after which a
// Lease is deleted.
const expiredLeaseDurations = 4

// Peers watches the Leases of all replicas, including this one. It runs in every replica,
// so that a newly elected one knows who is dead. Only observed changes and the own clock
// count; the timestamps in Leases are ignored.
type Peers struct {
	live client.WithWatch
	self *Replica
	// heartbeats takes up what the Leases publish.
	heartbeats *heartbeat.Received
	// elected is closed when this process is elected; only then are old Leases deleted.
	elected <-chan struct{}

	mu           sync.Mutex
	observations leaseObservations
	peers        []Peer
	onChange     []func()
}

// NewPeers returns Peers that know no replica before they are started.
func NewPeers(live client.WithWatch, self *Replica, heartbeats *heartbeat.Received, elected <-chan struct{}) *Peers {
	return &Peers{live: live, self: self, heartbeats: heartbeats, elected: elected}
}

// List returns this replica and all others with a Lease, by name; false before the Leases
// are first read.
func (p *Peers) List() ([]Peer, bool) {
	state := p.self.State()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.peers)
	for i := range all {
		if all[i].Name == p.self.Name() {
			all[i].State = state
		}
	}
	return all, p.observations != nil
}

// OnChange registers a function that is called when a replica appears, disappears, dies
// or recovers. It must not block. Call OnChange before Peers are started.
func (p *Peers) OnChange(do func()) { p.onChange = append(p.onChange, do) }

// NeedLeaderElection is false.
func (p *Peers) NeedLeaderElection() bool { return false }

// Start watches the Leases until ctx ends. It lists them live before it calls a replica
// dead, and when the watch delivers nothing: with a hanging watch all other replicas would
// look dead.
func (p *Peers) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		version, err := p.listLeases(ctx)
		if err == nil {
			err = p.followLeases(ctx, version)
		}
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("Failed to read the Leases of the replicas; retrying", "error", err.Error())
			_ = trigger.Sleep(ctx, p.self.RetryPeriod)
		}
	}
	return nil
}

func (p *Peers) requestTimeout() time.Duration {
	return max(p.self.RetryPeriod, p.self.RenewDeadline/2)
}

// listLeases observes all Leases, and deletes those of replicas that are long dead. It
// returns the version to watch from.
func (p *Peers) listLeases(ctx context.Context) (version string, err error) {
	bounded, cancel := context.WithTimeout(ctx, p.requestTimeout())
	defer cancel()
	var leases coordinationv1.LeaseList
	if err := p.live.List(bounded, &leases, client.InNamespace(p.self.Namespace), client.HasLabels{LabelReplica}); err != nil {
		return "", err
	}
	now := time.Now()
	p.publish(ctx, now, func(s leaseObservations) leaseObservations { return s.observe(leases.Items, now) })
	select {
	case <-p.elected:
		p.mu.Lock()
		old := p.observations.expired(p.self.LeaseDuration, now)
		p.mu.Unlock()
		return leases.ResourceVersion, p.deleteExpiredLeases(bounded, old)
	default:
		return leases.ResourceVersion, nil
	}
}

// followLeases watches the Leases. It returns when one of them expires, when the watch
// ends, or when it has delivered nothing although this replica renews its Lease.
func (p *Peers) followLeases(ctx context.Context, version string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opening := time.AfterFunc(p.requestTimeout(), cancel)
	w, err := p.live.Watch(ctx, &coordinationv1.LeaseList{}, client.InNamespace(p.self.Namespace), client.HasLabels{LabelReplica},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: ptr.To(int64(watchDuration.Seconds()))}})
	opening.Stop()
	if err != nil {
		return err
	}
	defer w.Stop()
	for first := true; ; first = false {
		p.mu.Lock()
		deadline := p.observations.nextDeadline(p.self.LeaseDuration, time.Now())
		p.mu.Unlock()
		timer := time.NewTimer(min(deadline, 2*p.self.RetryPeriod))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			return nil
		case event := <-w.ResultChan():
			timer.Stop()
			lease, ok := event.Object.(*coordinationv1.Lease)
			switch {
			case ok:
				now := time.Now()
				p.publish(ctx, now, func(s leaseObservations) leaseObservations {
					return s.observeEvent(lease, event.Type == watch.Deleted, now)
				})
			case first:
				return errWatchEnded // which must not be repeated at once
			default:
				return nil
			}
		}
	}
}

var errWatchEnded = errors.New("the watch of the Leases ended at once")

// publish takes up observations, and calls the hooks if a replica has changed.
func (p *Peers) publish(ctx context.Context, now time.Time, observe func(leaseObservations) leaseObservations) {
	p.mu.Lock()
	before, observed := p.peers, p.observations != nil
	p.observations = observe(p.observations)
	p.peers = p.observations.classify(p.self.Name(), p.self.Challenge(), p.self.State(), p.self.LeaseDuration, now)
	known, same := slices.Clone(p.peers), observed && slices.Equal(before, p.peers)
	annotations := make(map[string]map[string]string, len(p.observations))
	for name, at := range p.observations {
		annotations[name] = at.lease.Annotations
	}
	p.mu.Unlock()
	p.heartbeats.SetReplicas(annotations)
	if same {
		return
	}
	log.FromContext(ctx).Info("Replicas of the hub changed", "replicas", known)
	for _, do := range p.onChange {
		do()
	}
}

// deleteExpiredLeases deletes the Leases of replicas that are long dead, unless they have
// changed.
func (p *Peers) deleteExpiredLeases(ctx context.Context, old []coordinationv1.Lease) error {
	var failed []error
	for i := range old {
		lease := &old[i]
		err := p.live.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// leaseObservations are the observed Leases by replica; nil before the first read.
type leaseObservations map[string]leaseObservation

type leaseObservation struct {
	lease *coordinationv1.Lease
	// since is when the Lease last changed, by the own clock.
	since time.Time
	// changed: the Lease was seen to change or to appear.
	changed bool
}

// observe returns the observations after another read.
func (s leaseObservations) observe(leases []coordinationv1.Lease, now time.Time) leaseObservations {
	next := leaseObservations{}
	for i := range leases {
		lease := &leases[i]
		name, ok := strings.CutPrefix(lease.Name, readapi.LeasePrefix)
		if !ok {
			continue
		}
		before, known := s[name]
		switch {
		case known && versionOf(before.lease) == versionOf(lease):
			next[name] = before
		default:
			next[name] = leaseObservation{lease: lease, since: now, changed: known || s != nil}
		}
	}
	return next
}

// observeEvent returns the observations after an event of one Lease.
func (s leaseObservations) observeEvent(lease *coordinationv1.Lease, deleted bool, now time.Time) leaseObservations {
	all := []coordinationv1.Lease{}
	for _, at := range s {
		if at.lease.Name != lease.Name {
			all = append(all, *at.lease)
		}
	}
	if !deleted {
		all = append(all, *lease)
	}
	return s.observe(all, now)
}

// nextDeadline returns how long it takes until a Lease expires, or is old enough to be
// deleted.
func (s leaseObservations) nextDeadline(duration time.Duration, now time.Time) time.Duration {
	next := expiredLeaseDurations * duration
	for _, at := range s {
		for _, age := range []time.Duration{duration, expiredLeaseDurations * duration} {
			if left := at.since.Add(age).Sub(now); left > 0 {
				next = min(next, left)
			}
		}
	}
	return next
}

type leaseVersion struct {
	uid             types.UID
	resourceVersion string
}

func versionOf(l *coordinationv1.Lease) leaseVersion { return leaseVersion{l.UID, l.ResourceVersion} }

// classify returns the state of all replicas. self knows its own state better, and may
// have no Lease.
func (s leaseObservations) classify(self, process string, state PeerState, duration time.Duration, now time.Time) []Peer {
	all := []Peer{{Name: self, State: state, Process: process}}
	for name, at := range s {
		state := PeerAlive
		switch {
		case name == self:
			continue
		case now.Sub(at.since) >= duration:
			state = PeerDead
		case !at.changed:
			state = PeerUnknown
		}
		all = append(all, Peer{Name: name, State: state, Process: ptr.Deref(at.lease.Spec.HolderIdentity, "")})
	}
	slices.SortFunc(all, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// expired returns the Leases to delete.
func (s leaseObservations) expired(duration time.Duration, now time.Time) (all []coordinationv1.Lease) {
	for _, at := range s {
		if now.Sub(at.since) >= expiredLeaseDurations*duration {
			all = append(all, *at.lease)
		}
	}
	return all
}
