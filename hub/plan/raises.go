package plan

import (
	"slices"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A restored hub raises plan and grant of a member once each, or a few times while it is
// restored again. A hub that raises more often has a rival.
const (
	maxRaises   = 6
	raiseWindow = 30 * time.Minute
)

// Raises counts how often this process has raised plans and grants above versions in a
// member that it never wrote. The zero value has none.
//
// Two hubs that write to one member each take the versions of the other for their own,
// lost with a restore, and would raise theirs above them without end.
//
// Invariant: at most maxRaises within raiseWindow.
type Raises struct {
	mu sync.Mutex
	at map[string][]time.Time
}

// Record counts a raise that was written.
func (r *Raises) Record(member string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = map[string][]time.Time{}
	}
	r.at[member] = append(r.recentLocked(member, now), now)
}

// Contested returns for how long nothing of a member may be raised, since another hub
// writes to it, too; 0 if it may.
func (r *Raises) Contested(member string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	recent := r.recentLocked(member, now)
	if len(recent) < maxRaises {
		return 0
	}
	return recent[len(recent)-maxRaises].Add(raiseWindow).Sub(now)
}

// Forget drops a member that was deleted.
func (r *Raises) Forget(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, member)
}

func (r *Raises) recentLocked(member string, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(r.at[member]), func(at time.Time) bool { return now.Sub(at) >= raiseWindow })
}

// IsRaise reports whether a plan begins an epoch above the one before, nil for none: the
// member has a version that this hub did not write.
func IsRaise(next, before *v1alpha1.ClusterPlanSpec) bool {
	return before == nil && next.Epoch > 1 || before != nil && next.Epoch > before.Epoch
}
