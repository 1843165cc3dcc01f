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

// While the agent is not installed, Ready has that reason, and not a consequence of it.
func TestReadyNamesFailedInstall(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	v := Input{
		Now: now, Member: &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", Generation: 2}},
		Connection: Connection{Known: true, Reason: v1alpha1.ReasonCredentialsMissing, Message: "there is no namespace ot-agent"},
		Installed: &metav1.Condition{
			Type: v1alpha1.ConditionAgentInstalled, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonForeignAgent, Message: "adopt it",
		},
	}
	status, _ := Compute(v)
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	require.NotNil(t, ready)
	assert.Equal(t, v1alpha1.ReasonForeignAgent, ready.Reason)
	assert.Equal(t, "adopt it", ready.Message)
	installed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAgentInstalled)
	require.NotNil(t, installed)
	assert.Equal(t, now, installed.LastTransitionTime.UTC(), "by the clock that is given")

	// An installation that is running is Unknown; what is False comes first.
	v.Installed.Status, v.Installed.Reason = metav1.ConditionUnknown, v1alpha1.ReasonInstalling
	status, _ = Compute(v)
	assert.Equal(t, v1alpha1.ReasonCredentialsMissing, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Reason)

	v.Member.Status, v.Installed = status, nil
	status, _ = Compute(v)
	assert.Nil(t, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAgentInstalled), "it no longer opts in")
}
