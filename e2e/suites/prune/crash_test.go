//go:build linux

package prune_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// killPoint is a write at which its writer is killed.
type killPoint struct {
	write   string
	matches func(faults.Write) bool
	// stored: killed when the write is stored and not answered, else before it gets
	// there.
	stored bool
}

func (d killPoint) String() string {
	if d.stored {
		return "after " + d.write
	}
	return "before " + d.write
}

// killSweep are those that are left of a program, which goes on where it was killed.
type killSweep struct {
	victim  func() *process.Process
	restart func(context.Context) error

	mu        sync.Mutex
	remaining []killPoint
	killed    []string
}

// beforeAndAfter are deaths before and after each write.
func beforeAndAfter(writes []killPoint) (all []killPoint) {
	for _, d := range writes {
		after := d
		after.stored = true
		all = append(all, d, after)
	}
	return all
}

// install has the program killed at those writes through a proxy that are left.
func (d *killSweep) install(p *faults.Proxy) {
	for stored, set := range map[bool]func(faults.Hook){false: p.SetBeforeHook, true: p.SetAfterHook} {
		set(func(w faults.Write) error {
			dies := d.takeKillPoint(w, stored)
			if dies == nil {
				return nil
			}
			dies.Kill()
			<-dies.Done()
			return faults.DropConnection()
		})
	}
}

// takeKillPoint takes one from what is left, and returns who is to die; nil for nobody. Of a
// write that was on its way when its writer died at another one, the same is true.
func (d *killSweep) takeKillPoint(w faults.Write, stored bool) *process.Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stored && w.Status >= 300 {
		return nil
	}
	for i, one := range d.remaining {
		if one.stored == stored && one.matches(w) {
			d.killed = append(d.killed, one.String())
			d.remaining = append(d.remaining[:i:i], d.remaining[i+1:]...)
			return d.victim()
		}
	}
	return nil
}

// keepAlive starts the program anew where it has been killed. Its first writes wait
// until it is known.
func (d *killSweep) keepAlive(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if hasEnded(d.victim()) {
		require.NoError(t, d.restart(context.Background()))
	}
}

func (d *killSweep) listRemaining() (left []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.remaining {
		left = append(left, one.String())
	}
	return left
}

// awaitAlive waits for something that needs the program.
func (d *killSweep) awaitAlive(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool { d.keepAlive(t); return holds() }), "still waiting for: %s; killed %v", what, d.killed)
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// getPrune reads what a prune has come to, while its program may be dead.
func (f *testFleet) getPrune(t *testing.T, p *v1alpha1.ImagePrune) *v1alpha1.ImagePrune {
	t.Helper()
	got := &v1alpha1.ImagePrune{}
	require.NoError(t, f.Get(t.Context(), keyOf(p), got))
	return got
}

