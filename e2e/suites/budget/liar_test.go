//go:build linux

package budget_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// excessTolerance is shorter than attempts may run, and than a hub takes to restart.
const excessTolerance = 5 * time.Second

// A member reports 256 imports and goes on to say so. The others wait for the tolerance,
// and not again under the next hub. A person cuts the member off, and takes it back.
func TestLyingMemberHoldsUpOthersOnce(t *testing.T) {
	testenv.RunInTurn(t, 2)
	// The hub remembers what members of earlier tests claimed.
	fakes, err := fakemember.Start(t.Context(), shared.FakePlane, "liar", 1)
	require.NoError(t, err)
	t.Cleanup(fakes.Stop)
	liar := fakes.List[0]
	shared.JoinFake(t, liar)
	shared.SetPolicy(t, map[string]string{"fleetExcessTolerance": excessTolerance.String()})
	shared.setBudget(t, fleetBudget, "")
	t.Cleanup(func() {
		shared.setBudget(t, 0, "")
		shared.SetPolicy(t, map[string]string{"fleetExcessTolerance": ""})
	})
	require.NoError(t, liar.AwaitPlan(t.Context(), func(r *v1alpha1.ReportRoot) bool { return r.Policy["safeConcurrency"] != "" }))
	member := func() *v1alpha1.MemberCluster {
		m := &v1alpha1.MemberCluster{}
		require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Name: liar.Name}, m))
		return m
	}
	hasCondition := func(of string, status metav1.ConditionStatus, reason string) func() bool {
		return func() bool {
			c := meta.FindStatusCondition(member().Status.Conditions, of)
			return c != nil && c.Status == status && c.Reason == reason
		}
	}

	lied := time.Now()
	require.NoError(t, liar.ClaimSlots(t.Context(), 256))
	require.True(t, testenv.AwaitCondition(t, hasCondition(v1alpha1.ConditionTransfersAccounted, metav1.ConditionFalse, v1alpha1.ReasonReportedSlotsExceedGrants)), "no condition names the claim")
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	waits := alpha.createImages(t, "held-up", otherHost, 1)
	alpha.awaitImages(t, waits, "imported", hasSucceeded)
	begun := firstBegin(shared.listSpans(t, lied), ofImages(waits[0].UID))
	assert.Greater(t, begun.Sub(lied), excessTolerance, "what the member claims does not count at all")
	t.Logf("the others stood still for %s", begun.Sub(lied).Round(time.Millisecond))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		share := member().Status.Transfers
		return share != nil && share.Excess > 0 && share.Held <= fleetBudget
	}), "what it claims counts for longer: %+v", member().Status.Transfers)

	// Each status is seen: the one that the killed hub left is no answer of the next.
	var mu sync.Mutex
	var mostHeld int32
	stop, err := controlplane.WatchObjects(t.Context(), shared, &v1alpha1.MemberClusterList{}, func(c controlplane.Change[*v1alpha1.MemberCluster]) {
		mu.Lock()
		defer mu.Unlock()
		if share := c.Object.Status.Transfers; c.Object.Name == liar.Name && share != nil {
			mostHeld = max(mostHeld, share.Held)
		}
	})
	require.NoError(t, err)
	t.Cleanup(stop)
	shared.Hub.Kill()
	require.NoError(t, shared.StartHub(context.Background()))
	again := bravo.createImages(t, "not-again", otherHost, 1)
	bravo.awaitImages(t, again, "imported", hasSucceeded)
	mu.Lock()
	assert.LessOrEqual(t, mostHeld, int32(fleetBudget), "what it claims counts again under the next hub")
	mu.Unlock()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		share := member().Status.Transfers
		return share != nil && share.Excess > 0
	}), "it claims nothing any more: %+v", member().Status.Transfers)

	quarantine := func(q *v1alpha1.MemberQuarantine) {
		m := member()
		before := m.DeepCopy()
		m.Spec.Quarantine = q
		require.NoError(t, shared.Patch(t.Context(), m, client.MergeFrom(before)))
	}
	quarantine(&v1alpha1.MemberQuarantine{Reason: "it reports 256 imports"})
	require.True(t, testenv.AwaitCondition(t, hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonQuarantined)), "the hub does not cut it off")
	require.True(t, testenv.AwaitCondition(t, hasCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonQuarantined)))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		share := member().Status.Transfers
		return share != nil && share.Held == 0 && share.Reason == v1alpha1.TransfersQuarantined
	}), "%+v", member().Status.Transfers)
	require.NoError(t, liar.ClaimSlots(t.Context(), 0))
	quarantine(nil)
	require.True(t, testenv.AwaitCondition(t, hasCondition(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected)), "there is no way back")
	require.True(t, testenv.AwaitCondition(t, hasCondition(v1alpha1.ConditionTransfersAccounted, metav1.ConditionTrue, v1alpha1.ReasonWithinGrants)), "%+v", member().Status.Conditions)
}
