//go:build linux

package prune_test

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// heldWrite is one of the agent's about an image, held up on its way to the API server.
type heldWrite struct {
	matches  func(faults.Write) bool
	first    sync.Once
	reached  chan struct{}
	released chan struct{}
}

// holdWrites has writes of the agent held up until they are released, for as long as the test runs:
// a client that has waited for too long sends another one. One test at a time may do so in a member.
func (s *testMember) holdWrites(t *testing.T, writes ...*heldWrite) {
	t.Helper()
	for _, w := range writes {
		w.reached, w.released = make(chan struct{}), make(chan struct{})
	}
	ctx := t.Context()
	s.AgentProxy.SetBeforeHook(func(made faults.Write) error {
		for _, w := range writes {
			if !w.matches(made) {
				continue
			}
			w.first.Do(func() { close(w.reached) })
			select {
			case <-w.released:
			case <-ctx.Done():
			}
		}
		return nil
	})
	t.Cleanup(func() { s.AgentProxy.SetBeforeHook(nil) })
}

// awaitReached waits until the agent has come to a write.
func (w *heldWrite) awaitReached(t *testing.T) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		select {
		case <-w.reached:
			return true
		default:
			return false
		}
	}), "the agent never made the write that was to be held")
}

func (w *heldWrite) releaseWrite() { close(w.released) }

// storesPhase matches writes that have an image be in a phase.
func storesPhase(name string, phase v1alpha1.Phase) func(faults.Write) bool {
	return func(w faults.Write) bool {
		return phaseInWrite(w, name) == phase
	}
}

// phaseInWrite is what a write has an image be in; empty for another write.
func phaseInWrite(w faults.Write, name string) v1alpha1.Phase {
	resource, of, status := w.Target()
	if resource != "vmdiskimages" || of != name || !status {
		return ""
	}
	var img v1alpha1.VMDiskImage
	if json.Unmarshal(w.Body, &img) != nil {
		return ""
	}
	return img.Status.Phase
}

func deletesImage(name string) func(faults.Write) bool {
	return func(w faults.Write) bool {
		resource, of, _ := w.Target()
		return w.Method == http.MethodDelete && resource == "vmdiskimages" && of == name
	}
}

// A machine that comes to name an image has it, at whatever point of a prune it
// comes: never is there one whose image has vanished.
func TestNewMachineKeepsImageDuringPrune(t *testing.T) {
	t.Parallel()
	in := shared.Members[bergen]
	moments := map[string]*heldWrite{
		"held-pending": {matches: storesPhase("held-pending", v1alpha1.PhasePrunePending)},
		"held-delete":  {matches: deletesImage("held-delete")},
		"held-mark":    {matches: storesPhase("held-mark", v1alpha1.PhaseDeleting)},
	}
	names := []string{"held-before", "held-window", "held-goes", "held-pending", "held-delete", "held-mark"}
	in.createLeftoverImages(t, names...)
	r := shared.createCompleteReport(t, "held-", bergen)
	require.Equal(t, int32(len(names)), r.Status.Candidates.Count)

	// Between report and prune, and in the undo window: it is skipped, and simply works.
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, name := range names {
		images[name] = in.GetImage(t, name)
	}
	before := in.createMachine(t, "held-before")
	in.awaitMachineReady(t, before, images["held-before"])
	p := withUndoWindow(newImagePrune("held-early", r), time.Hour)
	p.Spec.Images = []string{namespace + "/held-before", namespace + "/held-window"}
	shared.CreateForTest(t, p)
	shared.awaitPrune(t, p, "one skipped, one pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets == v1alpha1.TargetCounts{Total: 2, Skipped: 1, Pending: 1}
	})
	assert.Equal(t, v1alpha1.PhasePrunePending, in.GetImage(t, "held-window").Status.Phase)
	window := in.createMachine(t, "held-window")
	in.awaitMachineReady(t, window, images["held-window"])
	ended := shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 2, Skipped: 2})
	assert.Equal(t, map[string]string{bergen + "/held-before": "Skipped Referenced", bergen + "/held-window": "Skipped Referenced"}, skippedReasons(ended))
	for name, vm := range map[string]*v1alpha1.VirtualMachine{"held-before": before, "held-window": window} {
		in.requireServing(t, name)
		require.NoError(t, in.Delete(t.Context(), vm))
	}

	// While what the agent has decided is on its way.
	var writes []*heldWrite
	for _, w := range moments {
		writes = append(writes, w)
	}
	in.holdWrites(t, writes...)
	p = newImagePrune("held-late", r)
	p.Spec.Images = []string{namespace + "/held-goes", namespace + "/held-pending", namespace + "/held-delete", namespace + "/held-mark"}
	shared.CreateForTest(t, p)
	machines := map[string]*v1alpha1.VirtualMachine{}
	for name, w := range moments {
		w.awaitReached(t)
		vm := in.createMachine(t, name)
		machines[name] = vm
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return in.Get(t.Context(), client.ObjectKeyFromObject(vm), vm) == nil && vm.Status.Phase == v1alpha1.MachineReady
		}), "machine %s is not ready: %s", name, &vm.Status.Message)
		w.releaseWrite()
	}
	ended = shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 4, Pruned: 1, Skipped: 3})
	assert.Equal(t, map[string]string{
		bergen + "/held-pending": "Skipped Referenced", bergen + "/held-delete": "Skipped Referenced", bergen + "/held-mark": "Skipped Referenced",
	}, skippedReasons(ended))
	in.awaitImageGone(t, images["held-goes"])
	in.requireServing(t, "held-pending")
	for _, name := range []string{"held-delete", "held-mark"} {
		in.AwaitPhase(t, name, v1alpha1.PhaseTerminating)
	}
	for name, vm := range machines {
		in.awaitMachineReady(t, vm, images[name])
		require.NoError(t, in.Delete(t.Context(), vm))
	}
	for _, name := range []string{"held-delete", "held-mark"} { // their deletion cannot be taken back
		in.awaitImageGone(t, images[name])
	}
	for _, name := range []string{"held-before", "held-window", "held-pending"} { // one that has ended does not begin again
		in.requireServing(t, name)
	}
}

