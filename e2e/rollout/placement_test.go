//go:build linux

package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A cluster that several waves select is of the first one; a wave that selects
// none is over at once, and the message says so; who is excluded is not placed,
// selected and named or not.
func TestSelectorsOverlapAndMatchNothing(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("overlap", bergen)
	img.Spec.Placement = v1alpha1.Placement{
		ClusterSelector: ptr.To(selector(labelSite, online...)), ClusterNames: []string{bergen, "nobody"}, ExcludedClusters: []string{lab},
	}
	oneAtATime(img, wave("first", labelSite, edge), wave("void", labelSite, "nobody"), wave("second", labelRing, canary))
	name := img.VMDiskImage("1")
	shared.apply(t, img)
	done := shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}), says("void"))
	for wave, want := range map[string]int32{"first": 1, "void": 0, "second": 1, v1alpha1.WaveRest: 1} {
		assert.True(t, waveCounts(wave, v1alpha1.ClusterCounts{Total: want, Succeeded: want})(done), "%s: %+v", wave, done.Status.Waves)
	}
	assert.Equal(t, []string{edge, bergen, frankfurt}, shared.journal.course(t, name).begun)
	assert.Nil(t, shared.planned(t, lab, name))
	assert.Nil(t, shared.sites[lab].image(t, name))
}

// A placement of nobody waits until a cluster comes to be selected.
func TestPlacementOfNobody(t *testing.T) {
	t.Parallel()
	const label = "placed-later"
	img := shared.fleetImage("nobody", bergen)
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}}}
	shared.apply(t, img)
	waiting := shared.eventually(t, img, "waits for clusters", because(v1alpha1.RolloutWaiting, v1alpha1.ReasonNoClusters))
	everyCondition(t, waiting)
	assert.False(t, holds(waiting, v1alpha1.ConditionFinished))
	shared.relabel(t, lab, label, "yes")
	shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 1, Succeeded: 1}))
	shared.sites[lab].has(t, img.VMDiskImage("1"), v1alpha1.PhaseSucceeded)

	// A selector that cannot be read changes nothing.
	shared.change(t, img, func() {
		img.Spec.Placement.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": "yes"}}
	})
	shared.eventually(t, img, "cannot be read", because(v1alpha1.RolloutWaiting, v1alpha1.ReasonSelectorInvalid), says("not a label"))
	shared.pulse(t, "nobody-beside", lab)
	assert.NotNil(t, shared.planned(t, lab, img.VMDiskImage("1")))
}

// Selectors that change while a rollout runs: who had not begun is never asked,
// who had begun is not asked any more and keeps what it has, who is new begins in
// its turn.
func TestPlacementChangesOnTheWay(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("replaced", bergen)
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: ptr.To(selector(labelSite, bergen, edge, frankfurt))}
	oneAtATime(img)
	name := img.VMDiskImage("1")
	release := shared.sites[bergen].hold(t, name)
	shared.apply(t, img)
	shared.sites[bergen].has(t, name, v1alpha1.PhaseSyncing)
	shared.change(t, img, func() { img.Spec.Placement.ClusterSelector = ptr.To(selector(labelSite, frankfurt, lab)) })
	shared.eventually(t, img, "rolled out elsewhere", succeeded, counts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	assert.Equal(t, []string{bergen, frankfurt, lab}, shared.journal.course(t, name).begun)
	assert.Nil(t, shared.planned(t, bergen, name))
	assert.True(t, keeps(shared.hubPlan(t, bergen), name), "a machine there may need it")
	release()
	shared.sites[bergen].has(t, name, v1alpha1.PhaseSucceeded)
	assert.Nil(t, shared.sites[edge].image(t, name))

	// Placed again, it has the image already.
	shared.change(t, img, func() { img.Spec.Placement.ClusterSelector = ptr.To(selector(labelSite, bergen, frankfurt, lab)) })
	shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	assert.NotNil(t, shared.planned(t, bergen, name))
	assert.Equal(t, 1, shared.sites[bergen].downloads(t, name))
}

// A member that is given other labels while a rollout runs goes out of its wave
// and into another, and out of the placement, as if it had always had them.
func TestClusterIsRelabelled(t *testing.T) {
	t.Parallel()
	const label = "stage"
	for cluster, stage := range map[string]string{bergen: "early", edge: "early", frankfurt: "other", lab: "other"} {
		shared.relabel(t, cluster, label, stage)
	}
	img := shared.fleetImage("relabelled", bergen)
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: ptr.To(selector(label, "early", "other"))}
	oneAtATime(img, wave("early", label, "early"))
	name := img.VMDiskImage("1")
	release := shared.sites[bergen].hold(t, name)
	shared.apply(t, img)
	shared.eventually(t, img, "on its way to the first", because(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency),
		waveCounts("early", v1alpha1.ClusterCounts{Total: 2, Progressing: 1, ToApply: 1}))
	shared.relabel(t, edge, label, "other")
	shared.relabel(t, frankfurt, label, "none")
	shared.eventually(t, img, "the waves are others", counts(v1alpha1.ClusterCounts{Total: 3, Progressing: 1, ToApply: 2}),
		waveCounts("early", v1alpha1.ClusterCounts{Total: 1, Progressing: 1}), waveCounts(v1alpha1.WaveRest, v1alpha1.ClusterCounts{Total: 2, ToApply: 2}))
	release()
	shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	course := shared.journal.course(t, name)
	assert.Equal(t, []string{bergen, edge, lab}, course.begun)
	assert.Equal(t, 1, course.most)

	// Out of the placement, what it has stays and is not asked for any more; back in
	// it, nothing is downloaded.
	shared.relabel(t, edge, label, "none")
	shared.eventually(t, img, "edge is out", succeeded, counts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	shared.awaitPlan(t, edge, "without it", func(p *v1alpha1.ClusterPlan) bool { return plannedImage(p, name) == nil && keeps(p, name) })
	require.NotNil(t, shared.sites[edge].image(t, name))
	shared.relabel(t, edge, label, "early")
	shared.eventually(t, img, "edge is back", succeeded, counts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	assert.Equal(t, 1, shared.sites[edge].downloads(t, name))
}
