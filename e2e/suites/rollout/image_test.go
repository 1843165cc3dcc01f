//go:build linux

package rollout_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// newFleetImage is version 1 of a FleetDiskImage for clusters by name, not created yet.
func (f *testFleet) newFleetImage(name string, clusters ...string) *v1alpha1.FleetDiskImage {
	img := fleet.NewFleetImage(name, clusters...)
	f.setVersion(img, "1")
	return img
}

// setVersion changes the version and with it the source.
func (f *testFleet) setVersion(img *v1alpha1.FleetDiskImage, version string) {
	img.Spec.Version = version
	img.Spec.Template.URL = fmt.Sprintf("%s/%s/%s.qcow2", f.source.URL, img.Name, version)
}

// setMissingSource sets a source that does not have the image.
func (f *testFleet) setMissingSource(img *v1alpha1.FleetDiskImage) {
	img.Spec.Template.URL = fmt.Sprintf("%s/missing/%s.qcow2", f.source.URL, img.Name)
}

// setOneAtATime sets waves and maxConcurrency 1.
func setOneAtATime(img *v1alpha1.FleetDiskImage, waves ...v1alpha1.Wave) {
	img.Spec.Rollout.Waves = waves
	img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
}

// newWave selects the members whose label has one of the values.
func newWave(name, label string, values ...string) v1alpha1.Wave {
	return v1alpha1.Wave{Name: name, ClusterSelector: newSelector(label, values...)}
}

func newSelector(label string, values ...string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpIn, Values: values}}}
}

// createFleetImage creates a FleetDiskImage until the test ends. Its images stay.
func (f *testFleet) createFleetImage(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	require.NoError(t, f.Create(t.Context(), img))
	f.deleteFleetImageAfter(t, img.Name)
}

