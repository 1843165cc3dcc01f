package memberstatus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// While the agent is not approved, Ready has that reason, and not a consequence of it.
func TestReadyNamesPendingRegistration(t *testing.T) {
	v := Input{
		Now: time.Now(), Member: &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", Generation: 2}},
		Connection: Connection{PullMode: true},
		Joined: &metav1.Condition{
			Type: v1alpha1.ConditionJoined, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAwaitingAcceptance,
			Message: "accept the key", LastTransitionTime: metav1.Now(),
		},
	}
	status, _ := Compute(v)
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	require.NotNil(t, ready)
	assert.Equal(t, v1alpha1.ReasonAwaitingAcceptance, ready.Reason)
	assert.Equal(t, "accept the key", ready.Message)

	v.Member.Status, v.Joined, v.Connection.PullMode = status, nil, false
	status, _ = Compute(v)
	assert.Nil(t, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionJoined), "it is no longer in pull mode")
	assert.NotEqual(t, v1alpha1.ReasonAwaitingAcceptance, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Reason)
}
