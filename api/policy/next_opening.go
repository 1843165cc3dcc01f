package policy

import (
	"math"
	"time"
)

// maxEdges bounds how many openings and closings are looked at for the next one that matters.
const maxEdges = 512

// Opening is a time from which on more imports may run than before.
type Opening struct {
	At time.Time
	// Concurrency from then on.
	Concurrency int32
	// TimeZone of the window that opens, or closes; empty for UTC.
	TimeZone string
}

// Describe returns the time by the clock of the window's zone and in UTC.
func (o Opening) Describe() string {
	utc := o.At.UTC().Format(time.RFC3339)
	zone, err := LoadZone(o.TimeZone)
	if err != nil || o.TimeZone == "" || o.TimeZone == "UTC" {
		return utc
	}
	return o.At.In(zone).Format("Mon 2 Jan 15:04") + " in " + o.TimeZone + " (" + utc + ")"
}

// NextOpening returns the first time after now at which more imports may run than now, by a
// member's own policy and the hub's plan as in CombineAt. There may be no such time: found is
// false as well where it is further away than maxEdges.
func NextOpening(own, planned *Policy, now time.Time) (opening Opening, found bool) {
	var limits []*limit
	for _, p := range []*Policy{own, planned} {
		if p != nil {
			limits = append(limits, &limit{policy: p, isUnlimited: p == own && planned != nil && p.ConcurrencyUnset, timeline: newTimeline(p.Windows, now)})
		}
	}
	before := smallestOf(limits)
	for _, l := range limits {
		if l.largest() <= before {
			return Opening{}, false // such as within the only window: no search of years
		}
	}
	for range maxEdges {
		edge := time.Time{}
		for _, l := range limits {
			if e := l.timeline.nextEdge(); !e.IsZero() && (edge.IsZero() || e.Before(edge)) {
				edge = e
			}
		}
		if edge.IsZero() {
			return Opening{}, false
		}
		zone := ""
		for _, l := range limits {
			if changed := l.advance(edge); changed != nil {
				zone = changed.TimeZone
			}
		}
		if concurrency := smallestOf(limits); concurrency > before {
			return Opening{At: edge, Concurrency: concurrency, TimeZone: zone}, true
		}
	}
	return Opening{}, false
}

// limit is the concurrency of one policy over time.
type limit struct {
	policy *Policy
	// isUnlimited outside all windows.
	isUnlimited bool
	timeline    *timeline
}

// advance goes on to an edge, and returns the window that changes the number there: the one
// that decides it from then on, else the one that did before; nil for no change.
func (l *limit) advance(edge time.Time) *Window {
	before, former := l.current()
	l.timeline.advance(edge)
	after, window := l.current()
	switch {
	case before == after:
		return nil
	case window == nil:
		return former
	default:
		return window
	}
}

// current returns the concurrency now, and the window that sets it; nil for none.
func (l *limit) current() (int32, *Window) {
	numbers, window := l.timeline.numbers(Numbers{Concurrency: l.policy.Concurrency})
	if window == nil && l.isUnlimited {
		return math.MaxInt32, nil
	}
	return numbers.Concurrency, window
}

// largest returns the largest concurrency that the policy ever has, or more.
func (l *limit) largest() int32 {
	largest := l.policy.Concurrency
	if l.isUnlimited {
		largest = math.MaxInt32
	}
	for _, w := range l.policy.Windows {
		if w.Concurrency != nil {
			largest = max(largest, *w.Concurrency)
		}
	}
	return largest
}

func smallestOf(limits []*limit) int32 {
	smallest := int32(math.MaxInt32)
	for _, l := range limits {
		concurrency, _ := l.current()
		smallest = min(smallest, concurrency)
	}
	return smallest
}
