//go:build linux

package rollout_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A member that is offline from the start holds up nobody, catches up with the
// newest version, and never gets one that was superseded meanwhile. One that goes
// dark on its way lets the next one begin.
func TestRolloutSkipsOfflineMember(t *testing.T) {
	testenv.RunInTurn(t, 1)
	t.Parallel()
	all := []string{bergen, edge, frankfurt, island, lab}
	img := shared.newFleetImage("offline", all...)
	setOneAtATime(img, newWave(canary, labelSite, bergen, island))
	first, second := img.ImageNameForVersion("1"), img.ImageNameForVersion("2")
	shared.createFleetImage(t, img)
	without := v1alpha1.ClusterCounts{Total: 5, Succeeded: 4, Deferred: 1}
	done := shared.awaitFleetImage(t, img, "rolled out but for "+island, hasSucceeded, hasCounts(without),
		hasWaveCounts(canary, v1alpha1.ClusterCounts{Total: 2, Succeeded: 1, Deferred: 1}))
	requireAllConditions(t, done)
	course := shared.journal.imageCourse(t, first)
	assert.Equal(t, onlineMembers, course.begun)
	assert.Equal(t, 1, course.most)

	// A wave that waits for who is offline does so.
	waits := shared.newFleetImage("offline-waits", all...)
	waits.Spec.Rollout.Waves = []v1alpha1.Wave{newWave(canary, labelSite, bergen, island)}
	waits.Spec.Rollout.OfflineClusters = v1alpha1.OfflineWait
	shared.createFleetImage(t, waits)
	waiting := shared.awaitFleetImage(t, waits, "waits for "+island, hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonOfflineClusters),
		hasCounts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 1, Deferred: 1, ToApply: 3}), hasMessage(island))
	assert.Equal(t, canary, waiting.Status.CurrentWave)

	shared.updateFleetImage(t, img, func() { shared.setVersion(img, "2") })
	shared.awaitFleetImage(t, img, "the second version rolled out but for "+island, hasSucceeded, hasCounts(without))
	shared.awaitFreshPlans(t, "offline-beside", onlineMembers...)
	assert.Equal(t, []string{bergen}, shared.journal.imageCourse(t, waits.ImageNameForVersion("1")).begun)

	require.NoError(t, shared.Members[island].Link.Repair(t.Context()))
	t.Cleanup(func() { require.NoError(t, shared.Members[island].Link.Repair(context.Background())) })
	shared.awaitFleetImage(t, img, island+" has caught up", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 5}))
	shared.awaitFleetImage(t, waits, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 5}))
	shared.Members[island].AwaitPhase(t, second, v1alpha1.PhaseSucceeded)
	assert.Nil(t, shared.Members[island].GetImage(t, first))
	assert.Zero(t, shared.Members[island].countDownloads(t, first))
	assert.NotContains(t, shared.journal.imageCourse(t, first).begun, island)
	assert.Equal(t, []string{bergen, edge, frankfurt, lab, island}, shared.journal.imageCourse(t, second).begun)

	// On its way it goes dark: it holds no concurrency once that is known, works on
	// by itself, and has what it was asked for when it is back.
	dark := shared.newFleetImage("dark", island, lab)
	setOneAtATime(dark)
	name := dark.ImageNameForVersion("1")
	release := shared.Members[island].HoldImports(t, name)
	shared.createFleetImage(t, dark)
	shared.Members[island].AwaitPhase(t, name, v1alpha1.PhaseSyncing)
	shared.awaitFleetImage(t, dark, "on its way to "+island, hasCounts(v1alpha1.ClusterCounts{Total: 2, Progressing: 1, ToApply: 1}))
	assert.Equal(t, []string{island}, shared.journal.imageCourse(t, name).begun)
	shared.Members[island].Link.Cut()
	testenv.AwaitMember(t, shared, island, "silent", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAgentHealthy)
	})
	shared.awaitFleetImage(t, dark, "rolled out but for "+island, hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 1, Deferred: 1}))
	release()
	shared.Members[island].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
	require.NoError(t, shared.Members[island].Link.Repair(t.Context()))
	shared.awaitFleetImage(t, dark, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	assert.Equal(t, []string{island, lab}, shared.journal.imageCourse(t, name).begun)
	assert.Equal(t, 1, shared.Members[island].countDownloads(t, name))

	// What it had stays so when it is not there.
	shared.awaitFleetImage(t, img, "as it was", hasCounts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 5}))
}
