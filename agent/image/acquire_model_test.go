package image_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func readyVolumeSnapshot(name, class string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &class},
		Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true), BoundVolumeSnapshotContentName: ptr.To("content")},
	}
}

// step is something that can happen in a cluster.
type step struct {
	next clusterState
	// fault: it need not happen.
	fault bool
	what  func() string
}

func (p *acquireScenario) emitTransition(next clusterState, do func(step), what func() string) {
	p.normalize(&next)
	do(step{next: next, what: what})
}

// forEachTransition calls do with everything that can happen next.
func (p *acquireScenario) forEachTransition(c *clusterState, do func(step)) {
	for i := range c.imageLeaders {
		p.imageLeaderTransitions(c, i, do)
	}
	for i := range c.vmLeaders {
		p.vmLeaderTransitions(c, i, do)
	}
	p.ledgerTransitions(c, do)
	p.userTransitions(c, do)
	for i := range p.vms {
		if m := &c.vms[i]; m.exists && m.clone != 0 && !m.cloned && c.containsPin(knownPins[m.clone]) {
			next := *c
			next.vms[i].cloned = true
			p.emitTransition(next, do, func() string { return fmt.Sprint("the root disk of vm ", i, " is complete") })
		}
	}
}

// revisions of the attempts that were made.
var revisions = map[uint8]string{}

// ledgerTransitions are slots, with the imports in them.
func (p *acquireScenario) ledgerTransitions(c *clusterState, do func(step)) {
	if c.gone || c.slot.attempt != 0 {
		return
	}
	img := p.buildImage(c.imageState)
	candidate, may := image.CandidateOf(img)
	if !may {
		return
	}
	next := *c
	a := uint8(candidate.Attempt)
	revisions[a] = candidate.Revision
	next.slot = attemptRef{attempt: a, specEdit: c.specEdits}
	next.attempts |= 1 << (a - 1)
	p.emitTransition(next, do, func() string { return fmt.Sprint("attempt ", a, " is imported") })
}

