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
	mostMachines  = 2
	mostSnapshots = 4
)

// imageObject is the VMDiskImage. Resource versions are left out: all that counts
// of one is whether it has changed since somebody read it.
type imageObject struct {
	status uint16
	edits  uint8 // how often its spec was changed
	// going: its namespace is being deleted.
	deleted, gone, going bool
}

// storage is what exists of the image, which nobody deletes but keepers, and what
// is read beside it.
type storage struct {
	attempts  uint8 // the claims that are filled, with their DataVolumes
	snapshots [mostSnapshots]taken
	made      uint8 // VolumeSnapshots made so far
	slot      taken // the one in the SyncLedger
	retired   bool  // the plan has the image go once nobody holds it
	pruned    uint8 // the ImagePrune that the plan carries out on it, 0 for none
}

// taken is a VolumeSnapshot, or a slot: its attempt, 0 for none, and which spec
// it was made by.
type taken struct{ attempt, by uint8 }

// machineObject is a VirtualMachine with its root disk.
type machineObject struct {
	life   uint8 // how often one of this name was created
	exists bool
	// elsewhere: its spec was changed to name another image.
	elsewhere bool
	pin       uint8
	clone     uint8 // the pin that the root disk is cloned from
	cloned    bool  // it is complete: a guest may write to it
	// owed: the machine named the image when the deletion of that was asked for.
	owed bool
}

// held is what a list of machines says of one.
type held struct {
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
	look
	act
	nobody // there is no such leader
)

// keeper is a leader of the images' controller.
type keeper struct {
	pc      uint8
	fresh   bool // the image was not written since it was read
	image   imageObject
	storage storage
	holders [mostMachines]held
	todo    keeping
}

// maker is a leader of the machines' controller, on its way with one machine.
type maker struct {
	pc, which   uint8
	fresh       bool
	sourceThere bool
	machine     machineObject
	image       imageObject
	todo        making
}

type cluster struct {
	imageObject
	storage
	// wronged: the image was deleted for a prune that was not pending any more.
	wronged  bool
	machines [mostMachines]machineObject
	keepers  [2]keeper
	makers   [2]maker
}

// flaw is a planted bug.
type flaw uint8

