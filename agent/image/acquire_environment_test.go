package image_test

import (
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

type step = modelcheck.Step[clusterState]

func (p *acquireScenario) emitStep(next clusterState, visit func(step), describe func() string) {
	p.normalize(&next)
	visit(step{Next: next, Violation: p.checkInvariants(&next), Describe: describe})
}

func (p *acquireScenario) emitFault(next clusterState, visit func(step), what string) {
	p.normalize(&next)
	visit(step{Next: next, Violation: p.checkInvariants(&next), Fault: true, Describe: func() string { return what }})
}

// ForEachStep implements modelcheck.Model.
func (p *acquireScenario) ForEachStep(c *clusterState, visit func(step)) {
	for i := range c.imageLeaders {
		p.imageLeaderSteps(c, i, visit)
	}
	for i := range c.vmLeaders {
		p.vmLeaderSteps(c, i, visit)
	}
	p.ledgerSteps(c, visit)
	p.userSteps(c, visit)
	for i := range p.vms {
		for k := range c.vms[i].disks {
			if d := &c.vms[i].disks[k]; c.vms[i].exists && d.clone != 0 && !d.cloned && c.containsPin(knownPins[d.clone]) {
				next := *c
				next.vms[i].disks[k].cloned = true
				p.emitStep(next, visit, func() string { return fmt.Sprint("disk ", k, " of vm ", i, " is complete") })
			}
		}
	}
}

// revisions of the attempts.
var revisions = map[uint8]string{}

// candidates are, by candidateKey, the attempts to import next; zero for none.
var candidates = map[candidateKey]ledger.Candidate{}

type candidateKey struct {
	specs string
	image imageState
}

// ledgerSteps give slots, and complete their imports at once.
func (p *acquireScenario) ledgerSteps(c *clusterState, visit func(step)) {
	if c.gone || c.slot.attempt != 0 {
		return
	}
	candidate := modelcheck.ComputeOnce(candidates, candidateKey{strings.Join(p.imageSpecs, " "), c.imageState}, func() ledger.Candidate {
		candidate, _ := image.CandidateOf(p.buildImage(c.imageState), nil)
		return candidate
	})
	if candidate.Attempt == 0 {
		return
	}
	next := *c
	a := uint8(candidate.Attempt)
	revisions[a] = candidate.Revision
	next.slot = attemptRef{attempt: a, specEdit: c.specEdits}
	next.attempts |= 1 << (a - 1)
	p.emitStep(next, visit, func() string { return fmt.Sprint("attempt ", a, " is imported") })
}

// userSteps are what people, and the plan, do.
func (p *acquireScenario) userSteps(c *clusterState, visit func(step)) {
	emit := func(what string, change func(*clusterState)) {
		next := *c
		change(&next)
		p.emitFault(next, visit, what)
	}
	if !c.gone && int(c.specEdits) < len(p.imageSpecs)-1 {
		emit("a person changes the source to "+p.imageSpecs[c.specEdits+1], func(c *clusterState) {
			c.specEdits++
			c.markImageWritten(-1)
		})
	}
	if p.deletesImage && !c.gone && !c.deleted {
		emit("a person deletes the image", p.requestImageDeletion)
	}
	if p.releasesImage && c.deleted && !c.released && !c.gone {
		emit("a person removes the agent's finalizer", func(c *clusterState) {
			c.released = true
			c.markImageWritten(-1)
		})
	}
	if c.released && !c.gone {
		emit("a person removes the other finalizer", func(c *clusterState) {
			c.gone = true
			c.markImageWritten(-1)
		})
	}
	if p.planExpires && !c.gone {
		emit("another plan expires the image, or keeps it", func(c *clusterState) { c.planExpires = !c.planExpires })
	}
	for n := range p.prunes + 1 {
		if !c.gone && c.plannedPrune != n {
			emit(fmt.Sprint("another plan requests prune ", n, " of the image"), func(c *clusterState) { c.plannedPrune = n })
		}
	}
	if p.oldPlans && !c.gone {
		emit("the plan lies there while no hub runs, or a hub confirms it", func(c *clusterState) { c.planIsOld = !c.planIsOld })
	}
	if p.deletesNamespace && !c.gone && !c.namespaceTerminating {
		emit("a person deletes the namespace", func(c *clusterState) {
			c.namespaceTerminating = true
			p.requestImageDeletion(c)
		})
	}
	for i := range p.vms {
		m := c.vms[i]
		switch {
		case m.exists:
			emit(fmt.Sprint("a person deletes vm ", i), func(c *clusterState) {
				c.vms[i] = vmState{life: m.life}
				c.markVMWritten(i, -1)
			})
			if p.dataDisks {
				emit(fmt.Sprint("a person adds or removes the data disk of vm ", i), func(c *clusterState) {
					c.vms[i].hasDataDisk = !m.hasDataDisk
					c.markVMWritten(i, -1)
				})
			}
			if p.retargetsVMs && !m.namesOtherImage {
				emit(fmt.Sprint("a person makes vm ", i, " name another image"), func(c *clusterState) {
					c.vms[i].namesOtherImage, c.vms[i].namedAtDeletion = true, false
					c.markVMWritten(i, -1)
				})
			}
		case m.life < p.lives:
			emit(fmt.Sprint("a person creates vm ", i), func(c *clusterState) {
				c.vms[i] = vmState{life: m.life + 1, exists: true}
			})
		}
	}
}

// IsAtRest implements modelcheck.Model: all leaders are idle; an unreferenced image
// that was deleted or expires is gone; a VM that names an existing image runs; no
// prune is pending. Nothing is promised of a released image.
func (p *acquireScenario) IsAtRest(c *clusterState) bool {
	for i := range c.imageLeaders {
		if pc := c.imageLeaders[i].pc; pc >= confirm && pc != noLeader {
			return false
		}
	}
	for i := range c.vmLeaders {
		if pc := c.vmLeaders[i].pc; pc >= confirm && pc != noLeader {
			return false
		}
	}
	if c.gone || c.released {
		return true
	}
	for i := range c.vms {
		m := &c.vms[i]
		for k := range m.disks {
			if m.exists && !m.namesOtherImage && (k == 0 || m.hasDataDisk) && !m.disks[k].cloned {
				return false
			}
		}
	}
	if prune := knownStatuses[c.status].Prune; prune != nil && !prune.State.IsFinal() || c.plannedPrune != 0 && !c.planIsOld && (prune == nil || !c.deleted && prune.UID != pruneUID(c.plannedPrune)) {
		return false
	}
	return !c.deleted && !c.planExpires || c.listHolders() != [maxVMs]holderState{} && !c.namespaceTerminating
}
