package ledger

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SlotFacts are what live reads said of a slot's attempt, made after the ledger was
// read, the image before the storage.
type SlotFacts struct {
	// ImageGone: there is no VMDiskImage of the slot's UID any more.
	ImageGone bool
	// Begun: the image's status says that the DataVolume has been there.
	Started bool
	// Outcome stored on the image for this attempt; empty for none.
	Outcome v1alpha1.Outcome
	// DataVolume: it exists.
	DataVolume bool
	// Complete: the import has succeeded and its claim is Bound.
	Complete bool
	// Remains: a DataVolume, claim or importer Pod of the attempt exists.
	ObjectsRemain bool
}

func (f SlotFacts) hasEnded() bool { return f.ImageGone || f.Outcome != "" }

// hasSucceeded tells that the attempt is over and what it made is to stay.
func (f SlotFacts) hasSucceeded() bool {
	return f.Outcome == v1alpha1.OutcomeSucceeded && !f.ImageGone && f.Complete
}

// CanFreeSlot tells whether the attempt's slot, once it is marked as ended, can be given
// to another.
func (f SlotFacts) CanFreeSlot() bool { return f.hasEnded() && (f.hasSucceeded() || !f.ObjectsRemain) }

// Candidate is an image that may import next, by a live read made after the
// ledger was read.
type Candidate struct {
	Image    v1alpha1.ImageKey
	Revision string
	Attempt  int32
	// Host that it is imported from, empty for none.
	Host string
}

// UnlistedDataVolume is an unfinished DataVolume of ours that stands in no slot.
type UnlistedDataVolume struct {
	Slot v1alpha1.Slot
	// Wanted: its image lives and has no outcome for its attempt, so the ledger
	// has lost the slot: it was rebuilt, or edited by hand.
	Adoptable bool
}

// View is what a step of the ledger rests on.
type View struct {
	Now time.Time
	// Ledger as read; nil when there is none yet.
	Ledger *v1alpha1.SyncLedgerStatus
	// Budget that the policy asks for.
	Budget int32
	// Facts of the slots that were looked at, by DataVolumeKey.
	Facts map[string]SlotFacts
	// Unlisted DataVolumes, by live reads made after the ledger was read.
	Unlisted []UnlistedDataVolume
	// Candidates in the order of the queue.
	Candidates []Candidate
	// SourceGroupLimits is how many imports may run at a time from each group of sources; SourceGroupOf
	// says which group a host belongs to. A host whose group is not there has no limit
	// of its own.
	SourceGroupLimits map[string]int32
	SourceGroupOf     func(host string) string
}

// limitedGroupOf that a host belongs to, if it is one with a limit.
func (v View) limitedGroupOf(host string) (name string, limited bool) {
	if v.SourceGroupOf == nil {
		return "", false
	}
	name = v.SourceGroupOf(host)
	_, limited = v.SourceGroupLimits[name]
	return name, limited
}

// CountRunningByGroup counts what runs from each group of sources: all slots, and what runs in
// none.
func (v View) CountRunningByGroup(slots []v1alpha1.Slot) map[string]int32 {
	running := map[string]int32{}
	count := func(slot v1alpha1.Slot) {
		if group, limited := v.limitedGroupOf(slot.Host); limited {
			running[group]++
		}
	}
	for _, slot := range slots {
		count(slot)
	}
	for _, u := range v.Unlisted {
		if !slices.ContainsFunc(slots, func(s v1alpha1.Slot) bool { return DataVolumeKey(s) == DataVolumeKey(u.Slot) }) {
			count(u.Slot)
		}
	}
	return running
}

// Decision is what is to be written, against the resourceVersion that was read.
type Decision struct {
	Budget int32
	Slots  []v1alpha1.Slot
	// Changed: budget or slots differ from what was read.
	Changed bool

	Admitted []v1alpha1.Slot
	Freed    []v1alpha1.Slot
	Adopted  []v1alpha1.Slot
}

