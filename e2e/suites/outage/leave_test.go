//go:build linux

package outage_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestUnreachableMemberCanLeave shows that an unreachable member can be removed, that the
// hub reports what it could not clean up, and that the leftovers do not prevent its
// return.
func TestUnreachableMemberCanLeave(t *testing.T) {
	name := shared.linkedFakeMembers()[0].Name
	away := shared.fakeLinks[name]
	before := shared.AwaitMember(t, name, "healthy", isHealthy, hasBudget(2))
	away.Cut()
	t.Cleanup(func() { require.NoError(t, away.Repair(context.Background())) })
	shared.AwaitMember(t, name, "unreachable", hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))

	require.NoError(t, shared.Delete(t.Context(), before))
	shared.AwaitGone(t, before.DeepCopy())
	shared.AwaitGone(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MemberNamespacePrefix + name}})
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var list eventsv1.EventList
		require.NoError(t, shared.List(t.Context(), &list))
		for i := range list.Items {
			e := &list.Items[i]
			if e.Reason == "NotCleanedUp" && e.Regarding.Name == name && strings.Contains(e.Note, "ClusterPlan and TransferGrant") && strings.Contains(e.Note, "namespace "+name) {
				return true
			}
		}
		return false
	}), "no event says what is left")
	for _, m := range shared.Fakes.List[:fakeCount-linkedFakes] {
		shared.AwaitMember(t, m.Name, "healthy", isHealthy)
	}

	require.NoError(t, away.Repair(t.Context()))
	require.NoError(t, shared.registerFake(t.Context(), shared.linkedFakeMembers()[0]))
	after := shared.AwaitMember(t, name, "back", isHealthy, hasBudget(2))
	assert.Positive(t, after.Status.Plan.Compare(*before.Status.Plan), "newer than the plan left there")
}
