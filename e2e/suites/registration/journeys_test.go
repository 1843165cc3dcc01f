//go:build linux

package registration_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestManualRegistration registers by hand: a MemberCluster, a Secret copied from one
// cluster into the other, and acceptance of the key that the agent prints.
func TestManualRegistration(t *testing.T) {
	s := shared
	s.createMember(t, &v1alpha1.MemberPull{})
	s.startAgent(t, nil)
	s.putJoinToken(t, nil)
	waits := s.awaitHubConnected(t, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAcceptance)
	asked := &v1alpha1.ClusterJoin{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, asked)
		return err == nil && asked.Status.Fingerprint != ""
	}))
	require.Contains(t, waits, asked.Status.Fingerprint, "both tell of one key")
	s.updateMember(t, func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.AcceptedKey = asked.Status.Fingerprint })
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.awaitMemberReady(t)
	s.awaitJoined(t)

	img := s.member.CreateImageForTest(t, "by-hand")
	testenv.AwaitMember(t, s, s.memberName, "an image is there", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Ready == 1
	})
	require.NoError(t, s.member.Delete(t.Context(), img))
	link := &v1alpha1.MemberLink{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, link))
	require.True(t, strings.HasPrefix(link.Status.Carrier, "agent/"), link.Status.Carrier)
	id := testenv.GetMember(t, s, s.memberName).ConnectionID()
	require.Equal(t, []string{id, id}, []string{link.Status.Connection, link.Status.ReportConnection}, "the agent says which connection it syncs by")
	require.Equal(t, "agent", testenv.GetMember(t, s, s.memberName).Status.Shard)

	// The hub takes its leave by way of the agent.
	require.NoError(t, s.Delete(t.Context(), testenv.GetMember(t, s, s.memberName)))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return getPlan(t, s.member, program.AgentNamespace) == nil && testenv.GetMember(t, s, s.memberName).UID == ""
	}), "plan in the member: %+v", getPlan(t, s.member, program.AgentNamespace))
	s.awaitHubConnected(t, metav1.ConditionFalse, v1alpha1.ReasonUnauthorized)
}

func TestCredentialRenewal(t *testing.T) {
	s := shared
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})
	a := s.startAgent(t, nil, "--hub-renew-after=2s")
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	first := s.storedCredential(t)
	require.True(t, testenv.AwaitCondition(t, func() bool { return s.storedCredential(t) != first }), "the token stays what it is")
	s.awaitMemberReady(t)
	var metrics string
	require.True(t, testenv.AwaitCondition(t, func() bool { // it is counted once it is stored
		var err error
		metrics, err = a.ReadMetrics(t.Context())
		require.NoError(t, err)
		return !strings.Contains(metrics, `ot_agent_hub_credential_renewals_total{result="success"} 0`)
	}), "no renewal is counted")
	require.Contains(t, metrics, "ot_agent_hub_connected 1")

	// The next process goes on with what is stored.
	a.Kill()
	<-a.Done()
	s.startAgent(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)

	// The hub's door moves: another address, and another authority behind it. What the
	// agent has leads to the old one, until it is given the new one.
	moved, err := faults.StartTLSProxy(s.Plane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = moved.Close() })
	s.member.Link.Cut()
	t.Cleanup(func() { require.NoError(t, s.member.Link.Repair(context.Background())) })
	s.awaitHubConnected(t, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	s.requestJoinToken(t)
	s.putJoinToken(t, moved)
	url, _ := moved.Endpoint()
	require.Contains(t, s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected), url)
	s.awaitJoined(t)
}

// storedCredential is the token that the agent has stored.
func (s *testFleet) storedCredential(t *testing.T) string {
	t.Helper()
	secret := &corev1.Secret{}
	err := s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: registration.CredentialSecret}, secret)
	if apierrors.IsNotFound(err) {
		return ""
	}
	require.NoError(t, err)
	access, err := registration.ParseHubAccess(secret.Data[registration.KubeconfigKey])
	if err != nil {
		return ""
	}
	return access.Token
}

func TestAgentReconnectsAfterHubOutage(t *testing.T) {
	testenv.RunInTurn(t, 13)
	s := shared
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})
	s.startAgent(t, nil)
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.awaitMemberReady(t)
	s.member.Link.Cut()
	s.awaitHubConnected(t, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	img := s.member.CreateImageForTest(t, "alone") // it works alone
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, s.member.Get(t.Context(), client.ObjectKeyFromObject(img), img))
		return img.Status.Phase == v1alpha1.PhaseSucceeded
	}))
	require.NoError(t, s.member.Link.Repair(t.Context()))
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	testenv.AwaitMember(t, s, s.memberName, "told of what was done meanwhile", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Ready == 1
	})
}

// revokeCredential shuts the agent out, and waits until nothing is left of what it was given.
func (s *testFleet) revokeCredential(t *testing.T) {
	t.Helper()
	s.updateMember(t, func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.Revoked = true })
	s.awaitJoinedReason(t, v1alpha1.ReasonRevoked)
}

// awaitJoinedReason waits for a reason of condition Joined.
func (s *testFleet) awaitJoinedReason(t *testing.T, reason string) {
	t.Helper()
	testenv.AwaitMember(t, s, s.memberName, "Joined says "+reason, func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionJoined)
		return c != nil && c.Reason == reason
	})
}

// TestRevokedAgentRegistersAgain shows that a revoked or expired credential is refused,
// and that a new join token readmits the agent by the key that was accepted before.
func TestRevokedAgentRegistersAgain(t *testing.T) {
	s := shared
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})
	s.startAgent(t, nil)
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	before := s.awaitMemberReady(t).Status.Plan
	s.awaitJoined(t)
	s.revokeCredential(t)
	require.Contains(t, s.awaitHubConnected(t, metav1.ConditionFalse, v1alpha1.ReasonUnauthorized), registration.JoinSecret)
	s.updateMember(t, func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.Revoked = false })
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.awaitJoined(t)
	require.Equal(t, before, s.awaitMemberReady(t).Status.Plan, "nothing was planned anew")
}

func TestInvalidJoinSecretIsReported(t *testing.T) {
	s := shared
	s.createMember(t, &v1alpha1.MemberPull{AutoAccept: true})
	s.startAgent(t, nil)
	require.NoError(t, s.member.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: registration.JoinSecret}, Data: map[string][]byte{registration.KubeconfigKey: []byte("hello")},
	}))
	require.Contains(t, s.awaitHubConnected(t, metav1.ConditionFalse, v1alpha1.ReasonJoinSecretInvalid), "Secret ot-hub-join, key kubeconfig")
	s.putJoinToken(t, nil)
	s.awaitHubConnected(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
}
