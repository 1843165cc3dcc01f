//go:build linux

package prune_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// getPrune reads an ImagePrune.
func (f *testFleet) getPrune(t *testing.T, p *v1alpha1.ImagePrune) *v1alpha1.ImagePrune {
	t.Helper()
	got := &v1alpha1.ImagePrune{}
	require.NoError(t, f.Get(t.Context(), client.ObjectKeyFromObject(p), got))
	return got
}

// An agent that is killed before or after a write of a prune gets to the same end: what was
// reported goes with its storage, what is undone or referenced stays, nothing else is touched.
func TestPruneSurvivesAgentKilledAtEachWrite(t *testing.T) {
	in := shared.Members[island]
	of := func(name, what string, matches func(faults.Write) bool) faults.FatalWrite {
		return faults.FatalWrite{Write: what + " of " + name, Matches: matches}
	}
	var goes []string
	var points []faults.FatalWrite
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
			point := of(name, w.what, w.at(name))
			point.Stored = n == 1
			points = append(points, point)
		}
	}
	const held, undone, after = "mortal-held", "mortal-undone", "mortal-undone-after"
	storesState := func(name string, state v1alpha1.PruneState) func(faults.Write) bool {
		return func(w faults.Write) bool {
			return phaseInWrite(w, name) != "" && strings.Contains(string(w.Body), `"state":"`+string(state)+`"`)
		}
	}
	points = append(points, faults.BeforeAndAfter(
		faults.FatalWrite{Write: "the ledger under the plan", Matches: faults.MatchWrite(http.MethodPut, "syncledgers", true)},
		faults.FatalWrite{Write: "a page of the report", Matches: func(w faults.Write) bool {
			resource, name, _ := w.Target()
			return resource == "clusterreports" && name != v1alpha1.MailboxName && strings.Contains(string(w.Body), `"prune"`)
		}},
		faults.FatalWrite{Write: "the root of the report", Matches: func(w faults.Write) bool {
			resource, name, _ := w.Target()
			return resource == "clusterreports" && name == v1alpha1.MailboxName
		}},
		of(held, "status Skipped", storesState(held, v1alpha1.PruneSkipped)),
	)...)
	points = append(points, of(undone, "status Undone", storesState(undone, v1alpha1.PruneUndone)))
	last := of(after, "status Undone", storesState(after, v1alpha1.PruneUndone))
	last.Stored = true
	points = testenv.SweepShare(append(points, last))
	killer := faults.NewWriteKiller(func() *process.Process { return in.Agent.Process },
		func(ctx context.Context) error { return in.StartAgent(ctx) }, points)

	in.createLeftoverImages(t, append(goes, held, undone, after, "mortal-stays")...)
	vm := in.createMachine(t, held)
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, name := range append(goes, held, undone, after) {
		images[name] = in.GetImage(t, name)
	}
	in.awaitMachineReady(t, vm, images[held])
	require.NoError(t, in.Delete(t.Context(), vm))
	in.AwaitImage(t, held, "without references", func(img *v1alpha1.VMDiskImage) bool { return img.Status.References.Count == 0 })
	r := shared.createCompleteReport(t, "mortal-", island)
	require.Equal(t, int32(len(goes)+4), r.Status.Candidates.Count)
	vm = in.createMachine(t, held)
	in.awaitMachineReady(t, vm, images[held])
	before := shared.listImages(t)

	t.Cleanup(func() { killer.KeepAlive(t) })
	killer.Watch(t, in.AgentProxy)
	p := newImagePrune("mortal-goes", r)
	p.Spec.Images = []string{namespace + "/" + held}
	for _, name := range goes {
		p.Spec.Images = append(p.Spec.Images, namespace+"/"+name)
	}
	q := withUndoWindow(newImagePrune("mortal-undone", r), time.Hour)
	q.Spec.Images = []string{namespace + "/" + undone, namespace + "/" + after}
	shared.CreateForTest(t, p)
	shared.CreateForTest(t, q)
	killer.AwaitCondition(t, "the images to undo to be pending", func() bool { return shared.getPrune(t, q).Status.Targets.Pending == 2 })
	shared.undoPrune(t, q)
	for _, p := range []*v1alpha1.ImagePrune{p, q} {
		killer.AwaitCondition(t, p.Name, func() bool { return shared.getPrune(t, p).Status.Phase.IsFinal() })
	}
	got := shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: int32(len(goes)) + 1, Pruned: int32(len(goes)), Skipped: 1})
	assert.Equal(t, map[string]string{island + "/" + held: "Skipped Referenced"}, skippedReasons(got))
	shared.awaitPruneEnd(t, q, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
	killer.AwaitCondition(t, "the images to be deleted", func() bool {
		return !slices.ContainsFunc(goes, func(name string) bool { return in.GetImage(t, name) != nil })
	})
	// A write that was stored while its writer died at another one is not made again.
	assert.LessOrEqual(t, len(killer.Remaining()), max(1, len(points)/10), "%v", killer.Remaining())
	t.Logf("killed %s", strings.Join(killer.Killed(), ", "))
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

// A hub that is killed before or after a write of a report or a prune gets to the same end.
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
	copiesReport := func(w faults.Write) bool { return strings.Contains(w.Path, mail+"/clusterreports/") }
	points := testenv.SweepShare(faults.BeforeAndAfter(
		faults.FatalWrite{Write: "status Collecting", Matches: status("prunereports", "Collecting")},
		faults.FatalWrite{Write: "a plan with the inquiry", Matches: plan(mail, "inquiries")},
		faults.FatalWrite{Write: "a page of the PruneReport", Matches: func(w faults.Write) bool {
			return w.Method == http.MethodPost && strings.HasSuffix(w.Path, "/prunereportpages")
		}},
		faults.FatalWrite{Write: "status Complete of the PruneReport", Matches: status("prunereports", "Complete")},
		faults.FatalWrite{Write: "status Running", Matches: status("imageprunes", "Running")},
		faults.FatalWrite{Write: "a plan with the prunes", Matches: plan(mail, "prunes")},
		faults.FatalWrite{Write: "a plan with the undo", Matches: plan(mail, "prunes", `"undo":true`)},
		faults.FatalWrite{Write: "the copy of a page of the report", Matches: func(w faults.Write) bool {
			return copiesReport(w) && !strings.HasSuffix(w.Path, "/"+v1alpha1.MailboxName)
		}},
		faults.FatalWrite{Write: "the copy of the root of the report", Matches: func(w faults.Write) bool {
			return copiesReport(w) && strings.HasSuffix(w.Path, "/"+v1alpha1.MailboxName)
		}},
		faults.FatalWrite{Write: "status Undone", Matches: status("imageprunes", "Undone")},
		faults.FatalWrite{Write: "status Complete of the ImagePrune", Matches: status("imageprunes", "Complete")},
		faults.FatalWrite{Write: "the copy of a plan with the inquiry", Matches: plan("/namespaces/"+program.AgentNamespace, "inquiries")},
		faults.FatalWrite{Write: "the copy of a plan with the prunes", Matches: plan("/namespaces/"+program.AgentNamespace, "prunes")},
	))
	killer := faults.NewWriteKiller(func() *process.Process { return shared.Hub.Process },
		func(ctx context.Context) error { return shared.StartHub(ctx) }, points)
	t.Cleanup(func() { killer.KeepAlive(t) })
	// In pull mode the agent copies plans and reports.
	proxies := []*faults.Proxy{shared.Proxy, shared.Members[edge].Proxy}
	if in := shared.Members[edge]; in.PullMode() {
		proxies = append(proxies, in.AgentProxy)
	}

	// A kill hides the writes that follow it: the killer takes several rounds.
	const maxRounds = 4
	for n := 0; n < maxRounds && len(killer.Remaining()) > 0; n++ {
		name := fmt.Sprintf("killed-%d", n)
		for _, in := range ins {
			in.createLeftoverImages(t, name+"-goes", name+"-undone")
		}
		goes := []*v1alpha1.VMDiskImage{ins[0].GetImage(t, name+"-goes"), ins[1].GetImage(t, name+"-goes")}
		before := shared.listImages(t)
		killer.Watch(t, proxies...)
		r := newPruneReport(name, name+"-", bergen, edge)
		shared.CreateForTest(t, r)
		killer.AwaitCondition(t, "the report", func() bool {
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(r), r))
			return r.Status.Phase == v1alpha1.PruneReportComplete
		})
		clusters := shared.clustersInReport(t, r)
		for _, in := range ins {
			assert.Equal(t, []string{name + "-goes", name + "-undone"}, candidateNames(clusters[in.Name()]), in.Name())
		}
		p, q := newImagePrune(name+"-goes", r), withUndoWindow(newImagePrune(name+"-undone", r), time.Hour)
		p.Spec.Images, q.Spec.Images = []string{namespace + "/" + name + "-goes"}, []string{namespace + "/" + name + "-undone"}
		shared.CreateForTest(t, p)
		shared.CreateForTest(t, q)
		killer.AwaitCondition(t, "the images to undo to be pending", func() bool { return shared.getPrune(t, q).Status.Targets.Pending == 2 })
		shared.undoPrune(t, q)
		for _, p := range []*v1alpha1.ImagePrune{p, q} {
			killer.AwaitCondition(t, p.Name, func() bool { return shared.getPrune(t, p).Status.Phase.IsFinal() })
		}
		killer.KeepAlive(t)
		shared.awaitPruned(t, p, 2)
		shared.awaitPruneEnd(t, q, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
		for i, in := range ins {
			in.awaitImageGone(t, goes[i])
			before = withoutKeys(before, in.Name()+"/"+name+"-goes")
			in.requireServing(t, name+"-undone")
		}
		assert.Equal(t, before, shared.listImages(t))
		killer.AwaitCondition(t, "pages of abandoned attempts to be deleted", func() bool { return len(shared.listWrittenPages(t, r)) == 1 })
	}
	assert.Empty(t, killer.Remaining(), "writes that were never made in %d rounds", maxRounds)
	t.Logf("killed %s", strings.Join(killer.Killed(), ", "))
}
