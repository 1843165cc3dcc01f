package image_test

import (
	"fmt"
	"hash/maphash"
	"strings"
	"testing"

	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

// The model of acquire and delete: one image; VMs that are created, pin, clone and are
// deleted; people who change and delete; two leaders of each controller, of which each
// can be paused before any of its reads and writes.
//
// Decisions are those of image.Decide and vm.Decide. Statuses and pins are identified by
// numbers. Messages, counts and times are left out, as no decision depends on them.
const (
	maxVMs       = 2
	maxDisks     = 2
	maxSnapshots = 4
)

// imageState is the VMDiskImage. Instead of a resourceVersion the model has whether it
// has changed since a leader read it.
type imageState struct {
	status    uint16
	specEdits uint8 // number of changes of its spec
	// deleted: it has a deletionTimestamp. released: without the agent's finalizer; another one keeps it.
	deleted, released, gone, namespaceTerminating bool
}

// storageState is the objects of the image, which image leaders alone delete, and what
// is read with them.
type storageState struct {
	attempts       uint8 // claims that are populated, with their DataVolumes
	snapshots      [maxSnapshots]attemptRef
	snapshotsNamed uint8      // number of VolumeSnapshots that the status has named so far
	slot           attemptRef // the one in the SyncLedger
	planExpires    bool       // the plan deletes the image once it is unreferenced
	plannedPrune   uint8      // number of the ImagePrune that the plan requests; 0 for none
	planIsOld      bool       // the plan confirms no prune: what it requests may have ended
}

// attemptRef is a VolumeSnapshot or a slot: its attempt, 0 for none, and the spec that
// it was created for.
type attemptRef struct{ attempt, specEdit uint8 }

// vmState is a VirtualMachine with its root disk.
type vmState struct {
	life   uint8 // how often a VM of this name was created
	exists bool
	// namesOtherImage: its spec was changed to name another image.
	namesOtherImage bool
	// hasDataDisk: its spec has disk 1.
	hasDataDisk bool
	disks       [maxDisks]diskState // the root disk first
	// namedAtDeletion: the VM named the image when that was deleted.
	namedAtDeletion bool
}

// volumeState is what the status has of a data disk's volume.
type volumeState uint8

const (
	volumeUnknown volumeState = iota
	volumeRequested
	volumeReady
)

type diskState struct {
	pin    uint8
	clone  uint8 // the pin that the disk is cloned from
	cloned bool  // the disk is complete: a guest may write to it
	volume volumeState
}

// pins returns the pins of all disks.
func (m *vmState) pins() (pins [maxDisks]uint8) {
	for k := range m.disks {
		pins[k] = m.disks[k].pin
	}
	return pins
}

// holderState is what a list of VMs says about one.
type holderState struct {
	exists bool
	pins   [maxDisks]uint8
}

// The next read or write of a leader.
const (
	idle uint8 = iota
	listed
	read
	confirm
	relist
	verify
	act
	noLeader
)

// liveReads is what a decision about a VM rests on.
type liveReads uint8

const (
	nothingLive liveReads = iota
	imagesLive
	allLive
)

// imageLeader is a leader of the image controller.
type imageLeader struct {
	pc             uint8
	imageUnchanged bool // the image was not written since it was read
	image          imageState
	storage        storageState
	holders        [maxVMs]holderState
	todo           imageActions
}

// vmLeader is a leader of the VM controller that works on one VM.
type vmLeader struct {
	pc, which    uint8
	vmUnchanged  bool
	live         liveReads
	sourceExists [maxDisks]bool
	vm           vmState
	image        imageState
	todo         vmActions
}

type clusterState struct {
	imageState
	storageState
	// deletedForEndedPrune: the image was deleted for a prune that was no longer pending.
	deletedForEndedPrune bool
	// begunByOldPlan: a prune began that only an old plan requests.
	begunByOldPlan bool
	// acquiredReleased: a VM has acquired an image that its live read showed as released.
	acquiredReleased bool
	vms              [maxVMs]vmState
	imageLeaders     [2]imageLeader
	vmLeaders        [2]vmLeader
}

// plantedBug is a removed guard.
type plantedBug uint8

const (
	acquiresByCache plantedBug = iota + 1 // no live read after the pin
	pinsAfterVerification
	listsBeforeDeleting
	tearsDownUnmarked
	supersedesPinned
	supersedesByCache
	listsBeforeServingMoves
	storesUnguarded
	repinsWhileCloning
	deletesUnguarded
	countsRootOnly       // holders without the pins of their data disks
	clonesBeforeAcquired // one status for what is acquired and what is cloned
	clonesBeforePin
	createsBeforeStoring // a snapshot whose name is not stored yet
	ignoresLateWrites    // a pin is given up while a former leader may still clone
	ignoresMachines      // those of a namespace whose orphaned disks hold nothing
	beginsByOldPlan      // a prune, as though the plan confirmed it
	acquiresReleased     // VMs do not know that an image is released
)

// acquireScenario is a model (modelcheck.Model): it bounds the state and says what can
// happen.
type acquireScenario struct {
	// imageSpecs of the image, one after the other: its source and, after a slash, its
	// snapshot class.
	imageSpecs              []string
	vms, lives              uint8
	imageLeaders, vmLeaders int
	// dataDisks: people add a disk of the same image to VMs, and remove it.
	dataDisks bool
	// deletesImage, deletesNamespace: people delete the image, or its namespace.
	// retargetsVMs: people make VMs name another image. planExpires: plans expire the
	// image or keep it. prunes: as many ImagePrunes are requested or not. oldPlans: the
	// plan that requests one may be from before its end.
	deletesImage, deletesNamespace, retargetsVMs, planExpires, oldPlans bool
	prunes                                                              uint8
	// releasesImage: people remove the agent's finalizer of an image that is being deleted, and later the
	// other one that keeps it.
	releasesImage bool
	// hasOrphan: a disk without a VM claims to be cloned from the image, and a person has said that it
	// holds the image no longer.
	hasOrphan bool

	plantedBug plantedBug
	// Options of modelcheck.Explore.
	onlyViolation string
	expected      []expectedState
}

type expectedState = modelcheck.ExpectedState[clusterState]

func (p *acquireScenario) explore(t *testing.T) modelcheck.Result {
	t.Helper()
	return modelcheck.Explore(t, p, modelcheck.Options[clusterState]{Expected: p.expected, OnlyViolation: p.onlyViolation})
}

// InitialState implements modelcheck.Model: an image that serves its first spec and is at
// rest.
func (p *acquireScenario) InitialState() clusterState {
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
		for moved := true; moved; { // image leader 0 carries out a whole decision
			moved = false
			p.imageLeaderSteps(&c, 0, func(s step) {
				if !moved && !s.Fault {
					c, moved = s.Next, s.Next.imageLeaders[0].pc != idle
				}
			})
		}
		p.ledgerSteps(&c, func(s step) { c = s.Next })
		p.normalize(&c)
		if c == before {
			return c
		}
	}
}

