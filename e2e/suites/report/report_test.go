//go:build linux

package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestReportFollowsImages(t *testing.T) {
	ns := createImages(t, 0)
	startReporter(t, noHeartbeatArg)
	r := awaitReport(t, "no images", func(r storedReport) bool { return !r.root.Root.NoLedger })
	system := &corev1.Namespace{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	assert.Equal(t, system.UID, r.root.ClusterUID)
	assert.Equal(t, "dev", r.root.Root.AgentVersion)
	assert.Equal(t, int32(3600), r.root.Root.HeartbeatSeconds)
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
	r = awaitReport(t, "two images are there", func(r storedReport) bool {
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

// While nothing happens the root alone is written, once in a heartbeat.
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
	// Of the first one the proxy may not have heard when it was read.
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

	a.markWrites()
	img := imageInFarm(ns, 7)
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
	assert.Len(t, after.pages, len(before.pages))
	t.Logf("%d pages; one change was written as %v", len(after.pages), a.writesSinceMark())
	assert.LessOrEqual(t, len(a.writesSinceMark()), 6, "the image had up to three states")

	a.markWrites()
	for n := 60; n < images; n++ {
		img := imageInFarm(ns, n)
		require.NoError(t, env.Client().Delete(t.Context(), img))
	}
	awaitReport(t, "pages are merged", func(r storedReport) bool { return r.root.Root.Images == 60 && len(r.pages) < 3 })
}

func TestReportChangedByOthersIsRepaired(t *testing.T) {
	ns := createImages(t, 150)
	a := startReporter(t, noHeartbeatArg)
	awaitSettledImages(t, ns, 150)
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
		awaitReport(t, "the root is overtaken", func(r storedReport) bool { return r.root.Sequence > root.Sequence && r.root.Root.Images == 150 })
	})
	t.Run("page that is none of ours", func(t *testing.T) {
		stray := &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: "page-stray"},
			ClusterUID: "somewhere", Sequence: 1, Page: &v1alpha1.ReportPage{},
		}
		env.Create(t, stray)
		env.AwaitGone(t, stray)
		awaitReport(t, "the report is as it was", func(r storedReport) bool { return r.root.Root.Images == 150 })
	})
	t.Run("all deleted", func(t *testing.T) {
		before := readReport(t)
		require.NoError(t, c.DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(program.AgentNamespace)))
		after := awaitReport(t, "all is back", func(r storedReport) bool { return len(r.pages) == len(before.pages) })
		assert.Greater(t, after.root.Sequence, before.root.Sequence)
	})
	a.awaitQuiet(t)
}
