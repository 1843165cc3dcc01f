package image_test

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// The model of acquire and delete: one image, machines that come, pin, look
// again, clone and go, people who change and delete, and two leaders of each
// controller, of which any can be paused before any of its reads and writes.
//
// What image and machine decide is asked of image.Decide and vm.Decide. What they
// store is known by a number; so are pins. Left out is what neither decides by:
// words, counts and times.
const (
	maxVMs       = 2
	maxSnapshots = 4
)

// imageState is the VMDiskImage. Resource versions are left out: all that counts
// of one is whether it has changed since somebody read it.
type imageState struct {
	status    uint16
	specEdits uint8 // how often its spec was changed
	// going: its namespace is being deleted.
	deleted, gone, going bool
}

// storageState is what exists of the image, which nobody deletes but keepers, and what
// is read beside it.
type storageState struct {
	attempts      uint8 // the claims that are filled, with their DataVolumes
	snapshots     [maxSnapshots]attemptRef
	snapshotsMade uint8      // VolumeSnapshots made so far
	slot          attemptRef // the one in the SyncLedger
	planExpires   bool       // the plan has the image go once nobody holds it
	plannedPrune  uint8      // the ImagePrune that the plan carries out on it, 0 for none
}

// attemptRef is a VolumeSnapshot, or a slot: its attempt, 0 for none, and which spec
// it was made by.
type attemptRef struct{ attempt, specEdit uint8 }

// vmState is a VirtualMachine with its root disk.
type vmState struct {
	life   uint8 // how often one of this name was created
	exists bool
	// elsewhere: its spec was changed to name another image.
	namesOtherImage bool
	pin             uint8
	clone           uint8 // the pin that the root disk is cloned from
	cloned          bool  // it is complete: a guest may write to it
	// owed: the machine named the image when the deletion of that was asked for.
	namedAtDeletion bool
}

// holderState is what a list of machines says of one.
type holderState struct {
	there bool
	pin   uint8
}

// Where a leader is on its way.
const (
	idle uint8 = iota
	listed
	read
	confirm
	relist
	verify
	act
	noLeader // there is no such leader
)

// imageLeader is a leader of the images' controller.
type imageLeader struct {
	pc             uint8
	imageUnchanged bool // the image was not written since it was read
	image          imageState
	storage        storageState
	holders        [maxVMs]holderState
	todo           imageActions
}

// vmLeader is a leader of the machines' controller, on its way with one machine.
type vmLeader struct {
	pc, which    uint8
	vmUnchanged  bool
	sourceExists bool
	vm           vmState
	image        imageState
	todo         vmActions
}

type clusterState struct {
	imageState
	storageState
	// wronged: the image was deleted for a prune that was not pending any more.
	deletedForEndedPrune bool
	vms                  [maxVMs]vmState
	imageLeaders         [2]imageLeader
	vmLeaders            [2]vmLeader
}

// plantedBug is a planted bug.
type plantedBug uint8

const (
	acquiresByCache plantedBug = iota + 1 // no live look after the pin
	pinsAfterLook
	listsBeforeMark
	tearsDownUnmarked
	retiresUnlisted
	retiresByCache
	listsBeforeServingMoves
	storesUnguarded
	repinsWhileCloning
	deletesUnguarded
)

// acquireScenario bounds a cluster and says what can happen in it.
type acquireScenario struct {
	// imageSpecs that people give the image, one after the other: its source, and after
	// a slash its snapshot class.
	imageSpecs              []string
	vms, lives              uint8
	imageLeaders, vmLeaders int
	// deletes: people delete the image; empties: its namespace; retargets: they
	// have machines name another image; retires: plans do and do not retire it;
	// prunes: as many ImagePrunes do and do not prune it.
	deletesImage, deletesNamespace, retargetsVMs, planExpires bool
	prunes                                                    uint8

	plantedBug plantedBug
	// onlyViolation is what a violation has to begin with to count.
	onlyViolation string
	expected      []expectedState
}

// expectedState is a state that has to be met, or the model shows less than it seems to.
type expectedState struct {
	name      string
	isReached func(*acquireScenario, *clusterState) bool
}

// initialState is an image that serves its first spec and is at rest.
func (p *acquireScenario) initialState() clusterState {
	c := clusterState{}
	for i := p.imageLeaders; i < len(c.imageLeaders); i++ {
		c.imageLeaders[i].pc = noLeader
	}
	for i := p.vmLeaders; i < len(c.vmLeaders); i++ {
		c.vmLeaders[i].pc = noLeader
	}
	c.status = statusNumber(nil)
	for {
		before := c
		for moved := true; moved; { // keeper 0 goes once all the way
			moved = false
			p.imageLeaderTransitions(&c, 0, func(m step) {
				if !moved && !m.fault {
					c, moved = m.next, m.next.imageLeaders[0].pc != idle
				}
			})
		}
		p.ledgerTransitions(&c, func(m step) { c = m.next })
		p.normalize(&c)
		if c == before {
			return c
		}
	}
}

