package preload

import (
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// joining is a cluster whose image joins the queue.
type joining struct {
	index    int // of Image.Expected
	member   *v1alpha1.MemberCluster
	estimate eta.Estimate
}

// paceImports has as many clusters import at a time as their wave and the fleet's budget let, in their
// order. What they wait for at the same time, as a window or a queue of their own, is waited for once.
func (i *Image) paceImports(f Fleet, waves *waves, joined []joining, sources map[string]bool) {
	slots := f.freeSlots(joined, sources)
	for n := range waves.all {
		w := &waves.all[n]
		limit := min(slots, w.limit())
		var ends [3][]time.Time // of the last ones, in order
		for _, j := range joined {
			e := &i.Expected[j.index].Estimate
			switch {
			case waves.findWave(j.member) != w || e.At == nil:
				continue
			case limit <= 0:
				*e = *readapi.NewEstimate(eta.Estimate{Why: eta.UnknownNothingGranted})
				continue
			}
			// Of the earliest and the latest time, the import is the same share as of the expected one.
			share := 0.0
			if all := j.estimate.At.Sub(f.Now); all > 0 {
				share = float64(j.estimate.At.Sub(j.estimate.Begin)) / float64(all)
			}
			for field, at := range []*metav1.Time{e.At, e.Earliest, e.Latest} {
				if len(ends[field]) >= limit {
					free := ends[field][0]
					ends[field] = ends[field][1:]
					takes := time.Duration(share * float64(at.Sub(f.Now)))
					if end := free.Add(takes); end.After(at.Time) {
						at.Time = end
					}
				}
				place, _ := slices.BinarySearchFunc(ends[field], at.Time, time.Time.Compare)
				ends[field] = slices.Insert(ends[field], place, at.Time)
			}
		}
	}
}

// freeSlots returns how many of some clusters may import at a time by the fleet's budget: what it does not
// reserve for others. It may be negative.
func (f Fleet) freeSlots(joined []joining, sources map[string]bool) int {
	if f.Budget == nil || len(joined) == 0 {
		return math.MaxInt
	}
	slots := math.MaxInt
	for source := range sources {
		slots = min(slots, int(f.Budget.Slots(source)))
	}
	for member, held := range f.Held {
		if !slices.ContainsFunc(joined, func(j joining) bool { return j.member.Name == member }) {
			slots -= int(held)
		}
	}
	return slots
}
