//go:build linux

package outage_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// reachableFake is a member that no test disturbs.
const reachableFake = "fake-0"

func TestUnreachableMember(t *testing.T) {
	testenv.RunInTurn(t, 2)
	away := shared.Members[bergen].Link
	shared.Members[bergen].CreateImageForTest(t, "cut-off")
	shared.AwaitMember(t, bergen, "healthy, with an image", isHealthy, hasBudget(2), hasImages(1))
	away.Cut()
	t.Cleanup(func() { require.NoError(t, away.Repair(context.Background())) })

	shared.AwaitMember(t, bergen, "unreachable, with what to do",
		hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "connection is refused", "kubeconfig"),
		hasCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))
	// The others get what changes meanwhile; bergen is said not to have it.
	shared.setConcurrency(t, "3")
	shared.AwaitMember(t, reachableFake, "under the new policy", isHealthy, hasBudget(3))
	shared.AwaitMember(t, bergen, "behind, with what was known, marked",
		hasCondition(v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionFalse, v1alpha1.ReasonNotAcknowledged, "see Reachable"),
		hasCondition(v1alpha1.ConditionAgentHealthy, metav1.ConditionFalse, v1alpha1.ReasonSilent, "does not reach", "the status shows that time"),
		hasBudget(2), hasImages(1))
	shared.awaitImage(t, "cut-off", func(image readapi.ImageDetail) bool {
		return image.Unknown == 1 && len(image.PerMember) == 1 && image.PerMember[0].Member == bergen && image.PerMember[0].Unknown == v1alpha1.ReasonSilent
	})
	shared.awaitReadMember(t, bergen, func(m readapi.Member) bool {
		return m.Reachable == metav1.ConditionFalse && m.Unknown == v1alpha1.ReasonSilent
	})
	shared.awaitReadMember(t, reachableFake, isKnown)

	require.NoError(t, away.Repair(t.Context()))
	shared.AwaitMember(t, bergen, "healthy, under the new policy", isHealthy, hasBudget(3), hasImages(1))
	shared.awaitImage(t, "cut-off", func(image readapi.ImageDetail) bool { return image.Unknown == 0 && len(image.PerMember) == 1 })
}

func TestHungMember(t *testing.T) {
	name := shared.linkedFakeMembers()[0].Name
	away := shared.fakeLinks[name]
	shared.AwaitMember(t, name, "healthy", isHealthy, hasBudget(2))
	require.NoError(t, away.Stall())
	t.Cleanup(func() { require.NoError(t, away.Repair(context.Background())) })
	shared.AwaitMember(t, name, "unreachable, and why",
		hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "does not answer in time"), hasBudget(2))
	shared.setConcurrency(t, "4")
	shared.AwaitMember(t, reachableFake, "under the new policy", isHealthy, hasBudget(4))
	shared.AwaitMember(t, name, "behind", hasCondition(v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionFalse, v1alpha1.ReasonNotAcknowledged), hasBudget(2))
	require.NoError(t, away.Repair(t.Context()))
	shared.AwaitMember(t, name, "healthy, under the new policy", isHealthy, hasBudget(4))
}

// TestSlowMember shows that a member whose answers take a second stays reachable.
func TestSlowMember(t *testing.T) {
	name := shared.linkedFakeMembers()[1].Name
	away := shared.fakeLinks[name]
	shared.AwaitMember(t, name, "healthy", isHealthy, hasBudget(2))
	require.NoError(t, away.AddLatency(time.Second))
	t.Cleanup(func() { require.NoError(t, away.Repair(context.Background())) })
	before := shared.GetMember(t, name)
	for _, concurrency := range []string{"5", "6"} {
		shared.setConcurrency(t, concurrency)
		after := shared.AwaitMember(t, name, "under the new policy", isHealthy, func(m *v1alpha1.MemberCluster) bool {
			assert.True(t, hasCondition(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected)(m), testenv.DescribeMember(m))
			return m.Status.Policy.Data["concurrency"] == concurrency
		})
		assert.Positive(t, after.Status.Plan.Compare(*before.Status.Plan))
	}
}
