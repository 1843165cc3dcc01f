package install

import (
	"math/rand/v2"
	"time"
)

// slotRetryDelay is when to ask again for a turn: not everybody at once.
func slotRetryDelay() time.Duration { return 2*time.Second + rand.N(2*time.Second) }

// isWaitingForSlot tells whether a member was found to need a turn, and there is still none.
func (r *Reconciler) isWaitingForSlot(member string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.installSlots) < cap(r.installSlots) {
		delete(r.waitingForSlot, member) // it is seen anew what it needs
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

// countFailedProbe counts a look that found nothing out, and returns how many there were before it
// in a row.
func (r *Reconciler) countFailedProbe(member string, inVain bool) (before int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.failedProbes[member]
	if !inVain {
		delete(r.failedProbes, member)
		return 0
	}
	if r.failedProbes == nil {
		r.failedProbes = map[string]int{}
	}
	r.failedProbes[member]++
	return before
}

// forgetMember a member that is gone, or does not opt in any more.
func (r *Reconciler) forgetMember(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failedProbes, member)
	delete(r.waitingForSlot, member)
}