// normalize is called after every step. It frees a slot once its outcome is stored; the
// model of agent/ledger explores how.
func (p *acquireScenario) normalize(c *clusterState) {
	if c.slot.attempt > 0 && (c.gone || c.released || p.hasAttemptEnded(knownStatuses[c.status], c.slot)) {
		c.slot = attemptRef{}
	}
	if c.gone {
		c.imageState = imageState{gone: true, released: c.released, namespaceTerminating: c.namespaceTerminating}
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

// checkInvariants returns the invariant that a state violates; empty for none.
func (p *acquireScenario) checkInvariants(c *clusterState) string {
	if c.deletedForEndedPrune {
		return "S7: an image is deleted for a prune that has ended"
	}
	if c.begunByOldPlan {
		return "S7: a prune begins that no plan confirms"
	}
	if c.acquiredReleased {
		return "S2: a VM acquires an image that no agent keeps"
	}
	for n, t := range c.snapshots {
		if t.attempt != 0 && uint8(n) >= c.snapshotsNamed {
			return "a VolumeSnapshot exists whose name was never stored: each failed write of the status leaves one more"
		}
	}
	if c.namespaceTerminating {
		return "" // not promised by S2
	}
	for i := range p.vms {
		m := &c.vms[i]
		if !m.exists {
			continue
		}
		for k := range m.disks {
			d := &m.disks[k]
			if pin := knownPins[d.pin]; pin.acquired && !c.containsPin(pin) {
				return "S2: storage that a VM has acquired is deleted"
			}
			if d.clone != 0 && withoutAcquired(d.pin) == d.clone && !c.containsPin(knownPins[d.clone]) {
				return "S2: storage that a VM is cloned from is deleted"
			}
			if d.cloned && withoutAcquired(d.pin) != d.clone {
				return "S2: a VM runs from storage that it has not pinned"
			}
		}
		if m.namedAtDeletion && !c.released && (c.gone || knownStatuses[c.status].TearDown || c.attempts == 0) {
			return "S2: an image that a VM named when it was deleted is torn down"
		}
	}
	return ""
}

// containsPin reports whether pinned storage exists.
func (s *storageState) containsPin(p pinState) bool {
	if s.attempts&(1<<(p.attempt-1)) == 0 {
		return false
	}
	return p.snapshot == 0 || s.snapshots[p.snapshot-1].attempt == p.attempt
}

// markImageWritten makes the writes of all leaders but one conflict.
func (c *clusterState) markImageWritten(but int) {
	for i := range c.imageLeaders {
		if i != but {
			c.imageLeaders[i].imageUnchanged = false
		}
	}
}

// markVMWritten makes the writes of all leaders but one conflict.
func (c *clusterState) markVMWritten(which uint8, but int) {
	for i := range c.vmLeaders {
		if i != but && c.vmLeaders[i].which == which && c.vmLeaders[i].pc != listed {
			c.vmLeaders[i].vmUnchanged = false
		}
	}
}

// requestImageDeletion sets the deletionTimestamp.
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
		if pins := m.pins(); m.exists && (!m.namesOtherImage || pins != [maxDisks]uint8{}) {
			h[i] = holderState{true, pins}
		}
	}
	return h
}

