//go:build linux

package crash

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// writeKinds are the kinds of writes that the agent makes for images. The scenario must have
// each of them.
var writeKinds = []string{
	"add finalizer", "admit", "create datavolumes", "create syncledgers", "create volumesnapshots",
	"delete datavolumes", "delete persistentvolumeclaims", "delete volumesnapshots", "free", "mark as ended",
	"put clusterreports", "remove finalizer", "store Deleting status", "store Queued status", "store Succeeded status",
	"store Syncing status", "store policy",
}

// TestAgentKilledAtEveryWrite runs a scenario undisturbed to learn its writes, and then
// again with the agent killed before or after the writes of this run's share. With
// OT_FLEET_LONG it covers all points, each in a run of its own.
func TestAgentKilledAtEveryWrite(t *testing.T) {
	env.StorePolicy(t, map[string]string{"concurrency": "2", "retryLimit": "2", "retryBackoffDuration": "1s"})
	namer := &stepNamer{}
	s := &scenario{faults.KillSweep{Env: env, StepsOf: namer.stepsOf, OnStored: namer.recordStored}}
	steps := s.LearnSteps(t, s.run)
	// The report's page comes with the first image and goes some time after the last.
	steps = slices.DeleteFunc(steps, func(step faults.Step) bool {
		return step.Kind() == "create clusterreports" || step.Kind() == "delete clusterreports"
	})
	var kinds []string
	for _, step := range steps {
		kinds = append(kinds, step.Kind())
	}
	require.Subset(t, kinds, writeKinds, "kinds of writes in the scenario, whose steps are\n%v", steps)

	points := testenv.SweepShare(faults.KillPoints(steps))
	if testenv.IsLong() {
		s.KillAtEachAlone(t, points, s.run)
	}
	s.KillAtEach(t, points, s.run)
}

// scenario has an image that is deleted while it imports (doomed), one with a snapshot that
// loses its storage and is deleted when it is ready again (snap), and one that fails,
// recovers, loses its DataVolume as with an older CDI's garbage collection, and is deleted
// (heals).
type scenario struct{ faults.KillSweep }

func (s *scenario) run(t *testing.T) {
	t.Helper()
	ns := env.CreateNamespace(t)
	o := env.StartObserver(t)
	// The agent creates the ledger: one of its writes.
	require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), &v1alpha1.SyncLedger{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName},
	})))

	doomed := env.NewImage(ns, "doomed", "/hang/doomed.qcow2")
	snap := env.NewSnapshottedImage(ns, "snap", "/ok/200ms/snap.qcow2")
	heals := env.NewImage(ns, "heals", "/flaky/1/200ms/heals.qcow2")
	env.Create(t, doomed, snap, heals)

	s.awaitWithAgent(t, "the import of doomed", func() bool { return s.isFirstImportRunning(t, doomed) })
	require.NoError(t, env.Client().Delete(t.Context(), doomed.DeepCopy()))

	s.awaitWithAgent(t, "the first sync of snap", func() bool { return s.isServingAttempt(t, snap, 1) })
	require.NoError(t, env.Client().Delete(t.Context(), s.latestDataVolume(t, snap)))

	s.awaitWithAgent(t, "heals to heal", func() bool { return s.isServingAttempt(t, heals, 2) })
	require.NoError(t, env.Client().Delete(t.Context(), s.latestDataVolume(t, heals), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	s.awaitWithAgent(t, "the DataVolume of heals to be deleted", func() bool { return s.latestDataVolume(t, heals) == nil })
	require.NoError(t, env.Client().Delete(t.Context(), heals.DeepCopy()))

	s.awaitWithAgent(t, "the second sync of snap", func() bool { return s.isServingAttempt(t, snap, 2) })
	require.NoError(t, env.Client().Delete(t.Context(), snap.DeepCopy()))

	s.awaitWithAgent(t, "all images to be deleted", func() bool {
		var images v1alpha1.VMDiskImageList
		require.NoError(t, env.Client().List(t.Context(), &images, client.InNamespace(ns)))
		return len(images.Items) == 0
	})
	s.awaitWithAgent(t, "all slots to be free", func() bool { return len(env.Ledger(t).Status.Slots) == 0 })
	requireNothingLeft(t, ns)

	h := requirePromisesKept(t, o)
	assert.Equal(t, 1, h.Attempts(doomed.UID), "DataVolumes of doomed")
	assert.Equal(t, 2, h.Attempts(snap.UID), "DataVolumes of snap: one, and one for its lost storage")
	assert.Equal(t, 2, h.Attempts(heals.UID), "DataVolumes of heals: one fails, one succeeds")
}

// isFirstImportRunning reports whether the status of an image has its first attempt.
func (s *scenario) isFirstImportRunning(t *testing.T, img *v1alpha1.VMDiskImage) bool {
	t.Helper()
	var got v1alpha1.VMDiskImage
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &got))
	return len(got.Status.Revisions) == 1 && got.Status.Revisions[0].Attempt == 1
}

