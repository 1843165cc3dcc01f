//go:build linux

package report

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestOrphansAreReported wants storage whose image was deleted without its finalizer to be
// reported once, until it is gone.
// It comes first: storage that other tests leave behind would count as orphans, too.
func TestOrphansAreReported(t *testing.T) {
	ns := createImages(t, 0)
	env.StorePolicy(t, map[string]string{"concurrency": "1"})
	a := startReporter(t, noHeartbeatArg)
	img, stays := env.NewImage(ns, "forced", "/ok/a"), env.NewImage(ns, "stays", "/ok/b")
	env.InstantImporter().AllowFinishes(2)
	env.Create(t, img, stays)
	env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	env.AwaitImage(t, stays, testenv.InPhase(v1alpha1.PhaseSucceeded))
	r := awaitReport(t, "both are there", func(r storedReport) bool {
		return r.root.Root.Phases[v1alpha1.PhaseSucceeded] == 2 && r.root.Root.Slots == 0
	})
	assert.Empty(t, r.root.Root.Orphans)
	a.killAndWait()

	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	img.Finalizers = nil
	require.NoError(t, env.Client().Update(t.Context(), img))
	require.NoError(t, env.Client().Delete(t.Context(), img))
	name := img.Status.Revisions[0].DataVolume
	a = startReporter(t, "--report-heartbeat=1s")
	r = awaitReport(t, "its storage is told", func(r storedReport) bool { return r.root.Root.OrphanCount == 2 })
	want := []v1alpha1.OrphanedObject{
		{Kind: "DataVolume", Namespace: ns, Name: name, Image: "forced", ImageUID: img.UID},
		{Kind: "PersistentVolumeClaim", Namespace: ns, Name: name, Image: "forced", ImageUID: img.UID, Bytes: 1 << 30},
	}
	assert.Equal(t, want, r.root.Root.Orphans)
	assert.Equal(t, int64(1<<30), r.root.Root.OrphanBytes)
	metrics, err := a.ReadMetrics(t.Context())
	require.NoError(t, err)
	assert.Contains(t, metrics, "ot_agent_orphaned_objects 2\n")
	assert.Contains(t, metrics, "ot_agent_orphaned_bytes 1.073741824e+09\n")
	later := awaitReport(t, "two heartbeats", func(l storedReport) bool {
		return l.root.Root.ObservedAt.Sub(r.root.Root.ObservedAt.Time) >= 2*time.Second
	})
	assert.Equal(t, want, later.root.Root.Orphans)
	a.killAndWait()

	// Orphans that come and go while the agent runs are reported without a heartbeat.
	startReporter(t, noHeartbeatArg)
	awaitReport(t, "another process tells of it", func(r storedReport) bool {
		return r.root.Root.BootID != later.root.Root.BootID && r.root.Root.OrphanCount == 2
	})
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "nobodys", Labels: map[string]string{v1alpha1.LabelImageUID: "nobodys"},
		Annotations: map[string]string{v1alpha1.AnnotationImageName: "nobody"},
	}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: img.Spec.DiskSize}
	env.Create(t, claim)
	r = awaitReport(t, "a third object is told", func(r storedReport) bool { return r.root.Root.OrphanCount == 3 })
	assert.Equal(t, "nobody", r.root.Root.Orphans[2].Image)
	require.NoError(t, env.Client().Delete(t.Context(), claim))
	forced := metav1.ObjectMeta{Namespace: ns, Name: name}
	require.NoError(t, env.Client().Delete(t.Context(), &cdiv1.DataVolume{ObjectMeta: forced}))
	r = awaitReport(t, "the claim is left", func(r storedReport) bool { return r.root.Root.OrphanCount == 1 })
	assert.Equal(t, want[1:], r.root.Root.Orphans)
	require.NoError(t, env.Client().Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: forced}))
	r = awaitReport(t, "nothing is left to be told", func(r storedReport) bool { return r.root.Root.OrphanCount == 0 })
	assert.Empty(t, r.root.Root.Orphans)
	assert.Zero(t, r.root.Root.OrphanBytes)
}

