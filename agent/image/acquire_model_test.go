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
	next cluster
	// fault: it need not happen.
	fault bool
	what  func() string
}

func (p *play) emit(next cluster, do func(step), what func() string) {
	p.settle(&next)
	do(step{next: next, what: what})
}

// moves calls do with everything that can happen next.
func (p *play) moves(c *cluster, do func(step)) {
	for i := range c.keepers {
		p.keeperMoves(c, i, do)
	}
	for i := range c.makers {
		p.makerMoves(c, i, do)
	}
	p.ledgerMoves(c, do)
	p.peopleMoves(c, do)
	for i := range p.machines {
		if m := &c.machines[i]; m.exists && m.clone != 0 && !m.cloned && c.has(pins[m.clone]) {
			next := *c
			next.machines[i].cloned = true
			p.emit(next, do, func() string { return fmt.Sprint("the root disk of vm ", i, " is complete") })
		}
	}
}

// revisions of the attempts that were made.
var revisions = map[uint8]string{}

// ledgerMoves are slots, with the imports in them.
func (p *play) ledgerMoves(c *cluster, do func(step)) {
	if c.gone || c.slot.attempt != 0 {
		return
	}
	img := p.object(c.imageObject)
	candidate, may := image.CandidateOf(img)
	if !may {
		return
	}
	next := *c
	a := uint8(candidate.Attempt)
	revisions[a] = candidate.Revision
	next.slot = taken{attempt: a, by: c.edits}
	next.attempts |= 1 << (a - 1)
	p.emit(next, do, func() string { return fmt.Sprint("attempt ", a, " is imported") })
}

func (p *play) peopleMoves(c *cluster, do func(step)) {
	emit := func(what string, change func(*cluster)) {
		next := *c
		change(&next)
		p.settle(&next)
		do(step{next: next, fault: true, what: func() string { return what }})
	}
	if !c.gone && int(c.edits) < len(p.specs)-1 {
		emit("a person changes the source to "+p.specs[c.edits+1], func(c *cluster) {
			c.edits++
			c.changed(-1)
		})
	}
	if p.deletes && !c.gone && !c.deleted {
		emit("a person deletes the image", p.remove)
	}
	if p.retires && !c.gone {
		emit("another plan retires the image, or does not any more", func(c *cluster) { c.retired = !c.retired })
	}
	for n := range p.prunes + 1 {
		if !c.gone && c.pruned != n {
			emit(fmt.Sprint("another plan carries out prune ", n, " of the image"), func(c *cluster) { c.pruned = n })
		}
	}
	if p.empties && !c.gone && !c.going {
		emit("a person deletes the namespace", func(c *cluster) {
			c.going = true
			p.remove(c)
		})
	}
	for i := range p.machines {
		m := c.machines[i]
		switch {
		case m.exists:
			emit(fmt.Sprint("a person deletes vm ", i), func(c *cluster) {
				c.machines[i] = machineObject{life: m.life}
				c.machineChanged(i, -1)
			})
			if p.retargets && !m.elsewhere {
				emit(fmt.Sprint("a person has vm ", i, " name another image"), func(c *cluster) {
					c.machines[i].elsewhere, c.machines[i].owed = true, false
					c.machineChanged(i, -1)
				})
			}
		case m.life < p.lives:
			emit(fmt.Sprint("a person creates vm ", i), func(c *cluster) {
				c.machines[i] = machineObject{life: m.life + 1, exists: true}
			})
		}
	}
}

// found is what came of a play.
type found struct {
	states    int
	violation string
	trace     []string
	missed    []string
}

// perform visits every state of a play, or stops at the first violation.
func perform(t *testing.T, p *play) found {
	t.Helper()
	first := p.start()
	first = first.canonical()
	met := map[cluster]uint32{first: 0}
	all, parents := []cluster{first}, []uint32{0}
	var from, to []uint32
	var f found
	edges := 0
	for i := 0; i < len(all) && f.violation == ""; i++ {
		c := all[i]
		p.moves(&c, func(s step) {
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
			if v := p.violated(&n); v != "" && strings.HasPrefix(v, p.finding) {
				f.violation = v
				f.trace = p.replay(all, parents, uint32(len(all)-1))
			}
		})
	}
	f.states = len(all)
	for _, w := range p.wants {
		seen := false
		for i := 0; i < len(all) && !seen; i++ {
			seen = w.met(p, &all[i])
		}
		if !seen {
			f.missed = append(f.missed, w.what)
		}
	}
	if f.violation == "" {
		if lost, any := p.stuck(all, from, to); any {
			f.violation = "a state from which nothing comes to rest any more"
			f.trace = p.replay(all, parents, lost)
		}
	}
	t.Logf("%d states, %d steps: %q", f.states, edges, f.violation)
	return f
}

