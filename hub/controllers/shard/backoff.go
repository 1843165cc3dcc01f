package shard

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A replica that was blind for long gets no member for minReplicaBackoff, and for twice as long each
// time that it turns out to be blind still, until that is maxReplicaBackoff.
const (
	minReplicaBackoff = 5 * time.Minute
	maxReplicaBackoff = time.Hour
)

// replicaBackoff of a replica, as long as it is the same process.
type replicaBackoff struct {
	process string
	until   time.Time
	wait    time.Duration
}

// activeBackoffs the replicas are those that were found to be blind and are to get no member
// yet. What was of one that ended, or was better for long enough, is forgotten.
func (a *Assigner) activeBackoffs(peers []Peer, now time.Time) map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	shunned, kept := map[string]bool{}, map[string]replicaBackoff{}
	for _, peer := range peers {
		was, is := a.backoffs[peer.Name]
		if !is || peer.State != PeerAlive || peer.Process != was.process || now.After(was.until.Add(was.wait)) {
			continue
		}
		kept[peer.Name] = was
		if now.Before(was.until) {
			shunned[peer.Name] = true
		}
	}
	a.backoffs = kept
	return shunned
}

// backOffReplicas has replicas that have been blind for as long as a silent one is waited for get
// no member for a while: one that was paused, or had no time, comes back sooner. It
// tells when to look again.
func (a *Assigner) backOffReplicas(ctx context.Context, blind []string, peers []Peer, patience time.Duration, now time.Time) (next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backoffs == nil {
		a.backoffs = map[string]replicaBackoff{}
	}
	since := map[string]time.Time{}
	for _, peer := range peers {
		if !slices.Contains(blind, peer.Name) {
			continue
		}
		began, known := a.unreachableSince[peer.Name]
		if !known {
			began = now
		}
		if left := began.Add(patience).Sub(now); left > 0 {
			since[peer.Name] = began
			next = minPositive(next, left)
			continue
		}
		wait := min(max(minReplicaBackoff, 2*a.backoffs[peer.Name].wait), maxReplicaBackoff)
		a.backoffs[peer.Name] = replicaBackoff{process: peer.Process, until: now.Add(wait), wait: wait}
		next = minPositive(next, conflictRetryDelay)
		log.FromContext(ctx).Info("A replica reaches none of its members, and others reach theirs: it gets none for a while", "replica", peer.Name, "for", wait.String())
	}
	a.unreachableSince = since
	for _, s := range a.backoffs {
		next = minPositive(next, s.until.Sub(now))
	}
	return next
}

// minPositive of two waits, of which those that are not greater than 0 are none.
func minPositive(a, b time.Duration) time.Duration {
	if b <= 0 || a > 0 && a < b {
		return a
	}
	return b
}

// assignableReplicas are the replicas that members are assigned to, of those that are alive, and
// blind those of them that seem to reach none of their members, of which they have
// more than one, while others reach theirs: to move members from them one by one would
// bring them others in exchange. They may also have members that nobody reaches, and
// have them moved for nothing. Where nobody reaches any, it is not the replicas.
func assignableReplicas(alive []string, s snapshot) (to, blind []string) {
	reached, missed, pending := map[string]int{}, map[string]int{}, map[string]int{}
	for _, link := range s.links {
		spec, status := &link.Spec, &link.Status
		switch {
		case spec.Mode != v1alpha1.LinkPush:
		case status.Carrier != spec.Replica || !status.Known:
			pending[spec.Replica]++
		case status.Reachable:
			reached[spec.Replica]++
		case status.Reason == v1alpha1.ReasonUnreachable: // else it is the credential
			missed[spec.Replica]++
		}
	}
	seen := false
	for _, replica := range alive {
		seen = seen || !s.backedOff[replica] && reached[replica] > 0
	}
	for _, replica := range alive {
		switch {
		case !seen:
			to = append(to, replica)
		case s.backedOff[replica]:
		case missed[replica] > 1 && reached[replica]+pending[replica] == 0:
			blind = append(blind, replica)
			fallthrough
		default:
			to = append(to, replica)
		}
	}
	return to, blind
}
