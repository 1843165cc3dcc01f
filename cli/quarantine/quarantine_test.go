package quarantine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
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

func TestValidate(t *testing.T) {
	for want, r := range map[string]Request{
		"quarantine needs --reason":    {Name: "oslo"},
		"--end takes no --reason":      {Name: "oslo", End: true, Reason: "a"},
		"the cluster's name":           {Name: "Oslo", Reason: "a"},
		"at most 256":                  {Name: "oslo", Reason: strings.Repeat("ä", 257)},
		"without control characters":   {Name: "oslo", Reason: "a\x1b[31m"},
		"--reason, for whoever finds ": {Name: "oslo", Reason: " \t"},
	} {
		require.ErrorContains(t, r.Validate(), want)
	}
	require.NoError(t, Request{Name: "oslo", Reason: strings.Repeat("ä", 256)}.Validate())
	require.NoError(t, Request{Name: "oslo", End: true}.Validate())
}

func TestDecide(t *testing.T) {
	const quarantine = `{"f:spec":{"f:quarantine":{".":{},"f:reason":{}}}}`
	begin, end := Request{Name: "oslo", Reason: "forged"}, Request{Name: "oslo", End: true}
	forced := begin
	forced.Force = true
	for name, test := range map[string]struct {
		request     Request
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
		"too early":                  {request: end, member: withJoined(member(true, "forged"), v1alpha1.ReasonRevoking), wantErr: "now: Revoking: message"},
		"too early, no condition":    {request: end, member: member(true, "forged"), wantErr: "the hub has not said"},
		"no quarantine to end":       {request: end, member: member(true, "")},
		"applied by GitOps":          {request: begin, member: ownedBy(member(false, "other"), "kustomize-controller", quarantine), wantErr: "belongs to kustomize-controller"},
		"the end, applied by GitOps": {request: end, member: ownedBy(member(false, "other"), "argocd-controller", quarantine), wantErr: "belongs to argocd-controller"},
		"forced":                     {request: forced, member: ownedBy(member(false, "other"), "kustomize-controller", quarantine), wantChanged: true, wantByHand: true, wantEffect: "nothing is synced"},
		"other fields by GitOps":     {request: begin, member: ownedBy(member(true, ""), "kustomize-controller", `{"f:spec":{"f:connection":{}}}`), wantChanged: true, wantEffect: "nothing is synced"},
		"by hand before":             {request: end, member: ownedBy(member(false, "other"), "kubectl-patch", quarantine), wantChanged: true, wantEffect: "connects again"},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := Decide(test.request, test.member)
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.wantChanged, q.Changed)
			assert.Equal(t, test.wantByHand, len(q.ByHand) > 0)
			assert.Contains(t, strings.Join(q.Effects, "\n"), test.wantEffect)
		})
	}
	q, err := Decide(begin, member(false, ""))
	require.NoError(t, err)
	rendertest.Golden(t, "push", time.Time{}, q)
	q, err = Decide(end, withJoined(member(true, "forged"), v1alpha1.ReasonRevoked))
	require.NoError(t, err)
	rendertest.Golden(t, "end", time.Time{}, q)
}
