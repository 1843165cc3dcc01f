package install

import (
	"math/rand/v2"
	"time"
)

// maxLeaseConflicts over a member's Lease are retried: more are no other process that was faster.
const maxLeaseConflicts = 5

// slotRetryDelay spreads the retries of members that wait for a slot.
func slotRetryDelay() time.Duration { return 2*time.Second + rand.N(2*time.Second) }

// reserveSlot takes an install slot for a session, which frees it when it is closed: each
// installation renders the chart and holds it in memory.
func (r *Reconciler) reserveSlot(session *memberSession) bool {
	if session.hasSlot {
		return true
	}
	select {
	case r.installSlots <- struct{}{}:
		session.hasSlot = true
		session.closers = append(session.closers, func() { <-r.installSlots })
		return true
	default:
		return false
	}
}

// isWaitingForSlot reports whether a member needs a slot and all are taken.
func (r *Reconciler) isWaitingForSlot(member string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.installSlots) < cap(r.installSlots) {
		delete(r.waitingForSlot, member) // it is observed again
	}
	return r.waitingForSlot[member]
}

func (r *Reconciler) setWaitingForSlot(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waitingForSlot == nil {
		r.waitingForSlot = map[string]bool{}
	}
	r.waitingForSlot[member] = true
}

// countFailedProbe counts a failure to read a member, and returns the number of failures
// in a row before it. A success resets the count.
func (r *Reconciler) countFailedProbe(member string, failed bool) (before int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.failedProbes[member]
	if !failed {
		delete(r.failedProbes, member)
		return 0
	}
	if r.failedProbes == nil {
		r.failedProbes = map[string]int{}
	}
	r.failedProbes[member]++
	return before
}

// countLeaseConflict counts a conflict over the Lease of a member, and returns the count.
func (r *Reconciler) countLeaseConflict(member string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaseConflicts == nil {
		r.leaseConflicts = map[string]int{}
	}
	r.leaseConflicts[member]++
	return r.leaseConflicts[member]
}

func (r *Reconciler) resetLeaseConflicts(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leaseConflicts, member)
}

// forgetMember drops a member that was deleted or has opted out.
func (r *Reconciler) forgetMember(member string) {
	r.foreignLeases.forget(member)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failedProbes, member)
	delete(r.leaseConflicts, member)
	delete(r.waitingForSlot, member)
}
