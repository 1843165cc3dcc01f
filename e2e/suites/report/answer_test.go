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
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// storeInquiry stores a plan with an inquiry, above all that were acknowledged before. It goes
// when the test ends.
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

// A plan that asks is answered by a report that shows what changed before it, though
// nothing else happens that would be a reason to report; and an agent that starts anew
// answers it as well.
func TestInquiryIsAnswered(t *testing.T) {
	const images = 300
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

// Storage whose image was forced away is told, once, and no more when it is gone.
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

	// What comes and goes while an agent runs is told without a heartbeat.
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