// An agent that is killed before or after any of its writes in a prune comes to the
// same: what was reported goes with its storage, what is undone or held stays, and
// nothing else is touched.
func TestPruneSurvivesAgentKilledAtEachWrite(t *testing.T) {
	in := shared.Members[island]
	d := &killSweep{victim: func() *process.Process { return in.Agent.Process }, restart: in.StartAgent}
	of := func(name, what string, at func(faults.Write) bool) killPoint {
		return killPoint{write: what + " of " + name, matches: at}
	}
	var goes []string
	for i, w := range []struct {
		what string
		at   func(name string) func(faults.Write) bool
	}{
		{"status PrunePending", func(name string) func(faults.Write) bool { return storesPhase(name, v1alpha1.PhasePrunePending) }},
		{"the deletion", deletesImage},
		{"status Deleting", func(name string) func(faults.Write) bool { return storesPhase(name, v1alpha1.PhaseDeleting) }},
		{"the mark that it is torn down", func(name string) func(faults.Write) bool {
			return func(w faults.Write) bool {
				return phaseInWrite(w, name) == v1alpha1.PhaseDeleting && strings.Contains(string(w.Body), `"tearDown":true`)
			}
		}},
		{"the removal of the finalizer", func(name string) func(faults.Write) bool {
			return func(w faults.Write) bool {
				resource, of, status := w.Target()
				return resource == "vmdiskimages" && of == name && !status && w.Method == http.MethodPatch
			}
		}},
	} {
		for n := range 2 {
			name := fmt.Sprintf("mortal-%d-%d", i, n)
			goes = append(goes, name)
			one := of(name, w.what, w.at(name))
			one.stored = n == 1
			d.remaining = append(d.remaining, one)
		}
	}
	const held, undone, after = "mortal-held", "mortal-undone", "mortal-undone-after"
	storesState := func(name string, state v1alpha1.PruneState) func(faults.Write) bool {
		return func(w faults.Write) bool {
			return phaseInWrite(w, name) != "" && strings.Contains(string(w.Body), `"state":"`+string(state)+`"`)
		}
	}
	d.remaining = append(d.remaining, beforeAndAfter([]killPoint{
		{write: "the ledger under the plan", matches: faults.MatchWrite(http.MethodPut, "syncledgers", true)},
		{write: "a page of the report", matches: func(w faults.Write) bool {
			resource, name, _ := w.Target()
			return resource == "clusterreports" && name != v1alpha1.MailboxName && strings.Contains(string(w.Body), `"prune"`)
		}},
		{write: "the root of the report", matches: func(w faults.Write) bool {
			resource, name, _ := w.Target()
			return resource == "clusterreports" && name == v1alpha1.MailboxName
		}},
		of(held, "status Skipped", storesState(held, v1alpha1.PruneSkipped)),
	})...)
	d.remaining = append(d.remaining, of(undone, "status Undone", storesState(undone, v1alpha1.PruneUndone)))
	last := of(after, "status Undone", storesState(after, v1alpha1.PruneUndone))
	last.stored = true
	d.remaining = append(d.remaining, last)
	total := len(d.remaining)

	in.createLeftoverImages(t, append(goes, held, undone, after, "mortal-stays")...)
	vm := in.createMachine(t, held)
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, name := range append(goes, held, undone, after) {
		images[name] = in.getImage(t, name)
	}
	in.awaitMachineReady(t, vm, images[held])
	require.NoError(t, in.Delete(t.Context(), vm))
	in.awaitImage(t, held, "held no more", func(img *v1alpha1.VMDiskImage) bool { return img.Status.References.Count == 0 })
	r := shared.createCompleteReport(t, "mortal-", island)
	require.Equal(t, int32(len(goes)+4), r.Status.Candidates.Count)
	vm = in.createMachine(t, held)
	in.awaitMachineReady(t, vm, images[held])
	before := shared.listImages(t)

	t.Cleanup(func() {
		in.AgentProxy.SetBeforeHook(nil)
		in.AgentProxy.SetAfterHook(nil)
		d.keepAlive(t)
	})
	d.install(in.AgentProxy)
	p := newImagePrune("mortal-goes", r)
	p.Spec.Images = []string{namespace + "/" + held}
	for _, name := range goes {
		p.Spec.Images = append(p.Spec.Images, namespace+"/"+name)
	}
	q := withUndoWindow(newImagePrune("mortal-undone", r), time.Hour)
	q.Spec.Images = []string{namespace + "/" + undone, namespace + "/" + after}
	shared.createPrune(t, p)
	shared.createPrune(t, q)
	d.awaitAlive(t, "what is to be undone to be pending", func() bool { return shared.getPrune(t, q).Status.Targets.Pending == 2 })
	shared.undoPrune(t, q)
	for _, p := range []*v1alpha1.ImagePrune{p, q} {
		d.awaitAlive(t, p.Name, func() bool { return shared.getPrune(t, p).Status.Phase.IsFinal() })
	}
	got := shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: int32(len(goes)) + 1, Pruned: int32(len(goes)), Skipped: 1})
	assert.Equal(t, map[string]string{island + "/" + held: "Skipped Referenced"}, skippedReasons(got))
	shared.awaitPruneEnd(t, q, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
	d.awaitAlive(t, "all to be gone", func() bool {
		return !slices.ContainsFunc(goes, func(name string) bool { return in.getImage(t, name) != nil })
	})
	// Of a write that was stored when its writer died at another one, nobody is told.
	const chance = 2
	assert.LessOrEqual(t, len(d.listRemaining()), chance, "%v", d.listRemaining())
	assert.Equal(t, total, len(d.killed)+len(d.listRemaining()))
	t.Logf("killed %s", strings.Join(d.killed, ", "))
	for _, name := range goes {
		in.awaitImageGone(t, images[name])
		before = withoutKeys(before, island+"/"+name)
	}
	assert.Equal(t, before, shared.listImages(t))
	for _, name := range []string{held, undone, after, "mortal-stays"} {
		in.requireServing(t, name)
	}
	in.awaitMachineReady(t, vm, images[held])
}

