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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/process"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// death is a write at which its writer is killed.
type death struct {
	what string
	at   func(proxy.Write) bool
	// stored: killed when the write is stored and not answered, else before it gets
	// there.
	stored bool
}

func (d death) String() string {
	if d.stored {
		return "after " + d.what
	}
	return "before " + d.what
}

// deaths are those that are left of a program, which goes on where it was killed.
type deaths struct {
	program func() *process.Process
	start   func(context.Context) error

	mu   sync.Mutex
	left []death
	died []string
}

// both are deaths before and after each write.
func both(writes []death) (all []death) {
	for _, d := range writes {
		after := d
		after.stored = true
		all = append(all, d, after)
	}
	return all
}

// hook has the program killed at those writes through a proxy that are left.
func (d *deaths) hook(p *proxy.Proxy) {
	for stored, set := range map[bool]func(proxy.Hook){false: p.Before, true: p.After} {
		set(func(w proxy.Write) error {
			dies := d.due(w, stored)
			if dies == nil {
				return nil
			}
			dies.Kill()
			<-dies.Done()
			return proxy.Lose()
		})
	}
}

// due takes one from what is left, and returns who is to die; nil for nobody. Of a
// write that was on its way when its writer died at another one, the same is true.
func (d *deaths) due(w proxy.Write, stored bool) *process.Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stored && w.Status >= 300 {
		return nil
	}
	for i, one := range d.left {
		if one.stored == stored && one.at(w) {
			d.died = append(d.died, one.String())
			d.left = append(d.left[:i:i], d.left[i+1:]...)
			return d.program()
		}
	}
	return nil
}

// keepAlive starts the program anew where it has been killed. Its first writes wait
// until it is known.
func (d *deaths) keepAlive(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if ended(d.program()) {
		require.NoError(t, d.start(context.Background()))
	}
}

func (d *deaths) remaining() (left []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.left {
		left = append(left, one.String())
	}
	return left
}

// await waits for something that needs the program.
func (d *deaths) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.True(t, scene.Await(t, func() bool { d.keepAlive(t); return holds() }), "still waiting for: %s; killed %v", what, d.died)
}

