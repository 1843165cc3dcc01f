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

	"github.com/pelotech/ot-fleet/hub/controllers/pace"
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

// forgotten is after how many durations of a Lease without a change it is deleted.
const forgotten = 4

// Peers watches the Leases of all replicas, this one's among them, in every replica:
// one that is elected knows then already who is dead. It goes by what it sees
// change, and by its own clock: the times in a Lease are of other clocks.
type Peers struct {
	live client.Client
	self *Replica
	// Elected is closed when this process is; only then are old Leases deleted.
	elected <-chan struct{}

	mu      sync.Mutex
	seen    sightings
	known   []Peer
	changed []func()
}

// NewPeers returns Peers that know of nobody before they are started.
func NewPeers(live client.Client, self *Replica, elected <-chan struct{}) *Peers {
	return &Peers{live: live, self: self, elected: elected}
}

// All replicas that have a Lease, and this one, by name; false before the Leases were
// first read.
func (p *Peers) All() ([]Peer, bool) {
	state := p.self.State()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.known)
	for i := range all {
		if all[i].Name == p.self.Name() {
			all[i].State = state
		}
	}
	return all, p.seen != nil
}

// OnChange has something done, without blocking, when a replica comes, goes, dies or
// turns out to live. Call it before Peers are started.
func (p *Peers) OnChange(do func()) { p.changed = append(p.changed, do) }

// NeedLeaderElection is false.
func (p *Peers) NeedLeaderElection() bool { return false }

// Start looks at the Leases until ctx ends. It reads them live: a watch that hangs
// would have all others look dead.
func (p *Peers) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := p.look(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("The Leases of the replicas could not be read", "error", err.Error())
		}
		_ = pace.Pause(ctx, p.self.RetryPeriod) // an end is seen above
	}
	return nil
}

func (p *Peers) look(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, max(p.self.RetryPeriod, p.self.RenewDeadline/2))
	defer cancel()
	var leases coordinationv1.LeaseList
	if err := p.live.List(bounded, &leases, client.InNamespace(p.self.Namespace), client.HasLabels{LabelReplica}); err != nil {
		return err
	}
	now := time.Now()
	p.mu.Lock()
	before, looked := p.known, p.seen != nil
	p.seen = p.seen.next(leases.Items, now)
	p.known = p.seen.judge(p.self.Name(), p.self.Challenge(), p.self.State(), p.self.LeaseDuration, now)
	known, same := slices.Clone(p.known), looked && slices.Equal(before, p.known)
	old := p.seen.old(p.self.LeaseDuration, now)
	p.mu.Unlock()
	if !same {
		log.FromContext(ctx).Info("Replicas of the hub", "replicas", known)
		for _, do := range p.changed {
			do()
		}
	}
	select {
	case <-p.elected:
		return p.clean(bounded, old)
	default:
		return nil
	}
}

// clean deletes the Leases of replicas that are long dead, unless they turn out to
// live.
func (p *Peers) clean(ctx context.Context, old []coordinationv1.Lease) error {
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

// sightings are what was seen of the Leases, by the name of the replica; nil before
// the first look.
type sightings map[string]sighting

type sighting struct {
	lease *coordinationv1.Lease
	// since when it has been as it is, by the clock of whoever looks.
	since time.Time
	// moved: it was seen to change, or to come.
	moved bool
}

// next is what is seen after another look.
func (s sightings) next(leases []coordinationv1.Lease, now time.Time) sightings {
	next := sightings{}
	for i := range leases {
		lease := &leases[i]
		name, is := strings.CutPrefix(lease.Name, LeasePrefix)
		if !is {
			continue
		}
		before, known := s[name]
		switch {
		case known && stamp(before.lease) == stamp(lease):
			next[name] = before
		default:
			next[name] = sighting{lease: lease, since: now, moved: known || s != nil}
		}
	}
	return next
}

type stamped struct {
	uid             types.UID
	resourceVersion string
}

func stamp(l *coordinationv1.Lease) stamped { return stamped{l.UID, l.ResourceVersion} }

// judge tells who is alive. self knows better what it is, and may have no Lease at all.
func (s sightings) judge(self, process string, state PeerState, duration time.Duration, now time.Time) []Peer {
	all := []Peer{{Name: self, State: state, Process: process}}
	for name, at := range s {
		state := PeerAlive
		switch {
		case name == self:
			continue
		case now.Sub(at.since) >= duration:
			state = PeerDead
		case !at.moved:
			state = PeerUnknown
		}
		all = append(all, Peer{Name: name, State: state, Process: ptr.Deref(at.lease.Spec.HolderIdentity, "")})
	}
	slices.SortFunc(all, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// old are the Leases that are to be deleted.
func (s sightings) old(duration time.Duration, now time.Time) (all []coordinationv1.Lease) {
	for _, at := range s {
		if now.Sub(at.since) >= forgotten*duration {
			all = append(all, *at.lease)
		}
	}
	return all
}
