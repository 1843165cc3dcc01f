package image_test

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// vmActions are the actions of a vm.Decision still to be carried out.
type vmActions struct {
	needsLive, storeFirst bool
	deleteRootDisk        bool
	cloneRootDisk         uint8
	writePin              bool
	pin                   uint8
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
	sourceExists bool
	live         bool
}

// decideVMCached calls vm.Decide, once per input.
func (p *acquireScenario) decideVMCached(m vmState, i imageState, sourceExists, live bool) vmActions {
	q := vmDecisionKey{strings.Join(p.imageSpecs, " "), p.plantedBug, m, i, sourceExists, live}
	todo, ok := vmDecisions[q]
	if !ok {
		todo = p.decideVM(m, i, sourceExists, live)
		vmDecisions[q] = todo
	}
	return todo
}

func (p *acquireScenario) decideVM(m vmState, i imageState, sourceExists, live bool) vmActions {
	b := apitest.VirtualMachine("ns", "vm").WithUID(types.UID(fmt.Sprint("uid-of-life-", m.life))).WithResources("1", "1Gi", "1Gi").WithImage("", "a")
	if m.namesOtherImage {
		b.WithImage("", "another")
	}
	obj := b.WithStatus(v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineProvisioning, Pinned: p.buildPin(m.pin)}).Obj()
	v := vm.View{Now: timeOfSnapshot(0), VM: obj, CDIServed: true, SourceExists: sourceExists, Live: live}
	if !i.gone {
		img := p.buildImage(i)
		if !m.namesOtherImage {
			v.Image = img
		}
		if m.pin != 0 {
			v.Pinned = img
		}
	}
	if m.clone != 0 {
		v.RootDisk = kubevirt.BuildRootDisk(obj, p.buildImage(i), *p.buildPin(m.clone), resource.MustParse("1Gi"))
		v.RootDisk.UID = "uid-of-disk"
		if m.cloned {
			v.RootDisk.Status.Phase = cdiv1.Succeeded
		}
	}
	if p.plantedBug == repinsWhileCloning && m.clone != 0 && !m.cloned {
		withoutDisk := v
		withoutDisk.RootDisk = nil
		if d := vm.Decide(withoutDisk); d.StoreStatusFirst {
			return vmActions{storeFirst: true, writePin: true, pin: pinNumber(d.Status.Pinned)}
		}
	}
	d := vm.Decide(v)
	if d.NeedsLive {
		return vmActions{needsLive: true}
	}
	todo := vmActions{storeFirst: d.StoreStatusFirst, pin: pinNumber(d.Status.Pinned), deleteRootDisk: d.DeleteRootDisk != nil}
	todo.writePin = todo.pin != m.pin
	if d.CreateRootDisk != nil {
		todo.cloneRootDisk = p.clonedPin(d.CreateRootDisk)
	}
	return todo
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
					p.startVMActions(m, p.decideVMCached(m.vm, m.image, false, false))
					if m.pc == confirm && p.plantedBug != acquiresByCache {
						m.image = imageState{} // it is read again, live
					}
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
		emit("reads the pinned storage live, and decides", func(c *clusterState, m *vmLeader) {
			m.sourceExists = m.vm.pin != 0 && c.containsPin(knownPins[m.vm.pin])
			p.startVMActions(m, p.decideVMCached(m.vm, m.image, m.sourceExists, true))
		})
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

func (p *acquireScenario) startVMActions(m *vmLeader, todo vmActions) {
	if todo.needsLive {
		m.pc = confirm
		return
	}
	m.todo, m.pc, m.sourceExists = todo, act, false
	if p.plantedBug != pinsAfterVerification && p.plantedBug != acquiresByCache {
		m.image = imageState{}
	}
	p.finishVMLeader(m)
}

func (p *acquireScenario) finishVMLeader(m *vmLeader) {
	t := m.todo
	switch {
	case t.deleteRootDisk || t.cloneRootDisk != 0 || t.writePin:
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
		stored.pin, t.writePin = t.pin, false
		c.markVMWritten(m.which, who)
		return fmt.Sprint("stores pin ", knownPins[t.pin])
	}
	switch {
	case t.storeFirst && t.writePin:
		what = store()
		if m.pc == act && p.plantedBug == pinsAfterVerification && knownPins[stored.pin].attempt != 0 {
			m.vm = *stored
			p.startVMActions(m, p.decideVMCached(m.vm, m.image, c.containsPin(knownPins[stored.pin]), true))
			return what, c
		}
	case t.deleteRootDisk:
		t.deleteRootDisk, what = false, "deletes the root disk"
		if same && stored.clone == m.vm.clone && stored.cloned == m.vm.cloned {
			stored.clone, stored.cloned = 0, false
		}
	case t.cloneRootDisk != 0:
		clone := t.cloneRootDisk
		t.cloneRootDisk, what = 0, fmt.Sprint("creates the root disk from ", knownPins[clone])
		switch {
		case !same: // garbage-collected, as its owner is gone
		case stored.clone == 0:
			stored.clone = clone
		case stored.clone != clone:
			*m = vmLeader{}
			return "creates the root disk: another one exists", c
		}
	default:
		what = store()
	}
	p.finishVMLeader(m)
	return what, c
}
