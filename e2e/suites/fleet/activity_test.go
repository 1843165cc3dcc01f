//go:build linux

package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestActivityArrivesAtHub: in push and in pull mode, the hub learns what members import and
// what waits there, in the order of their queues, and nothing more once they are done.
func TestActivityArrivesAtHub(t *testing.T) {
	budgets := map[string]int32{frankfurt: 5, edge: 1}
	const queued = 2
	first := map[string]int64{}
	releases := map[string]func(){}
	for name, budget := range budgets {
		shared.AwaitMember(t, name, "ready", hasBudget(budget))
		first[name] = sumTransferred(shared.awaitActivity(t, name, "an activity", func(*v1alpha1.ReportedActivity) bool { return true }).Activity)
		m := shared.Members[name]
		releases[name] = m.HoldImports(t)
		for n := range budget + queued {
			m.CreateImageForTest(t, fmt.Sprintf("activity-%d", n))
			if n < budget { // in order, also within a second
				require.True(t, testenv.AwaitCondition(t, func() bool { return len(m.Ledger(t).Slots) == int(n)+1 }))
			}
		}
	}
	for name, budget := range budgets {
		got := shared.awaitActivity(t, name, "all imports run", func(a *v1alpha1.ReportedActivity) bool {
			return a.Slots == budget && a.Queued == queued && len(a.Head) == queued && a.Head[1].Reason == v1alpha1.ReasonWaitingForSlot
		})
		assert.Equal(t, shared.Members[name].ClusterUID(t), got.ClusterUID)
		assert.Equal(t, budget, got.Activity.Budget)
		require.Len(t, got.Activity.Active, int(budget))
		for n, active := range got.Activity.Active {
			assert.Equal(t, fmt.Sprintf("activity-%d", n), active.Name, "they have no rate; the one that was started first is first")
			assert.Equal(t, int64(1<<30), active.AtMostBytes)
			assert.Equal(t, int32(2), active.MaxAttempts)
		}
		for n, head := range got.Activity.Head {
			assert.Equal(t, fmt.Sprintf("activity-%d", int(budget)+n), head.Name)
			assert.Equal(t, fleet.Namespace, head.Namespace)
		}
	}
	for name, budget := range budgets {
		releases[name]()
		transferred := first[name] + int64(budget+queued)<<30
		idle := shared.awaitActivity(t, name, "all is imported and counted", func(a *v1alpha1.ReportedActivity) bool {
			return a.Slots == 0 && a.Queued == 0 && len(a.Active)+len(a.Head) == 0 && sumTransferred(a) == transferred
		})
		root := testenv.GetReceivedRoot(t, shared, name)
		require.True(t, testenv.AwaitCondition(t, func() bool {
			now := testenv.GetReceivedRoot(t, shared, name).Root
			return now.ObservedAt.Sub(root.Root.ObservedAt.Time) > 2*time.Duration(now.HeartbeatSeconds)*time.Second
		}), "more heartbeats")
		assert.Equal(t, idle.ResourceVersion, shared.getReport(t, name, v1alpha1.ActivityName).ResourceVersion)
		assert.Equal(t, root.Root.BootID, idle.Activity.BootID)
	}
}

// getReport returns a part of the hub's copy of a member's report.
func (f *testFleet) getReport(t *testing.T, member, name string) *v1alpha1.ClusterReport {
	t.Helper()
	report := &v1alpha1.ClusterReport{}
	require.NoError(t, f.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: name}, report))
	return report
}

func (f *testFleet) awaitActivity(t *testing.T, member, what string, wanted func(*v1alpha1.ReportedActivity) bool) (got *v1alpha1.ClusterReport) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got = &v1alpha1.ClusterReport{}
		err := f.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.ActivityName}, got)
		return err == nil && wanted(got.Activity)
	}), "%s: %s: %+v", member, what, got)
	return got
}

// sumTransferred returns the bytes that a member has downloaded since its agent was started.
func sumTransferred(a *v1alpha1.ReportedActivity) (bytes int64) {
	for _, rate := range a.Rates {
		bytes += rate.TransferredBytes
	}
	return bytes
}
