package ledger

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// strayGrace is how long the deletion of an unlisted DataVolume may take before it counts as a leftover.
const strayGrace = time.Minute

// heldGrace is how long what is left of an attempt that has ended may take to go.
const heldGrace = time.Minute

// FindHeld names the DataVolumes in decided slots of images that exist, whose attempts have ended and whose
// objects stay. The image says which, to those who may read it.
func (v View) FindHeld(slots []v1alpha1.Slot) (held []string, recheckAfter time.Duration) {
	for _, slot := range slots {
		key := DataVolumeKey(slot)
		age, hasEnded := v.EndedAges[key]
		facts, checked := v.Facts[key]
		switch left := heldGrace - age; {
		case !hasEnded, !checked, facts.ImageGone, facts.CanFreeSlot():
		case left <= 0:
			held = append(held, key)
		case recheckAfter == 0 || left < recheckAfter:
			recheckAfter = left
		}
	}
	slices.Sort(held)
	return held, recheckAfter
}

// FindLeftovers names the DataVolumes that keep slots from images although no image needs them: decided
// slots of deleted images that still have objects, and strays that stay. No image's status reports them.
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