func TestReportFollowsImages(t *testing.T) {
	ns := createImages(t, 0)
	startReporter(t, noHeartbeatArg)
	r := awaitReport(t, "no images", func(r storedReport) bool { return !r.root.Root.NoLedger })
	system := &corev1.Namespace{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	assert.Equal(t, system.UID, r.root.ClusterUID)
	assert.Equal(t, "dev", r.root.Root.AgentVersion)
	assert.Equal(t, int32(rareHeartbeat.Seconds()), r.root.Root.HeartbeatSeconds)
	assert.NotEmpty(t, r.root.Root.BootID)
	assert.Empty(t, r.pages)

	env.StorePolicy(t, map[string]string{"concurrency": "1", "retryLimit": "0"})
	syncing, queued, failed := env.NewImage(ns, "syncing", "/ok/a"), env.NewImage(ns, "queued", "/ok/b"), env.NewImage(ns, "failed", "/gone/c")
	env.Create(t, syncing)
	env.AwaitImage(t, syncing, testenv.InPhase(v1alpha1.PhaseSyncing))
	env.Create(t, queued, failed)
	r = awaitReport(t, "one image of each kind", func(r storedReport) bool {
		p := r.root.Root.Phases
		return p[v1alpha1.PhaseSyncing] == 1 && p[v1alpha1.PhaseQueued] == 1 && p[v1alpha1.PhaseFailed] == 1 &&
			r.root.Root.Slots == 1 && len(r.imagesByKey(t)) == 3 && r.imagesByKey(t)[ns+"/failed"].Reason == v1alpha1.ReasonNotFound
	})
	root := r.root.Root
	assert.Equal(t, int32(3), root.Images)
	assert.Equal(t, int32(1), root.Budget)
	assert.Equal(t, "1", root.Policy["concurrency"])
	require.NotNil(t, root.OldestQueuedSince)
	assert.True(t, queued.CreationTimestamp.Equal(root.OldestQueuedSince))
	assert.NotEmpty(t, root.Conditions)
	got := r.imagesByKey(t)[ns+"/failed"]
	assert.Equal(t, failed.UID, got.UID)
	assert.Equal(t, "http "+failed.Spec.URL, got.Source)
	assert.Contains(t, got.Message, "404")

	env.InstantImporter().AllowFinishes(2)
	r = awaitReport(t, "two images are reported", func(r storedReport) bool {
		return r.root.Root.Phases[v1alpha1.PhaseSucceeded] == 2 && r.root.Root.Slots == 0 &&
			r.imagesByKey(t)[ns+"/syncing"].Phase == v1alpha1.PhaseSucceeded && r.imagesByKey(t)[ns+"/queued"].Phase == v1alpha1.PhaseSucceeded
	})
	assert.Nil(t, r.root.Root.OldestQueuedSince)
	got = r.imagesByKey(t)[ns+"/syncing"]
	assert.Equal(t, int64(1<<30), got.Bytes)
	assert.NotNil(t, got.SyncedAt)
	assert.Equal(t, got.Revision, got.ServingRevision)
	assert.Equal(t, int32(1), got.Attempts)

	require.NoError(t, env.Client().Delete(t.Context(), failed))
	awaitReport(t, "the failed image is gone", func(r storedReport) bool { return r.root.Root.Images == 2 && len(r.imagesByKey(t)) == 2 })
}

// TestHeartbeatWritesOnlyTheRoot wants one write in a heartbeat while nothing changes.
func TestHeartbeatWritesOnlyTheRoot(t *testing.T) {
	ns := createImages(t, 3)
	a := startReporter(t, "--report-heartbeat=1s")
	awaitSettledImages(t, ns, 3)
	before := readReport(t)
	a.markWrites()
	awaitReport(t, "three heartbeats", func(r storedReport) bool {
		return r.root.Root.ObservedAt.Sub(before.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	writes, after := a.writesSinceMark(), readReport(t)
	// Race: the first write may be stored before the proxy records it.
	beats := int(after.root.Root.ObservedAt.Sub(before.root.Root.ObservedAt.Time)/time.Second) + 1
	assert.LessOrEqual(t, len(writes), beats)
	for _, w := range writes {
		assert.Equal(t, "PUT default", w)
	}
	assert.Equal(t, before.pageVersions(), after.pageVersions())
	assert.Greater(t, after.root.Sequence, before.root.Sequence)
	assert.Equal(t, before.root.Root.BootID, after.root.Root.BootID)
}

func TestOneChangeRewritesOnePage(t *testing.T) {
	testenv.RunInTurn(t, 0)
	const images = 300
	ns := createImages(t, images)
	a := startReporter(t, noHeartbeatArg)
	awaitSettledImages(t, ns, images)
	a.awaitQuiet(t)
	before := readReport(t)
	assert.Equal(t, int32(images), before.root.Root.Images)
	assert.Len(t, before.imagesByKey(t), images)
	assert.Greater(t, len(before.pages), 2)
	for _, page := range before.pages {
		assert.LessOrEqual(t, len(page.Page.Images), v1alpha1.MaxReportedImages)
	}

	img := imageInFarm(ns, 7)
	countStates := watchStates(t, img)
	a.markWrites()
	env.Update(t, img, func() { img.Spec.URL += "-new" })
	awaitReport(t, "the change is reported", func(r storedReport) bool {
		got := r.imagesByKey(t)[ns+"/image-7"]
		return got.Source == "http "+img.Spec.URL && got.Reason == v1alpha1.ReasonPaused && got.Revision != before.imagesByKey(t)[ns+"/image-7"].Revision
	})
	a.awaitQuiet(t)
	after := readReport(t)
	changed := 0
	for name, version := range after.pageVersions() {
		if before.pageVersions()[name] != version {
			changed++
		}
	}
	assert.Equal(t, 1, changed)
	assert.Empty(t, after.root.ManagedFields, "they would double what a write of the root costs")
	assert.Len(t, after.pages, len(before.pages))
	states, pageWrites := countStates(), 0
	for _, w := range a.writesSinceMark() {
		if strings.Contains(w, "page-") {
			pageWrites++
		}
	}
	t.Logf("%d pages; one change, to %d states, was written as %v", len(after.pages), states, a.writesSinceMark())
	assert.LessOrEqual(t, pageWrites, states, "a page is written for a state of its image, once")
	assert.LessOrEqual(t, len(a.writesSinceMark()), 6, "the image had up to three states")

	a.markWrites()
	for n := 8; n < images; n++ {
		img := imageInFarm(ns, n)
		require.NoError(t, env.Client().Delete(t.Context(), img))
	}
	awaitReport(t, "pages are merged", func(r storedReport) bool { return r.root.Root.Images == 8 && len(r.pages) == 1 })
}

// watchStates returns a function that counts the states that an image has had since, with the one that
// is stored then.
func watchStates(t *testing.T, img *v1alpha1.VMDiskImage) func() int {
	t.Helper()
	var mu sync.Mutex
	states, last := 0, ""
	stop, err := controlplane.WatchObjects(t.Context(), env.Client(), &v1alpha1.VMDiskImageList{}, func(c controlplane.Change[*v1alpha1.VMDiskImage]) {
		mu.Lock()
		defer mu.Unlock()
		if last = c.Object.ResourceVersion; !c.Preexisting {
			states++
		}
	}, client.InNamespace(img.Namespace), client.MatchingFields{"metadata.name": img.Name})
	require.NoError(t, err)
	t.Cleanup(stop)
	return func() (n int) {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool {
			stored := &v1alpha1.VMDiskImage{}
			require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), stored))
			mu.Lock()
			defer mu.Unlock()
			n = states
			return last == stored.ResourceVersion
		}), "the watch has not seen the image")
		return n
	}
}

