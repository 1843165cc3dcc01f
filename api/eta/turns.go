package eta

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
)

// Pool is a number of slots that imports take in turn, such as those of the fleet-wide budget, or
// maxConcurrency of a wave.
type Pool struct {
	slots int
	from  time.Time
	// ends of the imports that hold a slot, in order: expected, earliest and latest.
	ends [3][]time.Time
	// later are imports that hold a slot from a time on, in order.
	later [3][]hold
}

type hold struct{ from, end time.Time }

// NewPool returns a pool whose slots are free from a time on.
func NewPool(slots int, from time.Time) *Pool { return &Pool{slots: slots, from: from} }

// NewPool returns the slots of the member, held by what it imports and queues now. At least one is believed
// in, as a window opens it, or an import of an unknown end leaves it.
func (s Snapshot) NewPool() *Pool {
	p := NewPool(max(1, int(s.Activity.Budget)-max(0, int(s.Activity.Slots)-len(s.Activity.Active))), s.Now)
	for i := range s.Activity.Active {
		if e := s.Active(i); e.Why == "" {
			p.HoldSlot(&e)
		} else {
			p.slots = max(1, p.slots-1)
		}
	}
	for i := range s.Activity.Head {
		if e := s.Queued(i); e.Why == "" {
			p.HoldSlot(&e)
		}
	}
	return p
}

// HoldSlot has an import keep a slot until it ends, whether or not one is free.
func (p *Pool) HoldSlot(e *Estimate) {
	for field, at := range e.times() {
		p.insertEnd(field, *at)
	}
}

// HoldSlotFromOpening has an import keep a slot from when its window opens until it ends, whether or not
// one is free.
func (p *Pool) HoldSlotFromOpening(now time.Time, t *Turn) {
	for field, at := range t.times() {
		h := hold{from: t.opening(now, field), end: *at}
		place, _ := slices.BinarySearchFunc(p.later[field], h, func(a, b hold) int { return a.from.Compare(b.from) })
		p.later[field] = slices.Insert(p.later[field], place, h)
	}
}

func (p *Pool) insertEnd(field int, end time.Time) {
	ends := p.ends[field]
	place, _ := slices.BinarySearchFunc(ends, end, time.Time.Compare)
	p.ends[field] = slices.Insert(ends, place, end)
}

// freeAt returns when a slot is free for an import whose window opens at a time. As many end before as hold
// more than the other slots. Imports have to come in the order in which their windows open.
func (p *Pool) freeAt(field int, opens time.Time) time.Time {
	for {
		at := p.from
		if over := len(p.ends[field]) - p.slots; over >= 0 {
			at = storedtime.LaterOf(at, p.ends[field][over])
		}
		if later := p.later[field]; len(later) == 0 || later[0].from.After(storedtime.LaterOf(at, opens)) {
			return at
		}
		p.insertEnd(field, p.later[field][0].end)
		p.later[field] = p.later[field][1:]
	}
}

// takeSlot keeps a slot that is free until an import ends.
func (p *Pool) takeSlot(field int, end time.Time) {
	if over := len(p.ends[field]) - p.slots; over >= 0 {
		p.ends[field] = p.ends[field][over+1:]
	}
	p.insertEnd(field, end)
}

// Turn is an import that starts when each of its pools has a free slot.
type Turn struct {
	// Estimate as if all of them had one.
	Estimate
	// Opens is when the window opens that it waits for; zero for none.
	Opens time.Time
	Pools []*Pool
}

// PlayTurns moves the estimates of imports that start one after the other: in the order in which their
// windows open, else in the order given. An import that waits for its window holds up none whose window is
// open. What lies before Begin, it waits for while it waits for a slot.
//
// Invariants: no estimate gets earlier, and with more slots none is later.
func PlayTurns(now time.Time, turns []*Turn) {
	opens := func(t *Turn) time.Time { return storedtime.LaterOf(now, t.Opens) }
	ordered := slices.Clone(turns)
	slices.SortStableFunc(ordered, func(a, b *Turn) int { return opens(a).Compare(opens(b)) })
	for _, t := range ordered {
		t.play(now)
	}
}

func (t *Turn) play(now time.Time) {
	switch {
	case t.Why != "":
		return
	case slices.ContainsFunc(t.Pools, func(p *Pool) bool { return p.slots <= 0 }):
		t.Estimate = Estimate{Position: t.Position, Why: UnknownNothingGranted}
		return
	}
	takes := t.Takes(now)
	own, opens := [3]time.Duration{}, [3]time.Time{}
	for field := range own {
		own[field], opens[field] = t.share(now, field, takes), t.opening(now, field)
	}
	for field, at := range t.times() {
		for _, p := range t.Pools {
			*at = storedtime.LaterOf(*at, p.freeAt(field, opens[field]).Add(own[field]))
		}
		for _, p := range t.Pools {
			p.takeSlot(field, *at)
		}
	}
	if !t.Begin.IsZero() {
		t.Begin = t.At.Add(-takes)
	}
}

// share returns what a part of the time until At is of the earliest and of the latest time: the same share.
func (t *Turn) share(now time.Time, field int, part time.Duration) time.Duration {
	if all := t.At.Sub(now); field > 0 && all > 0 {
		return time.Duration(float64(part) / float64(all) * float64(t.times()[field].Sub(now)))
	}
	return part
}

// opening returns when the window opens that the import waits for.
func (t *Turn) opening(now time.Time, field int) time.Time {
	return now.Add(t.share(now, field, max(0, t.Opens.Sub(now))))
}

// Takes returns how long the import takes once it has its slot, or still takes.
func (e *Estimate) Takes(now time.Time) time.Duration {
	return e.At.Sub(storedtime.LaterOf(now, e.Begin))
}

func (e *Estimate) times() [3]*time.Time { return [3]*time.Time{&e.At, &e.Low, &e.High} }
