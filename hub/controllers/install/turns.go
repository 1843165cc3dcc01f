package install

import (
	"math/rand/v2"
	"time"
)

// turn is when to ask again for a turn: not everybody at once.
func turn() time.Duration { return 2*time.Second + rand.N(2*time.Second) }

// waits tells whether a member was found to need a turn, and there is still none.
func (r *Reconciler) waits(member string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.turns) < cap(r.turns) {
		delete(r.queued, member) // it is seen anew what it needs
	}
	return r.queued[member]
}

func (r *Reconciler) wait(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued == nil {
		r.queued = map[string]bool{}
	}
	r.queued[member] = true
}

// looked counts a look that found nothing out, and returns how many there were before it
// in a row.
func (r *Reconciler) looked(member string, inVain bool) (before int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.dark[member]
	if !inVain {
		delete(r.dark, member)
		return 0
	}
	if r.dark == nil {
		r.dark = map[string]int{}
	}
	r.dark[member]++
	return before
}

// forget a member that is gone, or does not opt in any more.
func (r *Reconciler) forget(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dark, member)
	delete(r.queued, member)
}
