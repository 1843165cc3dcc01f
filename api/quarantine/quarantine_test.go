package quarantine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/quarantine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func member(pull bool, reason string) *v1alpha1.MemberCluster {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}
	if pull {
		m.Spec.Connection.Pull = &v1alpha1.MemberPull{}
	} else {
		m.Spec.Connection.KubeconfigSecretRef = &v1alpha1.SecretKeyRef{Name: "oslo"}
	}
	if reason != "" {
		m.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: reason}
	}
	return m
}

func withJoined(m *v1alpha1.MemberCluster, reason string) *v1alpha1.MemberCluster {
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionJoined, Reason: reason, Message: "message"}}
	return m
}

func ownedBy(m *v1alpha1.MemberCluster, manager, fields string) *v1alpha1.MemberCluster {
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}}
	return m
}

func TestDecide(t *testing.T) {
	const set = `{"f:spec":{"f:quarantine":{".":{},"f:reason":{}}}}`
	begin, end := quarantine.Request{Reason: "forged"}, quarantine.Request{End: true}
	forced := begin
	forced.Force = true
	for name, test := range map[string]struct {
		request     quarantine.Request
		member      *v1alpha1.MemberCluster
		wantChanged bool
		wantByHand  bool
		wantEffect  string
		wantErr     string
	}{
		"push mode":                  {request: begin, member: member(false, ""), wantChanged: true, wantByHand: true, wantEffect: "its token in the member is not revoked"},
		"pull mode":                  {request: begin, member: member(true, ""), wantChanged: true, wantEffect: "the hub revokes its agent's credentials"},
		"again":                      {request: begin, member: member(false, "forged"), wantByHand: true, wantEffect: "nothing is synced"},
		"for another reason":         {request: begin, member: member(true, "other"), wantChanged: true, wantEffect: "nothing is synced"},
		"the end in push mode":       {request: end, member: member(false, "forged"), wantChanged: true, wantEffect: "kubectl ot join push oslo"},
		"the end in pull mode":       {request: end, member: withJoined(member(true, "forged"), v1alpha1.ReasonRevoked), wantChanged: true, wantEffect: "kubectl ot join pull oslo"},
		"left pull mode, revoked":    {request: end, member: withJoined(member(false, "forged"), v1alpha1.ReasonRevoked), wantChanged: true, wantEffect: "connects again"},
		"left pull mode, too early":  {request: end, member: withJoined(member(false, "forged"), v1alpha1.ReasonRevoking), wantErr: "condition Joined is gone then); now: Revoking: message"},
		"too early":                  {request: end, member: withJoined(member(true, "forged"), v1alpha1.ReasonRevoking), wantErr: "now: Revoking: message"},
		"too early, no condition":    {request: end, member: member(true, "forged"), wantErr: "the hub has not said"},
		"no quarantine to end":       {request: end, member: member(true, "")},
		"applied by GitOps":          {request: begin, member: ownedBy(member(false, "other"), "kustomize-controller", set), wantErr: "belongs to kustomize-controller"},
		"the end, applied by GitOps": {request: end, member: ownedBy(member(false, "other"), "argocd-controller", set), wantErr: "belongs to argocd-controller"},
		"forced":                     {request: forced, member: ownedBy(member(false, "other"), "kustomize-controller", set), wantChanged: true, wantByHand: true, wantEffect: "nothing is synced"},
		"other fields by GitOps":     {request: begin, member: ownedBy(member(true, ""), "kustomize-controller", `{"f:spec":{"f:connection":{}}}`), wantChanged: true, wantEffect: "nothing is synced"},
		"by hand before":             {request: end, member: ownedBy(member(false, "other"), "kubectl-patch", set), wantChanged: true, wantEffect: "connects again"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := quarantine.Decide(test.request, test.member)
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.wantChanged, c.Changed)
			assert.Equal(t, test.wantByHand, len(c.ByHand) > 0)
			assert.Contains(t, strings.Join(c.Effects, "\n"), test.wantEffect)
		})
	}
}

func TestValidateReason(t *testing.T) {
	require.NoError(t, quarantine.ValidateReason(strings.Repeat("ä", quarantine.MaxReasonLength)))
	require.ErrorContains(t, quarantine.ValidateReason(strings.Repeat("ä", quarantine.MaxReasonLength+1)), "at most 256")
	require.ErrorContains(t, quarantine.ValidateReason("a\x1b[31m"), "without control characters")
}

func TestSetters(t *testing.T) {
	at := func(minute int) *metav1.Time {
		t := metav1.NewTime(time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC))
		return &t
	}
	entry := func(manager, fields, subresource string, at *metav1.Time) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: at, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}
	}
	const set = `{"f:spec":{"f:quarantine":{".":{},"f:reason":{}}}}`
	m := member(true, "forged")
	m.ManagedFields = []metav1.ManagedFieldsEntry{
		entry("without-a-time", set, "", nil), entry("first", set, "", at(1)), entry("last\x1b[31m", set, "", at(2)),
		entry("elsewhere", `{"f:spec":{"f:connection":{}}}`, "", at(3)), entry("status", set, "status", at(4)), entry("unreadable", `{`, "", at(5)), {Manager: "empty"},
	}
	var managers []string
	for _, s := range quarantine.Setters(m) {
		managers = append(managers, s.Manager)
	}
	require.Len(t, managers, 3)
	assert.Contains(t, managers[0], "last")
	assert.NotContains(t, managers[0], "\x1b")
	assert.Equal(t, []string{"first", "without-a-time"}, managers[1:])
	assert.Empty(t, quarantine.Setters(member(true, "forged")))
}
