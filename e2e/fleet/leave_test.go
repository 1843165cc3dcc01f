//go:build linux

package fleet_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
)

// A member that does not answer can be let go of, and the hub says what it could
// not clean up. What is left there is taken up when the member comes back.
func TestMemberThatHangsCanLeave(t *testing.T) {
	m := shared.eventually(t, "edge", "ready", hasBudget(1))
	edge := shared.sites["edge"]
	require.NoError(t, edge.ControlPlane.PauseAPIServer(t.Context()))
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			require.NoError(t, edge.ControlPlane.ResumeAPIServer())
		}
	}
	t.Cleanup(resume)
	require.NoError(t, shared.Delete(t.Context(), m))
	require.True(t, await(t, func() bool {
		return apierrors.IsNotFound(shared.Get(t.Context(), client.ObjectKeyFromObject(m), &v1alpha1.MemberCluster{}))
	}), "MemberCluster edge is still there")
	require.True(t, await(t, func() bool {
		var list eventsv1.EventList
		require.NoError(t, shared.List(t.Context(), &list))
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == "NotCleanedUp" && e.Regarding.Name == "edge" && strings.Contains(e.Note, "namespace "+agent.Namespace) {
				return true
			}
		}
		return false
	}), "an event says what is left")
	assert.True(t, hasBudget(5)(shared.member(t, "frankfurt")), "nobody else is disturbed")

	resume()
	require.NoError(t, shared.apply(t.Context(), "edge", map[string]string{"edge": "true"}))
	after := shared.eventually(t, "edge", "back, above what was left", hasBudget(1))
	assert.Positive(t, after.Status.Plan.Compare(*m.Status.Plan))
}
