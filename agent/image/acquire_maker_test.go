package image_test

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// making is what is left to do of a Decision on a machine.
type making struct {
	needsLive, storeFirst bool
	drops                 bool
	clone                 uint8
	write                 bool
	pin                   uint8
}

// pin is a PinnedImage. Of one image the attempt tells the revision.
type pin struct {
	attempt, snapshot uint8
	acquired          bool
}

var (
	pins    = []pin{{}}
	makings = map[machineQuestion]making{}
)

func pinNumber(want pin) uint8 {
	for n, known := range pins {
		if known == want {
			return uint8(n)
		}
	}
	pins = append(pins, want)
	return uint8(len(pins) - 1)
}

// without is the pin as it was before it was acquired.
func without(n uint8) uint8 {
	p := pins[n]
	p.acquired = false
	return pinNumber(p)
}

func numberOf(p *v1alpha1.PinnedImage) uint8 {
	if p == nil {
		return 0
	}
	return pinNumber(pin{uint8(p.Attempt), snapshotName(p.VolumeSnapshot), p.AcquiredAt != nil})
}

func (p *play) pinned(n uint8) *v1alpha1.PinnedImage {
	if n == 0 {
		return nil
	}
	known := pins[n]
	full := &v1alpha1.PinnedImage{
		ImageKey: imageKey, Attempt: int32(known.attempt), Revision: revisions[known.attempt],
		PersistentVolumeClaim: queue.DataVolumeName(imageKey, int32(known.attempt)),
	}
	if known.snapshot != 0 {
		full.VolumeSnapshot = snapshotOf(known.attempt, known.snapshot)
	}
	if known.acquired {
		at := metav1.NewTime(apitest.Epoch)
		full.AcquiredAt = &at
	}
	return full
}

// machineQuestion is all that a decision on a machine rests on.
type machineQuestion struct {
	play        string
	flaw        flaw
	machine     machineObject
	image       imageObject
	sourceThere bool
	live        bool
}

// make asks vm.Decide.
func (p *play) make(m machineObject, i imageObject, sourceThere, live bool) making {
	q := machineQuestion{strings.Join(p.specs, " "), p.flaw, m, i, sourceThere, live}
	todo, known := makings[q]
	if !known {
		todo = p.decideMachine(m, i, sourceThere, live)
		makings[q] = todo
	}
	return todo
}

func (p *play) decideMachine(m machineObject, i imageObject, sourceThere, live bool) making {
	b := apitest.VirtualMachine("ns", "vm").WithUID(types.UID(fmt.Sprint("uid-of-life-", m.life))).WithResources("1", "1Gi", "1Gi").WithImage("", "a")
	if m.elsewhere {
		b.WithImage("", "another")
	}
	obj := b.WithStatus(v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineProvisioning, Pinned: p.pinned(m.pin)}).Obj()
	v := vm.View{Now: clock(0), VM: obj, CDI: true, SourceThere: sourceThere, Live: live}
	if !i.gone {
		img := p.object(i)
		if !m.elsewhere {
			v.Image = img
		}
		if m.pin != 0 {
			v.Pinned = img
		}
	}
	if m.clone != 0 {
		v.RootDisk = machine.RootDisk(obj, p.object(i), *p.pinned(m.clone), resource.MustParse("1Gi"))
		v.RootDisk.UID = "uid-of-disk"
		if m.cloned {
			v.RootDisk.Status.Phase = cdiv1.Succeeded
		}
	}
	if p.flaw == repinsWhileCloning && m.clone != 0 && !m.cloned {
		unseen := v
		unseen.RootDisk = nil
		if d := vm.Decide(unseen); d.StoreFirst {
			return making{storeFirst: true, write: true, pin: numberOf(d.Status.Pinned)}
		}
	}
	d := vm.Decide(v)
	if d.NeedsLive {
		return making{needsLive: true}
	}
	todo := making{storeFirst: d.StoreFirst, pin: numberOf(d.Status.Pinned), drops: d.DeleteRootDisk != nil}
	todo.write = todo.pin != m.pin
	if d.CreateRootDisk != nil {
		todo.clone = p.cloneOf(d.CreateRootDisk)
	}
	return todo
}

func (p *play) cloneOf(dv *cdiv1.DataVolume) uint8 {
	for n := range pins {
		if n > 0 && !pins[n].acquired && machine.ClonedFrom(*p.pinned(uint8(n))) == dv.Annotations[v1alpha1.AnnotationClonedFrom] {
			return uint8(n)
		}
	}
	panic("a clone of what was never pinned: " + dv.Annotations[v1alpha1.AnnotationClonedFrom])
}

