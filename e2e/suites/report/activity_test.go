//go:build linux

package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestActivityFollowsImports: while images are imported or wait, each heartbeat says so; once
// none is, one last write does, and no other follows.
func TestActivityFollowsImports(t *testing.T) {
	ns := createImages(t, 0)
	env.StorePolicy(t, map[string]string{"concurrency": "1", "maxPriority": "5"})
	release := env.InstantImporter().HoldImports(func(*cdiv1.DataVolume) bool { return true })
	defer release()
	a := startReporter(t, "--report-heartbeat=1s")
	first := env.NewImage(ns, "first", "/ok/a")
	env.Create(t, first)
	env.AwaitImage(t, first, testenv.InPhase(v1alpha1.PhaseSyncing))
	second, third, urgent := env.NewImage(ns, "second", "/ok/b"), env.NewImage(ns, "third", "/ok/c"), env.NewImage(ns, "urgent", "/ok/d")
	urgent.Spec.Priority = 5
	env.Create(t, second, third, urgent)
	busy := awaitReport(t, "one import, and three that wait", func(r storedReport) bool {
		return r.activity != nil && r.activity.Activity.Slots == 1 && r.activity.Activity.Queued == 3 &&
			len(r.activity.Activity.Head) == 3 && r.activity.Activity.Head[2].Reason == v1alpha1.ReasonWaitingForSlot
	})
	got := busy.activity.Activity
	assert.Equal(t, busy.root.ClusterUID, busy.activity.ClusterUID)
	assert.Equal(t, busy.root.Root.BootID, got.BootID)
	assert.EqualValues(t, 1, got.Budget)
	require.Len(t, got.Active, 1)
	slot := env.Ledger(t).Status.Slots[0]
	assert.Equal(t, v1alpha1.ActiveImport{
		Namespace: ns, Name: "first", Source: v1alpha1.SourceOther, AtMostBytes: 1 << 30, StartedAt: got.Active[0].StartedAt, Attempt: 1, MaxAttempts: 4,
	}, got.Active[0])
	assert.True(t, slot.StartedAt.Equal(&got.Active[0].StartedAt))
	var order []string
	for _, queued := range got.Head {
		order = append(order, queued.Name)
		assert.EqualValues(t, 1<<30, queued.AtMostBytes)
	}
	assert.Equal(t, []string{"urgent", "second", "third"}, order)

	a.markWrites()
	before := readReport(t)
	after := awaitReport(t, "three heartbeats", func(r storedReport) bool {
		return r.activity.Activity.ObservedAt.Sub(before.activity.Activity.ObservedAt.Time) >= 3*time.Second
	})
	beats := int(after.activity.Activity.ObservedAt.Sub(before.activity.Activity.ObservedAt.Time)/time.Second) + 1
	assert.LessOrEqual(t, a.activityWritesSinceMark(), beats)
	assert.GreaterOrEqual(t, a.activityWritesSinceMark(), 2)
	assert.Greater(t, after.activity.Sequence, before.activity.Sequence)

	env.InstantImporter().AllowFinishes(4)
	release()
	idle := awaitReport(t, "nothing is imported or waits", func(r storedReport) bool {
		return r.root.Root.Phases[v1alpha1.PhaseSucceeded] == 4 && r.activity.Activity.Slots == 0 && r.activity.Activity.Queued == 0
	})
	assert.Empty(t, idle.activity.Activity.Active)
	assert.Empty(t, idle.activity.Activity.Head)
	require.Len(t, idle.activity.Activity.Rates, 1)
	assert.Equal(t, v1alpha1.SourceRate{Name: v1alpha1.SourceOther, TransferredBytes: 4 << 30}, idle.activity.Activity.Rates[0], "of no known size, thus no samples")
	a.markWrites()
	later := awaitReport(t, "three heartbeats of the root", func(r storedReport) bool {
		return r.root.Root.ObservedAt.Sub(idle.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	assert.Equal(t, idle.activity.ResourceVersion, later.activity.ResourceVersion)
	assert.Zero(t, a.activityWritesSinceMark())

	// Another process says once that it has nothing to do.
	a.killAndWait()
	b := startReporter(t, "--report-heartbeat=1s")
	restarted := awaitReport(t, "another process", func(r storedReport) bool {
		return r.activity.Activity.BootID != idle.activity.Activity.BootID && r.root.Root.BootID == r.activity.Activity.BootID
	})
	awaitReport(t, "three heartbeats of another process", func(r storedReport) bool {
		return r.root.Root.ObservedAt.Sub(restarted.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	assert.Equal(t, 1, b.activityWritesSinceMark())
}
