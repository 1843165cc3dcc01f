package answers_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func TestDescribeQuarantine(t *testing.T) {
	at := metav1.NewTime(now)
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo", ResourceVersion: "7"}}
	got := answers.DescribeQuarantine(member)
	assert.False(t, got.Quarantined)
	assert.Equal(t, "7", got.ResourceVersion)
	assert.Contains(t, strings.Join(got.Begin.Effects, "; "), "nothing is synced")
	assert.NotEmpty(t, got.Begin.ByHand, "the hub does not revoke its own token in push mode")
	assert.Empty(t, got.End.Effects, "there is none to end")

	member.Spec.Connection.Pull = &v1alpha1.MemberPull{}
	member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "forged\x1b[31m"}
	member.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionQuarantined, LastTransitionTime: at}, {Type: v1alpha1.ConditionJoined, Reason: v1alpha1.ReasonRevoking}}
	member.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-ot", Time: &at, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:quarantine":{}}}`)}}}
	got = answers.DescribeQuarantine(member)
	assert.True(t, got.Quarantined)
	assert.NotContains(t, got.Reason, "\x1b")
	assert.Equal(t, "kubectl-ot", got.SetBy)
	require.NotNil(t, got.Since)
	assert.Contains(t, got.End.Refused, "now: Revoking", "its credentials are not revoked yet")

	member.ManagedFields[0].Manager = "argocd-controller"
	got = answers.DescribeQuarantine(member)
	assert.Contains(t, got.End.Refused, "belongs to argocd-controller")
	assert.Contains(t, got.Begin.Refused, "belongs to argocd-controller")
}
