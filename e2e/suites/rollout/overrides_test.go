//go:build linux

package rollout_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// TestOverrides has clusters that get unlike sources of one version: what an override or a label
// changes waits for pause and approval, and only the clusters that it changes import again.
func TestOverrides(t *testing.T) {
	t.Parallel()
	const label = "overrides-site"
	me := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, shared.Create(t.Context(), me))
	for cluster, site := range map[string]string{bergen: "north", edge: "north", frankfurt: ""} {
		shared.relabelMember(t, cluster, label, site)
	}
	clusters := []string{bergen, edge, frankfurt}
	img := shared.newFleetImage("overridden", clusters...)
	img.Spec.Rollout.Waves = []v1alpha1.Wave{newWave(canary, labelSite, bergen), newWave("late", labelSite, edge, frankfurt)}
	img.Spec.Rollout.Waves[1].RequireApproval = true
	late := newSelector(labelSite, edge, frankfurt)
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterSelector: &late, URL: ptr.To(shared.source.URL + "/${labels." + label + "}/overridden.qcow2")},
		{ClusterNames: []string{frankfurt}, StorageClass: ptr.To(simulator.ClassLocal)},
	}
	name := img.ImageNameForVersion("1")
	shared.createFleetImage(t, img)
	urlOf := func(cluster string) string { return shared.findPlannedImage(t, cluster, name).Spec.URL }
	requireDownloads := func(want map[string]int) {
		t.Helper()
		got := map[string]int{}
		for _, cluster := range clusters {
			got[cluster] = shared.Members[cluster].countDownloads(t, name)
		}
		require.Equal(t, want, got)
	}
	approve := func() {
		t.Helper()
		shared.updateFleetImage(t, img, func() {
			pending := img.Status.PendingApproval
			require.NotNil(t, pending)
			sources := slices.Clone(pending.Sources)
			img.Spec.Approvals = slices.DeleteFunc(img.Spec.Approvals, func(a v1alpha1.Approval) bool {
				sources = append(sources, a.Sources...)
				return a.Wave == pending.Wave
			})
			img.Spec.Approvals = append(img.Spec.Approvals, v1alpha1.Approval{Wave: pending.Wave, Version: img.Spec.Version, Sources: sources, By: me.Status.UserInfo.Username})
		})
	}

	// frankfurt lacks the label: it has no source that could be approved of.
	waits := shared.awaitFleetImage(t, img, "waits for approval of one source", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval),
		hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 1, ToApply: 2}), hasMessage("approval of 1 source"))
	require.Len(t, waits.Status.PendingApproval.Sources, 1)
	applied := meta.FindStatusCondition(waits.Status.Conditions, v1alpha1.ConditionOverridesApplied)
	require.NotNil(t, applied)
	assert.Equal(t, v1alpha1.ReasonLabelMissing, applied.Reason)
	assert.Contains(t, applied.Message, "1 cluster (frankfurt) cannot begin")
	approve()
	lacks := shared.awaitFleetImage(t, img, "waits for the label", hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 2, ToApply: 1}),
		func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Reason == v1alpha1.ReasonLabelMissing })
	require.Len(t, lacks.Status.Blocked, 1)
	assert.Equal(t, []string{frankfurt, v1alpha1.ReasonLabelMissing}, []string{lacks.Status.Blocked[0].Cluster, lacks.Status.Blocked[0].Reason})
	requireDownloads(map[string]int{bergen: 1, edge: 1, frankfurt: 0})
	assert.Equal(t, shared.source.URL+"/north/overridden.qcow2", urlOf(edge))
	assert.Equal(t, img.Spec.Template.URL, urlOf(bergen))

	// With its label it has a source of its own, by storage and link.
	shared.relabelMember(t, frankfurt, label, "south")
	shared.awaitFleetImage(t, img, "waits for approval of another source", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval))
	approve()
	done := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	assert.True(t, isConditionTrue(done, v1alpha1.ConditionOverridesApplied))
	assert.Equal(t, simulator.ClassLocal, shared.Members[frankfurt].AwaitPhase(t, name, v1alpha1.PhaseSucceeded).Spec.StorageClass)
	assert.Equal(t, shared.source.URL+"/south/overridden.qcow2", urlOf(frankfurt))
	requireDownloads(map[string]int{bergen: 1, edge: 1, frankfurt: 1})

	// Paused, an override that changes moves nothing.
	shared.updateFleetImage(t, img, func() {
		img.Spec.Rollout.Paused = true
		img.Spec.Overrides = append(img.Spec.Overrides, v1alpha1.ImageOverride{ClusterNames: []string{bergen}, DiskSize: ptr.To(resource.MustParse("2Gi"))})
	})
	shared.awaitFleetImage(t, img, "paused", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused), hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 2, ToApply: 1}))
	shared.awaitFreshPlans(t, "overridden-beside", clusters...)
	planned := shared.findPlannedImage(t, bergen, name)
	assert.Equal(t, "1Gi", planned.Spec.DiskSize.String())
	requireDownloads(map[string]int{bergen: 1, edge: 1, frankfurt: 1})
	shared.updateFleetImage(t, img, func() { img.Spec.Rollout.Paused = false })
	shared.awaitFleetImage(t, img, "bergen imported again", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	requireDownloads(map[string]int{bergen: 2, edge: 1, frankfurt: 1})

	// A label changes the source of one cluster: approved of again.
	shared.relabelMember(t, edge, label, "west")
	shared.awaitFleetImage(t, img, "waits for approval of the label", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval),
		hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 2, ToApply: 1}))
	assert.Equal(t, shared.source.URL+"/north/overridden.qcow2", urlOf(edge), "what serves stays")
	requireDownloads(map[string]int{bergen: 2, edge: 1, frankfurt: 1})
	approve()
	shared.awaitFleetImage(t, img, "edge imported again", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}))
	requireDownloads(map[string]int{bergen: 2, edge: 2, frankfurt: 1})
	assert.Equal(t, shared.source.URL+"/west/overridden.qcow2", urlOf(edge))
}