func TestReportChangedByOthersIsRepaired(t *testing.T) {
	ns := createImages(t, 130)
	a := startReporter(t, noHeartbeatArg)
	awaitSettledImages(t, ns, 130)
	a.awaitQuiet(t)
	c := env.Client()
	name := readReport(t).root.Root.Pages[0].Name

	t.Run("page deleted", func(t *testing.T) {
		before := readReport(t)
		require.NoError(t, c.Delete(t.Context(), before.pages[name]))
		after := awaitReport(t, "the page is back", func(r storedReport) bool { return r.pages[name].UID != before.pages[name].UID })
		assert.Greater(t, after.pages[name].Sequence, before.pages[name].Sequence)
		assert.Equal(t, before.pages[name].Page, after.pages[name].Page)
	})
	t.Run("page edited", func(t *testing.T) {
		before := readReport(t)
		page := before.pages[name].DeepCopy()
		page.Page.Images = page.Page.Images[1:]
		require.NoError(t, c.Update(t.Context(), page))
		after := awaitReport(t, "the page is whole", func(r storedReport) bool {
			return len(r.pages[name].Page.Images) == len(before.pages[name].Page.Images)
		})
		assert.Greater(t, after.pages[name].Sequence, before.pages[name].Sequence)
	})
	t.Run("older page put back", func(t *testing.T) {
		before := readReport(t)
		page := before.pages[name].DeepCopy()
		page.Sequence -= 1000
		require.NoError(t, c.Update(t.Context(), page))
		awaitReport(t, "the page is overtaken", func(r storedReport) bool { return r.pages[name].Sequence > before.pages[name].Sequence })
	})
	t.Run("root deleted", func(t *testing.T) {
		before := readReport(t)
		require.NoError(t, c.Delete(t.Context(), before.root))
		after := awaitReport(t, "the root is back", func(r storedReport) bool { return r.root.UID != before.root.UID })
		assert.Greater(t, after.root.Sequence, before.root.Sequence)
		assert.Equal(t, before.pageVersions(), after.pageVersions())
	})
	t.Run("older root put back", func(t *testing.T) {
		before := readReport(t)
		root := before.root.DeepCopy()
		root.Sequence -= 5000
		require.NoError(t, c.Update(t.Context(), root))
		after := awaitReport(t, "the root is overtaken", func(r storedReport) bool { return r.root.Sequence > before.root.Sequence })
		assert.Equal(t, before.pageVersions(), after.pageVersions())
	})
	t.Run("root from the future", func(t *testing.T) {
		root := readReport(t).root
		root.Sequence += 1_000_000_000
		root.Root.Images = 1
		require.NoError(t, c.Update(t.Context(), root))
		awaitReport(t, "the root is overtaken", func(r storedReport) bool { return r.root.Sequence > root.Sequence && r.root.Root.Images == 130 })
	})
	t.Run("page that is none of ours", func(t *testing.T) {
		stray := &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: "page-01010101010101"},
			ClusterUID: "somewhere", Sequence: 1, Page: &v1alpha1.ReportPage{},
		}
		env.Create(t, stray)
		env.AwaitGone(t, stray)
		awaitReport(t, "the report is as it was", func(r storedReport) bool { return r.root.Root.Images == 130 })
	})
	t.Run("all deleted", func(t *testing.T) {
		before := readReport(t)
		require.NoError(t, c.DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(program.AgentNamespace)))
		after := awaitReport(t, "all is back", func(r storedReport) bool { return len(r.pages) == len(before.pages) })
		assert.Greater(t, after.root.Sequence, before.root.Sequence)
	})
	a.awaitQuiet(t)
}

