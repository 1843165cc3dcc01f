//go:build linux

package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func percent(text string) intstr.IntOrString { return intstr.FromString(text) }

// A template that can never succeed ends with the clusters that may fail. The
// others are told nothing of it, and nothing else in the fleet is held up.
func TestTemplateThatCanNeverSucceed(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("never", online...)
	shared.missing(img)
	oneAtATime(img)
	img.Spec.Rollout.MaxFailures = ptr.To(percent("25%"))
	name := img.VMDiskImage("1")
	budgets := map[string]int32{}
	for _, cluster := range online {
		budgets[cluster] = *scene.Member(t, shared, cluster).Status.Budget
	}
	shared.apply(t, img)
	// One may fail; the second one is one too many.
	failed := shared.eventually(t, img, "failed", because(v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures),
		counts(v1alpha1.ClusterCounts{Total: 4, Failed: 2, ToApply: 2}))
	everyCondition(t, failed)
	assert.True(t, holds(failed, v1alpha1.ConditionFinished))
	assert.False(t, holds(failed, v1alpha1.ConditionSucceeded))
	assert.True(t, holds(failed, v1alpha1.ConditionStalled))
	require.Len(t, failed.Status.Failing, 2)
	for i, cluster := range []string{bergen, edge} {
		failing := failed.Status.Failing[i]
		assert.Equal(t, cluster, failing.Cluster)
		assert.Equal(t, v1alpha1.ClusterFailed, failing.State)
		assert.Equal(t, string(v1alpha1.ReasonNotFound), failing.Reason)
		assert.Contains(t, failing.Message, "404")
	}

	shared.pulse(t, "never-beside", online...)
	course := shared.journal.course(t, name)
	assert.Equal(t, []string{bergen, edge}, course.begun)
	assert.Equal(t, 1, course.most)
	for _, cluster := range []string{frankfurt, lab} {
		assert.Nil(t, shared.sites[cluster].image(t, name), cluster)
		assert.Nil(t, plannedImage(shared.plan(t, shared.sites[cluster], agent.Namespace), name), cluster)
	}
	for _, cluster := range online {
		assert.Equal(t, budgets[cluster], *scene.Member(t, shared, cluster).Status.Budget, cluster)
		assert.Empty(t, scene.History(t, shared.sites[cluster].observer).OverBudget(), cluster)
		assert.Zero(t, shared.sites[cluster].downloads(t, name), cluster)
	}

	// What heals it is a source that is there.
	shared.change(t, img, func() { shared.toVersion(img, "1") })
	shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	for _, cluster := range online {
		assert.Equal(t, 1, shared.sites[cluster].downloads(t, name), cluster)
	}
}

// As many clusters may fail as maxFailures says: the rollout goes on past them and
// succeeds.
func TestRolloutGoesOnPastFailuresThatMayBe(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("past-failures", online...)
	oneAtATime(img)
	img.Spec.Rollout.MaxFailures = ptr.To(intstr.FromInt32(1))
	img.Spec.Rollout.ProgressDeadline = &metav1.Duration{Duration: 2 * time.Second}
	name := img.VMDiskImage("1")
	release := shared.sites[edge].hold(t, name)
	shared.apply(t, img)
	done := shared.eventually(t, img, "rolled out but for edge", succeeded, counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 3, TimedOut: 1}))
	require.Len(t, done.Status.Failing, 1)
	assert.Equal(t, edge, done.Status.Failing[0].Cluster)
	assert.Equal(t, v1alpha1.ClusterTimedOut, done.Status.Failing[0].State)
	assert.Equal(t, online, shared.journal.course(t, name).begun)

	// One that has timed out goes on, and can still succeed.
	release()
	healed := shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	assert.Empty(t, healed.Status.Failing)
	assert.Equal(t, 1, shared.sites[edge].downloads(t, name))
}
