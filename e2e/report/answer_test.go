//go:build linux

package report

import (
	"context"
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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// ask stores a plan with an inquiry, above all that were acknowledged before. It goes
// when the test ends.
func ask(t *testing.T, hash string) v1alpha1.PlanVersion {
	t.Helper()
	version := v1alpha1.PlanVersion{Epoch: 1, Sequence: 1, Hash: hash}
	if last := place.Ledger(t).Status.Plan; last != nil {
		version.Sequence = last.Sequence + 1
	}
	system := &corev1.Namespace{}
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	plan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}}
	spec := v1alpha1.ClusterPlanSpec{
		PlanVersion: version, ClusterUID: system.UID,
		Inquiries: []v1alpha1.PlanInquiry{{UID: types.UID(hash), Epoch: version.Epoch, Sequence: version.Sequence}},
	}
	if err := place.Client().Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
		require.NoError(t, client.IgnoreNotFound(err))
		plan.Spec = spec
		place.Create(t, plan)
		t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(place.Client().Delete(context.Background(), plan))) })
		return version
	}
	place.Change(t, plan, func() { plan.Spec = spec })
	return version
}

func answers(version v1alpha1.PlanVersion) func(told) bool {
	return func(r told) bool { return r.root.Root.AnsweredPlan != nil && *r.root.Root.AnsweredPlan == version }
}

// A plan that asks is answered by a report that shows what changed before it, though
// nothing else happens that would be a reason to report; and an agent that starts anew
// answers it as well.
func TestInquiryIsAnswered(t *testing.T) {
	const images = 300
	ns := farm(t, images)
	a := start(t, never)
	settled(t, ns, images)
	a.quiet(t)

	first := ask(t, "first")
	r := eventually(t, "the first plan is answered", answers(first))
	assert.Equal(t, &first, r.root.Root.Plan)
	a.quiet(t)
	before := read(t)

	a.mark()
	changed := map[string]string{}
	for n := 0; n < images; n += 10 {
		img := imageOf(ns, n)
		place.Change(t, img, func() { img.Spec.URL += "-new" })
		changed[ns+"/"+img.Name] = "http " + img.Spec.URL
	}
	second := ask(t, "second")
	r = eventually(t, "the second plan is answered", answers(second))
	shown := r.images(t)
	for key, source := range changed {
		assert.Equal(t, source, shown[key].Source)
	}
	eventually(t, "the agent has looked at what has changed", func(r told) bool {
		shown, former := r.images(t), before.images(t)
		for key := range changed {
			if shown[key].Reason != v1alpha1.ReasonPaused || shown[key].Revision == former[key].Revision {
				return false
			}
		}
		return true
	})
	a.quiet(t)
	assert.Greater(t, read(t).root.Sequence, before.root.Sequence)
	a.mark()
	third := ask(t, "third")
	eventually(t, "the third plan is answered", answers(third))
	a.quiet(t)
	for _, w := range a.writes() {
		assert.Equal(t, "PUT default", w, "no image has changed")
	}

	a.end()
	former := read(t).root.Root.BootID
	start(t, never)
	eventually(t, "another process answers it", func(r told) bool { return r.root.Root.BootID != former && answers(third)(r) })
}

// Storage whose image was forced away is told, once, and no more when it is gone.
func TestOrphansAreReported(t *testing.T) {
	ns := farm(t, 0)
	place.StorePolicy(t, map[string]string{"concurrency": "1"})
	a := start(t, never)
	img, stays := place.Image(ns, "forced", "/ok/a"), place.Image(ns, "stays", "/ok/b")
	place.Instant().Allow(2)
	place.Create(t, img, stays)
	place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
	place.Eventually(t, stays, scene.InPhase(v1alpha1.PhaseSucceeded))
	r := eventually(t, "both are there", func(r told) bool {
		return r.root.Root.Phases[v1alpha1.PhaseSucceeded] == 2 && r.root.Root.Slots == 0
	})
	assert.Empty(t, r.root.Root.Orphans)
	a.end()

	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	img.Finalizers = nil
	require.NoError(t, place.Client().Update(t.Context(), img))
	require.NoError(t, place.Client().Delete(t.Context(), img))
	name := img.Status.Revisions[0].DataVolume
	a = start(t, "--report-heartbeat=1s")
	r = eventually(t, "its storage is told", func(r told) bool { return r.root.Root.OrphanCount == 2 })
	want := []v1alpha1.OrphanedObject{
		{Kind: "DataVolume", Namespace: ns, Name: name, Image: "forced", ImageUID: img.UID},
		{Kind: "PersistentVolumeClaim", Namespace: ns, Name: name, Image: "forced", ImageUID: img.UID, Bytes: 1 << 30},
	}
	assert.Equal(t, want, r.root.Root.Orphans)
	assert.Equal(t, int64(1<<30), r.root.Root.OrphanBytes)
	metrics, err := a.Metrics(t.Context())
	require.NoError(t, err)
	assert.Contains(t, metrics, "ot_agent_orphaned_objects 2\n")
	assert.Contains(t, metrics, "ot_agent_orphaned_bytes 1.073741824e+09\n")
	later := eventually(t, "two heartbeats", func(l told) bool {
		return l.root.Root.ObservedAt.Sub(r.root.Root.ObservedAt.Time) >= 2*time.Second
	})
	assert.Equal(t, want, later.root.Root.Orphans)
	a.end()

	// What comes and goes while an agent runs is told without a heartbeat.
	start(t, never)
	eventually(t, "another process tells of it", func(r told) bool { return r.root.Root.BootID != later.root.Root.BootID && r.root.Root.OrphanCount == 2 })
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "nobodys", Labels: map[string]string{v1alpha1.LabelImageUID: "nobodys"},
		Annotations: map[string]string{v1alpha1.AnnotationImageName: "nobody"},
	}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: img.Spec.DiskSize}
	place.Create(t, claim)
	r = eventually(t, "a third object is told", func(r told) bool { return r.root.Root.OrphanCount == 3 })
	assert.Equal(t, "nobody", r.root.Root.Orphans[2].Image)
	require.NoError(t, place.Client().Delete(t.Context(), claim))
	forced := metav1.ObjectMeta{Namespace: ns, Name: name}
	require.NoError(t, place.Client().Delete(t.Context(), &cdiv1.DataVolume{ObjectMeta: forced}))
	r = eventually(t, "the claim is left", func(r told) bool { return r.root.Root.OrphanCount == 1 })
	assert.Equal(t, want[1:], r.root.Root.Orphans)
	require.NoError(t, place.Client().Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: forced}))
	r = eventually(t, "nothing is left to be told", func(r told) bool { return r.root.Root.OrphanCount == 0 })
	assert.Empty(t, r.root.Root.Orphans)
	assert.Zero(t, r.root.Root.OrphanBytes)
}
