package image_test

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// vmActions are the actions of a vm.Decision still to be carried out.
type vmActions struct {
	needs       liveReads // none of the rest is set
	storeFirst  bool
	deleteDisks [maxDisks]bool
	cloneDisks  [maxDisks]uint8
	writePins   bool
	pins        [maxDisks]uint8
	volume      volumeState // of disk 1
}

// pinState is a PinnedImage. The attempt implies the revision.
type pinState struct {
	attempt, snapshot uint8
	acquired          bool
}

var (
	knownPins   = []pinState{{}}
	vmDecisions = map[vmDecisionKey]vmActions{}
)

func numberOfPinState(want pinState) uint8 {
	for n, known := range knownPins {
		if known == want {
			return uint8(n)
		}
	}
	knownPins = append(knownPins, want)
	return uint8(len(knownPins) - 1)
}

// withoutAcquired returns the pin as it was before it was acquired.
func withoutAcquired(n uint8) uint8 {
	p := knownPins[n]
	p.acquired = false
	return numberOfPinState(p)
}

func pinNumber(p *v1alpha1.PinnedImage) uint8 {
	if p == nil {
		return 0
	}
	return numberOfPinState(pinState{uint8(p.Attempt), snapshotNumber(p.VolumeSnapshot), p.AcquiredAt != nil})
}

func (p *acquireScenario) buildPin(n uint8) *v1alpha1.PinnedImage {
	if n == 0 {
		return nil
	}
	state := knownPins[n]
	pin := &v1alpha1.PinnedImage{
		ImageKey: imageKey, Attempt: int32(state.attempt), Revision: revisions[state.attempt],
		PersistentVolumeClaim: ledger.DataVolumeName(imageKey, int32(state.attempt)),
	}
	if state.snapshot != 0 {
		pin.VolumeSnapshot = snapshotName(state.attempt, state.snapshot)
	}
	if state.acquired {
		at := metav1.NewTime(apitest.Epoch)
		pin.AcquiredAt = &at
	}
	return pin
}

// vmDecisionKey is the input of a decision on a VM.
type vmDecisionKey struct {
	specs        string
	bug          plantedBug
	vm           vmState
	image        imageState
	sourceExists [maxDisks]bool
	live         liveReads
	lateWrites   bool
}

// decideVMCached calls vm.Decide, once per input.
func (p *acquireScenario) decideVMCached(m vmState, i imageState, sourceExists [maxDisks]bool, live liveReads, lateWrites bool) vmActions {
	q := vmDecisionKey{strings.Join(p.imageSpecs, " "), p.plantedBug, m, i, sourceExists, live, lateWrites}
	return modelcheck.ComputeOnce(vmDecisions, q, func() vmActions { return p.decideVM(m, i, sourceExists, live, lateWrites) })
}

func (p *acquireScenario) decideVM(m vmState, i imageState, sourceExists [maxDisks]bool, live liveReads, lateWrites bool) vmActions {
	b := apitest.VirtualMachine("ns", "vm").WithUID(types.UID(fmt.Sprint("uid-of-life-", m.life))).WithResources("1", "1Gi", "1Gi").WithImage("", "a")
	if m.namesOtherImage {
		b.WithImage("", "another")
	}
	obj := b.WithStatus(v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineProvisioning, Pinned: p.buildPin(m.disks[0].pin)}).Obj()
	v := vm.View{Now: timeOfSnapshot(0), VM: obj, CDIServed: true, DiskView: p.buildDisk(m, i, obj, 0, sourceExists[0]), LiveImages: live >= imagesLive, Live: live == allLive}
	if lateWrites && p.plantedBug != ignoresLateWrites {
		v.LateWrites = time.Minute
	}
	if m.hasDataDisk {
		obj.Spec.Disks = []v1alpha1.Disk{{Name: dataDisk, Image: obj.Spec.VMDiskImageRef.DeepCopy()}}
	}
	if m.hasDataDisk || m.disks[1] != (diskState{}) {
		obj.Status.Disks = []v1alpha1.DataDisk{{Name: dataDisk, Pinned: p.buildPin(m.disks[1].pin), Volume: buildVolume(obj, m.disks[1].volume)}}
		v.Disks = map[string]vm.DiskView{dataDisk: p.buildDisk(m, i, obj, 1, sourceExists[1])}
	}
	if p.plantedBug == repinsWhileCloning && m.disks[0].clone != 0 && !m.disks[0].cloned {
		withoutDisk := v
		withoutDisk.DataVolume = nil
		if d := vm.Decide(withoutDisk); d.StoreStatusFirst {
			return vmActions{storeFirst: true, writePins: true, pins: pinNumbers(&d.Status), volume: volumeOf(&d.Status)}
		}
	}
	d := vm.Decide(v)
	switch {
	case d.NeedsLive:
		return vmActions{needs: allLive}
	case d.NeedsLiveImages:
		return vmActions{needs: imagesLive}
	}
	todo := vmActions{storeFirst: d.StoreStatusFirst, pins: pinNumbers(&d.Status)}
	todo.volume = volumeOf(&d.Status)
	todo.writePins = todo.pins != m.pins() || todo.volume != m.disks[1].volume
	for _, target := range d.DeleteDisks {
		todo.deleteDisks[diskNumber(obj, target.Name)] = true
	}
	for _, disk := range d.CreateDisks {
		todo.cloneDisks[diskNumber(obj, disk.Name)] = p.clonedPin(disk.DataVolume)
	}
	return todo
}

