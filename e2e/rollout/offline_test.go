//go:build linux

package rollout_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// A member that is offline from the start holds up nobody, catches up with the
// newest version, and never gets one that was superseded meanwhile. One that goes
// dark on its way lets the next one begin.
func TestOfflineMember(t *testing.T) {
	t.Parallel()
	all := []string{bergen, edge, frankfurt, island, lab}
	img := shared.fleetImage("offline", all...)
	oneAtATime(img, wave(canary, labelSite, bergen, island))
	first, second := img.VMDiskImage("1"), img.VMDiskImage("2")
	shared.apply(t, img)
	without := v1alpha1.ClusterCounts{Total: 5, Succeeded: 4, Deferred: 1}
	done := shared.eventually(t, img, "rolled out but for "+island, succeeded, counts(without),
		waveCounts(canary, v1alpha1.ClusterCounts{Total: 2, Succeeded: 1, Deferred: 1}))
	everyCondition(t, done)
	course := shared.journal.course(t, first)
	assert.Equal(t, online, course.begun)
	assert.Equal(t, 1, course.most)

	// A wave that waits for who is offline does so.
	waits := shared.fleetImage("offline-waits", all...)
	waits.Spec.Rollout.Waves = []v1alpha1.Wave{wave(canary, labelSite, bergen, island)}
	waits.Spec.Rollout.OfflineClusters = v1alpha1.OfflineWait
	shared.apply(t, waits)
	waiting := shared.eventually(t, waits, "waits for "+island, because(v1alpha1.RolloutWaiting, v1alpha1.ReasonOfflineClusters),
		counts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 1, Deferred: 1, ToApply: 3}), says(island))
	assert.Equal(t, canary, waiting.Status.CurrentWave)

	shared.change(t, img, func() { shared.toVersion(img, "2") })
	shared.eventually(t, img, "the second version rolled out but for "+island, succeeded, counts(without))
	shared.pulse(t, "offline-beside", online...)
	assert.Equal(t, []string{bergen}, shared.journal.course(t, waits.VMDiskImage("1")).begun)

	require.NoError(t, shared.sites[island].link.Mend(t.Context()))
	t.Cleanup(func() { require.NoError(t, shared.sites[island].link.Mend(context.Background())) })
	shared.eventually(t, img, island+" has caught up", succeeded, counts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 5}))
	shared.eventually(t, waits, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 5}))
	shared.sites[island].has(t, second, v1alpha1.PhaseSucceeded)
	assert.Nil(t, shared.sites[island].image(t, first))
	assert.Zero(t, shared.sites[island].downloads(t, first))
	assert.NotContains(t, shared.journal.course(t, first).begun, island)
	assert.Equal(t, []string{bergen, edge, frankfurt, lab, island}, shared.journal.course(t, second).begun)

	// On its way it goes dark: it holds no concurrency once that is known, works on
	// by itself, and has what it was asked for when it is back.
	dark := shared.fleetImage("dark", island, lab)
	oneAtATime(dark)
	name := dark.VMDiskImage("1")
	release := shared.sites[island].hold(t, name)
	shared.apply(t, dark)
	shared.sites[island].has(t, name, v1alpha1.PhaseSyncing)
	shared.sites[island].link.Cut()
	shared.eventually(t, dark, "on its way to "+island, counts(v1alpha1.ClusterCounts{Total: 2, Progressing: 1, ToApply: 1}))
	assert.Equal(t, []string{island}, shared.journal.course(t, name).begun)
	scene.EventuallyMember(t, shared, island, "silent", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAgentHealthy)
	})
	shared.eventually(t, dark, "rolled out but for "+island, succeeded, counts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 1, Deferred: 1}))
	release()
	shared.sites[island].has(t, name, v1alpha1.PhaseSucceeded)
	require.NoError(t, shared.sites[island].link.Mend(t.Context()))
	shared.eventually(t, dark, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	assert.Equal(t, []string{island, lab}, shared.journal.course(t, name).begun)
	assert.Equal(t, 1, shared.sites[island].downloads(t, name))

	// What it had stays so when it is not there.
	shared.eventually(t, img, "as it was", counts(v1alpha1.ClusterCounts{Total: 5, Succeeded: 5}))
}