// storeInquiry stores a plan with an inquiry, newer than all acknowledged ones, until the test
// ends.
func storeInquiry(t *testing.T, hash string) v1alpha1.PlanVersion {
	t.Helper()
	version := v1alpha1.PlanVersion{Epoch: 1, Sequence: 1, Hash: hash}
	if last := env.Ledger(t).Status.Plan; last != nil {
		version.Sequence = last.Sequence + 1
	}
	system := &corev1.Namespace{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	plan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}}
	spec := v1alpha1.ClusterPlanSpec{
		PlanVersion: version, ClusterUID: system.UID,
		Inquiries: []v1alpha1.PlanInquiry{{UID: types.UID(hash), Epoch: version.Epoch, Sequence: version.Sequence}},
	}
	if err := env.Client().Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
		require.NoError(t, client.IgnoreNotFound(err))
		plan.Spec = spec
		env.Create(t, plan)
		t.Cleanup(func() {
			assert.NoError(t, client.IgnoreNotFound(env.Client().Delete(context.Background(), plan)))
		})
		return version
	}
	env.Update(t, plan, func() { plan.Spec = spec })
	return version
}

func isAnswerTo(version v1alpha1.PlanVersion) func(storedReport) bool {
	return func(r storedReport) bool {
		return r.root.Root.AnsweredPlan != nil && *r.root.Root.AnsweredPlan == version
	}
}