func buildVolume(obj *v1alpha1.VirtualMachine, state volumeState) *v1alpha1.DiskVolume {
	if state == volumeUnknown {
		return nil
	}
	return &v1alpha1.DiskVolume{DataVolume: kubevirt.DataDiskName(obj, dataDisk), Ready: state == volumeReady}
}

func volumeOf(st *v1alpha1.VirtualMachineStatus) volumeState {
	switch {
	case len(st.Disks) == 0 || st.Disks[0].Volume == nil:
		return volumeUnknown
	case st.Disks[0].Volume.Ready:
		return volumeReady
	default:
		return volumeRequested
	}
}

// dataDisk is the name of disk 1.
const dataDisk = "data"

func diskNumber(obj *v1alpha1.VirtualMachine, dataVolume string) int {
	if dataVolume == kubevirt.RootDiskName(obj) {
		return 0
	}
	return 1
}

func pinNumbers(st *v1alpha1.VirtualMachineStatus) (pins [maxDisks]uint8) {
	pins[0] = pinNumber(st.Pinned)
	for _, disk := range st.Disks {
		pins[1] = pinNumber(disk.Pinned)
	}
	return pins
}

// buildDisk returns what a View has of a disk.
func (p *acquireScenario) buildDisk(m vmState, i imageState, obj *v1alpha1.VirtualMachine, number int, sourceExists bool) vm.DiskView {
	disk := m.disks[number]
	v := vm.DiskView{SourceExists: sourceExists}
	if !i.gone {
		i.released = i.released && p.plantedBug != acquiresReleased
		img := p.buildImage(i)
		if !m.namesOtherImage && (number == 0 || m.hasDataDisk) {
			v.Image = img
		}
		if disk.pin != 0 {
			v.Pinned = img
		}
	}
	if disk.clone == 0 {
		return v
	}
	size := resource.MustParse("1Gi")
	v.DataVolume = kubevirt.BuildRootDisk(obj, p.buildImage(i), *p.buildPin(disk.clone), size)
	if number > 0 {
		v.DataVolume = kubevirt.BuildDataDisk(obj, &v1alpha1.Disk{Name: dataDisk}, p.buildImage(i), p.buildPin(disk.clone), size)
	}
	v.DataVolume.UID = "uid-of-disk"
	if disk.cloned {
		v.DataVolume.Status.Phase = cdiv1.Succeeded
	}
	return v
}

// findSources reports for each pin whether its storage exists.
func (s *storageState) findSources(m *vmState) (exist [maxDisks]bool) {
	for k := range m.disks {
		exist[k] = m.disks[k].pin != 0 && s.containsPin(knownPins[m.disks[k].pin])
	}
	return exist
}

func (p *acquireScenario) clonedPin(dv *cdiv1.DataVolume) uint8 {
	for n := range knownPins {
		if n > 0 && !knownPins[n].acquired && kubevirt.ClonedFromValue(*p.buildPin(uint8(n))) == dv.Annotations[v1alpha1.AnnotationClonedFrom] {
			return uint8(n)
		}
	}
	panic("a clone of storage that was never pinned: " + dv.Annotations[v1alpha1.AnnotationClonedFrom])
}