// normalize is called after every step: a slot is freed once its outcome is stored.
// That it is freed later is what agent/ledger explores.
func (p *acquireScenario) normalize(c *clusterState) {
	if c.slot.attempt > 0 && (c.gone || p.hasAttemptEnded(c.imageState, c.slot)) {
		c.slot = attemptRef{}
	}
	if c.gone {
		c.imageState = imageState{gone: true, going: c.going}
	}
	for i := range c.imageLeaders {
		if k := &c.imageLeaders[i]; k.pc == idle {
			*k = imageLeader{}
		}
	}
	for i := range c.vmLeaders {
		if m := &c.vmLeaders[i]; m.pc == idle {
			*m = vmLeader{}
		}
	}
}

// checkInvariants checks what must hold in every state.
func (p *acquireScenario) checkInvariants(c *clusterState) string {
	if c.deletedForEndedPrune {
		return "S7: an image is deleted for a prune that has ended"
	}
	if c.going {
		return "" // outside of S2
	}
	for i := range p.vms {
		m := &c.vms[i]
		if !m.exists {
			continue
		}
		if pin := knownPins[m.pin]; pin.acquired && !c.containsPin(pin) {
			return "S2: what a machine has acquired is deleted"
		}
		if m.clone != 0 && withoutAcquired(m.pin) == m.clone && !c.containsPin(knownPins[m.clone]) {
			return "S2: what a machine is cloned from is deleted"
		}
		if m.cloned && withoutAcquired(m.pin) != m.clone {
			return "S2: a machine runs from something else than it has pinned"
		}
		if m.namedAtDeletion && (c.gone || knownStatuses[c.status].TearDown || c.attempts == 0) {
			return "S2: an image is torn down that a machine named when it was deleted"
		}
	}
	return ""
}

// containsPin tells whether what a pin names is there.
func (s *storageState) containsPin(p pinState) bool {
	if s.attempts&(1<<(p.attempt-1)) == 0 {
		return false
	}
	return p.snapshot == 0 || s.snapshots[p.snapshot-1].attempt == p.attempt
}

// markImageWritten is called when the image was written: what was read of it is old.
func (c *clusterState) markImageWritten(but int) {
	for i := range c.imageLeaders {
		if i != but {
			c.imageLeaders[i].imageUnchanged = false
		}
	}
}

// markVMWritten is called when a machine was written.
func (c *clusterState) markVMWritten(which uint8, but int) {
	for i := range c.vmLeaders {
		if i != but && c.vmLeaders[i].which == which && c.vmLeaders[i].pc != listed {
			c.vmLeaders[i].vmUnchanged = false
		}
	}
}

// requestImageDeletion is what asks for the deletion of the image.
func (p *acquireScenario) requestImageDeletion(c *clusterState) {
	if c.deleted {
		return
	}
	c.deleted = true
	c.markImageWritten(-1)
	for i := range c.vms {
		m := &c.vms[i]
		m.namedAtDeletion = m.exists && !m.namesOtherImage
	}
}

func (c *clusterState) listHolders() (h [maxVMs]holderState) {
	for i, m := range c.vms {
		if m.exists && (!m.namesOtherImage || m.pin != 0) {
			h[i] = holderState{true, m.pin}
		}
	}
	return h
}

var canonicalOrderSeed = maphash.MakeSeed()

// canonical puts leaders in order: which of two is which makes no difference.
func (c clusterState) canonical() clusterState {
	if maphash.Comparable(canonicalOrderSeed, c.imageLeaders[0]) > maphash.Comparable(canonicalOrderSeed, c.imageLeaders[1]) {
		c.imageLeaders[0], c.imageLeaders[1] = c.imageLeaders[1], c.imageLeaders[0]
	}
	if maphash.Comparable(canonicalOrderSeed, c.vmLeaders[0]) > maphash.Comparable(canonicalOrderSeed, c.vmLeaders[1]) {
		c.vmLeaders[0], c.vmLeaders[1] = c.vmLeaders[1], c.vmLeaders[0]
	}
	return c
}

// formatState shows a state in one line.
func (p *acquireScenario) formatState(c *clusterState) string {
	var b strings.Builder
	st := knownStatuses[c.status]
	fmt.Fprintf(&b, "image %s %s", p.imageSpecs[c.specEdits], st.Phase)
	if c.gone {
		b.WriteString(" gone")
	}
	if st.TearDown {
		b.WriteString(" tearDown")
	}
	if st.Serving != nil {
		fmt.Fprintf(&b, " serves %d snapshot %d", st.Serving.Attempt, snapshotNumber(st.Serving.VolumeSnapshot))
	}
	for _, e := range st.Revisions {
		fmt.Fprintf(&b, " [%d %s]", e.AttemptEnded, e.Outcome)
	}
	fmt.Fprintf(&b, " | storage %04b snapshots %v slot %d", c.attempts, c.snapshots, c.slot.attempt)
	if c.planExpires {
		b.WriteString(" retired")
	}
	if c.plannedPrune != 0 {
		fmt.Fprintf(&b, " prune %d", c.plannedPrune)
	}
	if p := st.Prune; p != nil {
		fmt.Fprintf(&b, " (%s %s %s)", p.UID, p.State, p.Reason)
	}
	for i := range p.vms {
		m := &c.vms[i]
		if m.exists {
			fmt.Fprintf(&b, " | vm %d pins %v clone %v %t", i, knownPins[m.pin], knownPins[m.clone], m.cloned)
		}
	}
	return b.String()
}
