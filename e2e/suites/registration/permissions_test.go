//go:build linux

package registration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/rbaccheck"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// permitsAgent is all that an agent may do in its namespace on the hub.
func permitsAgent(namespace string) rbaccheck.Permits {
	return func(r rbaccheck.Request) bool {
		in := func(verbs ...string) bool { return r.Namespace == namespace && slices.Contains(verbs, r.Verb) }
		switch r.Group + "/" + r.Resource {
		case "pelotech.ot/clusterplans", "pelotech.ot/transfergrants", "pelotech.ot/memberlinks":
			return in("get", "list", "watch")
		case "pelotech.ot/memberlinks/status":
			return in("update")
		case "pelotech.ot/clusterreports":
			return in("get", "list", "watch", "create", "update", "delete")
		case "coordination.k8s.io/leases":
			return in("get", "update") && r.Object == registration.LeaseName
		case "/serviceaccounts/token":
			return in("create") && r.Object == registration.AgentAccount
		}
		return false
	}
}

// permitsJoinToken is all that a join token permits.
func permitsJoinToken(namespace string) rbaccheck.Permits {
	return func(r rbaccheck.Request) bool {
		return r.Group+"/"+r.Resource == "pelotech.ot/clusterjoins" && r.Namespace == namespace &&
			(r.Verb == "create" || r.Verb == "get" && r.Object == v1alpha1.MailboxName)
	}
}

// TestAgentIsConfinedToItsMailbox tries, as the agent of member A, every verb on every
// resource of its own namespace, of member B's and of the hub's.
func TestAgentIsConfinedToItsMailbox(t *testing.T) {
	t.Parallel()
	agent, _, _ := registerFakeAgent(t, "a")
	other, _, _ := registerFakeAgent(t, "b")
	createPullMember(t, "c", v1alpha1.MemberPull{})
	token := awaitInvited(t, "c")
	all, err := rbaccheck.ServedResources(shared.Plane.Config())
	require.NoError(t, err)
	require.Greater(t, len(all), 100)
	share := testenv.SweepShare(all)
	namespaces := []string{agent.Namespace, other.Namespace, token.Namespace, program.HubNamespace}

	for name, tt := range map[string]struct {
		who        *fakeAgent
		may        rbaccheck.Permits
		namespaces []string
	}{
		"credential": {agent, permitsAgent(agent.Namespace), namespaces},
		"join token": {token, permitsJoinToken(token.Namespace), namespaces[2:]},
	} {
		t.Run(name, func(t *testing.T) {
			ruled, err := rbaccheck.CheckRules(t.Context(), tt.who.cfg, all, append([]string{""}, namespaces...),
				[]string{registration.LeaseName, registration.AgentAccount, registration.JoinAccount, v1alpha1.MailboxName}, tt.may)
			require.NoError(t, err)
			assert.Empty(t, ruled.Unexpected)
			answered, err := rbaccheck.CheckByRequest(t.Context(), tt.who.cfg, share, append([]string{"kube-system"}, tt.namespaces...), tt.may)
			require.NoError(t, err)
			assert.Empty(t, answered.Unexpected)
			t.Logf("%s: %d questions about %d resources, %d denied; %d requests about %d, %d refused",
				name, ruled.Attempts, len(all), ruled.Refusals, answered.Attempts, len(share), answered.Refusals)
		})
	}
	t.Run("what it needs", func(t *testing.T) { requireAgentWorks(t, agent) })
	t.Run("what would get it further", func(t *testing.T) { requireAgentConfined(t, agent, other) })
}

