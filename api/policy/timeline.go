package policy

import (
	"iter"
	"time"
)

// maxJoinedOpenings bounds how far the end of a window is sought whose next opening comes
// before it closes. Beyond that, an edge may be one at which nothing changes.
const maxJoinedOpenings = 16

// timeline follows the windows of a policy from one edge to the next.
type timeline struct {
	windows Windows
	states  []windowState
	now     time.Time
}

// windowState is one window at a time.
type windowState struct {
	ClockTimes
	open bool
	// edge is when the window opens or closes; zero for never.
	edge time.Time
}

// newTimeline starts at a time. A window that cannot be parsed is never open.
func newTimeline(windows Windows, now time.Time) *timeline {
	t := &timeline{windows: windows, now: now, states: make([]windowState, len(windows))}
	for i, w := range windows {
		o, err := newOpenings(w)
		if err != nil || w.Duration <= 0 {
			continue
		}
		t.states[i].ClockTimes = o
		t.update(i)
	}
	return t
}

// update computes the state of a window now.
func (t *timeline) update(i int) {
	s, duration := &t.states[i], t.windows[i].Duration
	// The window is open iff its last opening is less than its duration ago.
	opening := s.Next(t.now.Add(-duration))
	s.open = !opening.IsZero() && !opening.After(t.now)
	if s.edge = opening; !s.open {
		return
	}
	for range maxJoinedOpenings {
		s.edge = opening.Add(duration)
		next := s.Next(opening)
		if next.IsZero() || next.After(s.edge) {
			return
		}
		opening = next
	}
}

// nextEdge returns when a window opens or closes; zero for never.
func (t *timeline) nextEdge() (edge time.Time) {
	for _, s := range t.states {
		if !s.edge.IsZero() && (edge.IsZero() || s.edge.Before(edge)) {
			edge = s.edge
		}
	}
	return edge
}

// advance goes on to a later time.
func (t *timeline) advance(to time.Time) {
	t.now = to
	for i, s := range t.states {
		if !s.edge.IsZero() && !s.edge.After(to) {
			t.update(i)
		}
	}
}

// Numbers are those of a policy that windows replace.
type Numbers struct {
	Concurrency, FleetConcurrency int32
}

// numbers returns the numbers in force, and the window that sets Concurrency; nil for none.
func (t *timeline) numbers(plain Numbers) (inForce Numbers, window *Window) {
	inForce = plain
	for i, w := range t.windows {
		if !t.states[i].open {
			continue
		}
		if w.Concurrency != nil {
			inForce.Concurrency, window = *w.Concurrency, &t.windows[i]
		}
		if w.FleetConcurrency != nil {
			inForce.FleetConcurrency = *w.FleetConcurrency
		}
	}
	return inForce, window
}

// At returns the numbers in force at a time, and when a window opens or closes next; nextEdge
// is zero where none ever does. plain are the numbers outside all windows.
//
// Invariant: the numbers stay the same from now until nextEdge, which is after now. They
// depend on nothing but the windows and the time.
func (w Windows) At(now time.Time, plain Numbers) (inForce Numbers, nextEdge time.Time) {
	if len(w) == 0 {
		return plain, time.Time{}
	}
	t := newTimeline(w, now)
	inForce, _ = t.numbers(plain)
	return inForce, t.nextEdge()
}

// Changes returns the times after now at which a window opens or closes, in order, with the numbers
// in force from then on. There may be no end of them.
func (w Windows) Changes(now time.Time, plain Numbers) iter.Seq2[time.Time, Numbers] {
	return func(yield func(time.Time, Numbers) bool) {
		t := newTimeline(w, now)
		for edge := t.nextEdge(); !edge.IsZero(); edge = t.nextEdge() {
			t.advance(edge)
			if inForce, _ := t.numbers(plain); !yield(edge, inForce) {
				return
			}
		}
	}
}

// At returns the policy in force at a time, which has no windows, and until when it is; see
// Windows.At.
func (p Policy) At(now time.Time) (inForce Policy, nextEdge time.Time) {
	if len(p.Windows) == 0 {
		return p, time.Time{}
	}
	t := newTimeline(p.Windows, now)
	numbers, window := t.numbers(Numbers{Concurrency: p.Concurrency})
	p.Windows, p.Concurrency = nil, numbers.Concurrency
	p.ConcurrencyUnset = p.ConcurrencyUnset && window == nil
	return p, t.nextEdge()
}
