//go:build linux

package registration_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// startAgent starts an agent that ends with the test at the latest. memberProxy lies between
// the agent and its own API server; nil for none.
func (s *testFleet) startAgent(t *testing.T, memberProxy *faults.Proxy, args ...string) *program.Agent {
	t.Helper()
	o := program.Options{Args: args}
	if memberProxy != nil {
		o.ConfigureClient = memberProxy.Redirect
	}
	a, err := s.member.RunAgent(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !a.HasEnded() { // a hub waits for an agent that is gone to sign off
			s.removeMember(t)
		}
		a.Kill()
		<-a.Done()
	})
	return a
}

// createMember creates a MemberCluster in pull mode until the test ends.
func (s *testFleet) createMember(t *testing.T, pull *v1alpha1.MemberPull) {
	t.Helper()
	s.createMemberWith(t, v1alpha1.MemberConnection{Pull: pull})
}

func (s *testFleet) createMemberWith(t *testing.T, connection v1alpha1.MemberConnection) {
	t.Helper()
	s.nameMember(t)
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: s.memberName}, Spec: v1alpha1.MemberClusterSpec{Connection: connection}}
	require.NoError(t, s.Create(t.Context(), m))
}

// nameMember chooses the member's name in a test and cleans up after it.
func (s *testFleet) nameMember(t *testing.T) {
	t.Helper()
	s.testCount++
	s.memberName, s.lastToken = fmt.Sprintf("behind-nat-%d", s.testCount), ""
	t.Cleanup(func() { s.cleanUp(t) })
}

// namespace is the member's namespace on the hub.
func (s *testFleet) namespace() string { return v1alpha1.MemberNamespacePrefix + s.memberName }

// cleanUp deletes what a test has left on the hub and in the member. The agent has ended.
func (s *testFleet) cleanUp(t *testing.T) {
	s.removeMember(t)
	s.deleteMemberState(t)
}

// removeMember deletes the MemberCluster: the next one is the same cluster.
func (s *testFleet) removeMember(t *testing.T) {
	ctx := context.Background()
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: s.memberName}}
	require.NoError(t, client.IgnoreNotFound(s.Delete(ctx, m)))
	s.AwaitGone(t, m)
}

// deleteMemberState deletes what agent and hub have stored in the member.
func (s *testFleet) deleteMemberState(t *testing.T) {
	ctx := context.Background()
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.JoinSecret}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.CredentialSecret}},
		&v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}}, &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}},
	} {
		o.SetNamespace(program.AgentNamespace)
		require.NoError(t, client.IgnoreNotFound(s.member.Delete(ctx, o)))
	}
}

// putJoinToken passes the next join token on to the member. The agent reaches the hub over the
// link, or through hubProxy.
func (s *testFleet) putJoinToken(t *testing.T, hubProxy *faults.Proxy) {
	t.Helper()
	access, err := program.AwaitJoinToken(t.Context(), s, s.memberName, s.lastToken)
	require.NoError(t, err, testenv.DescribeMember(testenv.GetMember(t, s, s.memberName)))
	s.lastToken = access.Token
	if hubProxy != nil {
		access.Server, access.CA = hubProxy.Endpoint()
	} else {
		cfg := s.Plane.Config()
		s.member.Link.Redirect(cfg)
		access.Server = cfg.Host
	}
	require.NoError(t, program.PutJoinToken(t.Context(), s.member, program.AgentNamespace, access))
}

// updateMember changes the stored MemberCluster.
func (s *testFleet) updateMember(t *testing.T, change func(*v1alpha1.MemberCluster)) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		m := testenv.GetMember(t, s, s.memberName)
		change(m)
		return s.Update(t.Context(), m)
	}))
}

// requestJoinToken requests another join token.
func (s *testFleet) requestJoinToken(t *testing.T) {
	t.Helper()
	s.updateMember(t, func(m *v1alpha1.MemberCluster) {
		n, _ := strconv.Atoi(m.Annotations[v1alpha1.AnnotationJoinToken])
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationJoinToken, strconv.Itoa(n+1))
	})
}

// awaitHubConnected waits for a status and reason of the ledger's HubConnected and returns its
// message.
func (s *testFleet) awaitHubConnected(t *testing.T, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var c *metav1.Condition
	require.True(t, testenv.AwaitCondition(t, func() bool {
		c = s.hubConnectedCondition(t)
		return c != nil && c.Status == status && c.Reason == reason
	}), "HubConnected is %+v, want %s %s", c, status, reason)
	return c.Message
}

// hubConnectedCondition returns the ledger's HubConnected; nil for none.
func (s *testFleet) hubConnectedCondition(t *testing.T) *metav1.Condition {
	t.Helper()
	return meta.FindStatusCondition(s.member.Ledger(t).Conditions, v1alpha1.ConditionHubConnected)
}

// awaitMemberReady waits until the member is Ready with its budget.
func (s *testFleet) awaitMemberReady(t *testing.T) *v1alpha1.MemberCluster {
	t.Helper()
	return s.AwaitMember(t, s.memberName, "ready", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) && m.Status.Budget != nil && *m.Status.Budget == 3
	})
}

// awaitJoined waits until an agent connects with the stored credential and condition Joined is
// True.
func (s *testFleet) awaitJoined(t *testing.T) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		token, err := registration.ParseTokenClaims(s.storedCredential(t))
		lease := &coordinationv1.Lease{}
		return err == nil && s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: registration.LeaseName}, lease) == nil &&
			lease.Spec.HolderIdentity != nil && registration.AccountOfHolder(*lease.Spec.HolderIdentity) == token.AccountUID
	}), "no agent connects with the stored credential")
	testenv.AwaitMember(t, s, s.memberName, "joined", func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionJoined)
		return c != nil && c.Reason == v1alpha1.ReasonJoined && c.Status == metav1.ConditionTrue
	})
}

// getPlan returns the ClusterPlan of a namespace; nil for none.
func getPlan(t *testing.T, c client.Reader, namespace string) *v1alpha1.ClusterPlan {
	t.Helper()
	p := &v1alpha1.ClusterPlan{}
	err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.MailboxName}, p)
	require.NoError(t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return p
}
