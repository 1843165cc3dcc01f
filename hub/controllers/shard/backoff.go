package shard

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A replica that reached none of its members for long gets no members for
// minReplicaBackoff, and for twice as long each time that this repeats, up to
// maxReplicaBackoff.
const (
	minReplicaBackoff = 5 * time.Minute
	maxReplicaBackoff = time.Hour
	undecidedPatience = 4
)

// replicaBackoff of a replica holds for one process.
type replicaBackoff struct {
	process string
	until   time.Time
	wait    time.Duration
}

// activeBackoffs returns the replicas that get no members yet. Backoffs of processes that
// ended, or that have worked for long enough, are dropped.
func (a *Assigner) activeBackoffs(peers []Peer, now time.Time) map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	backedOff, remaining := map[string]bool{}, map[string]replicaBackoff{}
	for _, peer := range peers {
		backoff, ok := a.backoffs[peer.Name]
		if !ok || peer.State != PeerAlive || peer.Process != backoff.process || now.After(backoff.until.Add(backoff.wait)) {
			continue
		}
		remaining[peer.Name] = backoff
		if now.Before(backoff.until) {
			backedOff[peer.Name] = true
		}
	}
	a.backoffs = remaining
	return backedOff
}

// backOffReplicas starts the backoff of replicas that have been unreachable for longer
// than patience: a replica that was paused, or lacked CPU time, recovers sooner. One that is
// undecided gets undecidedPatience times as much: it may have just started. It returns when to
// decide again.
func (a *Assigner) backOffReplicas(ctx context.Context, d decision, peers []Peer, patience time.Duration, now time.Time) (next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backoffs == nil {
		a.backoffs = map[string]replicaBackoff{}
	}
	since := map[string]time.Time{}
	for _, peer := range peers {
		limit := patience
		switch {
		case slices.Contains(d.undecided, peer.Name):
			limit *= undecidedPatience
		case !slices.Contains(d.unreachable, peer.Name):
			continue
		}
		began, known := a.unreachableSince[peer.Name]
		if !known {
			began = now
		}
		if left := began.Add(limit).Sub(now); left > 0 {
			since[peer.Name] = began
			next = trigger.Earliest(next, left)
			continue
		}
		wait := min(max(minReplicaBackoff, 2*a.backoffs[peer.Name].wait), maxReplicaBackoff)
		a.backoffs[peer.Name] = replicaBackoff{process: peer.Process, until: now.Add(wait), wait: wait}
		next = trigger.Earliest(next, trigger.ConflictRetryDelay)
		log.FromContext(ctx).Info("Replica reaches none of its members while others reach theirs; assigning no members to it", "replica", peer.Name, "duration", wait.String())
	}
	a.unreachableSince, a.missed = since, d.missed
	for _, s := range a.backoffs {
		next = trigger.Earliest(next, max(0, s.until.Sub(now)))
	}
	return next
}

// missedMembers are those that a process of a replica has not reached since it last reached
// one: its own, and those that were taken from it.
type missedMembers struct {
	process string
	members map[string]bool
}

// reach is what the MemberLinks say of a replica.
type reach struct {
	reached, pending, missed int
	// since it last reached one.
	missedSince missedMembers
}

// computeReach returns the reach of each live replica.
func computeReach(s snapshot) map[string]*reach {
	of := map[string]*reach{}
	for _, peer := range s.peers {
		if peer.State != PeerAlive {
			continue
		}
		r := &reach{missedSince: missedMembers{process: peer.Process, members: map[string]bool{}}}
		if before := s.missed[peer.Name]; before.process == peer.Process {
			maps.Copy(r.missedSince.members, before.members)
		}
		of[peer.Name] = r
	}
	for namespace, link := range s.links {
		spec, status := &link.Spec, &link.Status
		r := of[spec.Replica]
		switch {
		case r == nil || spec.Mode != v1alpha1.LinkPush:
		case status.Carrier != spec.Replica || !status.Known:
			r.pending++
		case status.Reachable:
			r.reached++
		case status.Reason == v1alpha1.ReasonUnreachable: // otherwise the credential is the problem
			r.missed++
			r.missedSince.members[namespace] = true
		}
	}
	for _, r := range of {
		if r.reached > 0 {
			r.missedSince.members = nil
		}
	}
	return of
}

// judgeReplicas returns the replicas that members may be assigned to. Of them, unreachable
// seem to reach none of their members while others reach theirs, and have missed at least
// two: members may also be down themselves, and move in vain. If no replica reaches any
// member, the cause is not the replicas. undecided have not tried all of theirs yet.
func judgeReplicas(alive []string, of map[string]*reach, backedOff map[string]bool) (to, unreachable, undecided []string) {
	anyReached := false
	for _, replica := range alive {
		anyReached = anyReached || !backedOff[replica] && of[replica].reached > 0
	}
	for _, replica := range alive {
		r := of[replica]
		switch {
		case !anyReached:
		case backedOff[replica]:
			continue
		case r.reached > 0 || len(r.missedSince.members) < 2:
		case r.pending > 0:
			undecided = append(undecided, replica)
		case r.missed > 0:
			unreachable = append(unreachable, replica)
		}
		to = append(to, replica)
	}
	return to, unreachable, undecided
}
