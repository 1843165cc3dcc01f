package shard

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// A replica that reached none of its members for long gets no members for
// minReplicaBackoff, and for twice as long each time that this repeats, up to
// maxReplicaBackoff.
const (
	minReplicaBackoff = 5 * time.Minute
	maxReplicaBackoff = time.Hour
)

// How many durations of a Lease a replica has to reach a member. One that was paused, or
// lacked CPU time, recovers sooner; one that has not tried all of its members may have just
// started.
const (
	leasesToReach = 1
	leasesToTry   = 4
)

// replicaBackoff of a replica holds for one process.
type replicaBackoff struct {
	process string
	until   time.Time
	wait    time.Duration
}

// evidence is what speaks against a process of a replica.
type evidence struct {
	process string
	// reaches: nothing does, it reaches a member.
	reaches bool
	// missed are the namespaces of members that it does not reach, or did not before they
	// were taken from it; empty while it reaches any.
	missed map[string]bool
	// since is when it began to reach none; zero for no suspicion.
	since time.Time
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

// recordEvidence keeps the evidence of a decision, and starts the backoff of replicas whose
// time to reach a member is over. It returns when to decide again.
func (a *Assigner) recordEvidence(ctx context.Context, d decision, peers []Peer, lease time.Duration, now time.Time) (next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backoffs == nil {
		a.backoffs = map[string]replicaBackoff{}
	}
	for _, peer := range peers {
		against, known := d.evidence[peer.Name]
		leases, suspected := d.suspects[peer.Name]
		if !known {
			continue
		}
		if against.since.IsZero() {
			against.since = now
		}
		left := against.since.Add(time.Duration(leases) * lease).Sub(now)
		switch {
		case !suspected:
			against.since = time.Time{}
		case left > 0:
			next = trigger.Earliest(next, left)
		default:
			against.since = time.Time{}
			wait := min(max(minReplicaBackoff, 2*a.backoffs[peer.Name].wait), maxReplicaBackoff)
			a.backoffs[peer.Name] = replicaBackoff{process: peer.Process, until: now.Add(wait), wait: wait}
			next = trigger.Earliest(next, trigger.ConflictRetryDelay)
			log.FromContext(ctx).Info("Replica reaches none of its members while others reach theirs; assigning no members to it", "replica", peer.Name, "retryAfter", wait)
		}
		d.evidence[peer.Name] = against
		if backoff, ok := a.backoffs[peer.Name]; ok && against.reaches && now.Before(backoff.until) {
			backoff.until = now
			a.backoffs[peer.Name] = backoff
		}
	}
	a.evidence = d.evidence
	// Once a suspect has recovered, the watchdog asks again for those that it still misses.
	for member, suspect := range d.kept {
		delete(a.avoidances[member], suspect)
	}
	for _, of := range a.avoidances {
		for _, avoids := range of {
			next = trigger.Earliest(next, max(avoids.until.Sub(now), trigger.ConflictRetryDelay))
		}
	}
	for _, s := range a.backoffs {
		next = trigger.Earliest(next, max(0, s.until.Sub(now)))
	}
	return next
}

// reach is what is known of a replica and its members.
type reach struct {
	unreached, pending int
	evidence
}

// computeReach returns the reach of each live replica.
func computeReach(s snapshot) map[string]*reach {
	of := map[string]*reach{}
	for _, peer := range s.peers {
		if peer.State != PeerAlive {
			continue
		}
		r := &reach{evidence: evidence{process: peer.Process, missed: map[string]bool{}}}
		if before := s.evidence[peer.Name]; before.process == peer.Process {
			r.since = before.since
			for namespace := range before.missed {
				if link := s.links[namespace]; link != nil && link.Spec.Mode == v1alpha1.LinkPush && !isMissedByOther(link, peer.Name) {
					r.missed[namespace] = true
				}
			}
		}
		of[peer.Name] = r
	}
	for namespace, link := range s.links {
		spec, status := &link.Spec, &link.Status
		r := of[spec.Replica]
		if r == nil || spec.Mode != v1alpha1.LinkPush {
			continue
		}
		member, _ := report.MemberForNamespace(namespace)
		isStuck := slices.Contains(s.avoid[member], spec.Replica)
		switch {
		case status.Carrier != spec.Replica || !status.Known:
			r.pending++
		case status.Reachable:
			r.reaches = true
		default:
			r.unreached++
			// Otherwise the credential is the problem, unless the elected replica reads it.
			isStuck = isStuck || status.Reason == v1alpha1.ReasonUnreachable
		}
		if isStuck {
			r.missed[namespace] = true
		}
	}
	for _, r := range of {
		if r.reaches {
			r.missed = nil
		}
	}
	return of
}

// judgeReplicas returns the replicas that members may be assigned to, and for how many
// durations of a Lease suspects among them may go on. Suspects have missed at least two
// members and reach none, while others reach theirs: members may also be down themselves, and
// move in vain. If no replica reaches any member, the cause is not the replicas.
func judgeReplicas(alive []string, of map[string]*reach, backedOff map[string]bool) (to []string, suspects map[string]int) {
	anyReached := false
	for _, replica := range alive {
		anyReached = anyReached || of[replica].reaches
	}
	suspects = map[string]int{}
	for _, replica := range alive {
		r := of[replica]
		switch {
		case !anyReached:
		case r.reaches: // it may have been backed off, and given members for want of others
		case backedOff[replica]:
			continue
		case len(r.missed) < 2:
		case r.pending > 0:
			suspects[replica] = leasesToTry
		case r.unreached > 0:
			suspects[replica] = leasesToReach
		}
		to = append(to, replica)
	}
	return to, suspects
}