// A hub that is killed before or after any of its writes in a report or a prune comes
// to the same.
func TestPruneSurvivesHubKilledAtEachWrite(t *testing.T) {
	ins := []*testMember{shared.Members[bergen], shared.Members[edge]}
	mail := "/namespaces/" + v1alpha1.MemberNamespacePrefix + edge
	plan := func(in, field string, more ...string) func(faults.Write) bool {
		return func(w faults.Write) bool {
			body := string(w.Body)
			for _, word := range more {
				if !strings.Contains(body, word) {
					return false
				}
			}
			return strings.Contains(w.Path, in+"/clusterplans/") && strings.Contains(body, `"`+field+`"`)
		}
	}
	status := func(kind, phase string) func(faults.Write) bool {
		return func(w faults.Write) bool {
			return strings.Contains(w.Path, "/"+kind+"/killed-") && strings.HasSuffix(w.Path, "/status") && strings.Contains(string(w.Body), `"phase":"`+phase+`"`)
		}
	}
	copied := func(w faults.Write) bool { return strings.Contains(w.Path, mail+"/clusterreports/") }
	onHub := beforeAndAfter([]killPoint{
		{write: "status Collecting", matches: status("prunereports", "Collecting")},
		{write: "a plan with the inquiry", matches: plan(mail, "inquiries")},
		{write: "a page of the PruneReport", matches: func(w faults.Write) bool {
			return w.Method == http.MethodPost && strings.HasSuffix(w.Path, "/prunereportpages")
		}},
		{write: "status Complete of the PruneReport", matches: status("prunereports", "Complete")},
		{write: "status Running", matches: status("imageprunes", "Running")},
		{write: "a plan with the prunes", matches: plan(mail, "prunes")},
		{write: "a plan with the undo", matches: plan(mail, "prunes", `"undo":true`)},
		{write: "the copy of a page of the report", matches: func(w faults.Write) bool { return copied(w) && !strings.HasSuffix(w.Path, "/"+v1alpha1.MailboxName) }},
		{write: "the copy of the root of the report", matches: func(w faults.Write) bool { return copied(w) && strings.HasSuffix(w.Path, "/"+v1alpha1.MailboxName) }},
		{write: "status Undone", matches: status("imageprunes", "Undone")},
		{write: "status Complete of the ImagePrune", matches: status("imageprunes", "Complete")},
	})
	inMember := beforeAndAfter([]killPoint{
		{write: "the copy of a plan with the inquiry", matches: plan("/namespaces/"+program.AgentNamespace, "inquiries")},
		{write: "the copy of a plan with the prunes", matches: plan("/namespaces/"+program.AgentNamespace, "prunes")},
	})
	program := func() *process.Process { return shared.Hub.Process }
	d := &killSweep{victim: program, restart: shared.StartHub, remaining: append(onHub, inMember...)}
	total := len(d.remaining)
	// What is copied is written by hub or agent: whoever carries.
	writes := []*faults.Proxy{shared.Proxy, shared.Members[edge].Proxy}
	if in := shared.Members[edge]; in.PullMode() {
		writes = append(writes, in.AgentProxy)
	}
	t.Cleanup(func() {
		for _, p := range writes {
			p.SetBeforeHook(nil)
			p.SetAfterHook(nil)
		}
		d.keepAlive(t)
	})

	// A death takes what comes after it with it: there are as many tellings as it takes.
	const tellings = 4
	for n := 0; n < tellings && len(d.listRemaining()) > 0; n++ {
		name := fmt.Sprintf("killed-%d", n)
		for _, in := range ins {
			in.createLeftoverImages(t, name+"-goes", name+"-undone")
		}
		goes := []*v1alpha1.VMDiskImage{ins[0].getImage(t, name+"-goes"), ins[1].getImage(t, name+"-goes")}
		before := shared.listImages(t)
		for _, p := range writes {
			d.install(p)
		}
		r := newPruneReport(name, name+"-", bergen, edge)
		shared.createReport(t, r)
		d.awaitAlive(t, "the report", func() bool {
			require.NoError(t, shared.Get(t.Context(), keyOf(r), r))
			return r.Status.Phase == v1alpha1.PruneReportComplete
		})
		said := shared.clustersInReport(t, r)
		for _, in := range ins {
			assert.Equal(t, []string{name + "-goes", name + "-undone"}, candidateNames(said[in.name]), in.name)
		}
		p, q := newImagePrune(name+"-goes", r), withUndoWindow(newImagePrune(name+"-undone", r), time.Hour)
		p.Spec.Images, q.Spec.Images = []string{namespace + "/" + name + "-goes"}, []string{namespace + "/" + name + "-undone"}
		shared.createPrune(t, p)
		shared.createPrune(t, q)
		d.awaitAlive(t, "what is to be undone to be pending", func() bool { return shared.getPrune(t, q).Status.Targets.Pending == 2 })
		shared.undoPrune(t, q)
		for _, p := range []*v1alpha1.ImagePrune{p, q} {
			d.awaitAlive(t, p.Name, func() bool { return shared.getPrune(t, p).Status.Phase.IsFinal() })
		}
		d.keepAlive(t)
		shared.awaitPruned(t, p, 2)
		shared.awaitPruneEnd(t, q, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
		for i, in := range ins {
			in.awaitImageGone(t, goes[i])
			before = withoutKeys(before, in.name+"/"+name+"-goes")
			in.requireServing(t, name+"-undone")
		}
		assert.Equal(t, before, shared.listImages(t))
		d.awaitAlive(t, "pages of a try before to be removed", func() bool { return len(shared.listWrittenPages(t, r)) == 1 })
		t.Logf("%d left: %v", len(d.listRemaining()), d.listRemaining())
	}
	assert.Empty(t, d.listRemaining(), "writes that were never made in %d tellings", tellings)
	assert.Len(t, d.killed, total)
	t.Logf("killed %s", strings.Join(d.killed, ", "))
}