// makerMoves are what a leader of the machines' controller can do next.
func (p *play) makerMoves(c *cluster, who int, do func(step)) {
	m := c.makers[who]
	emit := func(what string, change func(*cluster, *maker)) {
		next := *c
		change(&next, &next.makers[who])
		p.emit(next, do, func() string { return fmt.Sprint("maker ", who, " ", what) })
	}
	switch m.pc {
	case nobody:
		return
	case idle, listed:
		if m.pc == idle || m.image != c.imageObject {
			emit("sees the image in its cache", func(c *cluster, m *maker) { *m = maker{pc: listed, image: c.imageObject} })
		}
		if m.pc == idle {
			return
		}
		for i := range p.machines {
			if c.machines[i].exists {
				emit(fmt.Sprint("sees vm ", i, " in its cache"), func(c *cluster, m *maker) {
					*m = maker{pc: confirm, which: i, fresh: true, machine: c.machines[i], image: m.image}
					p.madeUp(m, p.make(m.machine, m.image, false, false))
					if m.pc == confirm && p.flaw != acquiresByCache {
						m.image = imageObject{} // it is read again
					}
				})
			}
		}
	case confirm:
		emit("reads its machine live", func(_ *cluster, m *maker) {
			if m.pc = relist; !m.fresh {
				*m = maker{}
			}
		})
	case relist:
		emit("reads the image live", func(c *cluster, m *maker) {
			if m.pc = look; p.flaw != acquiresByCache {
				m.image = c.imageObject
			}
		})
	case look:
		emit("looks for what is pinned, live, and decides", func(c *cluster, m *maker) {
			m.sourceThere = m.machine.pin != 0 && c.has(pins[m.machine.pin])
			p.madeUp(m, p.make(m.machine, m.image, m.sourceThere, true))
		})
	case act:
		what, next := p.makerActs(*c, who)
		p.emit(next, do, func() string { return fmt.Sprint("maker ", who, " ", what) })
	}
	if m.pc != idle {
		next := *c
		next.makers[who] = maker{}
		do(step{next: next, fault: true, what: func() string { return fmt.Sprint("maker ", who, " crashes") }})
	}
}

func (p *play) madeUp(m *maker, todo making) {
	if todo.needsLive {
		m.pc = confirm
		return
	}
	m.todo, m.pc, m.sourceThere = todo, act, false
	if p.flaw != pinsAfterLook && p.flaw != acquiresByCache {
		m.image = imageObject{}
	}
	p.madeIfDone(m)
}

func (p *play) madeIfDone(m *maker) {
	t := m.todo
	switch {
	case t.drops || t.clone != 0 || t.write:
	case p.flaw == acquiresByCache: // and by the same cache again
		*m = maker{pc: listed, image: m.image}
	default:
		*m = maker{}
	}
}

// makerActs carries out the next write of a decision: the status last, but for
// one that is to be stored first.
func (p *play) makerActs(c cluster, who int) (what string, next cluster) {
	m := &c.makers[who]
	t := &m.todo
	there := &c.machines[m.which]
	same := there.exists && there.life == m.machine.life
	store := func() string {
		if !m.fresh || !same {
			*m = maker{}
			return "stores a pin: conflict"
		}
		there.pin, t.write = t.pin, false
		c.machineChanged(m.which, who)
		return fmt.Sprint("stores pin ", pins[t.pin])
	}
	switch {
	case t.storeFirst && t.write:
		what = store()
		if m.pc == act && p.flaw == pinsAfterLook && pins[there.pin].attempt != 0 {
			m.machine = *there
			p.madeUp(m, p.make(m.machine, m.image, c.has(pins[there.pin]), true))
			return what, c
		}
	case t.drops:
		t.drops, what = false, "deletes the root disk"
		if same && there.clone == m.machine.clone && there.cloned == m.machine.cloned {
			there.clone, there.cloned = 0, false
		}
	case t.clone != 0:
		clone := t.clone
		t.clone, what = 0, fmt.Sprint("creates the root disk from ", pins[clone])
		switch {
		case !same: // owned by a machine that is gone
		case there.clone == 0:
			there.clone = clone
		case there.clone != clone:
			*m = maker{}
			return "creates the root disk: there is another", c
		}
	default:
		what = store()
	}
	p.madeIfDone(m)
	return what, c
}
