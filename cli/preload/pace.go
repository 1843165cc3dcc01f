package preload

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// Fleet is what estimates depend on beside the clusters.
type Fleet struct {
	Now time.Time
	// Budget of the fleet; nil for none. While its window is closed, that of the next opening.
	Budget *policy.Budget
	// Held are the slots that the budget reserves for each member now.
	Held map[string]int32
	// Running are the imports that hold some of them, by member and group of sources, as far as known.
	Running map[string]map[string]int32
	// HeldFor is how long an import that runs now may go on; zero: not known.
	HeldFor time.Duration
	// Live: the image is created in the cluster itself, so that no wave holds it up.
	Live bool
}

// joining is an image that joins the queue of a cluster.
type joining struct {
	eta.Turn
	expected *Expected
	member   *v1alpha1.MemberCluster
}

// paceImports has as many clusters import at a time as the fleet's budget lets, beside the pools that each
// import has: those of its wave and of its cluster.
func (f Fleet) paceImports(joined []*joining) {
	var first, others []*eta.Turn
	own := map[string]*joining{}
	for _, j := range joined {
		// It imports in a slot that its cluster holds.
		if j.Why == "" && f.Held[j.member.Name] > 0 && !j.Opens.After(f.Now) && own[j.member.Name] == nil {
			own[j.member.Name] = j
			first = append(first, &j.Turn)
		} else {
			others = append(others, &j.Turn)
		}
	}
	if f.Budget != nil {
		f.limitByBudget(joined, own)
	}
	eta.PlayTurns(f.Now, slices.Concat(first, others))
	for _, j := range joined {
		j.expected.Estimate, j.expected.begins = *readapi.NewEstimate(j.Estimate), j.Begin
	}
}

// dropUnsure gives no time to what begins when fleetConcurrency is lower, unless that still leaves all slots of
// its group of sources to it: beside what others hold, and what joins from other groups.
func (f Fleet) dropUnsure(items []Image, joined []*joining) {
	if f.Budget == nil || f.Budget.LowerFrom.IsZero() {
		return
	}
	lowest, joins := *f.Budget, map[string]int32{}
	for _, j := range joined {
		joins[j.expected.source]++
	}
	for n := range items {
		for i := range items[n].Expected {
			e := &items[n].Expected[i]
			if e.At == nil || e.begins.Before(f.Budget.LowerFrom) {
				continue
			}
			lowest.Concurrency = f.Budget.Least - int32(len(joined)) + joins[e.source]
			if f.HeldFor <= 0 || e.begins.Before(f.Now.Add(f.HeldFor)) {
				for _, held := range f.Held {
					lowest.Concurrency -= held
				}
			}
			if lowest.Slots(e.source) < f.Budget.Slots(e.source) {
				e.AtBest = e.At
				e.Estimate = readapi.Estimate{
					Reason: string(eta.UnknownNothingGranted), Message: "it begins after the fleet's window, when fleetConcurrency is lower: from " + f.Budget.LowerFrom.UTC().Format(time.RFC3339),
				}
			}
		}
	}
}

// limitByBudget adds the slots of the fleet and of each group of sources, and while what runs now may go
// on, those of them that are free.
//
// Invariant: a slot that may be taken for a group of sources is not free for it.
func (f Fleet) limitByBudget(joined []*joining, own map[string]*joining) {
	type limit struct{ all, free *eta.Pool }
	newLimit := func(slots int32, taken int) *limit {
		return &limit{eta.NewPool(int(slots), f.Now), eta.NewPool(int(slots)-taken, f.Now)}
	}
	fleet, groups := newLimit(f.Budget.Concurrency, f.countTaken(own)), map[string]*limit{}
	for _, j := range joined {
		limits, source := []*limit{fleet}, j.expected.source
		if slots := f.Budget.Slots(source); slots < f.Budget.Concurrency {
			if groups[source] == nil {
				groups[source] = newLimit(slots, f.countTakenOf(source, own))
			}
			limits = append(limits, groups[source])
		}
		for _, l := range limits {
			j.Pools = append(j.Pools, l.all)
			if f.HeldFor <= 0 || j.Opens.Before(f.Now.Add(f.HeldFor)) {
				j.Pools = append(j.Pools, l.free)
			}
		}
	}
}

// countTaken returns how many slots of the fleet are not free for the imports that join. own are those that
// import in a slot that their cluster holds, by cluster.
func (f Fleet) countTaken(own map[string]*joining) (taken int) {
	for member, held := range f.Held {
		taken += int(held)
		if own[member] != nil {
			taken--
		}
	}
	return taken
}

// countTakenOf returns how many slots may be taken for a group of sources.
func (f Fleet) countTakenOf(source string, own map[string]*joining) (taken int) {
	for member, held := range f.Held {
		ofOthers := int32(0)
		for group, n := range f.Running[member] {
			if group != source {
				ofOthers += n
			}
		}
		may := int(held) - int(ofOthers)
		// It may take over any of the member's slots, and one of another group leaves those of its own taken. Not
		// each import is listed: that none of its group is says nothing.
		if j := own[member]; j != nil && j.expected.source == source && ofOthers == 0 {
			may--
		}
		taken += max(0, may)
	}
	return taken
}
