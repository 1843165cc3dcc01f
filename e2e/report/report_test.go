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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestReportFollowsImages(t *testing.T) {
	ns := farm(t, 0)
	start(t, never)
	r := eventually(t, "no images", func(r told) bool { return !r.root.Root.NoLedger })
	system := &corev1.Namespace{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	assert.Equal(t, system.UID, r.root.ClusterUID)
	assert.Equal(t, "dev", r.root.Root.AgentVersion)
	assert.Equal(t, int32(3600), r.root.Root.HeartbeatSeconds)
	assert.NotEmpty(t, r.root.Root.BootID)
	assert.Empty(t, r.pages)

	place.StorePolicy(t, map[string]string{"concurrency": "1", "retryLimit": "0"})
	syncing, queued, failed := place.Image(ns, "syncing", "/ok/a"), place.Image(ns, "queued", "/ok/b"), place.Image(ns, "failed", "/gone/c")
	place.Create(t, syncing)
	place.Eventually(t, syncing, scene.InPhase(v1alpha1.PhaseSyncing))
	place.Create(t, queued, failed)
	r = eventually(t, "one image of each kind", func(r told) bool {
		p := r.root.Root.Phases
		return p[v1alpha1.PhaseSyncing] == 1 && p[v1alpha1.PhaseQueued] == 1 && p[v1alpha1.PhaseFailed] == 1 &&
			r.root.Root.Slots == 1 && len(r.images(t)) == 3 && r.images(t)[ns+"/failed"].Reason == v1alpha1.ReasonNotFound
	})
	root := r.root.Root
	assert.Equal(t, int32(3), root.Images)
	assert.Equal(t, int32(1), root.Budget)
	assert.Equal(t, "1", root.Policy["concurrency"])
	require.NotNil(t, root.OldestQueuedSince)
	assert.True(t, queued.CreationTimestamp.Equal(root.OldestQueuedSince))
	assert.NotEmpty(t, root.Conditions)
	got := r.images(t)[ns+"/failed"]
	assert.Equal(t, failed.UID, got.UID)
	assert.Equal(t, "http "+failed.Spec.URL, got.Source)
	assert.Contains(t, got.Message, "404")

	place.Instant().Allow(2)
	r = eventually(t, "two images are there", func(r told) bool {
		return r.root.Root.Phases[v1alpha1.PhaseSucceeded] == 2 && r.root.Root.Slots == 0 &&
			r.images(t)[ns+"/syncing"].Phase == v1alpha1.PhaseSucceeded && r.images(t)[ns+"/queued"].Phase == v1alpha1.PhaseSucceeded
	})
	assert.Nil(t, r.root.Root.OldestQueuedSince)
	got = r.images(t)[ns+"/syncing"]
	assert.Equal(t, int64(1<<30), got.Bytes)
	assert.NotNil(t, got.SyncedAt)
	assert.Equal(t, got.Revision, got.ServingRevision)
	assert.Equal(t, int32(1), got.Attempts)

	require.NoError(t, place.Client().Delete(t.Context(), failed))
	eventually(t, "the failed image is gone", func(r told) bool { return r.root.Root.Images == 2 && len(r.images(t)) == 2 })
}

// While nothing happens the root alone is written, once in a heartbeat.
func TestHeartbeatMovesTheRootOnly(t *testing.T) {
	ns := farm(t, 3)
	a := start(t, "--report-heartbeat=1s")
	settled(t, ns, 3)
	before := read(t)
	a.mark()
	eventually(t, "three heartbeats", func(r told) bool {
		return r.root.Root.ObservedAt.Sub(before.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	writes, after := a.writes(), read(t)
	// Of the first one the proxy may not have heard when it was read.
	beats := int(after.root.Root.ObservedAt.Sub(before.root.Root.ObservedAt.Time)/time.Second) + 1
	assert.LessOrEqual(t, len(writes), beats)
	for _, w := range writes {
		assert.Equal(t, "PUT default", w)
	}
	assert.Equal(t, before.versions(), after.versions())
	assert.Greater(t, after.root.Sequence, before.root.Sequence)
	assert.Equal(t, before.root.Root.BootID, after.root.Root.BootID)
}

func TestOneChangeRewritesOnePage(t *testing.T) {
	const images = 300
	ns := farm(t, images)
	a := start(t, never)
	settled(t, ns, images)
	a.quiet(t)
	before := read(t)
	assert.Equal(t, int32(images), before.root.Root.Images)
	assert.Len(t, before.images(t), images)
	assert.Greater(t, len(before.pages), 2)
	for _, page := range before.pages {
		assert.LessOrEqual(t, len(page.Page.Images), v1alpha1.MaxReportedImages)
	}

	a.mark()
	img := imageOf(ns, 7)
	place.Change(t, img, func() { img.Spec.URL += "-new" })
	eventually(t, "the change is reported", func(r told) bool {
		got := r.images(t)[ns+"/image-7"]
		return got.Source == "http "+img.Spec.URL && got.Reason == v1alpha1.ReasonPaused && got.Revision != before.images(t)[ns+"/image-7"].Revision
	})
	a.quiet(t)
	after := read(t)
	changed := 0
	for name, version := range after.versions() {
		if before.versions()[name] != version {
			changed++
		}
	}
	assert.Equal(t, 1, changed)
	assert.Len(t, after.pages, len(before.pages))
	t.Logf("%d pages; one change was written as %v", len(after.pages), a.writes())
	assert.LessOrEqual(t, len(a.writes()), 6, "the image had up to three states")

	a.mark()
	for n := 60; n < images; n++ {
		img := imageOf(ns, n)
		require.NoError(t, place.Client().Delete(t.Context(), img))
	}
	eventually(t, "pages are merged", func(r told) bool { return r.root.Root.Images == 60 && len(r.pages) < 3 })
}

func TestReportIsRepaired(t *testing.T) {
	ns := farm(t, 150)
	a := start(t, never)
	settled(t, ns, 150)
	a.quiet(t)
	c := place.Client()
	name := read(t).root.Root.Pages[0].Name

	t.Run("page deleted", func(t *testing.T) {
		before := read(t)
		require.NoError(t, c.Delete(t.Context(), before.pages[name]))
		after := eventually(t, "the page is back", func(r told) bool { return r.pages[name].UID != before.pages[name].UID })
		assert.Greater(t, after.pages[name].Sequence, before.pages[name].Sequence)
		assert.Equal(t, before.pages[name].Page, after.pages[name].Page)
	})
	t.Run("page edited", func(t *testing.T) {
		before := read(t)
		page := before.pages[name].DeepCopy()
		page.Page.Images = page.Page.Images[1:]
		require.NoError(t, c.Update(t.Context(), page))
		after := eventually(t, "the page is whole", func(r told) bool { return len(r.pages[name].Page.Images) == len(before.pages[name].Page.Images) })
		assert.Greater(t, after.pages[name].Sequence, before.pages[name].Sequence)
	})
	t.Run("older page put back", func(t *testing.T) {
		before := read(t)
		page := before.pages[name].DeepCopy()
		page.Sequence -= 1000
		require.NoError(t, c.Update(t.Context(), page))
		eventually(t, "the page is overtaken", func(r told) bool { return r.pages[name].Sequence > before.pages[name].Sequence })
	})
	t.Run("root deleted", func(t *testing.T) {
		before := read(t)
		require.NoError(t, c.Delete(t.Context(), before.root))
		after := eventually(t, "the root is back", func(r told) bool { return r.root.UID != before.root.UID })
		assert.Greater(t, after.root.Sequence, before.root.Sequence)
		assert.Equal(t, before.versions(), after.versions())
	})
	t.Run("older root put back", func(t *testing.T) {
		before := read(t)
		root := before.root.DeepCopy()
		root.Sequence -= 5000
		require.NoError(t, c.Update(t.Context(), root))
		after := eventually(t, "the root is overtaken", func(r told) bool { return r.root.Sequence > before.root.Sequence })
		assert.Equal(t, before.versions(), after.versions())
	})
	t.Run("root from the future", func(t *testing.T) {
		root := read(t).root
		root.Sequence += 1_000_000_000
		root.Root.Images = 1
		require.NoError(t, c.Update(t.Context(), root))
		eventually(t, "the root is overtaken", func(r told) bool { return r.root.Sequence > root.Sequence && r.root.Root.Images == 150 })
	})
	t.Run("page that is none of ours", func(t *testing.T) {
		stray := &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: "page-stray"},
			ClusterUID: "somewhere", Sequence: 1, Page: &v1alpha1.ReportPage{},
		}
		place.Create(t, stray)
		place.Gone(t, stray)
		eventually(t, "the report is as it was", func(r told) bool { return r.root.Root.Images == 150 })
	})
	t.Run("all deleted", func(t *testing.T) {
		before := read(t)
		require.NoError(t, c.DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(agent.Namespace)))
		after := eventually(t, "all is back", func(r told) bool { return len(r.pages) == len(before.pages) })
		assert.Greater(t, after.root.Sequence, before.root.Sequence)
	})
	a.quiet(t)
}