// Decide works out the next state of the ledger: slots are freed and marked as
// ended, lost ones are listed again, the budget follows the policy, and the
// head of the queue takes what is free. A candidate whose group of sources has no
// room is passed, and keeps its place.
func Decide(v View) Decision {
	var before v1alpha1.SyncLedgerStatus
	if v.Ledger != nil {
		before = *v.Ledger
	}
	s := Decision{Budget: v.Budget}
	held := map[string]bool{}
	for _, slot := range before.Slots {
		f, looked := v.Facts[DataVolumeKey(slot)]
		switch {
		case !looked || !f.hasEnded():
		case slot.Ended && f.CanFreeSlot():
			s.Freed = append(s.Freed, slot)
			s.Changed = true
			continue
		case !slot.Ended:
			slot.Ended = true
			s.Changed = true
		}
		held[string(slot.Image.UID)] = true
		s.Slots = append(s.Slots, slot)
	}

	strays := 0
	for _, u := range v.Unlisted {
		if !u.Adoptable || len(s.Slots) >= v1alpha1.MaxSlots {
			strays++
			continue
		}
		held[string(u.Slot.Image.UID)] = true
		s.Slots = append(s.Slots, u.Slot)
		s.Adopted = append(s.Adopted, u.Slot)
		s.Changed = true
	}
	// What runs already is listed even beyond the budget, or it could not be
	// ended in order. The API server takes such a write only with a budget that
	// fits it; the next step lowers it again.
	if len(s.Adopted) > 0 && int(s.Budget) < len(s.Slots) {
		s.Budget = int32(len(s.Slots))
	}
	if v.Ledger == nil || before.Budget != s.Budget {
		s.Changed = true
	}

	// A stray counts as running until it is seen to be gone.
	free := int(v.Budget) - len(s.Slots) - strays
	running := v.CountRunningByGroup(s.Slots)
	for _, c := range v.Candidates {
		if free <= 0 {
			break
		}
		if held[string(c.Image.UID)] {
			continue
		}
		group, limited := v.limitedGroupOf(c.Host)
		if limited && running[group] >= v.SourceGroupLimits[group] {
			continue
		}
		running[group]++
		slot := v1alpha1.Slot{
			Image:      c.Image,
			Revision:   c.Revision,
			Attempt:    c.Attempt,
			DataVolume: DataVolumeName(c.Image, c.Attempt),
			StartedAt:  metav1.NewTime(v.Now.UTC().Truncate(time.Second)),
			Host:       c.Host,
		}
		held[string(c.Image.UID)] = true
		s.Slots = append(s.Slots, slot)
		s.Admitted = append(s.Admitted, slot)
		s.Changed = true
		free--
	}
	return s
}

// ShouldCreateDataVolume tells whether a slot's DataVolume is to be created: roll
// forward. An attempt that was begun is never begun again; what became of its
// DataVolume is the image's to judge.
func ShouldCreateDataVolume(slot v1alpha1.Slot, f SlotFacts) bool {
	return !slot.Ended && !f.hasEnded() && !f.Started && !f.DataVolume
}

// DataVolumeKey is a slot's DataVolume as namespace/name.
func DataVolumeKey(s v1alpha1.Slot) string { return s.Image.Namespace + "/" + s.DataVolume }

const maxReadablePrefix = 30

// DataVolumeName names the DataVolume, the claim and what else belongs to an
// attempt. It starts with the image's name for people, cut to fit; image UID
// and attempt make it unique for ever. It is at most 53 characters long, so
// that what CDI and Kubernetes derive from it fits a label.
func DataVolumeName(image v1alpha1.ImageKey, attempt int32) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(image.UID))
	name := strings.ReplaceAll(image.Name, ".", "-")
	if len(name) > maxReadablePrefix {
		name = name[:maxReadablePrefix]
	}
	name = strings.TrimRight(name, "-")
	return fmt.Sprintf("%s-%s-%d", name, strconv.FormatUint(h.Sum64(), 36), attempt)
}