const (
	acquiresByCache flaw = iota + 1 // no live look after the pin
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

// play bounds a cluster and says what can happen in it.
type play struct {
	// specs that people give the image, one after the other: its source, and after
	// a slash its snapshot class.
	specs           []string
	machines, lives uint8
	keepers, makers int
	// deletes: people delete the image; empties: its namespace; retargets: they
	// have machines name another image; retires: plans do and do not retire it;
	// prunes: as many ImagePrunes do and do not prune it.
	deletes, empties, retargets, retires bool
	prunes                               uint8

	flaw flaw
	// finding is what a violation has to begin with to count.
	finding string
	wants   []want
}

// want is a state that has to be met, or the model shows less than it seems to.
type want struct {
	what string
	met  func(*play, *cluster) bool
}

// start is an image that serves its first spec and is at rest.
func (p *play) start() cluster {
	c := cluster{}
	for i := p.keepers; i < len(c.keepers); i++ {
		c.keepers[i].pc = nobody
	}
	for i := p.makers; i < len(c.makers); i++ {
		c.makers[i].pc = nobody
	}
	c.status = store(nil)
	for {
		before := c
		for moved := true; moved; { // keeper 0 goes once all the way
			moved = false
			p.keeperMoves(&c, 0, func(m step) {
				if !moved && !m.fault {
					c, moved = m.next, m.next.keepers[0].pc != idle
				}
			})
		}
		p.ledgerMoves(&c, func(m step) { c = m.next })
		p.settle(&c)
		if c == before {
			return c
		}
	}
}

// settle is called after every step: a slot is freed once its outcome is stored.
// That it is freed later is what agent/queue explores.
func (p *play) settle(c *cluster) {
	if c.slot.attempt > 0 && (c.gone || p.isOver(c.imageObject, c.slot)) {
		c.slot = taken{}
	}
	if c.gone {
		c.imageObject = imageObject{gone: true, going: c.going}
	}
	for i := range c.keepers {
		if k := &c.keepers[i]; k.pc == idle {
			*k = keeper{}
		}
	}
	for i := range c.makers {
		if m := &c.makers[i]; m.pc == idle {
			*m = maker{}
		}
	}
}

// violated checks what must hold in every state.
func (p *play) violated(c *cluster) string {
	if c.wronged {
		return "S7: an image is deleted for a prune that has ended"
	}
	if c.going {
		return "" // outside of S2
	}
	for i := range p.machines {
		m := &c.machines[i]
		if !m.exists {
			continue
		}
		if pin := pins[m.pin]; pin.acquired && !c.has(pin) {
			return "S2: what a machine has acquired is deleted"
		}
		if m.clone != 0 && without(m.pin) == m.clone && !c.has(pins[m.clone]) {
			return "S2: what a machine is cloned from is deleted"
		}
		if m.cloned && without(m.pin) != m.clone {
			return "S2: a machine runs from something else than it has pinned"
		}
		if m.owed && (c.gone || statuses[c.status].TearDown || c.attempts == 0) {
			return "S2: an image is torn down that a machine named when it was deleted"
		}
	}
	return ""
}

// has tells whether what a pin names is there.
func (s *storage) has(p pin) bool {
	if s.attempts&(1<<(p.attempt-1)) == 0 {
		return false
	}
	return p.snapshot == 0 || s.snapshots[p.snapshot-1].attempt == p.attempt
}

// changed is called when the image was written: what was read of it is old.
func (c *cluster) changed(but int) {
	for i := range c.keepers {
		if i != but {
			c.keepers[i].fresh = false
		}
	}
}

// machineChanged is called when a machine was written.
func (c *cluster) machineChanged(which uint8, but int) {
	for i := range c.makers {
		if i != but && c.makers[i].which == which && c.makers[i].pc != listed {
			c.makers[i].fresh = false
		}
	}
}

// remove is what asks for the deletion of the image.
func (p *play) remove(c *cluster) {
	if c.deleted {
		return
	}
	c.deleted = true
	c.changed(-1)
	for i := range c.machines {
		m := &c.machines[i]
		m.owed = m.exists && !m.elsewhere
	}
}

func (c *cluster) holders() (h [mostMachines]held) {
	for i, m := range c.machines {
		if m.exists && (!m.elsewhere || m.pin != 0) {
			h[i] = held{true, m.pin}
		}
	}
	return h
}

var order = maphash.MakeSeed()

// canonical puts leaders in order: which of two is which makes no difference.
func (c cluster) canonical() cluster {
	if maphash.Comparable(order, c.keepers[0]) > maphash.Comparable(order, c.keepers[1]) {
		c.keepers[0], c.keepers[1] = c.keepers[1], c.keepers[0]
	}
	if maphash.Comparable(order, c.makers[0]) > maphash.Comparable(order, c.makers[1]) {
		c.makers[0], c.makers[1] = c.makers[1], c.makers[0]
	}
	return c
}

// line shows a state in one line.
func (p *play) line(c *cluster) string {
	var b strings.Builder
	st := statuses[c.status]
	fmt.Fprintf(&b, "image %s %s", p.specs[c.edits], st.Phase)
	if c.gone {
		b.WriteString(" gone")
	}
	if st.TearDown {
		b.WriteString(" tearDown")
	}
	if st.Serving != nil {
		fmt.Fprintf(&b, " serves %d snapshot %d", st.Serving.Attempt, snapshotName(st.Serving.VolumeSnapshot))
	}
	for _, e := range st.Revisions {
		fmt.Fprintf(&b, " [%d %s]", e.AttemptEnded, e.Outcome)
	}
	fmt.Fprintf(&b, " | storage %04b snapshots %v slot %d", c.attempts, c.snapshots, c.slot.attempt)
	if c.retired {
		b.WriteString(" retired")
	}
	if c.pruned != 0 {
		fmt.Fprintf(&b, " prune %d", c.pruned)
	}
	if p := st.Prune; p != nil {
		fmt.Fprintf(&b, " (%s %s %s)", p.UID, p.State, p.Reason)
	}
	for i := range p.machines {
		m := &c.machines[i]
		if m.exists {
			fmt.Fprintf(&b, " | vm %d pins %v clone %v %t", i, pins[m.pin], pins[m.clone], m.cloned)
		}
	}
	return b.String()
}