// TestInquiryIsAnswered wants a report that shows all changes before the inquiry, although
// nothing else causes one, and an agent that restarts to answer as well.
func TestInquiryIsAnswered(t *testing.T) {
	const images = 150
	ns := createImages(t, images)
	a := startReporter(t, noHeartbeatArg)
	awaitSettledImages(t, ns, images)
	a.awaitQuiet(t)

	first := storeInquiry(t, "first")
	r := awaitReport(t, "the first plan is answered", isAnswerTo(first))
	assert.Equal(t, &first, r.root.Root.Plan)
	a.awaitQuiet(t)
	before := readReport(t)

	a.markWrites()
	changed := map[string]string{}
	for n := 0; n < images; n += 10 {
		img := imageInFarm(ns, n)
		env.Update(t, img, func() { img.Spec.URL += "-new" })
		changed[ns+"/"+img.Name] = "http " + img.Spec.URL
	}
	second := storeInquiry(t, "second")
	r = awaitReport(t, "the second plan is answered", isAnswerTo(second))
	shown := r.imagesByKey(t)
	for key, source := range changed {
		assert.Equal(t, source, shown[key].Source)
	}
	awaitReport(t, "the agent has looked at what has changed", func(r storedReport) bool {
		shown, former := r.imagesByKey(t), before.imagesByKey(t)
		for key := range changed {
			if shown[key].Reason != v1alpha1.ReasonPaused || shown[key].Revision == former[key].Revision {
				return false
			}
		}
		return true
	})
	a.awaitQuiet(t)
	assert.Greater(t, readReport(t).root.Sequence, before.root.Sequence)
	a.markWrites()
	third := storeInquiry(t, "third")
	awaitReport(t, "the third plan is answered", isAnswerTo(third))
	a.awaitQuiet(t)
	for _, w := range a.writesSinceMark() {
		assert.Equal(t, "PUT default", w, "no image has changed")
	}

	a.killAndWait()
	former := readReport(t).root.Root.BootID
	startReporter(t, noHeartbeatArg)
	awaitReport(t, "another process answers it", func(r storedReport) bool { return r.root.Root.BootID != former && isAnswerTo(third)(r) })
}

