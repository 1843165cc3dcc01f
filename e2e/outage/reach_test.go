//go:build linux

package outage_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
	hubfleet "github.com/pelotech/ot-fleet/hub/fleet"
)

// near is a member that no test disturbs.
const near = "light-0"

func TestMemberThatIsCutOff(t *testing.T) {
	away := shared.links[bergen]
	shared.sites[bergen].image(t, "cut-off")
	shared.eventually(t, bergen, "healthy, with an image", healthy, hasBudget(2), hasImages(1))
	away.Cut()
	t.Cleanup(func() { require.NoError(t, away.Mend(context.Background())) })

	shared.eventually(t, bergen, "unreachable, with what to do",
		says(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "connection is refused", "kubeconfig"),
		says(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))
	// The others get what changes meanwhile; bergen is said not to have it.
	shared.setPolicy(t, "concurrency", "3")
	shared.eventually(t, near, "under the new policy", healthy, hasBudget(3))
	shared.eventually(t, bergen, "behind, with what was known, marked",
		says(v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionFalse, v1alpha1.ReasonNotAcknowledged, "see Reachable"),
		says(v1alpha1.ConditionAgentHealthy, metav1.ConditionFalse, v1alpha1.ReasonSilent, "does not reach", "what is shown is of then"),
		hasBudget(2), hasImages(1))
	shared.awaitImage(t, "cut-off", func(image hubfleet.ImageDetail) bool {
		return image.Unknown == 1 && len(image.In) == 1 && image.In[0].Member == bergen && image.In[0].Unknown == v1alpha1.ReasonSilent
	})
	told := shared.readAPI(t, bergen)
	assert.Equal(t, metav1.ConditionFalse, told.Reachable)
	assert.Equal(t, v1alpha1.ReasonSilent, told.Unknown)
	assert.Empty(t, shared.readAPI(t, near).Unknown)

	require.NoError(t, away.Mend(t.Context()))
	shared.eventually(t, bergen, "healthy, under the new policy", healthy, hasBudget(3), hasImages(1))
	shared.awaitImage(t, "cut-off", func(image hubfleet.ImageDetail) bool { return image.Unknown == 0 && len(image.In) == 1 })
}

func TestMemberThatHangs(t *testing.T) {
	name := shared.distant()[0].Name
	away := shared.links[name]
	shared.eventually(t, name, "healthy", healthy, hasBudget(2))
	require.NoError(t, away.Hang())
	t.Cleanup(func() { require.NoError(t, away.Mend(context.Background())) })
	shared.eventually(t, name, "unreachable, and why",
		says(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "does not answer in time"), hasBudget(2))
	shared.setPolicy(t, "concurrency", "4")
	shared.eventually(t, near, "under the new policy", healthy, hasBudget(4))
	shared.eventually(t, name, "behind", says(v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionFalse, v1alpha1.ReasonNotAcknowledged), hasBudget(2))
	require.NoError(t, away.Mend(t.Context()))
	shared.eventually(t, name, "healthy, under the new policy", healthy, hasBudget(4))
}

// A member whose answers take a second is slow, and works.
func TestMemberThatIsSlow(t *testing.T) {
	name := shared.distant()[1].Name
	away := shared.links[name]
	shared.eventually(t, name, "healthy", healthy, hasBudget(2))
	require.NoError(t, away.Slow(time.Second))
	t.Cleanup(func() { require.NoError(t, away.Mend(context.Background())) })
	before := shared.member(t, name)
	for _, concurrency := range []string{"5", "6"} {
		shared.setPolicy(t, "concurrency", concurrency)
		after := shared.eventually(t, name, "under the new policy", healthy, func(m *v1alpha1.MemberCluster) bool {
			assert.True(t, says(v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonConnected)(m), scene.Describe(m))
			return m.Status.Policy.Data["concurrency"] == concurrency
		})
		assert.Positive(t, after.Status.Plan.Compare(*before.Status.Plan))
	}
}