// vmLeaderSteps are the next steps of a leader of the VM controller.
func (p *acquireScenario) vmLeaderSteps(c *clusterState, who int, visit func(step)) {
	m := c.vmLeaders[who]
	emit := func(what string, change func(*clusterState, *vmLeader)) {
		next := *c
		change(&next, &next.vmLeaders[who])
		p.emitStep(next, visit, func() string { return fmt.Sprint("VM leader ", who, " ", what) })
	}
	switch m.pc {
	case noLeader:
		return
	case idle, listed:
		if m.pc == idle || m.image != c.imageState {
			emit("reads the image from its cache", func(c *clusterState, m *vmLeader) { *m = vmLeader{pc: listed, image: c.imageState} })
		}
		if m.pc == idle {
			return
		}
		for i := range p.vms {
			if c.vms[i].exists {
				emit(fmt.Sprint("reads vm ", i, " from its cache"), func(c *clusterState, m *vmLeader) {
					*m = vmLeader{pc: confirm, which: i, vmUnchanged: true, vm: c.vms[i], image: m.image}
					p.startVMActions(m, p.decideVMCached(m.vm, m.image, [maxDisks]bool{}, nothingLive, c.hasLateWrites(who)))
				})
			}
		}
	case confirm:
		emit("reads its VM live", func(_ *clusterState, m *vmLeader) {
			if m.pc = relist; !m.vmUnchanged {
				*m = vmLeader{}
			}
		})
	case relist:
		emit("reads the image live", func(c *clusterState, m *vmLeader) {
			if m.pc = verify; p.plantedBug != acquiresByCache {
				m.image = c.imageState
			}
		})
	case verify:
		decide := func(sources func(*clusterState, *vmLeader) [maxDisks]bool) func(*clusterState, *vmLeader) {
			return func(c *clusterState, m *vmLeader) {
				m.sourceExists = sources(c, m)
				if stored := &c.vms[m.which]; m.live == allLive && stored.exists && stored.life == m.vm.life {
					for k := range m.vm.disks {
						m.vm.disks[k].clone, m.vm.disks[k].cloned = stored.disks[k].clone, stored.disks[k].cloned
					}
				}
				p.startVMActions(m, p.decideVMCached(m.vm, m.image, m.sourceExists, m.live, c.hasLateWrites(who)))
			}
		}
		emit("reads the pinned storage live, and decides", decide(func(c *clusterState, m *vmLeader) [maxDisks]bool { return c.findSources(&m.vm) }))
		if known := pinnedDisks(&m.vm); m.live == imagesLive && known != c.findSources(&m.vm) {
			emit("finds the pinned storage in a stale cache, and decides", decide(func(*clusterState, *vmLeader) [maxDisks]bool { return known }))
		}
	case act:
		what, next := p.performVMAction(*c, who)
		p.emitStep(next, visit, func() string { return fmt.Sprint("VM leader ", who, " ", what) })
	}
	if m.pc != idle {
		next := *c
		next.vmLeaders[who] = vmLeader{}
		p.emitFault(next, visit, fmt.Sprint("VM leader ", who, " crashes"))
	}
}

// hasLateWrites reports whether another leader is about to write for the VM of this one: until it
// has, too little time has passed since that was the leader.
func (c *clusterState) hasLateWrites(who int) bool {
	for i := range c.vmLeaders {
		if other := &c.vmLeaders[i]; i != who && other.pc > listed && other.pc != noLeader && other.which == c.vmLeaders[who].which {
			return true
		}
	}
	return false
}

func (p *acquireScenario) startVMActions(m *vmLeader, todo vmActions) {
	if todo.needs != nothingLive {
		if m.pc == verify || m.pc == act { // the VM was read or stored by this leader
			m.pc = relist
		} else {
			m.pc = confirm
		}
		if m.live, m.sourceExists = todo.needs, [maxDisks]bool{}; p.plantedBug != acquiresByCache {
			m.image = imageState{}
		}
		return
	}
	if p.plantedBug == clonesBeforeAcquired && m.live >= imagesLive && todo.storeFirst && m.todoKeepsStorage(&todo) {
		acquired := m.vm
		acquired.setPins(&todo)
		todo.storeFirst, todo.cloneDisks = false, p.decideVMCached(acquired, m.image, m.sourceExists, m.live, false).cloneDisks
	}
	if p.plantedBug == clonesBeforePin && todo.storeFirst && todo.pins[0] != 0 {
		pinned := m.vm
		pinned.setPins(&todo)
		state := knownPins[todo.pins[0]]
		state.acquired = true
		pinned.disks[0].pin = numberOfPinState(state)
		todo.storeFirst, todo.cloneDisks = false, p.decideVMCached(pinned, m.image, pinnedDisks(&pinned), allLive, false).cloneDisks
	}
	m.todo, m.pc = todo, act
	if !todo.storeFirst || !m.todoKeepsStorage(&todo) {
		m.sourceExists = [maxDisks]bool{}
		if p.plantedBug != pinsAfterVerification && p.plantedBug != acquiresByCache {
			m.image = imageState{}
		}
	}
	p.finishVMLeader(m)
}