// isServingAttempt reports whether an image has succeeded by an attempt.
func (s *scenario) isServingAttempt(t *testing.T, img *v1alpha1.VMDiskImage, attempt int32) bool {
	t.Helper()
	var got v1alpha1.VMDiskImage
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &got))
	return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving != nil && got.Status.Serving.Attempt == attempt
}

// latestDataVolume returns the last DataVolume of an image; nil for none.
func (s *scenario) latestDataVolume(t *testing.T, img *v1alpha1.VMDiskImage) *cdiv1.DataVolume {
	t.Helper()
	var dvs cdiv1.DataVolumeList
	err := env.Client().List(t.Context(), &dvs, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)})
	require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	if len(dvs.Items) == 0 {
		return nil
	}
	return &dvs.Items[len(dvs.Items)-1]
}

func (s *scenario) awaitWithAgent(t *testing.T, what string, holds func() bool) {
	t.Helper()
	s.AwaitCondition(t, what, holds, func() string { return fmt.Sprintf("%+v", env.Ledger(t).Status) })
}

// stepNamer names writes. It keeps the stored slots: a write of the ledger is named after
// what it changes.
type stepNamer struct {
	mu          sync.Mutex
	storedSlots []v1alpha1.Slot
}

// stepsOf names what a write does.
func (n *stepNamer) stepsOf(w faults.Write) []faults.Step {
	resource, name, status := w.Target()
	switch {
	case resource == "syncledgers" && status:
		return n.ledgerSteps(w)
	case resource == "vmdiskimages" && status:
		return []faults.Step{imageStatusStep(w.Body)}
	case resource == "vmdiskimages":
		if strings.Contains(string(w.Body), v1alpha1.FinalizerImage) {
			return []faults.Step{faults.Step("add finalizer: " + name)}
		}
		return []faults.Step{faults.Step("remove finalizer: " + name)}
	case w.Method == "POST":
		var created struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(w.Body, &created)
		return []faults.Step{faults.Step("create " + resource + ": " + faults.ChildRole(created.Metadata.Name))}
	default:
		return []faults.Step{faults.Step(strings.ToLower(w.Method) + " " + resource + ": " + faults.ChildRole(name))}
	}
}

// recordStored keeps the slots that a write has stored.
func (n *stepNamer) recordStored(w faults.Write) {
	if resource, _, status := w.Target(); resource != "syncledgers" || !status || w.Status != 200 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.storedSlots = decodeSlots(w.Body)
}

func (n *stepNamer) ledgerSteps(w faults.Write) []faults.Step {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, after := n.storedSlots, decodeSlots(w.Body)
	find := func(in []v1alpha1.Slot, s v1alpha1.Slot) *v1alpha1.Slot {
		if i := slices.IndexFunc(in, func(o v1alpha1.Slot) bool { return o.DataVolume == s.DataVolume }); i >= 0 {
			return &in[i]
		}
		return nil
	}
	var steps []faults.Step
	for _, s := range after {
		old := find(before, s)
		switch {
		case old == nil:
			steps = append(steps, faults.Step(fmt.Sprintf("admit: %s#%d", s.Image.Name, s.Attempt)))
		case s.Ended && !old.Ended:
			steps = append(steps, faults.Step(fmt.Sprintf("mark as ended: %s#%d", s.Image.Name, s.Attempt)))
		}
	}
	for _, s := range before {
		if find(after, s) == nil {
			steps = append(steps, faults.Step(fmt.Sprintf("free: %s#%d", s.Image.Name, s.Attempt)))
		}
	}
	if len(steps) == 0 {
		steps = append(steps, "store policy: ledger")
	}
	return steps
}

func decodeSlots(body []byte) []v1alpha1.Slot {
	var l v1alpha1.SyncLedger
	if json.Unmarshal(body, &l) != nil || l.Status == nil {
		return nil
	}
	return l.Status.Slots
}

// imageStatusStep names the state that a status write gives an image.
func imageStatusStep(body []byte) faults.Step {
	var img v1alpha1.VMDiskImage
	_ = json.Unmarshal(body, &img)
	st := img.Status
	text := fmt.Sprintf("store %s status: %s %s", st.Phase, img.Name, st.Reason)
	return faults.Step(text + faults.DescribeAttempts(&st))
}
