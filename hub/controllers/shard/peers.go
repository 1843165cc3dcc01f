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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// Peer is what this process knows of a replica.
type Peer struct {
	Name  string
	State PeerState
	// Process that holds its Lease: another one of the same name is another replica.
	Process string
}

// PeerState tells whether a replica is alive.
type PeerState uint8

const (
	// PeerAlive: its Lease was seen to change, and not long ago.
	PeerAlive PeerState = iota
	// PeerUnknown: its Lease was there when this process began to look, and has not
	// changed since, which may mean that it died before. It keeps what it has, and is
	// given nothing.
	PeerUnknown
	// PeerDead: its Lease has not changed for long.
	PeerDead
)

// expiredLeaseDurations is after how many durations of a Lease without a change it is deleted.
const expiredLeaseDurations = 4

// Peers watches the Leases of all replicas, this one's among them, in every replica:
// one that is elected knows then already who is dead. It goes by what it sees
// change, and by its own clock: the times in a Lease are of other clocks.
type Peers struct {
	live client.Client
	self *Replica
	// Elected is closed when this process is; only then are old Leases deleted.
	elected <-chan struct{}

	mu           sync.Mutex
	observations leaseObservations
	peers        []Peer
	onChange     []func()
}

// NewPeers returns Peers that know of nobody before they are started.
func NewPeers(live client.Client, self *Replica, elected <-chan struct{}) *Peers {
	return &Peers{live: live, self: self, elected: elected}
}

// List replicas that have a Lease, and this one, by name; false before the Leases were
// first read.
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

// OnChange has something done, without blocking, when a replica comes, goes, dies or
// turns out to live. Call it before Peers are started.
func (p *Peers) OnChange(do func()) { p.onChange = append(p.onChange, do) }

// NeedLeaderElection is false.
func (p *Peers) NeedLeaderElection() bool { return false }

// Start looks at the Leases until ctx ends. It reads them live: a watch that hangs
// would have all others look dead.
func (p *Peers) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := p.observeLeases(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("The Leases of the replicas could not be read", "error", err.Error())
		}
		_ = trigger.Sleep(ctx, p.self.RetryPeriod) // an end is seen above
	}
	return nil
}

func (p *Peers) observeLeases(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, max(p.self.RetryPeriod, p.self.RenewDeadline/2))
	defer cancel()
	var leases coordinationv1.LeaseList
	if err := p.live.List(bounded, &leases, client.InNamespace(p.self.Namespace), client.HasLabels{LabelReplica}); err != nil {
		return err
	}
	now := time.Now()
	p.mu.Lock()
	before, looked := p.peers, p.observations != nil
	p.observations = p.observations.observe(leases.Items, now)
	p.peers = p.observations.classify(p.self.Name(), p.self.Challenge(), p.self.State(), p.self.LeaseDuration, now)
	known, same := slices.Clone(p.peers), looked && slices.Equal(before, p.peers)
	old := p.observations.expired(p.self.LeaseDuration, now)
	p.mu.Unlock()
	if !same {
		log.FromContext(ctx).Info("Replicas of the hub", "replicas", known)
		for _, do := range p.onChange {
			do()
		}
	}
	select {
	case <-p.elected:
		return p.deleteExpiredLeases(bounded, old)
	default:
		return nil
	}
}

// deleteExpiredLeases deletes the Leases of replicas that are long dead, unless they turn out to
// live.
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

// leaseObservations are what was seen of the Leases, by the name of the replica; nil before
// the first look.
type leaseObservations map[string]leaseObservation

type leaseObservation struct {
	lease *coordinationv1.Lease
	// since when it has been as it is, by the clock of whoever looks.
	since time.Time
	// moved: it was seen to change, or to come.
	changed bool
}

// observe is what is seen after another look.
func (s leaseObservations) observe(leases []coordinationv1.Lease, now time.Time) leaseObservations {
	next := leaseObservations{}
	for i := range leases {
		lease := &leases[i]
		name, is := strings.CutPrefix(lease.Name, LeasePrefix)
		if !is {
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

type leaseVersion struct {
	uid             types.UID
	resourceVersion string
}

func versionOf(l *coordinationv1.Lease) leaseVersion { return leaseVersion{l.UID, l.ResourceVersion} }

// classify tells who is alive. self knows better what it is, and may have no Lease at all.
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

// expired are the Leases that are to be deleted.
func (s leaseObservations) expired(duration time.Duration, now time.Time) (all []coordinationv1.Lease) {
	for _, at := range s {
		if now.Sub(at.since) >= expiredLeaseDurations*duration {
			all = append(all, *at.lease)
		}
	}
	return all
}
