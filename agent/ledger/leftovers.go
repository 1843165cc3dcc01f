package ledger

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// strayGrace is how long the deletion of an unlisted DataVolume may take before it counts as a leftover.
const strayGrace = time.Minute

// FindLeftovers names the DataVolumes that keep slots from images although no image needs them: those in
// decided slots whose image is gone, of which something is left, and strays that stay. No image says so.
// recheckAfter is when another one may be a leftover; 0 for never.
func (v View) FindLeftovers(slots []v1alpha1.Slot) (leftovers []string, recheckAfter time.Duration) {
	listed := map[string]bool{}
	for _, slot := range slots {
		key := DataVolumeKey(slot)
		listed[key] = true
		if f := v.Facts[key]; f.ImageGone && f.ObjectsRemain {
			leftovers = append(leftovers, key)
		}
	}
	for _, u := range v.Unlisted {
		key := DataVolumeKey(u.Slot)
		if listed[key] {
			continue
		}
		if left := storedtime.Remaining(v.Now, u.Slot.StartedAt.Time, strayGrace); left > 0 {
			if recheckAfter == 0 || left < recheckAfter {
				recheckAfter = left
			}
			continue
		}
		leftovers = append(leftovers, key)
	}
	slices.Sort(leftovers) // a cache lists in any order, and each change is a write
	return leftovers, recheckAfter
}
