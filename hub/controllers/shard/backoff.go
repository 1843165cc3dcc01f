package shard

import (
	"context"
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
// than patience: a replica that was paused, or lacked CPU time, recovers sooner. It
// returns when to decide again.
func (a *Assigner) backOffReplicas(ctx context.Context, unreachable []string, peers []Peer, patience time.Duration, now time.Time) (next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backoffs == nil {
		a.backoffs = map[string]replicaBackoff{}
	}
	since := map[string]time.Time{}
	for _, peer := range peers {
		if !slices.Contains(unreachable, peer.Name) {
			continue
		}
		began, known := a.unreachableSince[peer.Name]
		if !known {
			began = now
		}
		if left := began.Add(patience).Sub(now); left > 0 {
			since[peer.Name] = began
			next = trigger.Earliest(next, left)
			continue
		}
		wait := min(max(minReplicaBackoff, 2*a.backoffs[peer.Name].wait), maxReplicaBackoff)
		a.backoffs[peer.Name] = replicaBackoff{process: peer.Process, until: now.Add(wait), wait: wait}
		next = trigger.Earliest(next, trigger.ConflictRetryDelay)
		log.FromContext(ctx).Info("Replica reaches none of its members while others reach theirs; assigning no members to it", "replica", peer.Name, "duration", wait.String())
	}
	a.unreachableSince = since
	for _, s := range a.backoffs {
		next = trigger.Earliest(next, max(0, s.until.Sub(now)))
	}
	return next
}

// assignableReplicas returns the replicas that members may be assigned to, and those of
// them that seem to reach none of their members, at least two, while others reach theirs.
// Moving members from such a replica one by one would bring it others in exchange. Its
// members may also be down themselves, and move in vain. If no replica reaches any
// member, the cause is not the replicas.
func assignableReplicas(alive []string, s snapshot) (to, unreachable []string) {
	reached, missed, pending := map[string]int{}, map[string]int{}, map[string]int{}
	for _, link := range s.links {
		spec, status := &link.Spec, &link.Status
		switch {
		case spec.Mode != v1alpha1.LinkPush:
		case status.Carrier != spec.Replica || !status.Known:
			pending[spec.Replica]++
		case status.Reachable:
			reached[spec.Replica]++
		case status.Reason == v1alpha1.ReasonUnreachable: // otherwise the credential is the problem
			missed[spec.Replica]++
		}
	}
	anyReached := false
	for _, replica := range alive {
		anyReached = anyReached || !s.backedOff[replica] && reached[replica] > 0
	}
	for _, replica := range alive {
		switch {
		case !anyReached:
			to = append(to, replica)
		case s.backedOff[replica]:
		case missed[replica] > 1 && reached[replica]+pending[replica] == 0:
			unreachable = append(unreachable, replica)
			fallthrough
		default:
			to = append(to, replica)
		}
	}
	return to, unreachable
}
