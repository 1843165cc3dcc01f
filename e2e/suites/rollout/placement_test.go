//go:build linux

package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A cluster that several waves select is of the first one; a wave that selects
// none is over at once, and the message says so; who is excluded is not placed,
// selected and named or not.
func TestOverlappingAndEmptySelectors(t *testing.T) {
	testenv.RunInTurn(t, 7)
	t.Parallel()
	img := shared.newFleetImage("overlap", bergen)
	img.Spec.Placement = v1alpha1.Placement{
		ClusterSelector: ptr.To(newSelector(labelSite, onlineMembers...)), ClusterNames: []string{bergen, "nobody"}, ExcludedClusters: []string{lab},
	}
	setOneAtATime(img, newWave("first", labelSite, edge), newWave("void", labelSite, "nobody"), newWave("second", labelRing, canary))
	name := img.ImageNameForVersion("1")
	shared.createFleetImage(t, img)
	done := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}), hasMessage("void"))
	for wave, want := range map[string]int32{"first": 1, "void": 0, "second": 1, v1alpha1.WaveRest: 1} {
		assert.True(t, hasWaveCounts(wave, v1alpha1.ClusterCounts{Total: want, Succeeded: want})(done), "%s: %+v", wave, done.Status.Waves)
	}
	assert.Equal(t, []string{edge, bergen, frankfurt}, shared.journal.imageCourse(t, name).begun)
	assert.Nil(t, shared.findPlannedImage(t, lab, name))
	assert.Nil(t, shared.Members[lab].GetImage(t, name))
}

// A placement of nobody waits until a cluster comes to be selected.
func TestEmptyPlacement(t *testing.T) {
	testenv.RunInTurn(t, 8)
	t.Parallel()
	const label = "placed-later"
	img := shared.newFleetImage("nobody", bergen)
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}}}
	shared.createFleetImage(t, img)
	waiting := shared.awaitFleetImage(t, img, "waits for clusters", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonNoClusters))
	requireAllConditions(t, waiting)
	assert.False(t, isConditionTrue(waiting, v1alpha1.ConditionFinished))
	shared.relabelMember(t, lab, label, "yes")
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 1, Succeeded: 1}))
	shared.Members[lab].AwaitPhase(t, img.ImageNameForVersion("1"), v1alpha1.PhaseSucceeded)

	// Neither a selector of no cluster nor one that cannot be read changes a plan.
	shared.updateFleetImage(t, img, func() { img.Spec.Placement.ClusterSelector.MatchLabels[label] = "yess" })
	shared.awaitFleetImage(t, img, "selects no cluster", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonNoClusters))
	shared.awaitFreshPlans(t, "nobody-yet", lab)
	assert.NotNil(t, shared.findPlannedImage(t, lab, img.ImageNameForVersion("1")))
	shared.updateFleetImage(t, img, func() {
		img.Spec.Placement.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": "yes"}}
	})
	shared.awaitFleetImage(t, img, "cannot be read", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonSelectorInvalid), hasMessage("not a label"))
	shared.awaitFreshPlans(t, "nobody-beside", lab)
	assert.NotNil(t, shared.findPlannedImage(t, lab, img.ImageNameForVersion("1")))
}

// Selectors that change while a rollout runs: a cluster that had not started never starts,
// one that had started keeps what it has, and a new one starts in its turn.
func TestPlacementChangesDuringRollout(t *testing.T) {
	testenv.RunInTurn(t, 9)
	t.Parallel()
	img := shared.newFleetImage("replaced", bergen)
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: ptr.To(newSelector(labelSite, bergen, edge, frankfurt))}
	setOneAtATime(img)
	name := img.ImageNameForVersion("1")
	release := shared.Members[bergen].HoldImports(t, name)
	shared.createFleetImage(t, img)
	shared.Members[bergen].AwaitPhase(t, name, v1alpha1.PhaseSyncing)
	shared.updateFleetImage(t, img, func() { img.Spec.Placement.ClusterSelector = ptr.To(newSelector(labelSite, frankfurt, lab)) })
	shared.awaitFleetImage(t, img, "rolled out elsewhere", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	assert.Equal(t, []string{bergen, frankfurt, lab}, shared.journal.imageCourse(t, name).begun)
	assert.Nil(t, shared.findPlannedImage(t, bergen, name))
	assert.True(t, plansRetention(shared.getHubPlan(t, bergen), name), "a machine there may need it")
	release()
	shared.Members[bergen].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
	assert.Nil(t, shared.Members[edge].GetImage(t, name))

	// Placed again, it has the image already.
	shared.updateFleetImage(t, img, func() { img.Spec.Placement.ClusterSelector = ptr.To(newSelector(labelSite, bergen, frankfurt, lab)) })
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	assert.NotNil(t, shared.findPlannedImage(t, bergen, name))
	assert.Equal(t, 1, shared.Members[bergen].countDownloads(t, name))
}

// A member that is given other labels while a rollout runs goes out of its wave
// and into another, and out of the placement, as if it had always had them.
func TestRelabelledClusterIsAdded(t *testing.T) {
	testenv.RunInTurn(t, 10)
	t.Parallel()
	const label = "stage"
	for cluster, stage := range map[string]string{bergen: "early", edge: "early", frankfurt: "other", lab: "other"} {
		shared.relabelMember(t, cluster, label, stage)
	}
	img := shared.newFleetImage("relabelled", bergen)
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: ptr.To(newSelector(label, "early", "other"))}
	setOneAtATime(img, newWave("early", label, "early"))
	name := img.ImageNameForVersion("1")
	release := shared.Members[bergen].HoldImports(t, name)
	shared.createFleetImage(t, img)
	shared.awaitFleetImage(t, img, "on its way to the first", hasReason(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency),
		hasWaveCounts("early", v1alpha1.ClusterCounts{Total: 2, Progressing: 1, ToApply: 1}))
	shared.relabelMember(t, edge, label, "other")
	shared.relabelMember(t, frankfurt, label, "none")
	shared.awaitFleetImage(t, img, "the waves are others", hasCounts(v1alpha1.ClusterCounts{Total: 3, Progressing: 1, ToApply: 2}),
		hasWaveCounts("early", v1alpha1.ClusterCounts{Total: 1, Progressing: 1}), hasWaveCounts(v1alpha1.WaveRest, v1alpha1.ClusterCounts{Total: 2, ToApply: 2}))
	release()
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	course := shared.journal.imageCourse(t, name)
	assert.Equal(t, []string{bergen, edge, lab}, course.begun)
	assert.Equal(t, 1, course.most)

	// Outside the placement, the image stays and is no longer requested; back inside,
	// nothing is downloaded.
	shared.relabelMember(t, edge, label, "none")
	shared.awaitFleetImage(t, img, "edge is out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	shared.awaitPlan(t, edge, "without it", func(p *v1alpha1.ClusterPlan) bool { return plannedImage(p, name) == nil && plansRetention(p, name) })
	require.NotNil(t, shared.Members[edge].GetImage(t, name))
	shared.relabelMember(t, edge, label, "early")
	shared.awaitFleetImage(t, img, "edge is back", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	assert.Equal(t, 1, shared.Members[edge].countDownloads(t, name))
}
