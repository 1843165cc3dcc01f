package ledger

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// SlotFacts is what live reads say about a slot's attempt. They are made after
// the ledger was read, the image before the storage.
type SlotFacts struct {
	// ImageGone: no VMDiskImage with the slot's UID exists, or it is being deleted without the agent's
	// finalizer, so that nothing stores an outcome.
	ImageGone bool
	// Started: the image's status says that the DataVolume has existed.
	Started bool
	// Outcome stored on the image for this attempt; empty for none.
	Outcome v1alpha1.Outcome
	// DataVolumeExists: the slot's DataVolume exists.
	DataVolumeExists bool
	// ImportComplete: the import has succeeded and its claim is Bound.
	ImportComplete bool
	// ObjectsRemain: a DataVolume, claim or importer Pod of the attempt exists.
	ObjectsRemain bool
}

func (f SlotFacts) hasEnded() bool { return f.ImageGone || f.Outcome != "" }

// hasSucceeded reports whether the attempt has ended and its storage stays.
func (f SlotFacts) hasSucceeded() bool {
	return f.Outcome == v1alpha1.OutcomeSucceeded && !f.ImageGone && f.ImportComplete
}

// CanFreeSlot reports whether the attempt's slot can be freed once it is marked
// as ended.
func (f SlotFacts) CanFreeSlot() bool {
	return f.hasEnded() && (f.hasSucceeded() || !f.ObjectsRemain)
}

// freeSlots marks the slots of ended attempts and frees marked ones.
//
// Invariant: a slot that was not checked is kept.
func (d *decider) freeSlots() {
	if d.Ledger == nil {
		return
	}
	for _, slot := range d.Ledger.Slots {
		facts, checked := d.Facts[DataVolumeKey(slot)]
		switch {
		case !checked || !facts.hasEnded():
		case slot.Ended && facts.CanFreeSlot():
			d.next.Freed = append(d.next.Freed, slot)
			d.next.Changed = true
			continue
		case !slot.Ended:
			slot.Ended = true
			d.next.Changed = true
		}
		d.keepSlot(slot)
	}
}
