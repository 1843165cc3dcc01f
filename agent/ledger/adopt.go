package ledger

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// UnlistedDataVolume is an unfinished DataVolume of an image that no slot names.
type UnlistedDataVolume struct {
	Slot v1alpha1.Slot
	// Adoptable: its image exists and has no outcome for its attempt, so the
	// ledger has lost the slot: it was rebuilt, or edited by hand.
	Adoptable bool
}

// adoptUnlisted lists lost imports again. All other unlisted DataVolumes are
// strays.
func (d *decider) adoptUnlisted() {
	for _, u := range d.Unlisted {
		if !u.Adoptable || len(d.next.Slots) >= v1alpha1.MaxSlots {
			d.strays++
			continue
		}
		d.keepSlot(u.Slot)
		d.next.Adopted = append(d.next.Adopted, u.Slot)
		d.next.Changed = true
	}
}
