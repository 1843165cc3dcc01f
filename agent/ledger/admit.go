package ledger

import (
	"slices"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Candidate is an image that may import next, by a live read made after the
// ledger was read.
type Candidate struct {
	Image    v1alpha1.ImageKey
	Revision string
	Attempt  int32
	// Host that the image is imported from; empty for none.
	Host string
}

// admitCandidates gives the free slots to the candidates, in their order: first to those of
// namespaces below their share, then to the others. A candidate whose source group is at its
// limit is passed over and keeps its place.
//
// Invariant: a stray counts as running until it is seen to be gone.
func (d *decider) admitCandidates() {
	free := int(d.Budget) - len(d.next.Slots) - d.strays
	running := d.CountRunningByGroup(d.next.Slots)
	turns := NewNamespaceShare(d.NamespaceShare, d.next.Slots, nil).newTurns()
	for _, beyondShare := range []bool{false, true} {
		for _, c := range d.Candidates {
			if free <= 0 {
				return
			}
			if d.holders[string(c.Image.UID)] || !beyondShare && !turns.isBelowShare(c.Image.Namespace) {
				continue
			}
			group, limited := d.limitedGroupOf(c.Host)
			if limited && running[group] >= d.SourceGroupLimits[group] {
				continue
			}
			running[group]++
			turns.countTaken(c.Image.Namespace)
			free--
			d.admit(c)
		}
	}
}

func (d *decider) admit(c Candidate) {
	slot := v1alpha1.Slot{
		Image:      c.Image,
		Revision:   c.Revision,
		Attempt:    c.Attempt,
		DataVolume: DataVolumeName(c.Image, c.Attempt),
		StartedAt:  storedtime.Truncate(d.Now),
		Host:       c.Host,
	}
	d.keepSlot(slot)
	d.next.Admitted = append(d.next.Admitted, slot)
	d.next.Changed = true
}

// limitedGroupOf returns the source group of a host, and whether it has a limit.
func (v View) limitedGroupOf(host string) (group string, limited bool) {
	if v.SourceGroupOf == nil {
		return "", false
	}
	group = v.SourceGroupOf(host)
	_, limited = v.SourceGroupLimits[group]
	return group, limited
}

// CountRunningByGroup counts the imports of each limited source group: those
// with a slot, and the unlisted DataVolumes.
func (v View) CountRunningByGroup(slots []v1alpha1.Slot) map[string]int32 {
	running := map[string]int32{}
	add := func(slot v1alpha1.Slot) {
		if group, limited := v.limitedGroupOf(slot.Host); limited {
			running[group]++
		}
	}
	for _, slot := range slots {
		add(slot)
	}
	for _, u := range v.Unlisted {
		if !slices.ContainsFunc(slots, func(s v1alpha1.Slot) bool { return DataVolumeKey(s) == DataVolumeKey(u.Slot) }) {
			add(u.Slot)
		}
	}
	return running
}