// deleteFleetImageAfter deletes a FleetDiskImage when the test ends. Its images stay.
func (f *testFleet) deleteFleetImageAfter(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.Background()
		gone := &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: name}}
		require.NoError(t, client.IgnoreNotFound(f.Patch(ctx, gone, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"deletionPolicy":"Retain"}}`)))))
		require.NoError(t, client.IgnoreNotFound(f.Delete(ctx, gone)))
		f.AwaitGone(t, gone)
	})
}

// updateFleetImage changes the stored FleetDiskImage and retries on conflict.
func (f *testFleet) updateFleetImage(t *testing.T, img *v1alpha1.FleetDiskImage, how func()) {
	t.Helper()
	require.NoError(t, f.tryUpdateFleetImage(t.Context(), img, how))
}

// tryUpdateFleetImage is updateFleetImage for a change that may be refused.
func (f *testFleet) tryUpdateFleetImage(ctx context.Context, img *v1alpha1.FleetDiskImage, how func()) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := f.Get(ctx, client.ObjectKeyFromObject(img), img); err != nil {
			return err
		}
		how()
		return f.Update(ctx, img)
	})
}

// relabelMember sets a label of a MemberCluster until the test ends; "" removes it.
func (f *testFleet) relabelMember(t *testing.T, cluster, label, value string) {
	t.Helper()
	set := func(ctx context.Context, value string) error {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, label, value)
		if value == "" {
			patch = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, label)
		}
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: cluster}}
		return f.Patch(ctx, m, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	require.NoError(t, set(t.Context(), value))
	t.Cleanup(func() { require.NoError(t, set(context.Background(), "")) })
}

// awaitFleetImage reads a FleetDiskImage until its status observes the newest spec and meets
// all conditions.
func (f *testFleet) awaitFleetImage(t *testing.T, img *v1alpha1.FleetDiskImage, wanted string, holds ...func(*v1alpha1.FleetDiskImage) bool) *v1alpha1.FleetDiskImage {
	t.Helper()
	got, held := testenv.AwaitObject(t, f, client.ObjectKeyFromObject(img), func(got *v1alpha1.FleetDiskImage) bool {
		return got.Status.ObservedGeneration == got.Generation &&
			!slices.ContainsFunc(holds, func(hold func(*v1alpha1.FleetDiskImage) bool) bool { return !hold(got) })
	})
	if !held {
		require.Failf(t, "FleetDiskImage "+img.Name+" is not as wanted: "+wanted, "%s\nthe hub's log is %s", describeFleetImage(got), f.Hub.LogFile())
	}
	requireExpectation(t, got)
	return got
}

// requireExpectation: while clusters are unfinished there is either a time, after all that has
// happened, or the reason why there is none.
func requireExpectation(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	st := &img.Status
	switch {
	case st.ExpectedAt != nil:
		assert.Empty(t, st.ExpectedReason)
		assert.Positive(t, st.Clusters.ToApply+st.Clusters.Progressing)
		if st.LastSuccessAt != nil {
			assert.True(t, st.ExpectedAt.After(st.LastSuccessAt.Time), "expectedAt %s lies before the last success at %s", st.ExpectedAt, st.LastSuccessAt)
		}
	case st.Clusters.ToApply+st.Clusters.Progressing > 0:
		assert.NotEmpty(t, st.ExpectedReason)
	}
}

// awaitEvent waits for an event about a FleetDiskImage.
func (f *testFleet) awaitEvent(t *testing.T, img *v1alpha1.FleetDiskImage, reason string) {
	t.Helper()
	var reasons []string
	require.True(t, testenv.AwaitCondition(t, func() bool {
		reasons = nil
		var list eventsv1.EventList
		require.NoError(t, f.List(t.Context(), &list))
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Kind == "FleetDiskImage" && e.Regarding.Name == img.Name {
				reasons = append(reasons, e.Reason)
			}
		}
		return slices.Contains(reasons, reason)
	}), "no event %s about %s, but %q", reason, img.Name, &reasons)
}

func describeFleetImage(img *v1alpha1.FleetDiskImage) string {
	st := img.Status
	text := fmt.Sprintf("generation %d of %d, version %s, %s, %s: %s\nclusters %+v, wave %q, waves %+v\nfailing %+v\nversions %+v",
		st.ObservedGeneration, img.Generation, img.Spec.Version, st.Phase, st.Reason, st.Message, st.Clusters, st.CurrentWave, st.Waves, st.Failing, st.Versions)
	for _, c := range st.Conditions {
		text += fmt.Sprintf("\n%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

// hasSucceeded reports a rollout that is finished without failure.
func hasSucceeded(img *v1alpha1.FleetDiskImage) bool {
	return img.Status.Phase == v1alpha1.RolloutSucceeded && isConditionTrue(img, v1alpha1.ConditionFinished) && isConditionTrue(img, v1alpha1.ConditionSucceeded)
}

// hasReason matches phase and reason.
func hasReason(phase v1alpha1.RolloutPhase, reason string) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Phase == phase && img.Status.Reason == reason
	}
}

// hasMessage matches words in the message.
func hasMessage(words ...string) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(img.Status.Message, word) })
	}
}

// hasCounts matches the number of clusters in each state.
func hasCounts(want v1alpha1.ClusterCounts) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Clusters == want }
}

// hasWaveCounts matches the number of a wave's clusters in each state.
func hasWaveCounts(name string, want v1alpha1.ClusterCounts) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool {
		return slices.ContainsFunc(img.Status.Waves, func(w v1alpha1.WaveStatus) bool { return w.Name == name && w.Clusters == want })
	}
}

// isConditionTrue reports whether a condition is True for the newest generation.
func isConditionTrue(img *v1alpha1.FleetDiskImage, condition string) bool {
	c := meta.FindStatusCondition(img.Status.Conditions, condition)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == img.Generation
}

// requireAllConditions requires all conditions for the newest generation.
func requireAllConditions(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	for _, kind := range []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled,
		v1alpha1.ConditionFinished, v1alpha1.ConditionSucceeded, v1alpha1.ConditionProgressing,
	} {
		if c := meta.FindStatusCondition(img.Status.Conditions, kind); assert.NotNil(t, c, kind) {
			assert.Equal(t, img.Generation, c.ObservedGeneration, kind)
		}
	}
}

// findPlannedImage returns an image in the hub's plan of a member; nil for none.
func (f *testFleet) findPlannedImage(t *testing.T, cluster, image string) *v1alpha1.PlannedImage {
	t.Helper()
	return plannedImage(f.getPlan(t, f, v1alpha1.MemberNamespacePrefix+cluster), image)
}

func plannedImage(plan *v1alpha1.ClusterPlan, image string) *v1alpha1.PlannedImage {
	at := slices.IndexFunc(plan.Spec.Images, func(p v1alpha1.PlannedImage) bool { return p.Name == image })
	if at < 0 {
		return nil
	}
	return &plan.Spec.Images[at]
}

func plansRetention(plan *v1alpha1.ClusterPlan, image string) bool {
	return slices.Contains(plan.Spec.Kept, v1alpha1.KeptImage{Namespace: namespace, Name: image})
}

func plansRetirement(plan *v1alpha1.ClusterPlan, image string) bool {
	return slices.ContainsFunc(plan.Spec.Retired, func(r v1alpha1.RetiredImage) bool { return r.Namespace == namespace && r.Name == image })
}

// getHubPlan returns the hub's plan of a member.
func (f *testFleet) getHubPlan(t *testing.T, cluster string) *v1alpha1.ClusterPlan {
	t.Helper()
	return f.getPlan(t, f, v1alpha1.MemberNamespacePrefix+cluster)
}

func (f *testFleet) getPlan(t *testing.T, from client.Reader, mailbox string) *v1alpha1.ClusterPlan {
	t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, client.IgnoreNotFound(from.Get(t.Context(), client.ObjectKey{Namespace: mailbox, Name: v1alpha1.MailboxName}, plan)))
	return plan
}

// awaitPlan waits until the member's copy of its plan meets a condition.
func (f *testFleet) awaitPlan(t *testing.T, cluster, wanted string, holds func(*v1alpha1.ClusterPlan) bool) {
	t.Helper()
	var plan *v1alpha1.ClusterPlan
	require.True(t, testenv.AwaitCondition(t, func() bool {
		plan = f.getPlan(t, f.Members[cluster], program.AgentNamespace)
		return holds(plan)
	}), "%s: the plan is not as wanted: %s\nimages %+v\nkept %+v\nretired %+v", cluster, wanted, &plan.Spec.Images, &plan.Spec.Kept, &plan.Spec.Retired)
}

// countDownloads counts the DataVolumes that the member created for an image.
func (s *testMember) countDownloads(t *testing.T, name string) (n int) {
	t.Helper()
	for _, start := range testenv.History(t, s.Observer).Creations() {
		if start.Name == name {
			n++
		}
	}
	return n
}

// assertDownloadedOnce checks that each of these clusters downloaded an image once.
func assertDownloadedOnce(t *testing.T, name string, clusters ...string) {
	t.Helper()
	for _, cluster := range clusters {
		assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, name), cluster)
	}
}

// awaitFreshPlans rolls another image out to clusters. Afterwards the hub has had the time to
// do to them what it must not do.
func (f *testFleet) awaitFreshPlans(t *testing.T, name string, clusters ...string) {
	t.Helper()
	img := f.newFleetImage(name, clusters...)
	f.createFleetImage(t, img)
	f.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	for _, cluster := range clusters {
		f.Members[cluster].AwaitPhase(t, img.ImageNameForVersion("1"), v1alpha1.PhaseSucceeded)
	}
}
