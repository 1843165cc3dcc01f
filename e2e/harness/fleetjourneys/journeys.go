//go:build linux

package fleetjourneys

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Journey is one scenario of a fleet.
type Journey struct {
	// Shows says in a line what the journey shows.
	Name, Shows string
	Run         func(t *testing.T, f Fleet)
}

// Journeys run one after another.
var Journeys = []Journey{
	{"Preload", "a version rolls out to all clusters in waves, one cluster at a time, with the source's content; unreferenced images are reported and pruned", testPreload},
	{"Budget", "images created at once are downloaded in order, once each, never more at a time than the budget", testBudgetHolds},
	{"FailingSource", "a failing source is tried retryLimit + 1 times and then left alone", testFailingSource},
	{"AgentKilled", "the agent is killed during a download: nothing is lost, nothing is downloaded twice", testAgentKilled},
	{"HubKilled", "the elected replica of the hub is killed during a rollout, which continues", testHubKilled},
	{"CutOff", "a cluster loses its network: the others continue; it keeps its budget and queue, and catches up when it is back", testNetworkCut},
}

// ringLabel marks the members of the first wave.
const ringLabel = "journey-ring"

func testPreload(t *testing.T, f Fleet) {
	SetPolicy(t, f, map[string]string{"concurrency": "2"})
	members := f.Members()
	first, rest := members[0], members[1:]
	setMemberLabel(t, f, first, ringLabel, "canary")
	observers := map[string]*observer.Observer{}
	for _, m := range members {
		observers[m.Name] = ObserveMember(t, m)
	}

	img := NewFleetImage(f, "journey-preload")
	img.Spec.Rollout = v1alpha1.Rollout{
		Waves:          []v1alpha1.Wave{{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{ringLabel: "canary"}}}},
		MaxConcurrency: ptr.To(intstr.FromInt32(1)),
	}
	CreateFleetImage(t, f, img)
	AwaitFleetImage(t, f, img.Name, "in all clusters", func(got *v1alpha1.FleetDiskImage) bool {
		return IsSucceeded(got) && int(got.Status.Clusters.Succeeded) == len(members)
	})

	name := img.ImageNameForVersion("1")
	since := AwaitReadyImage(t, f, first, name)
	readySince := meta.FindStatusCondition(since.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime
	for _, m := range rest {
		began := AwaitReadyImage(t, f, m, name).CreationTimestamp
		assert.False(t, began.Before(&readySince), "%s began at %s, the canary was ready at %s", m.Name, began, readySince)
	}
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, m := range members {
		ready := AwaitReadyImage(t, f, m, name)
		images[m.Name] = ready
		h := testenv.History(t, observers[m.Name])
		assert.Equal(t, 1, h.Attempts(ready.UID), m.Name)
		assert.Empty(t, h.BudgetViolations(), m.Name)
	}
	testPrune(t, f, img, images)
}

