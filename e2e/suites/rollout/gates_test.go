//go:build linux

package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Paused, a rollout begins with nobody else; what is on its way goes on.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	img := shared.newFleetImage("paused", onlineMembers...)
	setOneAtATime(img)
	name := img.ImageNameForVersion("1")
	release := shared.Members[bergen].HoldImports(t, name)
	shared.createFleetImage(t, img)
	shared.Members[bergen].AwaitPhase(t, name, v1alpha1.PhaseSyncing)
	shared.updateFleetImage(t, img, func() { img.Spec.Rollout.Paused = true })
	shared.awaitFleetImage(t, img, "paused with one on its way", hasCounts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))
	release()
	paused := shared.awaitFleetImage(t, img, "paused", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused),
		hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 1, ToApply: 3}))
	assert.True(t, isConditionTrue(paused, v1alpha1.ConditionReconciling), "a client waits on")
	assert.False(t, isConditionTrue(paused, v1alpha1.ConditionStalled))
	assert.False(t, isConditionTrue(paused, v1alpha1.ConditionFinished))
	assert.Nil(t, paused.Status.ExpectedAt, "a person decides when it goes on")
	assert.Equal(t, v1alpha1.ReasonRolloutPaused, paused.Status.ExpectedReason)
	shared.awaitFreshPlans(t, "paused-beside", onlineMembers...)
	assert.Equal(t, []string{bergen}, shared.journal.imageCourse(t, name).begun)

	// A version that comes meanwhile is paused as well.
	shared.updateFleetImage(t, img, func() { shared.setVersion(img, "2") })
	shared.awaitFleetImage(t, img, "paused at the next version", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused),
		hasCounts(v1alpha1.ClusterCounts{Total: 4, ToApply: 4}))
	shared.awaitFreshPlans(t, "paused-further", onlineMembers...)
	next := img.ImageNameForVersion("2")
	assert.Empty(t, shared.journal.imageCourse(t, next).begun)
	shared.updateFleetImage(t, img, func() { img.Spec.Rollout.Paused = false })
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	course := shared.journal.imageCourse(t, next)
	assert.Equal(t, onlineMembers, course.begun)
	assert.Equal(t, 1, course.most)
	for _, cluster := range []string{edge, frankfurt, lab} {
		assert.Nil(t, shared.Members[cluster].GetImage(t, name), "%s never got version 1", cluster)
	}
}

// A wave that is to be approved waits for it, for each version anew, and nobody
// approves in somebody else's name.
func TestApproval(t *testing.T) {
	t.Parallel()
	me := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, shared.Create(t.Context(), me))
	img := shared.newFleetImage("approval", onlineMembers...)
	img.Spec.Rollout.Waves = []v1alpha1.Wave{newWave(canary, labelRing, canary), newWave("late", labelRing, "late")}
	img.Spec.Rollout.Waves[1].RequireApproval = true
	shared.createFleetImage(t, img)
	approve := func(version, by string) error {
		img := img.DeepCopy()
		return shared.tryUpdateFleetImage(t.Context(), img, func() {
			img.Spec.Approvals = append(img.Spec.Approvals, v1alpha1.Approval{Wave: "late", Version: version, By: by})
		})
	}
	for _, version := range []string{"1", "2"} {
		shared.updateFleetImage(t, img, func() { shared.setVersion(img, version) })
		name := img.ImageNameForVersion(version)
		waiting := shared.awaitFleetImage(t, img, "waits for approval", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval),
			hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 2, ToApply: 2}), hasMessage("late"))
		assert.Equal(t, "late", waiting.Status.CurrentWave)
		assert.True(t, isConditionTrue(waiting, v1alpha1.ConditionReconciling), "a client waits on")
		assert.False(t, isConditionTrue(waiting, v1alpha1.ConditionStalled))
		assert.Equal(t, v1alpha1.ReasonAwaitingApproval, waiting.Status.ExpectedReason)
		err := approve(version, "somebody-else")
		require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "approved in the name of somebody else: %v", err)
		shared.awaitFreshPlans(t, "approval-beside-"+version, onlineMembers...)
		assert.ElementsMatch(t, []string{bergen, edge}, shared.journal.imageCourse(t, name).begun)

		require.NoError(t, approve(version, me.Status.UserInfo.Username))
		shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
		for _, cluster := range onlineMembers {
			shared.Members[cluster].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
		}
	}
}