func (p *acquireScenario) userTransitions(c *clusterState, do func(step)) {
	emit := func(what string, change func(*clusterState)) {
		next := *c
		change(&next)
		p.normalize(&next)
		do(step{next: next, fault: true, what: func() string { return what }})
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
	if p.planExpires && !c.gone {
		emit("another plan retires the image, or does not any more", func(c *clusterState) { c.planExpires = !c.planExpires })
	}
	for n := range p.prunes + 1 {
		if !c.gone && c.plannedPrune != n {
			emit(fmt.Sprint("another plan carries out prune ", n, " of the image"), func(c *clusterState) { c.plannedPrune = n })
		}
	}
	if p.deletesNamespace && !c.gone && !c.going {
		emit("a person deletes the namespace", func(c *clusterState) {
			c.going = true
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
			if p.retargetsVMs && !m.namesOtherImage {
				emit(fmt.Sprint("a person has vm ", i, " name another image"), func(c *clusterState) {
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

// exploration is what came of a play.
type exploration struct {
	states    int
	violation string
	trace     []string
	unreached []string
}

// explore visits every state of a play, or stops at the first violation.
func explore(t *testing.T, p *acquireScenario) exploration {
	t.Helper()
	first := p.initialState()
	first = first.canonical()
	met := map[clusterState]uint32{first: 0}
	all, parents := []clusterState{first}, []uint32{0}
	var from, to []uint32
	var f exploration
	edges := 0
	for i := 0; i < len(all) && f.violation == ""; i++ {
		c := all[i]
		p.forEachTransition(&c, func(s step) {
			if f.violation != "" {
				return
			}
			edges++
			n := s.next.canonical()
			number, known := met[n]
			if !known {
				number = uint32(len(all))
			}
			if !s.fault && number != uint32(i) {
				from, to = append(from, uint32(i)), append(to, number)
			}
			if known {
				return
			}
			met[n] = number
			all, parents = append(all, n), append(parents, uint32(i))
			if v := p.checkInvariants(&n); v != "" && strings.HasPrefix(v, p.onlyViolation) {
				f.violation = v
				f.trace = p.replayTrace(all, parents, uint32(len(all)-1))
			}
		})
	}
	f.states = len(all)
	for _, w := range p.expected {
		seen := false
		for i := 0; i < len(all) && !seen; i++ {
			seen = w.isReached(p, &all[i])
		}
		if !seen {
			f.unreached = append(f.unreached, w.name)
		}
	}
	if f.violation == "" {
		if lost, any := p.findDeadlock(all, from, to); any {
			f.violation = "a state from which nothing comes to rest any more"
			f.trace = p.replayTrace(all, parents, lost)
		}
	}
	t.Logf("%d states, %d steps: %q", f.states, edges, f.violation)
	return f
}

// isAtRest is what must stay reachable: nobody is on his way, an image that is to
// be deleted or is retired, and that nobody holds, is gone, and who names one that is there runs.
func (p *acquireScenario) isAtRest(c *clusterState) bool {
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
	if c.gone {
		return true
	}
	for i := range c.vms {
		if m := &c.vms[i]; m.exists && !m.namesOtherImage && !m.cloned {
			return false
		}
	}
	if prune := knownStatuses[c.status].Prune; prune != nil && !prune.State.IsFinal() || c.plannedPrune != 0 && (prune == nil || !c.deleted && prune.UID != pruneUID(c.plannedPrune)) {
		return false
	}
	return !c.deleted && !c.planExpires || c.listHolders() != [maxVMs]holderState{} && !c.going
}

// findDeadlock looks backwards from the states at rest for one that reaches none of them
// without a fault.
func (p *acquireScenario) findDeadlock(all []clusterState, from, to []uint32) (uint32, bool) {
	into := make([][]uint32, len(all))
	for e, n := range to {
		into[n] = append(into[n], from[e])
	}
	reaches := make([]bool, len(all))
	var queue []uint32
	for i := range all {
		if p.isAtRest(&all[i]) {
			reaches[i] = true
			queue = append(queue, uint32(i))
		}
	}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, before := range into[n] {
			if !reaches[before] {
				reaches[before] = true
				queue = append(queue, before)
			}
		}
	}
	for i, ok := range reaches {
		if !ok {
			return uint32(i), true
		}
	}
	return 0, false
}

// replayTrace tells the way to a state, with each leader keeping its name.
func (p *acquireScenario) replayTrace(all []clusterState, parents []uint32, last uint32) []string {
	var way []uint32
	for n := last; n != 0; n = parents[n] {
		way = append(way, n)
	}
	c := p.initialState()
	var trace []string
	for i := len(way) - 1; i >= 0; i-- {
		taken := false
		p.forEachTransition(&c, func(s step) {
			if !taken && s.next.canonical() == all[way[i]] {
				taken = true
				trace = append(trace, s.what()+"\n      "+p.formatState(&s.next))
				c = s.next
			}
		})
	}
	return trace
}

var (
	vmAcquiresAndRuns = expectedState{"a machine has acquired and runs", func(p *acquireScenario, c *clusterState) bool {
		return c.vms[0].cloned && knownPins[c.vms[0].pin].acquired
	}}
	imageIsGone                = expectedState{"the image is gone", func(p *acquireScenario, c *clusterState) bool { return c.gone }}
	terminatingImageIsAcquired = expectedState{"an image that is to be deleted is acquired", func(p *acquireScenario, c *clusterState) bool {
		return knownStatuses[c.status].Phase == v1alpha1.PhaseTerminating && !c.vms[0].namedAtDeletion && knownPins[c.vms[0].pin].acquired
	}}
	oldRevisionIsKept = expectedState{"an old revision is kept for a machine while a new one serves", func(p *acquireScenario, c *clusterState) bool {
		st, pin := knownStatuses[c.status], knownPins[c.vms[0].pin]
		return c.vms[0].cloned && st.Serving != nil && uint8(st.Serving.Attempt) != pin.attempt && c.containsPin(pin)
	}}
	oldRevisionIsDeleted = expectedState{"an old revision is retired and removed", func(p *acquireScenario, c *clusterState) bool {
		st := knownStatuses[c.status]
		return st.Serving != nil && st.Serving.Attempt > 1 && c.attempts&1 == 0 && !c.deleted
	}}
	oldSnapshotGone = expectedState{"an older snapshot is removed", func(p *acquireScenario, c *clusterState) bool {
		return c.snapshotsMade > 1 && c.snapshots[0].attempt == 0 && !c.deleted
	}}
	oldSnapshotKept = expectedState{"an older snapshot is kept for a machine", func(p *acquireScenario, c *clusterState) bool {
		st, pin := knownStatuses[c.status], knownPins[c.vms[0].pin]
		return c.vms[0].cloned && pin.snapshot == 1 && st.Serving != nil && snapshotNumber(st.Serving.VolumeSnapshot) > 1
	}}
)

// expectPruneEnd wants a prune to have ended, with the image serving on.
func expectPruneEnd(state v1alpha1.PruneState, reason string) expectedState {
	return expectedState{fmt.Sprint("a prune is ", state, ": ", reason), func(p *acquireScenario, c *clusterState) bool {
		st := knownStatuses[c.status]
		return st.Prune != nil && st.Prune.State == state && st.Prune.Reason == reason && st.Serving != nil && !c.deleted
	}}
}

var (
	imagePendingPruneIsAcquired = expectedState{"an image that is to be pruned is acquired", func(p *acquireScenario, c *clusterState) bool {
		return knownStatuses[c.status].Phase == v1alpha1.PhasePrunePending && knownPins[c.vms[0].pin].acquired
	}}
	pruneSkippedForReference = expectPruneEnd(v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
	pruneSkippedForChange    = expectPruneEnd(v1alpha1.PruneSkipped, v1alpha1.PruneChanged)
	pruneWithdrawn           = expectPruneEnd(v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn)
)

// TestAcquireModelIsSafe explores everything that leaders, machines and people can do with
// one image, in plays that are each small and together hold every fault.
func TestAcquireModelIsSafe(t *testing.T) {
	for name, tt := range map[string]struct {
		acquireScenario
		long bool
	}{
		"the image is deleted":                   {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 2, imageLeaders: 2, vmLeaders: 1, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}}},
		"the image is deleted, two makers":       {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone}}},
		"two machines":                           {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 2, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}}},
		"the source changes":                     {acquireScenario: acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, oldRevisionIsDeleted}}},
		"the source changes and comes back":      {acquireScenario: acquireScenario{imageSpecs: []string{"a", "b", "a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, oldRevisionIsDeleted}}},
		"the snapshot class changes":             {acquireScenario: acquireScenario{imageSpecs: []string{"a/x", "a/y"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldSnapshotGone, oldSnapshotKept}}},
		"long: the snapshot class changes":       {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a/x", "a/y"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldSnapshotGone, oldSnapshotKept}}},
		"long: two of each":                      {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 2, deletesImage: true}},
		"long: the source changes, two makers":   {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, deletesImage: true}},
		"long: the source changes, two machines": {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a", "b"}, vms: 2, lives: 1, imageLeaders: 1, vmLeaders: 1}},
		"long: the source comes back":            {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a", "b", "a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, oldRevisionIsDeleted}}},
		"a machine names another image":          {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, retargetsVMs: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone}}},
		"long: a machine names another image":    {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, deletesImage: true, retargetsVMs: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone}}},
		"plans retire the image":                 {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 2, imageLeaders: 2, vmLeaders: 1, planExpires: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}}},
		"plans prune the image":                  {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, prunes: 1, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, imagePendingPruneIsAcquired, pruneSkippedForReference, pruneWithdrawn}}},
		"plans prune an image that changes":      {acquireScenario: acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, prunes: 1, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, pruneSkippedForReference, pruneSkippedForChange}}},
		"long: plans prune the image twice":      {long: true, acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 2, imageLeaders: 1, vmLeaders: 1, prunes: 2, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, imagePendingPruneIsAcquired, pruneSkippedForReference, pruneWithdrawn}}},
		"the namespace goes":                     {acquireScenario: acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, deletesNamespace: true, expected: []expectedState{imageIsGone}}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.long && os.Getenv("OT_FLEET_LONG") != "1" {
				t.Skip("set OT_FLEET_LONG=1")
			}
			got := explore(t, &tt.acquireScenario)
			require.Empty(t, got.violation, "\n  - "+strings.Join(got.trace, "\n  - "))
			require.Empty(t, got.unreached, "never met")
		})
	}
}