// requireAgentWorks makes the requests of an agent.
func requireAgentWorks(t *testing.T, agent *fakeAgent) {
	ctx := t.Context()
	require.NoError(t, agent.listPlans(ctx))
	require.NoError(t, agent.List(ctx, &v1alpha1.TransferGrantList{}, client.InNamespace(agent.Namespace)))
	link := &v1alpha1.MemberLink{}
	awaitCondition(t, func() bool {
		return agent.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, link) == nil
	}, "no MemberLink")
	link.Status.Carrier = "agent/boot"
	require.NoError(t, agent.Status().Update(ctx, link))
	report := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: "page-1"}, Sequence: 1, ClusterUID: cluster, Page: &v1alpha1.ReportPage{}}
	require.NoError(t, agent.Create(ctx, report))
	report.Sequence = 2
	require.NoError(t, agent.Update(ctx, report))
	require.NoError(t, agent.Delete(ctx, report))
	require.NoError(t, agent.renewLease(ctx))
	next, err := requestToken(ctx, agent, agent.Namespace, registration.AgentAccount, nil)
	require.NoError(t, err)
	access := agent.HubAccess
	access.Token = next
	require.NoError(t, newFakeAgent(t, access).listPlans(ctx), "with a token that it renewed itself")
}

// requestToken asks for a token, as whoever c is.
func requestToken(ctx context.Context, c client.Client, namespace, account string, change func(*authenticationv1.TokenRequestSpec)) (string, error) {
	request := &authenticationv1.TokenRequest{}
	if change != nil {
		change(&request.Spec)
	}
	err := c.SubResource("token").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}, request)
	return request.Status.Token, err
}

func requireAgentConfined(t *testing.T, agent, other *fakeAgent) {
	ctx := t.Context()
	life := func(d time.Duration) func(*authenticationv1.TokenRequestSpec) {
		return func(s *authenticationv1.TokenRequestSpec) { s.ExpirationSeconds = ptr.To(int64(d / time.Second)) }
	}
	for name, test := range map[string]struct {
		namespace, account string
		change             func(*authenticationv1.TokenRequestSpec)
	}{
		"of B's account":                    {other.Namespace, registration.AgentAccount, nil},
		"of the account of its join tokens": {agent.Namespace, registration.JoinAccount, nil},
		"of another account":                {agent.Namespace, "default", nil},
		"of the hub's":                      {program.HubNamespace, "ot-hub", nil},
		"that lives for longer than it may": {agent.Namespace, registration.AgentAccount, life(registration.DefaultAgentTokenLife + time.Second)},
		"that lives for a century":          {agent.Namespace, registration.AgentAccount, life(100 * 365 * 24 * time.Hour)},
		"that is bound to something": {agent.Namespace, registration.AgentAccount, func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "none"}
		}},
	} {
		_, err := requestToken(ctx, agent, test.namespace, test.account, test.change)
		assert.True(t, apierrors.IsForbidden(err), "a token %s: %v", name, err)
	}
	_, err := requestToken(ctx, agent, agent.Namespace, registration.AgentAccount, life(registration.DefaultAgentTokenLife))
	require.NoError(t, err)
	_, err = requestToken(ctx, shared, agent.Namespace, registration.AgentAccount, life(2*registration.DefaultAgentTokenLife))
	require.ErrorContains(t, err, "lives for 604800 seconds at the most", "nor does anybody else get it one")
	_, err = requestToken(ctx, shared, program.HubNamespace, "ot-hub", life(2*registration.DefaultAgentTokenLife))
	require.NoError(t, err, "other accounts are not concerned")

	link := &v1alpha1.MemberLink{}
	require.NoError(t, agent.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, link))
	link.Spec.Leaving = true
	assert.True(t, apierrors.IsForbidden(agent.Update(ctx, link)), "an agent may not change the spec of its MemberLink")

	somebody := rest.CopyConfig(agent.cfg)
	for _, user := range []rest.ImpersonationConfig{
		{UserName: "admin", Groups: []string{"system:masters"}},
		{UserName: "system:serviceaccount:" + other.Namespace + ":" + registration.AgentAccount},
	} {
		somebody.Impersonate = user
		c, err := client.New(somebody, client.Options{Scheme: scheme, Mapper: shared.RESTMapper()})
		require.NoError(t, err)
		assert.True(t, apierrors.IsForbidden(c.List(ctx, &v1alpha1.ClusterPlanList{}, client.InNamespace(other.Namespace))), "it is nobody else")
	}
}