// todoKeepsStorage reports whether what is decided pins the same storage as before.
func (m *vmLeader) todoKeepsStorage(todo *vmActions) bool {
	for k := range m.vm.disks {
		if withoutAcquired(m.vm.disks[k].pin) != withoutAcquired(todo.pins[k]) {
			return false
		}
	}
	return true
}

// setPins makes a VM what a stored status made of it. What it has of disks stays: that is read
// from a cache.
func (m *vmState) setPins(todo *vmActions) {
	for k := range m.disks {
		m.disks[k].pin = todo.pins[k]
	}
	m.disks[1].volume = todo.volume
}

// continueVMLeader decides again after a status was stored: the answer is the VM, which is not read
// again. An image that was read live for the same storage is not either.
func (p *acquireScenario) continueVMLeader(c *clusterState, m *vmLeader) {
	keeps := m.todoKeepsStorage(&m.todo)
	m.vm.setPins(&m.todo)
	switch {
	case p.plantedBug == acquiresByCache: // decides again by the same cache
		*m = vmLeader{pc: listed, image: m.image}
	case p.plantedBug == pinsAfterVerification && m.vm.pins() != [maxDisks]uint8{}:
		p.startVMActions(m, p.decideVMCached(m.vm, m.image, c.findSources(&m.vm), allLive, false))
	case keeps && m.live >= imagesLive:
		m.live = imagesLive // disks are read from the cache again, and pins are kept
		p.startVMActions(m, p.decideVMCached(m.vm, m.image, m.sourceExists, m.live, false))
	default:
		m.pc, m.live, m.todo, m.image, m.sourceExists = relist, imagesLive, vmActions{}, imageState{}, [maxDisks]bool{}
	}
}

// pinnedDisks are those disks that have a pin.
func pinnedDisks(m *vmState) (pinned [maxDisks]bool) {
	for k := range m.disks {
		pinned[k] = m.disks[k].pin != 0
	}
	return pinned
}

func (p *acquireScenario) finishVMLeader(m *vmLeader) {
	t := m.todo
	switch {
	case t.deleteDisks != [maxDisks]bool{} || t.cloneDisks != [maxDisks]uint8{} || t.writePins:
	case p.plantedBug == acquiresByCache: // decides again by the same cache
		*m = vmLeader{pc: listed, image: m.image}
	default:
		*m = vmLeader{}
	}
}

// performVMAction carries out the next write of a decision: the status last, unless it
// has to be stored first.
func (p *acquireScenario) performVMAction(c clusterState, who int) (what string, next clusterState) {
	m := &c.vmLeaders[who]
	t := &m.todo
	stored := &c.vms[m.which]
	same := stored.exists && stored.life == m.vm.life
	store := func() string {
		if !m.vmUnchanged || !same {
			*m = vmLeader{}
			return "stores a pin: conflict"
		}
		for k := range stored.disks {
			acquires := knownPins[t.pins[k]].acquired && !knownPins[stored.disks[k].pin].acquired
			c.acquiredReleased = c.acquiredReleased || acquires && m.image.released
			stored.disks[k].pin = t.pins[k]
		}
		stored.disks[1].volume = t.volume
		t.writePins = false
		c.markVMWritten(m.which, who)
		return fmt.Sprint("stores pins ", knownPins[t.pins[0]], knownPins[t.pins[1]])
	}
	if t.storeFirst && t.writePins {
		if what = store(); m.pc == act {
			p.continueVMLeader(&c, m)
		}
		return what, c
	}
	for k := range t.deleteDisks {
		if !t.deleteDisks[k] {
			continue
		}
		t.deleteDisks[k] = false
		if disk := &stored.disks[k]; same && disk.clone == m.vm.disks[k].clone && disk.cloned == m.vm.disks[k].cloned {
			disk.clone, disk.cloned = 0, false
		}
		p.finishVMLeader(m)
		return fmt.Sprint("deletes disk ", k), c
	}
	for k, clone := range t.cloneDisks {
		if clone == 0 {
			continue
		}
		t.cloneDisks[k], what = 0, fmt.Sprint("creates disk ", k, " from ", knownPins[clone])
		switch disk := &stored.disks[k]; {
		case !same: // garbage-collected, as its owner is gone
		case disk.clone == 0:
			disk.clone = clone
		case disk.clone != clone:
			*m = vmLeader{}
			return fmt.Sprint("creates disk ", k, ": another one exists"), c
		}
		p.finishVMLeader(m)
		return what, c
	}
	what = store()
	p.finishVMLeader(m)
	return what, c
}