// TestActivityFollowsImports: while images are imported or wait, each heartbeat says so; once
// none is, one last write does, and no other follows.
func TestActivityFollowsImports(t *testing.T) {
	ns := createImages(t, 0)
	env.StorePolicy(t, map[string]string{"concurrency": "1", "maxPriority": "5"})
	release := env.InstantImporter().HoldImports(func(*cdiv1.DataVolume) bool { return true })
	defer release()
	a := startReporter(t, "--report-heartbeat=1s")
	first := env.NewImage(ns, "first", "/ok/a")
	env.Create(t, first)
	env.AwaitImage(t, first, testenv.InPhase(v1alpha1.PhaseSyncing))
	second, third, urgent := env.NewImage(ns, "second", "/ok/b"), env.NewImage(ns, "third", "/ok/c"), env.NewImage(ns, "urgent", "/ok/d")
	urgent.Spec.Priority = 5
	env.Create(t, second, third, urgent)
	busy := awaitReport(t, "one import, and three that wait", func(r storedReport) bool {
		return r.activity != nil && r.activity.Activity.Slots == 1 && r.activity.Activity.Queued == 3 &&
			len(r.activity.Activity.Head) == 3 && r.activity.Activity.Head[2].Reason == v1alpha1.ReasonWaitingForSlot
	})
	got := busy.activity.Activity
	assert.Equal(t, busy.root.ClusterUID, busy.activity.ClusterUID)
	assert.Equal(t, busy.root.Root.BootID, got.BootID)
	assert.EqualValues(t, 1, got.Budget)
	require.Len(t, got.Active, 1)
	slot := env.Ledger(t).Status.Slots[0]
	assert.Equal(t, v1alpha1.ActiveImport{
		Namespace: ns, Name: "first", Source: v1alpha1.SourceOther, AtMostBytes: 1 << 30, StartedAt: got.Active[0].StartedAt, Attempt: 1, MaxAttempts: 4,
	}, got.Active[0])
	assert.True(t, slot.StartedAt.Equal(&got.Active[0].StartedAt))
	var order []string
	for _, queued := range got.Head {
		order = append(order, queued.Name)
		assert.EqualValues(t, 1<<30, queued.AtMostBytes)
	}
	assert.Equal(t, []string{"urgent", "second", "third"}, order)

	a.markWrites()
	before := readReport(t)
	awaitReport(t, "some heartbeats", func(storedReport) bool { return a.activityWritesSinceMark() >= 3 })
	writes, after := a.activityWritesSinceMark(), readReport(t)
	beats := int(after.activity.Activity.ObservedAt.Sub(before.activity.Activity.ObservedAt.Time)/time.Second) + 1
	assert.LessOrEqual(t, writes, beats)
	assert.Greater(t, after.activity.Sequence, before.activity.Sequence)

	env.InstantImporter().AllowFinishes(4)
	release()
	rates := []v1alpha1.SourceRate{{Name: v1alpha1.SourceOther, TransferredBytes: 4 << 30}} // of no known size, thus no samples
	idle := awaitReport(t, "nothing is imported or waits, and all is counted", func(r storedReport) bool {
		return r.root.Root.Phases[v1alpha1.PhaseSucceeded] == 4 && r.activity.Activity.Slots == 0 && r.activity.Activity.Queued == 0 &&
			slices.Equal(r.activity.Activity.Rates, rates)
	})
	assert.Empty(t, idle.activity.Activity.Active)
	assert.Empty(t, idle.activity.Activity.Head)
	a.markWrites()
	later := awaitReport(t, "three heartbeats of the root", func(r storedReport) bool {
		return r.root.Root.ObservedAt.Sub(idle.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	assert.Equal(t, idle.activity.ResourceVersion, later.activity.ResourceVersion)
	assert.Zero(t, a.activityWritesSinceMark())

	// Another process says once that it has nothing to do.
	a.killAndWait()
	b := startReporter(t, "--report-heartbeat=1s")
	restarted := awaitReport(t, "another process", func(r storedReport) bool {
		return r.activity.Activity.BootID != idle.activity.Activity.BootID && r.root.Root.BootID == r.activity.Activity.BootID
	})
	awaitReport(t, "three heartbeats of another process", func(r storedReport) bool {
		return r.root.Root.ObservedAt.Sub(restarted.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	assert.Equal(t, 1, b.activityWritesSinceMark())
}
