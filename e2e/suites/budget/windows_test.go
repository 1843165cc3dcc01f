//go:build linux

package budget_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Outside of a window of the hub's policy nothing is imported: a rollout waits, without an
// error and without using up its deadline. It succeeds once the window opens, under grants that
// end with the window. An agent that does not know windows gets another plan at the opening.
// Windows open at whole minutes, and agents take some time to say what they wait for: they do so for
// a window far away, which is then moved to 30 to 90 seconds from now.
func TestRolloutWaitsForWindow(t *testing.T) {
	testenv.RunInTurn(t, 0)
	since := time.Now()
	far := since.UTC().Truncate(time.Minute).Add(6 * time.Hour)
	older := startOlderFake(t)
	shared.setWindow(t, far)
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	img := newFleetImage("windowed", alpha.Name(), bravo.Name())
	img.Spec.Rollout.ProgressDeadline = &metav1.Duration{Duration: 20 * time.Second}
	shared.CreateForTest(t, img)
	name := img.ImageNameForVersion(img.Spec.Version)

	for _, m := range []*testMember{alpha, bravo} {
		waiting := m.AwaitImage(t, name, "waiting for the window", testenv.HasReason(v1alpha1.ReasonWaitingForWindow))
		assert.True(t, waiting.Status.OpensAt.Equal(&metav1.Time{Time: far}), "%s, not %s", waiting.Status.OpensAt, far)
		shared.AwaitMember(t, m.Name(), "waiting for the window", func(mc *v1alpha1.MemberCluster) bool {
			w := mc.Status.Window
			return w != nil && w.OpensAt != nil && w.OpensAt.Equal(&metav1.Time{Time: far})
		})
	}
	hasConcurrency := func(n string) func(*v1alpha1.ReportRoot) bool {
		return func(r *v1alpha1.ReportRoot) bool {
			_, hasWindows := r.Policy[policy.KeyWindows]
			return r.Policy[policy.KeyConcurrency] == n && !hasWindows
		}
	}
	require.NoError(t, older.AwaitPlan(t.Context(), hasConcurrency("0")))
	shared.awaitRollout(t, img, "waiting for the window", func(st *v1alpha1.FleetDiskImageStatus) bool {
		return st.Reason == v1alpha1.ReasonRolloutWaitingForWindow && strings.Contains(st.Message, far.Format(time.RFC3339))
	})

	waitedFor := time.Now().Add(img.Spec.Rollout.ProgressDeadline.Duration + 5*time.Second)
	shared.awaitRollout(t, img, "waiting for longer than its deadline", func(st *v1alpha1.FleetDiskImageStatus) bool {
		if !time.Now().Before(waitedFor) {
			return true
		}
		require.Zero(t, st.Clusters.TimedOut, "the wait uses up the deadline")
		require.Empty(t, st.Blocked)
		require.False(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled), st.Message)
		require.True(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionProgressing), st.Message)
		// On a busy machine, an agent counts as silent for a moment.
		if st.Clusters.Deferred == 0 {
			require.Equal(t, v1alpha1.RolloutWaiting, st.Phase, st.Message)
			require.Equal(t, v1alpha1.ReasonRolloutWaitingForWindow, st.Reason, st.Message)
			require.Contains(t, st.Message, far.Format(time.RFC3339))
		}
		return false
	})
	// The deadline was for the wait: how long an import takes is not what this test is about.
	before := img.DeepCopy()
	img.Spec.Rollout.ProgressDeadline = nil
	require.NoError(t, shared.Patch(t.Context(), img, client.MergeFrom(before)))
	opens := time.Now().UTC().Add(30 * time.Second).Truncate(time.Minute).Add(time.Minute)
	closes := opens.Add(policy.MinWindowDuration)
	shared.SetPolicy(t, windowPolicy(opens))
	shared.awaitRollout(t, img, "succeeded", func(st *v1alpha1.FleetDiskImageStatus) bool { return st.Phase == v1alpha1.RolloutSucceeded })
	require.NoError(t, older.AwaitPlan(t.Context(), hasConcurrency(fmt.Sprint(concurrency))))
	for _, m := range []*testMember{alpha, bravo} {
		uid := m.GetImage(t, name).UID
		begun := firstBegin(shared.listSpans(t, since), ofImages(uid))
		require.False(t, begun.IsZero(), "nothing was imported in %s", m.Name())
		assert.False(t, begun.Before(opens), "an import began %s before the window opened", opens.Sub(begun))
		granted := &v1alpha1.TransferGrant{}
		require.NoError(t, shared.Get(t.Context(), fleet.MailboxKey(m.Name()), granted))
		if limits := granted.Spec.Limits; limits != nil && limits.Slots > 0 {
			// The agent counts from its request, and it has sent none before the test.
			assert.LessOrEqual(t, time.Duration(limits.DurationSeconds)*time.Second, closes.Sub(since), "%s has a grant beyond the window", m.Name())
		}
		open := shared.AwaitMember(t, m.Name(), "in the window", func(mc *v1alpha1.MemberCluster) bool {
			return mc.Status.Window != nil && mc.Status.Window.OpensAt == nil
		})
		assert.False(t, open.Status.Window.OpenedAt.Time.Before(opens), "%s, not %s", open.Status.Window.OpenedAt, opens)
	}
}

// setWindow pauses the fleet until the test ends, but for a window that opens at a whole minute,
// and waits until the members apply that.
func (f *testFleet) setWindow(t *testing.T, opens time.Time) {
	t.Helper()
	f.SetPolicyForTest(t, windowPolicy(opens))
	for _, name := range memberNames {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			in := f.Members[name].Ledger(t).InForce
			return in != nil && in.OpensAt != nil && in.OpensAt.Equal(&metav1.Time{Time: opens})
		}), "%s does not apply the window", name)
	}
}

// windowPolicy pauses the fleet but for a window. Grants would last for longer than the window.
func windowPolicy(opens time.Time) map[string]string {
	return map[string]string{
		policy.KeyConcurrency: "0", "fleetConcurrency": "0", "fleetGrantDuration": (3 * policy.MinWindowDuration).String(),
		// The agent that does not know windows works without grants, and holds its concurrency.
		policy.KeyWindows: fmt.Sprintf("[{cron: '%d %d * * *', duration: %s, concurrency: %d, fleetConcurrency: %d}]",
			opens.Minute(), opens.Hour(), policy.MinWindowDuration, concurrency, 2*concurrency),
	}
}

// startOlderFake starts a fake agent that does not know windows.
func startOlderFake(t *testing.T) *fakemember.Member {
	t.Helper()
	fakes, err := fakemember.Start(t.Context(), shared.FakePlane, "older", 1)
	require.NoError(t, err)
	t.Cleanup(fakes.Stop)
	older := fakes.List[0]
	older.ActAsOldAgent()
	shared.JoinFake(t, older)
	return older
}

// awaitRollout waits until the status of a FleetDiskImage meets a condition.
func (f *testFleet) awaitRollout(t *testing.T, img *v1alpha1.FleetDiskImage, wanted string, condition func(*v1alpha1.FleetDiskImageStatus) bool) {
	t.Helper()
	got, held := testenv.AwaitObject(t, f, client.ObjectKeyFromObject(img), func(got *v1alpha1.FleetDiskImage) bool { return condition(&got.Status) })
	require.True(t, held, "%s is not %s: %s %s", img.Name, wanted, got.Status.Phase, got.Status.Message)
}