var canonicalOrderSeed = maphash.MakeSeed()

// Canonical implements modelcheck.Model: it orders the leaders.
func (p *acquireScenario) Canonical(c *clusterState) clusterState {
	ordered := *c
	if p.imageLeaders > 1 {
		sortPair(&ordered.imageLeaders)
	}
	if p.vmLeaders > 1 {
		sortPair(&ordered.vmLeaders)
	}
	return ordered
}

// sortPair orders two leaders that are alike, in the same way in each state.
func sortPair[T comparable](pair *[2]T) {
	if maphash.Comparable(canonicalOrderSeed, pair[0]) > maphash.Comparable(canonicalOrderSeed, pair[1]) {
		pair[0], pair[1] = pair[1], pair[0]
	}
}

// Format implements modelcheck.Model.
func (p *acquireScenario) Format(c *clusterState) string {
	var b strings.Builder
	st := knownStatuses[c.status]
	fmt.Fprintf(&b, "image %s %s", p.imageSpecs[c.specEdits], st.Phase)
	if c.gone {
		b.WriteString(" gone")
	}
	if c.released {
		b.WriteString(" released")
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
		b.WriteString(" expires")
	}
	if c.plannedPrune != 0 {
		fmt.Fprintf(&b, " prune %d old %t", c.plannedPrune, c.planIsOld)
	}
	if p := st.Prune; p != nil {
		fmt.Fprintf(&b, " (%s %s %s)", p.UID, p.State, p.Reason)
	}
	for i := range p.vms {
		m := &c.vms[i]
		if m.exists {
			for k := range m.disks {
				d := &m.disks[k]
				fmt.Fprintf(&b, " | vm %d disk %d pins %v clone %v %t", i, k, knownPins[d.pin], knownPins[d.clone], d.cloned)
			}
		}
	}
	return b.String()
}