// testPrune wants an image that is no longer declared to be reported and pruned.
func testPrune(t *testing.T, f Fleet, img *v1alpha1.FleetDiskImage, images map[string]*v1alpha1.VMDiskImage) {
	base := img.DeepCopy()
	img.Spec.DeletionPolicy = v1alpha1.DeletionRetain
	require.NoError(t, f.Hub().Patch(t.Context(), img, client.MergeFrom(base)))
	require.NoError(t, f.Hub().Delete(t.Context(), img.DeepCopy()))
	ctx, cancel := context.WithTimeout(t.Context(), WaitTimeout)
	defer cancel()
	awaitGone(ctx, t, f.Hub(), img.DeepCopy())

	r := &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: "journey"},
		Spec:       v1alpha1.PruneReportSpec{ImageSelector: &v1alpha1.ImageSelector{Names: []string{img.ImageNameForVersion("1")}}},
	}
	require.NoError(t, f.Hub().Create(t.Context(), r))
	DeleteAfterTest(t, f.Hub(), r.DeepCopy())
	AwaitCondition(t, "the PruneReport", func() bool {
		return f.Hub().Get(t.Context(), client.ObjectKeyFromObject(r), r) == nil && r.Status.Phase == v1alpha1.PruneReportComplete
	}, func() string { return fmt.Sprintf("%+v", r.Status) })
	require.EqualValues(t, len(images), r.Status.Candidates.Count, "%+v", r.Status)

	me := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, f.Hub().Create(t.Context(), me))
	p := &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: "journey"},
		Spec: v1alpha1.ImagePruneSpec{
			ReportRef:  v1alpha1.PruneReportRef{Name: r.Name, Digest: r.Status.Digest},
			UndoWindow: &metav1.Duration{Duration: time.Second}, ApprovedBy: me.Status.UserInfo.Username,
		},
	}
	require.NoError(t, f.Hub().Create(t.Context(), p))
	DeleteAfterTest(t, f.Hub(), p.DeepCopy())
	AwaitCondition(t, "the ImagePrune", func() bool {
		return f.Hub().Get(t.Context(), client.ObjectKeyFromObject(p), p) == nil && p.Status.Phase == v1alpha1.ImagePruneComplete
	}, func() string { return fmt.Sprintf("%+v", p.Status) })
	assert.EqualValues(t, len(images), p.Status.Targets.Pruned, "%+v", p.Status)
	for _, m := range f.Members() {
		awaitGone(ctx, t, m, images[m.Name].DeepCopy())
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: images[m.Name].Status.Serving.PersistentVolumeClaim}}
		awaitGone(ctx, t, m, claim)
	}
}

func testBudgetHolds(t *testing.T, f Fleet) {
	SetPolicy(t, f, map[string]string{"concurrency": "2"})
	m := f.Members()[0]
	o := ObserveMember(t, m)
	var images []*v1alpha1.VMDiskImage
	for i := range 5 {
		name := fmt.Sprintf("journey-budget-%d", i)
		images = append(images, CreateImage(t, m, name, f.ImageSpec(SlowDownload, name)))
	}
	for _, img := range images {
		AwaitReadyImage(t, f, m, img.Name)
	}
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, 2, h.MaxRunning(), "the budget is used")
	assert.Empty(t, h.OrderViolations())
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), img.Name)
	}
}

func testFailingSource(t *testing.T, f Fleet) {
	SetPolicy(t, f, map[string]string{"retryLimit": "2", "retryBackoffDuration": "1s"})
	for _, m := range f.Members() {
		o := ObserveMember(t, m)
		img := CreateImage(t, m, "journey-failing-"+m.Name, f.ImageSpec(FailingDownload, "journey-failing-"+m.Name))
		failed := AwaitImage(t, m, img.Name, "failed", HasPhase(v1alpha1.PhaseFailed))
		assert.True(t, meta.IsStatusConditionTrue(failed.Status.Conditions, v1alpha1.ConditionStalled), "a pipeline that waits for the image has to stop")
		before, counted := f.SourceRequests(t, img.Spec)
		h := testenv.History(t, o)
		assert.Equal(t, 3, h.Attempts(img.UID), "retryLimit + 1 in %s", m.Name)

		// A further attempt would start before the next image's download ends.
		after := "journey-after-" + m.Name
		AwaitReadyImage(t, f, m, CreateImage(t, m, after, f.ImageSpec(SlowDownload, after)).Name)
		h = testenv.History(t, o)
		assert.Equal(t, 3, h.Attempts(img.UID), "further attempts in %s", m.Name)
		if after, _ := f.SourceRequests(t, img.Spec); counted {
			assert.Equal(t, before, after, "further requests by %s", m.Name)
			assert.EqualValues(t, 3, after.Gets, "one GET per attempt")
			assert.Zero(t, h.Restarts(img.UID), "restarted importer containers in %s", m.Name)
		}
	}
}