// TestAcquireModelFindsPlantedBugs takes away one guard after the other.
func TestAcquireModelFindsPlantedBugs(t *testing.T) {
	deletes := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, deletesImage: true}
	changes := acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1}
	prunes := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, prunes: 1}
	elsewhere := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, retargetsVMs: true}
	comesBack := acquireScenario{imageSpecs: []string{"a", "b", "a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1}
	for name, tt := range map[string]struct {
		acquireScenario
		flaw plantedBug
	}{
		"an image is not looked at live after the pin, deleted":   {deletes, acquiresByCache},
		"an image is not looked at live after the pin, changed":   {changes, acquiresByCache},
		"a pin is stored after the look":                          {changes, pinsAfterLook},
		"machines are listed before the mark":                     {deletes, listsBeforeMark},
		"that nobody holds an image is not stored before it goes": {deletes, tearsDownUnmarked},
		"a revision is retired whoever has pinned it":             {changes, retiresUnlisted},
		"a revision is retired by a list from the cache":          {changes, retiresByCache},
		"machines are listed before it is stored what serves":     {changes, listsBeforeServingMoves},
		"a status is stored without its resourceVersion, deleted": {deletes, storesUnguarded},
		"a status is stored without its resourceVersion, changed": {comesBack, storesUnguarded},
		"what is pinned changes while it is being cloned":         {elsewhere, repinsWhileCloning},
		"an image is deleted without its resourceVersion":         {prunes, deletesUnguarded},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.acquireScenario
			p.plantedBug, p.onlyViolation = tt.flaw, "S2"
			if p.prunes > 0 {
				p.onlyViolation = "S7"
			}
			got := explore(t, &p)
			require.Contains(t, got.violation, p.onlyViolation)
			t.Logf("found in %d steps\n  - %s", len(got.trace), strings.Join(got.trace, "\n  - "))
		})
	}
}
