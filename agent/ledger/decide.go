package ledger

import (
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// View is the input of Decide.
type View struct {
	Now time.Time
	// Ledger as read; nil when there is none yet.
	Ledger *v1alpha1.SyncLedgerStatus
	// Budget is the number of slots that the policy allows.
	Budget int32
	// Facts of the slots that were checked, by DataVolumeKey.
	Facts map[string]SlotFacts
	// EndedAges is for how long slots have been marked as ended, by DataVolumeKey.
	EndedAges map[string]time.Duration
	// Unlisted DataVolumes, by live reads made after the ledger was read.
	Unlisted []UnlistedDataVolume
	// Candidates in the order of the queue.
	Candidates []Candidate
	// SourceGroupLimits is the number of concurrent imports allowed per source
	// group; a group without an entry is unlimited.
	SourceGroupLimits map[string]int32
	// NamespaceShare is how many slots a namespace gets before others that wait; 0 for no
	// limit.
	NamespaceShare int32
	// SourceGroupOf returns the source group of a host.
	SourceGroupOf func(host string) string
}

// Decision is the ledger to write, with the resourceVersion that was read.
type Decision struct {
	Budget int32
	Slots  []v1alpha1.Slot
	// Changed is set when budget or slots differ from the ledger as read.
	Changed bool

	Admitted []v1alpha1.Slot
	Freed    []v1alpha1.Slot
	Adopted  []v1alpha1.Slot
}

// decider computes one Decision.
type decider struct {
	View
	next Decision
	// holders are the UIDs of the images that have a slot.
	holders map[string]bool
	// strays is the number of unlisted DataVolumes that get no slot.
	strays int
}

// Decide computes the next state of the ledger.
func Decide(v View) Decision {
	d := &decider{View: v, next: Decision{Budget: v.Budget}, holders: map[string]bool{}}
	d.freeSlots()
	d.adoptUnlisted()
	d.setBudget()
	d.admitCandidates()
	return d.next
}

// keepSlot carries a slot over, or adds it.
func (d *decider) keepSlot(slot v1alpha1.Slot) {
	d.holders[string(slot.Image.UID)] = true
	d.next.Slots = append(d.next.Slots, slot)
}

// setBudget follows the policy. Running imports are listed even beyond the
// budget, or they could not be ended in order; the API server accepts that only
// with a budget that fits them. The next write lowers it again.
func (d *decider) setBudget() {
	if len(d.next.Adopted) > 0 {
		d.next.Budget = max(d.next.Budget, int32(len(d.next.Slots)))
	}
	if d.Ledger == nil || d.Ledger.Budget != d.next.Budget {
		d.next.Changed = true
	}
}
