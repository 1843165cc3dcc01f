//go:build linux

package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A version in two waves, one cluster at a time: whoever begins does so when the
// one before has said that it has the image, and the rest when both of the canary
// wave have had it for long enough.
func TestTwoWaves(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("two-waves", onlineMembers...)
	setOneAtATime(img, newWave(canary, labelRing, canary))
	soak := metav1.Duration{Duration: 15 * time.Second}
	img.Spec.Rollout.Waves[0].MinSuccessTime = &metav1.Duration{Duration: time.Hour}
	name := img.ImageNameForVersion("1")
	most := shared.watchConcurrency(t, name, onlineMembers...)
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "waits for the canaries to have been there for long enough",
		hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonMinSuccessTime), hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 2, ToApply: 2}))
	for _, cluster := range []string{frankfurt, lab} {
		assert.Nil(t, shared.findPlannedImage(t, cluster, name), cluster)
		assert.Nil(t, shared.Members[cluster].GetImage(t, name), cluster)
	}
	want := []readapi.RolloutCluster{
		{Cluster: frankfurt, Wave: v1alpha1.WaveRest, State: v1alpha1.ClusterToApply},
		{Cluster: lab, Wave: v1alpha1.WaveRest, State: v1alpha1.ClusterToApply},
	}
	require.EventuallyWithT(t, func(check *assert.CollectT) { // the hub's cache is a moment behind
		left, err := shared.Hub.ListRolloutClusters(t.Context(), img.Name, v1alpha1.ClusterToApply)
		require.NoError(check, err)
		assert.Equal(check, want, left)
	}, testenv.Patience, 50*time.Millisecond)
	shared.updateFleetImage(t, img, func() { img.Spec.Rollout.Waves[0].MinSuccessTime = &soak })
	done := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}),
		hasWaveCounts(canary, v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}), hasWaveCounts(v1alpha1.WaveRest, v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	requireAllConditions(t, done)
	assert.Empty(t, done.Status.CurrentWave)
	require.Len(t, done.Status.Versions, 1)
	assert.Equal(t, name, done.Status.Versions[0].Image)
	assert.Equal(t, img.Spec.Template.Revision(), done.Status.Versions[0].Revision)

	var told readapi.Rollout
	require.True(t, testenv.AwaitCondition(t, func() bool { // the hub's cache is a moment behind
		var err error
		told, err = shared.Hub.GetRollout(t.Context(), img.Name)
		require.NoError(t, err)
		return told.Clusters == done.Status.Clusters && told.Phase == v1alpha1.RolloutSucceeded
	}), "the read API tells %+v, want %+v", &told, done.Status.Clusters)
	matrix, err := shared.Hub.ListRolloutClusters(t.Context(), img.Name, "")
	require.NoError(t, err)
	require.Len(t, matrix, len(onlineMembers))
	for i, cluster := range onlineMembers {
		assert.NotNil(t, matrix[i].StartedAt, cluster)
		matrix[i].StartedAt = nil
		assert.Equal(t, readapi.RolloutCluster{Cluster: cluster, Wave: []string{canary, v1alpha1.WaveRest}[i/2], State: v1alpha1.ClusterSucceeded}, matrix[i])
	}
	shared.awaitEvent(t, img, v1alpha1.ReasonRolledOut)

	course := shared.journal.imageCourse(t, name)
	assert.Equal(t, 1, course.most, "clusters on their way at a time, by plans and reports")
	assert.Equal(t, 1, most(t), "members that had the image on its way at a time")
	assert.Equal(t, onlineMembers, course.begun, "the canaries first, and by name")
	assert.Equal(t, onlineMembers, course.ended)
	assert.Empty(t, course.moved)
	at := slices.IndexFunc(done.Status.Waves, func(w v1alpha1.WaveStatus) bool { return w.Name == canary })
	require.NotNil(t, done.Status.Waves[at].DoneAt)
	planned := shared.findPlannedImage(t, frankfurt, name)
	require.NotNil(t, planned)
	// Both times are stored in whole seconds.
	assert.GreaterOrEqual(t, planned.PlannedAt.Sub(done.Status.Waves[at].DoneAt.Time), soak.Duration-time.Second)
	for _, cluster := range onlineMembers {
		there := shared.Members[cluster].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
		assert.Equal(t, "true", there.Labels[v1alpha1.LabelPlanned], cluster)
		assert.Equal(t, img.Spec.Template.URL, there.Spec.URL, cluster)
		assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, name), cluster)
		reported := shared.GetReportedImage(t, cluster, name)
		assert.Equal(t, v1alpha1.OriginPlan, reported.Origin, cluster)
		assert.Equal(t, there.Status.Revision, reported.ServingRevision, cluster)
	}
}