func ended(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// told reads what a prune has come to, while its program may be dead.
func (f *fleet) told(t *testing.T, p *v1alpha1.ImagePrune) *v1alpha1.ImagePrune {
	t.Helper()
	got := &v1alpha1.ImagePrune{}
	require.NoError(t, f.Get(t.Context(), keyOf(p), got))
	return got
}

// An agent that is killed before or after any of its writes in a prune comes to the
// same: what was reported goes with its storage, what is undone or held stays, and
// nothing else is touched.
func TestAgentIsKilledAtItsWrites(t *testing.T) {
	in := shared.sites[island]
	d := &deaths{program: func() *process.Process { return in.agent.Process }, start: in.startAgent}
	of := func(name, what string, at func(proxy.Write) bool) death {
		return death{what: what + " of " + name, at: at}
	}
	var goes []string
	for i, w := range []struct {
		what string
		at   func(name string) func(proxy.Write) bool
	}{
		{"status PrunePending", func(name string) func(proxy.Write) bool { return storesPhase(name, v1alpha1.PhasePrunePending) }},
		{"the deletion", deletes},
		{"status Deleting", func(name string) func(proxy.Write) bool { return storesPhase(name, v1alpha1.PhaseDeleting) }},
		{"the mark that it is torn down", func(name string) func(proxy.Write) bool {
			return func(w proxy.Write) bool {
				return storedPhase(w, name) == v1alpha1.PhaseDeleting && strings.Contains(string(w.Body), `"tearDown":true`)
			}
		}},
		{"the removal of the finalizer", func(name string) func(proxy.Write) bool {
			return func(w proxy.Write) bool {
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
			d.left = append(d.left, one)
		}
	}
	const held, undone, after = "mortal-held", "mortal-undone", "mortal-undone-after"
	storesState := func(name string, state v1alpha1.PruneState) func(proxy.Write) bool {
		return func(w proxy.Write) bool {
			return storedPhase(w, name) != "" && strings.Contains(string(w.Body), `"state":"`+string(state)+`"`)
		}
	}
	d.left = append(d.left, both([]death{
		{what: "the ledger under the plan", at: proxy.To(http.MethodPut, "syncledgers", true)},
		{what: "a page of the report", at: func(w proxy.Write) bool {
			resource, name, _ := w.Target()
			return resource == "clusterreports" && name != v1alpha1.MailboxName && strings.Contains(string(w.Body), `"prune"`)
		}},
		{what: "the root of the report", at: func(w proxy.Write) bool {
			resource, name, _ := w.Target()
			return resource == "clusterreports" && name == v1alpha1.MailboxName
		}},
		of(held, "status Skipped", storesState(held, v1alpha1.PruneSkipped)),
	})...)
	d.left = append(d.left, of(undone, "status Undone", storesState(undone, v1alpha1.PruneUndone)))
	last := of(after, "status Undone", storesState(after, v1alpha1.PruneUndone))
	last.stored = true
	d.left = append(d.left, last)
	total := len(d.left)

	in.left(t, append(goes, held, undone, after, "mortal-stays")...)
	vm := in.machine(t, held)
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, name := range append(goes, held, undone, after) {
		images[name] = in.image(t, name)
	}
	in.gets(t, vm, images[held])
	require.NoError(t, in.Delete(t.Context(), vm))
	in.eventually(t, held, "held no more", func(img *v1alpha1.VMDiskImage) bool { return img.Status.References.Count == 0 })
	r := shared.report(t, "mortal-", island)
	require.Equal(t, int32(len(goes)+4), r.Status.Candidates.Count)
	vm = in.machine(t, held)
	in.gets(t, vm, images[held])
	before := shared.everything(t)

	t.Cleanup(func() {
		in.mouth.Before(nil)
		in.mouth.After(nil)
		d.keepAlive(t)
	})
	d.hook(in.mouth)
	p := imagePrune("mortal-goes", r)
	p.Spec.Images = []string{namespace + "/" + held}
	for _, name := range goes {
		p.Spec.Images = append(p.Spec.Images, namespace+"/"+name)
	}
	q := within(imagePrune("mortal-undone", r), time.Hour)
	q.Spec.Images = []string{namespace + "/" + undone, namespace + "/" + after}
	shared.apply(t, p)
	shared.apply(t, q)
	d.await(t, "what is to be undone to be pending", func() bool { return shared.told(t, q).Status.Targets.Pending == 2 })
	shared.undo(t, q)
	for _, p := range []*v1alpha1.ImagePrune{p, q} {
		d.await(t, p.Name, func() bool { return shared.told(t, p).Status.Phase.Ended() })
	}
	got := shared.ends(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: int32(len(goes)) + 1, Pruned: int32(len(goes)), Skipped: 1})
	assert.Equal(t, map[string]string{island + "/" + held: "Skipped Referenced"}, skipped(got))
	shared.ends(t, q, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
	d.await(t, "all to be gone", func() bool {
		return !slices.ContainsFunc(goes, func(name string) bool { return in.image(t, name) != nil })
	})
	// Of a write that was stored when its writer died at another one, nobody is told.
	const chance = 2
	assert.LessOrEqual(t, len(d.remaining()), chance, "%v", d.remaining())
	assert.Equal(t, total, len(d.died)+len(d.remaining()))
	t.Logf("killed %s", strings.Join(d.died, ", "))
	for _, name := range goes {
		in.loses(t, images[name])
		before = without(before, island+"/"+name)
	}
	assert.Equal(t, before, shared.everything(t))
	for _, name := range []string{held, undone, after, "mortal-stays"} {
		in.serves(t, name)
	}
	in.gets(t, vm, images[held])
}

// A hub that is killed before or after any of its writes in a report or a prune comes
// to the same.
func TestHubIsKilledAtItsWrites(t *testing.T) {
	ins := []*site{shared.sites[bergen], shared.sites[edge]}
	mail := "/namespaces/" + v1alpha1.MemberNamespacePrefix + edge
	plan := func(in, field string, more ...string) func(proxy.Write) bool {
		return func(w proxy.Write) bool {
			body := string(w.Body)
			for _, word := range more {
				if !strings.Contains(body, word) {
					return false
				}
			}
			return strings.Contains(w.Path, in+"/clusterplans/") && strings.Contains(body, `"`+field+`"`)
		}
	}
	status := func(kind, phase string) func(proxy.Write) bool {
		return func(w proxy.Write) bool {
			return strings.Contains(w.Path, "/"+kind+"/killed-") && strings.HasSuffix(w.Path, "/status") && strings.Contains(string(w.Body), `"phase":"`+phase+`"`)
		}
	}
	copied := func(w proxy.Write) bool { return strings.Contains(w.Path, mail+"/clusterreports/") }
	onHub := both([]death{
		{what: "status Collecting", at: status("prunereports", "Collecting")},
		{what: "a plan with the inquiry", at: plan(mail, "inquiries")},
		{what: "a page of the PruneReport", at: func(w proxy.Write) bool {
			return w.Method == http.MethodPost && strings.HasSuffix(w.Path, "/prunereportpages")
		}},
		{what: "status Complete of the PruneReport", at: status("prunereports", "Complete")},
		{what: "status Running", at: status("imageprunes", "Running")},
		{what: "a plan with the prunes", at: plan(mail, "prunes")},
		{what: "a plan with the undo", at: plan(mail, "prunes", `"undo":true`)},
		{what: "the copy of a page of the report", at: func(w proxy.Write) bool { return copied(w) && !strings.HasSuffix(w.Path, "/"+v1alpha1.MailboxName) }},
		{what: "the copy of the root of the report", at: func(w proxy.Write) bool { return copied(w) && strings.HasSuffix(w.Path, "/"+v1alpha1.MailboxName) }},
		{what: "status Undone", at: status("imageprunes", "Undone")},
		{what: "status Complete of the ImagePrune", at: status("imageprunes", "Complete")},
	})
	inMember := both([]death{
		{what: "the copy of a plan with the inquiry", at: plan("/namespaces/"+agent.Namespace, "inquiries")},
		{what: "the copy of a plan with the prunes", at: plan("/namespaces/"+agent.Namespace, "prunes")},
	})
	program := func() *process.Process { return shared.hub.Process }
	d := &deaths{program: program, start: shared.startHub, left: append(onHub, inMember...)}
	total := len(d.left)
	// What is copied is written by hub or agent: whoever carries.
	writes := []*proxy.Proxy{shared.proxy, shared.sites[edge].proxy}
	if in := shared.sites[edge]; in.pulls() {
		writes = append(writes, in.mouth)
	}
	t.Cleanup(func() {
		for _, p := range writes {
			p.Before(nil)
			p.After(nil)
		}
		d.keepAlive(t)
	})

	// A death takes what comes after it with it: there are as many tellings as it takes.
	const tellings = 4
	for n := 0; n < tellings && len(d.remaining()) > 0; n++ {
		name := fmt.Sprintf("killed-%d", n)
		for _, in := range ins {
			in.left(t, name+"-goes", name+"-undone")
		}
		goes := []*v1alpha1.VMDiskImage{ins[0].image(t, name+"-goes"), ins[1].image(t, name+"-goes")}
		before := shared.everything(t)
		for _, p := range writes {
			d.hook(p)
		}
		r := pruneReport(name, name+"-", bergen, edge)
		shared.ask(t, r)
		d.await(t, "the report", func() bool {
			require.NoError(t, shared.Get(t.Context(), keyOf(r), r))
			return r.Status.Phase == v1alpha1.PruneReportComplete
		})
		said := shared.said(t, r)
		for _, in := range ins {
			assert.Equal(t, []string{name + "-goes", name + "-undone"}, candidates(said[in.name]), in.name)
		}
		p, q := imagePrune(name+"-goes", r), within(imagePrune(name+"-undone", r), time.Hour)
		p.Spec.Images, q.Spec.Images = []string{namespace + "/" + name + "-goes"}, []string{namespace + "/" + name + "-undone"}
		shared.apply(t, p)
		shared.apply(t, q)
		d.await(t, "what is to be undone to be pending", func() bool { return shared.told(t, q).Status.Targets.Pending == 2 })
		shared.undo(t, q)
		for _, p := range []*v1alpha1.ImagePrune{p, q} {
			d.await(t, p.Name, func() bool { return shared.told(t, p).Status.Phase.Ended() })
		}
		d.keepAlive(t)
		shared.pruned(t, p, 2)
		shared.ends(t, q, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
		for i, in := range ins {
			in.loses(t, goes[i])
			before = without(before, in.name+"/"+name+"-goes")
			in.serves(t, name+"-undone")
		}
		assert.Equal(t, before, shared.everything(t))
		d.await(t, "pages of a try before to be removed", func() bool { return len(shared.written(t, r)) == 1 })
		t.Logf("%d left: %v", len(d.remaining()), d.remaining())
	}
	assert.Empty(t, d.remaining(), "writes that were never made in %d tellings", tellings)
	assert.Len(t, d.died, total)
	t.Logf("killed %s", strings.Join(d.died, ", "))
}