func testAgentKilled(t *testing.T, f Fleet) {
	SetPolicy(t, f, map[string]string{"concurrency": "1"})
	for _, m := range f.Members() {
		o := ObserveMember(t, m)
		var images []*v1alpha1.VMDiskImage
		for i := range 2 {
			name := fmt.Sprintf("journey-killed-%s-%d", m.Name, i)
			images = append(images, CreateImage(t, m, name, f.ImageSpec(SlowDownload, name)))
		}
		AwaitImage(t, m, images[0].Name, "syncing", HasPhase(v1alpha1.PhaseSyncing))
		AwaitCondition(t, "the first bytes of "+images[0].Name, func() bool {
			asked, counted := f.SourceRequests(t, images[0].Spec)
			return !counted || asked.Bytes > 0
		}, func() string { return "none yet" })
		f.KillAgent(t, m)
		for _, img := range images {
			AwaitReadyImage(t, f, m, img.Name)
		}
		h := testenv.History(t, o)
		assert.Empty(t, h.BudgetViolations(), m.Name)
		for _, img := range images {
			assert.Equal(t, 1, h.Attempts(img.UID), "attempts at %s in %s", img.Name, m.Name)
		}
	}
}

func testHubKilled(t *testing.T, f Fleet) {
	SetPolicy(t, f, map[string]string{"concurrency": "2"})
	observers := map[string]*observer.Observer{}
	for _, m := range f.Members() {
		observers[m.Name] = ObserveMember(t, m)
	}
	img := NewFleetImage(f, "journey-hub")
	img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
	CreateFleetImage(t, f, img)
	AwaitFleetImage(t, f, img.Name, "in the first cluster", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Clusters.Succeeded > 0 })
	f.KillHub(t)
	AwaitFleetImage(t, f, img.Name, "in all clusters", IsSucceeded)
	for _, m := range f.Members() {
		ready := AwaitReadyImage(t, f, m, img.ImageNameForVersion("1"))
		assert.Equal(t, 1, testenv.History(t, observers[m.Name]).Attempts(ready.UID), m.Name)
	}
}

func testNetworkCut(t *testing.T, f Fleet) {
	// Where nodes lose the source as well, a download may need another attempt.
	SetPolicy(t, f, map[string]string{"concurrency": "2", "retryBackoffDuration": "1s"})
	members := f.Members()
	far := members[len(members)-1]
	var queued []*v1alpha1.VMDiskImage
	for i := range 3 {
		name := fmt.Sprintf("journey-cut-queued-%d", i)
		queued = append(queued, CreateImage(t, far, name, f.ImageSpec(SlowDownload, name)))
	}
	mend := f.CutNetwork(t, far)
	awaitMemberCluster(t.Context(), t, f, far.Name, "Ready=False", func(mc *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionFalse(mc.Status.Conditions, v1alpha1.ConditionReady)
	})
	img := NewFleetImage(f, "journey-cut")
	CreateFleetImage(t, f, img)
	for _, m := range members[:len(members)-1] {
		AwaitReadyImage(t, f, m, img.ImageNameForVersion("1"))
	}
	AwaitFleetImage(t, f, img.Name, "in all clusters but one", func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Clusters.Succeeded == int32(len(members)-1) && img.Status.Clusters.Deferred == 1
	})
	mend()
	awaitMemberCluster(t.Context(), t, f, far.Name, "its newest plan applied", isPlanAcknowledged)
	ledger := &v1alpha1.SyncLedger{}
	require.NoError(t, far.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger))
	assert.EqualValues(t, 2, ledger.Status.Budget, "the budget of %s while it was disconnected", far.Name)
	for _, img := range queued {
		AwaitReadyImage(t, f, far, img.Name)
	}
	AwaitReadyImage(t, f, far, img.ImageNameForVersion("1"))
	AwaitFleetImage(t, f, img.Name, "in all clusters", func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Clusters.Succeeded == int32(len(members))
	})
}

// setMemberLabel sets a label of a MemberCluster until the test ends.
func setMemberLabel(t *testing.T, f Fleet, m Member, key, value string) {
	t.Helper()
	set := func(ctx context.Context, value string) error {
		mc := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
		return f.Hub().Patch(ctx, mc, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, value)))
	}
	require.NoError(t, set(t.Context(), fmt.Sprintf("%q", value)))
	t.Cleanup(func() { require.NoError(t, set(context.Background(), "null")) })
}