// A version that takes the place of another on its way goes through all waves
// from the first one. Who had not begun never gets the former one.
func TestNewVersionDuringWave(t *testing.T) {
	testenv.RunInTurn(t, 14)
	t.Parallel()
	img := shared.newFleetImage("moves-on", onlineMembers...)
	setOneAtATime(img, newWave(canary, labelRing, canary))
	first, second := img.ImageNameForVersion("1"), img.ImageNameForVersion("2")
	release := shared.Members[bergen].HoldImports(t, first)
	shared.createFleetImage(t, img)
	shared.Members[bergen].AwaitPhase(t, first, v1alpha1.PhaseSyncing)
	shared.awaitFleetImage(t, img, "on its way to the first", hasReason(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency),
		hasCounts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))

	shared.updateFleetImage(t, img, func() { shared.setVersion(img, "2") })
	done := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	require.Len(t, done.Status.Versions, 2)
	assert.Equal(t, []string{"2", "1"}, []string{done.Status.Versions[0].Version, done.Status.Versions[1].Version})
	course := shared.journal.imageCourse(t, second)
	assert.Equal(t, onlineMembers, course.begun)
	assert.Equal(t, 1, course.most)
	assert.Equal(t, []string{bergen}, shared.journal.imageCourse(t, first).begun)
	for _, cluster := range []string{edge, frankfurt, lab} {
		assert.Nil(t, shared.Members[cluster].GetImage(t, first), cluster)
		assert.Zero(t, shared.Members[cluster].countDownloads(t, first), cluster)
	}
	for _, cluster := range onlineMembers {
		plan := shared.getHubPlan(t, cluster)
		assert.True(t, plansRetention(plan, first), "%s: the version before is kept, by default", cluster)
		assert.Nil(t, plannedImage(plan, first), cluster)
	}

	// What was on its way goes on, and is kept.
	release()
	shared.Members[bergen].AwaitPhase(t, first, v1alpha1.PhaseSucceeded)
	assert.Equal(t, 1, shared.Members[bergen].countDownloads(t, first))

	// A version that comes back, by the template that the status has recorded of it, is there
	// already: nothing is downloaded twice.
	shared.updateFleetImage(t, img, func() {
		former := img.Status.Versions[1]
		require.NotNil(t, former.Template)
		img.Spec.Version, img.Spec.Template = former.Version, *img.Spec.Template.WithSourceFields(former.Template)
	})
	back := shared.awaitFleetImage(t, img, "rolled back", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	require.Len(t, back.Status.Versions, 2)
	assert.Equal(t, "1", back.Status.Versions[0].Version)
	assert.Equal(t, done.Status.Versions[1].Revision, back.Status.Versions[0].Revision)
	for _, cluster := range onlineMembers {
		shared.Members[cluster].AwaitPhase(t, first, v1alpha1.PhaseSucceeded)
		shared.Members[cluster].AwaitPhase(t, second, v1alpha1.PhaseSucceeded)
		assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, first), cluster)
	}
}

// A source that changes under one version is rolled out as well, as another
// revision of the same images, and as slowly. Who is not there yet keeps what it
// has.
func TestChangedSourceUnderSameVersion(t *testing.T) {
	testenv.RunInTurn(t, 13)
	t.Parallel()
	img := shared.newFleetImage("same-version", onlineMembers...)
	setOneAtATime(img)
	name := img.ImageNameForVersion("1")
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	before := img.Spec.Template.Revision()

	release := shared.Members[bergen].HoldImports(t, name)
	shared.updateFleetImage(t, img, func() { img.Spec.Template.URL += "?again" })
	shared.awaitFleetImage(t, img, "on its way to the first", hasReason(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency),
		hasCounts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))
	for _, cluster := range []string{edge, frankfurt, lab} {
		planned := shared.findPlannedImage(t, cluster, name)
		require.NotNil(t, planned, cluster)
		assert.Equal(t, before, planned.Spec.Revision(), cluster)
	}
	release()
	shared.awaitFleetImage(t, img, "rolled out again", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	course := shared.journal.imageCourse(t, name)
	assert.Equal(t, append(slices.Clone(onlineMembers), onlineMembers...), course.begun)
	assert.Equal(t, 1, course.most)
	for _, cluster := range onlineMembers {
		there := shared.Members[cluster].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
		assert.Equal(t, img.Spec.Template.Revision(), there.Status.Revision, cluster)
		assert.Equal(t, 2, shared.Members[cluster].countDownloads(t, name), cluster)
	}
}

// A wave may have more on their way than the others, and a part of it is rounded
// down, to one at least.
func TestWaveMaxConcurrency(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("concurrency", onlineMembers...)
	setOneAtATime(img, newWave("three", labelSite, bergen, edge, frankfurt))
	img.Spec.Rollout.Waves[0].MaxConcurrency = ptr.To(percent("70%"))
	name := img.ImageNameForVersion("1")
	releases := []func(){shared.Members[bergen].HoldImports(t, name), shared.Members[edge].HoldImports(t, name)}
	most := shared.watchConcurrency(t, name, onlineMembers...)
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "two of three on their way", hasReason(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency),
		hasCounts(v1alpha1.ClusterCounts{Total: 4, Progressing: 2, ToApply: 2}))
	shared.awaitFreshPlans(t, "concurrency-beside", onlineMembers...)
	assert.ElementsMatch(t, []string{bergen, edge}, shared.journal.imageCourse(t, name).begun, "plans of those that begin together are written in any order")
	for _, release := range releases {
		release()
	}
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	assert.Equal(t, 2, shared.journal.imageCourse(t, name).most)
	assert.LessOrEqual(t, most(t), 2)
}