// atRest is what must stay reachable: nobody is on his way, an image that is to
// be deleted or is retired, and that nobody holds, is gone, and who names one that is there runs.
func (p *play) atRest(c *cluster) bool {
	for i := range c.keepers {
		if pc := c.keepers[i].pc; pc >= confirm && pc != nobody {
			return false
		}
	}
	for i := range c.makers {
		if pc := c.makers[i].pc; pc >= confirm && pc != nobody {
			return false
		}
	}
	if c.gone {
		return true
	}
	for i := range c.machines {
		if m := &c.machines[i]; m.exists && !m.elsewhere && !m.cloned {
			return false
		}
	}
	if prune := statuses[c.status].Prune; prune != nil && !prune.State.Ended() || c.pruned != 0 && (prune == nil || !c.deleted && prune.UID != pruneUID(c.pruned)) {
		return false
	}
	return !c.deleted && !c.retired || c.holders() != [mostMachines]held{} && !c.going
}

// stuck looks backwards from the states at rest for one that reaches none of them
// without a fault.
func (p *play) stuck(all []cluster, from, to []uint32) (uint32, bool) {
	into := make([][]uint32, len(all))
	for e, n := range to {
		into[n] = append(into[n], from[e])
	}
	reaches := make([]bool, len(all))
	var queue []uint32
	for i := range all {
		if p.atRest(&all[i]) {
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

// replay tells the way to a state, with each leader keeping its name.
func (p *play) replay(all []cluster, parents []uint32, last uint32) []string {
	var way []uint32
	for n := last; n != 0; n = parents[n] {
		way = append(way, n)
	}
	c := p.start()
	var trace []string
	for i := len(way) - 1; i >= 0; i-- {
		taken := false
		p.moves(&c, func(s step) {
			if !taken && s.next.canonical() == all[way[i]] {
				taken = true
				trace = append(trace, s.what()+"\n      "+p.line(&s.next))
				c = s.next
			}
		})
	}
	return trace
}

var (
	acquired    = want{"a machine has acquired and runs", func(p *play, c *cluster) bool { return c.machines[0].cloned && pins[c.machines[0].pin].acquired }}
	goneAfter   = want{"the image is gone", func(p *play, c *cluster) bool { return c.gone }}
	terminating = want{"an image that is to be deleted is acquired", func(p *play, c *cluster) bool {
		return statuses[c.status].Phase == v1alpha1.PhaseTerminating && !c.machines[0].owed && pins[c.machines[0].pin].acquired
	}}
	keptBeside = want{"an old revision is kept for a machine while a new one serves", func(p *play, c *cluster) bool {
		st, pin := statuses[c.status], pins[c.machines[0].pin]
		return c.machines[0].cloned && st.Serving != nil && uint8(st.Serving.Attempt) != pin.attempt && c.has(pin)
	}}
	retired = want{"an old revision is retired and removed", func(p *play, c *cluster) bool {
		st := statuses[c.status]
		return st.Serving != nil && st.Serving.Attempt > 1 && c.attempts&1 == 0 && !c.deleted
	}}
	oldSnapshotGone = want{"an older snapshot is removed", func(p *play, c *cluster) bool { return c.made > 1 && c.snapshots[0].attempt == 0 && !c.deleted }}
	oldSnapshotKept = want{"an older snapshot is kept for a machine", func(p *play, c *cluster) bool {
		st, pin := statuses[c.status], pins[c.machines[0].pin]
		return c.machines[0].cloned && pin.snapshot == 1 && st.Serving != nil && snapshotName(st.Serving.VolumeSnapshot) > 1
	}}
)

// ofPrune wants a prune to have ended, with the image serving on.
func ofPrune(state v1alpha1.PruneState, reason string) want {
	return want{fmt.Sprint("a prune is ", state, ": ", reason), func(p *play, c *cluster) bool {
		st := statuses[c.status]
		return st.Prune != nil && st.Prune.State == state && st.Prune.Reason == reason && st.Serving != nil && !c.deleted
	}}
}

var (
	acquiredPending = want{"an image that is to be pruned is acquired", func(p *play, c *cluster) bool {
		return statuses[c.status].Phase == v1alpha1.PhasePrunePending && pins[c.machines[0].pin].acquired
	}}
	skippedHeld = ofPrune(v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
	skippedOld  = ofPrune(v1alpha1.PruneSkipped, v1alpha1.PruneChanged)
	withdrawn   = ofPrune(v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn)
)

// TestAcquire explores everything that leaders, machines and people can do with
// one image, in plays that are each small and together hold every fault.
func TestAcquire(t *testing.T) {
	for name, tt := range map[string]struct {
		play
		long bool
	}{
		"the image is deleted":                   {play: play{specs: []string{"a"}, machines: 1, lives: 2, keepers: 2, makers: 1, deletes: true, wants: []want{acquired, goneAfter, terminating}}},
		"the image is deleted, two makers":       {play: play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 1, makers: 2, deletes: true, wants: []want{acquired, goneAfter}}},
		"two machines":                           {play: play{specs: []string{"a"}, machines: 2, lives: 1, keepers: 1, makers: 1, deletes: true, wants: []want{acquired, goneAfter, terminating}}},
		"the source changes":                     {play: play{specs: []string{"a", "b"}, machines: 1, lives: 1, keepers: 2, makers: 1, wants: []want{acquired, keptBeside, retired}}},
		"the source changes and comes back":      {play: play{specs: []string{"a", "b", "a"}, machines: 1, lives: 1, keepers: 1, makers: 1, wants: []want{acquired, keptBeside, retired}}},
		"the snapshot class changes":             {play: play{specs: []string{"a/x", "a/y"}, machines: 1, lives: 1, keepers: 1, makers: 1, wants: []want{acquired, oldSnapshotGone, oldSnapshotKept}}},
		"long: the snapshot class changes":       {long: true, play: play{specs: []string{"a/x", "a/y"}, machines: 1, lives: 1, keepers: 2, makers: 1, wants: []want{acquired, oldSnapshotGone, oldSnapshotKept}}},
		"long: two of each":                      {long: true, play: play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 2, makers: 2, deletes: true}},
		"long: the source changes, two makers":   {long: true, play: play{specs: []string{"a", "b"}, machines: 1, lives: 1, keepers: 1, makers: 2, deletes: true}},
		"long: the source changes, two machines": {long: true, play: play{specs: []string{"a", "b"}, machines: 2, lives: 1, keepers: 1, makers: 1}},
		"long: the source comes back":            {long: true, play: play{specs: []string{"a", "b", "a"}, machines: 1, lives: 1, keepers: 2, makers: 1, wants: []want{acquired, keptBeside, retired}}},
		"a machine names another image":          {play: play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 1, makers: 1, deletes: true, retargets: true, wants: []want{acquired, goneAfter}}},
		"long: a machine names another image":    {long: true, play: play{specs: []string{"a", "b"}, machines: 1, lives: 1, keepers: 1, makers: 2, deletes: true, retargets: true, wants: []want{acquired, goneAfter}}},
		"plans retire the image":                 {play: play{specs: []string{"a"}, machines: 1, lives: 2, keepers: 2, makers: 1, retires: true, wants: []want{acquired, goneAfter, terminating}}},
		"plans prune the image":                  {play: play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 2, makers: 1, prunes: 1, wants: []want{acquired, goneAfter, acquiredPending, skippedHeld, withdrawn}}},
		"plans prune an image that changes":      {play: play{specs: []string{"a", "b"}, machines: 1, lives: 1, keepers: 1, makers: 1, prunes: 1, wants: []want{acquired, goneAfter, skippedHeld, skippedOld}}},
		"long: plans prune the image twice":      {long: true, play: play{specs: []string{"a"}, machines: 1, lives: 2, keepers: 1, makers: 1, prunes: 2, wants: []want{acquired, goneAfter, acquiredPending, skippedHeld, withdrawn}}},
		"the namespace goes":                     {play: play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 1, makers: 1, deletes: true, empties: true, wants: []want{goneAfter}}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.long && os.Getenv("OT_FLEET_LONG") != "1" {
				t.Skip("set OT_FLEET_LONG=1")
			}
			got := perform(t, &tt.play)
			require.Empty(t, got.violation, "\n  - "+strings.Join(got.trace, "\n  - "))
			require.Empty(t, got.missed, "never met")
		})
	}
}

// TestAcquirePlantedBugs takes away one guard after the other.
func TestAcquirePlantedBugs(t *testing.T) {
	deletes := play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 2, makers: 1, deletes: true}
	changes := play{specs: []string{"a", "b"}, machines: 1, lives: 1, keepers: 2, makers: 1}
	prunes := play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 2, makers: 1, prunes: 1}
	elsewhere := play{specs: []string{"a"}, machines: 1, lives: 1, keepers: 1, makers: 1, retargets: true}
	comesBack := play{specs: []string{"a", "b", "a"}, machines: 1, lives: 1, keepers: 2, makers: 1}
	for name, tt := range map[string]struct {
		play
		flaw flaw
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
			p := tt.play
			p.flaw, p.finding = tt.flaw, "S2"
			if p.prunes > 0 {
				p.finding = "S7"
			}
			got := perform(t, &p)
			require.Contains(t, got.violation, p.finding)
			t.Logf("found in %d steps\n  - %s", len(got.trace), strings.Join(got.trace, "\n  - "))
		})
	}
}