// What the agent has decided to delete reaches the API server when another image has
// taken its name: that one stays.
func TestRecreatedImageSurvivesDelayedDeletion(t *testing.T) {
	in := shared.Members[bergen]
	in.createLeftoverImages(t, "anew-a")
	img := in.GetImage(t, "anew-a")
	r := shared.createCompleteReport(t, "anew-", bergen)
	w := &heldWrite{matches: deletesImage("anew-a")}
	in.holdWrites(t, w)
	p := newImagePrune("anew", r)
	shared.CreateForTest(t, p)
	w.awaitReached(t)
	in.deleteStorage(t, img)
	again := in.CreateImage(t, "anew-a")
	w.releaseWrite()
	in.requireServing(t, "anew-a")
	shared.awaitPruned(t, p, 1)
	assert.Equal(t, again.UID, in.requireServing(t, "anew-a").UID)
	for _, o := range []client.Object{&cdiv1.DataVolume{}, &corev1.PersistentVolumeClaim{}} { // what rip has left
		require.NoError(t, in.Client().DeleteAllOf(t.Context(), o, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
	}
}

// Whatever the agent's cache shows, nothing is deleted that a machine has come to name
// meanwhile, or whose prune was undone.
func TestPruneWithStaleAgentCache(t *testing.T) {
	testenv.RunInTurn(t, 1)
	in := shared.Members[island]
	in.createLeftoverImages(t, "stale-held", "stale-undone", "stale-withdrawn", "stale-goes")
	held, goes := in.GetImage(t, "stale-held"), in.GetImage(t, "stale-goes")
	r := shared.createCompleteReport(t, "stale-", island)
	prune := func(name string) *v1alpha1.ImagePrune {
		p := withUndoWindow(newImagePrune(name, r), time.Hour)
		p.Spec.Images = []string{namespace + "/" + name}
		shared.CreateForTest(t, p)
		return p
	}
	all := map[string]*v1alpha1.ImagePrune{}
	for _, name := range []string{"stale-held", "stale-undone", "stale-withdrawn", "stale-goes"} {
		all[name] = prune(name)
	}
	for name := range all {
		in.AwaitPhase(t, name, v1alpha1.PhasePrunePending)
	}
	in.AgentProxy.HoldWatches("clusterplans", "virtualmachines")
	t.Cleanup(in.AgentProxy.ReleaseWatches)
	vm := in.createMachine(t, "stale-held")
	shared.undoPrune(t, all["stale-undone"])
	require.NoError(t, shared.Delete(t.Context(), all["stale-withdrawn"]))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		plan := &v1alpha1.ClusterPlan{}
		require.NoError(t, in.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, plan))
		undone, asked := false, 0
		for _, p := range plan.Spec.Prunes {
			asked++
			undone = undone || p.Name == "stale-undone" && p.Undo
		}
		return undone && asked == 3
	}), "the plan in the member does not tell of the undo")
	for name := range all {
		in.closeUndoWindow(t, name)
	}
	in.awaitImageGone(t, goes)
	state := func(name string) (state v1alpha1.PruneState) {
		if img := in.GetImage(t, name); assert.NotNil(t, img, name) && img.Status.Prune != nil {
			state = img.Status.Prune.State
		}
		return state
	}
	for name, want := range map[string]v1alpha1.PruneState{
		"stale-held": v1alpha1.PruneSkipped, "stale-undone": v1alpha1.PruneUndone, "stale-withdrawn": v1alpha1.PruneUndone,
	} {
		require.True(t, testenv.AwaitCondition(t, func() bool { return t.Failed() || state(name) == want }), "%s is not %s", name, want)
		in.requireServing(t, name)
	}
	in.AgentProxy.ReleaseWatches()
	in.awaitMachineReady(t, vm, held)
}
