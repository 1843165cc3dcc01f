package memberstatus

import (
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// setWindow sets whether the member may import by its windows. It is stored since when it may:
// the deadlines of rollouts count from then, also after the hub has restarted, the windows have
// changed, or the window has closed: what runs then runs on.
func (s *statusBuilder) setWindow() {
	before := s.Member.Status.Window
	opensAt := s.windowOpensAt()
	switch {
	case !opensAt.IsZero():
		stored := storedtime.Truncate(opensAt)
		s.status.Window = &v1alpha1.MemberWindow{OpensAt: &stored}
		if before != nil {
			s.status.Window.OpenedAt = before.OpenedAt.DeepCopy()
		}
	case before == nil:
	case before.OpensAt == nil:
		s.status.Window = before.DeepCopy()
	default:
		openedAt := storedtime.Truncate(s.Now)
		s.status.Window = &v1alpha1.MemberWindow{OpenedAt: &openedAt}
	}
}

// windowOpensAt returns when the member may import again: what it says, which includes its own
// windows, and what the hub knows; zero where it may. Invariant: a time that has passed is none,
// whatever an old report says.
func (s *statusBuilder) windowOpensAt() time.Time {
	at := s.WindowOpensAt
	if r := s.Report; r != nil && r.InForce != nil && r.InForce.Concurrency == 0 && r.InForce.OpensAt != nil && r.InForce.OpensAt.After(at) {
		at = r.InForce.OpensAt.Time
	}
	if !at.After(s.Now) {
		return time.Time{}
	}
	s.recheckAt(at)
	return at
}
