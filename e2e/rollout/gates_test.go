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
func TestPausedAndResumed(t *testing.T) {
	t.Parallel()
	img := shared.fleetImage("paused", online...)
	oneAtATime(img)
	name := img.VMDiskImage("1")
	release := shared.sites[bergen].hold(t, name)
	shared.apply(t, img)
	shared.sites[bergen].has(t, name, v1alpha1.PhaseSyncing)
	shared.change(t, img, func() { img.Spec.Rollout.Paused = true })
	shared.eventually(t, img, "paused with one on its way", counts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))
	release()
	paused := shared.eventually(t, img, "paused", because(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused),
		counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 1, ToApply: 3}))
	assert.True(t, holds(paused, v1alpha1.ConditionStalled))
	assert.False(t, holds(paused, v1alpha1.ConditionFinished))
	shared.pulse(t, "paused-beside", online...)
	assert.Equal(t, []string{bergen}, shared.journal.course(t, name).begun)

	// A version that comes meanwhile is paused as well.
	shared.change(t, img, func() { shared.toVersion(img, "2") })
	shared.eventually(t, img, "paused at the next version", because(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused),
		counts(v1alpha1.ClusterCounts{Total: 4, ToApply: 4}))
	shared.pulse(t, "paused-further", online...)
	next := img.VMDiskImage("2")
	assert.Empty(t, shared.journal.course(t, next).begun)
	shared.change(t, img, func() { img.Spec.Rollout.Paused = false })
	shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	course := shared.journal.course(t, next)
	assert.Equal(t, online, course.begun)
	assert.Equal(t, 1, course.most)
	for _, cluster := range []string{edge, frankfurt, lab} {
		assert.Nil(t, shared.sites[cluster].image(t, name), "%s has never been told of version 1", cluster)
	}
}

// A wave that is to be approved waits for it, for each version anew, and nobody
// approves in somebody else's name.
func TestApproval(t *testing.T) {
	t.Parallel()
	me := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, shared.Create(t.Context(), me))
	img := shared.fleetImage("approval", online...)
	img.Spec.Rollout.Waves = []v1alpha1.Wave{wave(canary, labelRing, canary), wave("late", labelRing, "late")}
	img.Spec.Rollout.Waves[1].RequireApproval = true
	shared.apply(t, img)
	approve := func(version, by string) error {
		img := img.DeepCopy()
		return shared.tryChange(t.Context(), img, func() {
			img.Spec.Approvals = append(img.Spec.Approvals, v1alpha1.Approval{Wave: "late", Version: version, By: by})
		})
	}
	for _, version := range []string{"1", "2"} {
		shared.change(t, img, func() { shared.toVersion(img, version) })
		name := img.VMDiskImage(version)
		waiting := shared.eventually(t, img, "waits for approval", because(v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval),
			counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 2, ToApply: 2}), says("late"))
		assert.Equal(t, "late", waiting.Status.CurrentWave)
		assert.True(t, holds(waiting, v1alpha1.ConditionStalled))
		err := approve(version, "somebody-else")
		require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "approved in the name of somebody else: %v", err)
		shared.pulse(t, "approval-beside-"+version, online...)
		assert.ElementsMatch(t, []string{bergen, edge}, shared.journal.course(t, name).begun)

		require.NoError(t, approve(version, me.Status.UserInfo.Username))
		shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
		for _, cluster := range online {
			shared.sites[cluster].has(t, name, v1alpha1.PhaseSucceeded)
		}
	}
}
