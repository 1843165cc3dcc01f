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
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func percent(text string) intstr.IntOrString { return intstr.FromString(text) }

// A template that can never succeed ends with the clusters that may fail. The
// others are told nothing of it, and nothing else in the fleet is held up.
func TestRolloutStopsOnMaxFailures(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("never", onlineMembers...)
	shared.setMissingSource(img)
	setOneAtATime(img)
	img.Spec.Rollout.MaxFailures = ptr.To(percent("25%"))
	name := img.ImageNameForVersion("1")
	budgets := map[string]int32{}
	for _, cluster := range onlineMembers {
		budgets[cluster] = *testenv.GetMember(t, shared, cluster).Status.Budget
	}
	shared.createFleetImage(t, img)
	// One may fail; the second one is one too many.
	failed := shared.awaitFleetImage(t, img, "failed", hasReason(v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures),
		hasCounts(v1alpha1.ClusterCounts{Total: 4, Failed: 2, ToApply: 2}))
	requireAllConditions(t, failed)
	assert.True(t, isConditionTrue(failed, v1alpha1.ConditionFinished))
	assert.False(t, isConditionTrue(failed, v1alpha1.ConditionSucceeded))
	assert.True(t, isConditionTrue(failed, v1alpha1.ConditionStalled))
	require.Len(t, failed.Status.Failing, 2)
	for i, cluster := range []string{bergen, edge} {
		failing := failed.Status.Failing[i]
		assert.Equal(t, cluster, failing.Cluster)
		assert.Equal(t, v1alpha1.ClusterFailed, failing.State)
		assert.Equal(t, string(v1alpha1.ReasonNotFound), failing.Reason)
		assert.Contains(t, failing.Message, "404")
	}

	shared.awaitFreshPlans(t, "never-beside", onlineMembers...)
	course := shared.journal.imageCourse(t, name)
	assert.Equal(t, []string{bergen, edge}, course.begun)
	assert.Equal(t, 1, course.most)
	for _, cluster := range []string{frankfurt, lab} {
		assert.Nil(t, shared.Members[cluster].GetImage(t, name), cluster)
		assert.Nil(t, plannedImage(shared.getPlan(t, shared.Members[cluster], program.AgentNamespace), name), cluster)
	}
	for _, cluster := range onlineMembers {
		assert.Equal(t, budgets[cluster], *testenv.GetMember(t, shared, cluster).Status.Budget, cluster)
		assert.Empty(t, testenv.History(t, shared.Members[cluster].Observer).BudgetViolations(), cluster)
		assert.Zero(t, shared.Members[cluster].countDownloads(t, name), cluster)
	}

	// What heals it is a source that is there.
	shared.updateFleetImage(t, img, func() { shared.setVersion(img, "1") })
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	assertDownloadedOnce(t, name, onlineMembers...)
}

// As many clusters may fail as maxFailures says: the rollout goes on past them and
// succeeds.
func TestRolloutContinuesWithinMaxFailures(t *testing.T) {
	testenv.RunInTurn(t, 5)
	t.Parallel()
	img := shared.newFleetImage("past-failures", onlineMembers...)
	setOneAtATime(img)
	img.Spec.Rollout.MaxFailures = ptr.To(intstr.FromInt32(1))
	img.Spec.Rollout.ProgressDeadline = &metav1.Duration{Duration: 2 * time.Second}
	name := img.ImageNameForVersion("1")
	release := shared.Members[edge].HoldImports(t, name)
	shared.createFleetImage(t, img)
	done := shared.awaitFleetImage(t, img, "rolled out but for edge", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 3, TimedOut: 1}))
	require.Len(t, done.Status.Failing, 1)
	assert.Equal(t, edge, done.Status.Failing[0].Cluster)
	assert.Equal(t, v1alpha1.ClusterTimedOut, done.Status.Failing[0].State)
	assert.Equal(t, onlineMembers, shared.journal.imageCourse(t, name).begun)

	// One that has timed out goes on, and can still succeed.
	release()
	healed := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	assert.Empty(t, healed.Status.Failing)
	assert.Equal(t, 1, shared.Members[edge].countDownloads(t, name))
}
