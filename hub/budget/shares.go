package budget

import (
	"container/heap"
	"maps"
)

// Demand is what one member can use.
type Demand struct {
	Member string
	// Weight of the member against others, at least 1.
	Weight int32
	// Floor is what the member has in any case.
	Floor int32
	// Wanted is how many transfers the member could run, including those of groups.
	Wanted int32
	// Most is how many it can run at a time; 0 for as many as it wants. It may want one of a
	// group beyond that, in the place of another transfer.
	Most int32
	// Sources are the parts of Wanted that are from groups.
	Sources map[string]int32
	// HasTurn: the member has an unused turn. Usage is what it has had so far, divided by
	// its weight.
	HasTurn bool
	Usage   int64
}

// ComputeTargets returns the share of each member, in the order of the demands: weighted
// max–min fair, within total and within each group.
//
// Every member that wants anything gets one transfer before any member gets a second one
// beyond its floor. If there is not enough for that, members with a turn come first, then
// those with the least usage, then by weight and name. No member gets more than it wants,
// and no usable transfer is left over. Floors are given even if they exceed total.
func ComputeTargets(total int64, groups []Group, demands []Demand) []Share {
	f := waterFill{remaining: total, remainingByGroup: make(map[string]int32, len(groups)), demands: demands, shares: make([]Share, len(demands)), plainDemand: make([]int32, len(demands)), spareFloor: make([]int32, len(demands))}
	for _, g := range groups {
		f.remainingByGroup[g.Name] = g.Concurrency
	}
	for i, d := range demands {
		f.shares[i].Slots = d.Floor
		f.remaining -= int64(d.Floor)
		plain := d.Wanted
		for _, n := range d.Sources {
			plain -= n
		}
		f.plainDemand[i], f.spareFloor[i] = max(0, plain-d.Floor), max(0, d.Floor-max(0, plain))
		f.queue = append(f.queue, i)
	}
	heap.Init(&f)
	for len(f.queue) > 0 {
		if f.addSlot(f.queue[0]) {
			heap.Fix(&f, 0)
		} else {
			heap.Pop(&f) // the room only shrinks: what does not fit now never will
		}
	}
	return f.shares
}

// waterFill raises, one slot at a time, the member with the least for its weight.
type waterFill struct {
	remaining        int64
	remainingByGroup map[string]int32 // room in each group
	demands          []Demand
	shares           []Share
	plainDemand      []int32 // wanted from no group, beyond the floor
	spareFloor       []int32 // part of the floor that only groups can use
	queue            []int
}

// addSlot gives a member one more slot, if there is room for one that it can use.
func (f *waterFill) addSlot(i int) bool {
	d, s := &f.demands[i], &f.shares[i]
	runsMost := d.Most > 0 && s.Slots >= d.Most
	if f.remaining <= 0 && f.spareFloor[i] == 0 && !runsMost {
		return false
	}
	if f.remaining > 0 && f.plainDemand[i] > 0 && !runsMost {
		f.plainDemand[i]--
		f.remaining--
		s.Slots++
		return true
	}
	best, room := "", int32(0)
	for name, wanted := range d.Sources {
		left := f.remainingByGroup[name]
		if left <= 0 || s.Sources[name] >= wanted {
			continue
		}
		if left > room || left == room && name < best {
			best, room = name, left
		}
	}
	if room == 0 {
		return false
	}
	if s.Sources == nil {
		s.Sources = map[string]int32{}
	}
	s.Sources[best]++
	f.remainingByGroup[best]--
	switch {
	case f.spareFloor[i] > 0:
		f.spareFloor[i]--
	case runsMost: // it is one of those that the member has
	default:
		f.remaining--
		s.Slots++
	}
	return true
}

func (f *waterFill) Len() int      { return len(f.queue) }
func (f *waterFill) Swap(i, j int) { f.queue[i], f.queue[j] = f.queue[j], f.queue[i] }
func (f *waterFill) Push(any)      {}
func (f *waterFill) Pop() any {
	f.queue = f.queue[:len(f.queue)-1]
	return nil
}

// Less compares shares by weight without a division.
func (f *waterFill) Less(i, j int) bool {
	i, j = f.queue[i], f.queue[j]
	a, b := &f.demands[i], &f.demands[j]
	if has, other := int64(f.shares[i].Slots)*int64(max(1, b.Weight)), int64(f.shares[j].Slots)*int64(max(1, a.Weight)); has != other {
		return has < other
	}
	if f.shares[i].Slots == 0 { // then so is the other
		if a.HasTurn != b.HasTurn {
			return a.HasTurn
		}
		if a.Usage != b.Usage {
			return a.Usage < b.Usage
		}
	}
	if a.Weight != b.Weight {
		return a.Weight > b.Weight
	}
	return a.Member < b.Member
}

// Share is a number of transfers, and how many of them may be from each source group. The
// groups may add up to more than Slots; each is a bound by itself.
type Share struct {
	Slots   int32
	Sources map[string]int32
}

// Max returns the share that bounds both.
func (s Share) Max(o Share) Share {
	s.Slots = max(s.Slots, o.Slots)
	if len(o.Sources) == 0 {
		return s
	}
	sources := make(map[string]int32, len(s.Sources)+len(o.Sources))
	maps.Copy(sources, s.Sources)
	for name, n := range o.Sources {
		sources[name] = max(sources[name], n)
	}
	s.Sources = sources
	return s
}

// Group is the budget of a group of sources, within that of the fleet.
type Group struct {
	Name        string
	Concurrency int32
}
