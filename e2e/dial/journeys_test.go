//go:build linux

package dial_test

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

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// By hand: a MemberCluster, the Secret from one cluster into the other, and the key
// that the agent tells is accepted.
func TestAnAgentJoinsByHand(t *testing.T) {
	s := shared
	s.create(t, &v1alpha1.MemberPull{})
	s.agent(t, nil)
	s.invite(t, nil)
	waits := s.told(t, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAcceptance)
	asked := &v1alpha1.ClusterJoin{}
	require.True(t, scene.Await(t, func() bool {
		err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, asked)
		return err == nil && asked.Status.Fingerprint != ""
	}))
	require.Contains(t, waits, asked.Status.Fingerprint, "both tell of one key")
	s.change(t, func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.AcceptedKey = asked.Status.Fingerprint })
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.ready(t)
	s.joined(t)

	img := s.image(t, "by-hand")
	scene.EventuallyMember(t, s, s.name, "an image is there", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Ready == 1
	})
	require.NoError(t, s.member.Client().Delete(t.Context(), img))
	link := &v1alpha1.MemberLink{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: v1alpha1.MailboxName}, link))
	require.True(t, strings.HasPrefix(link.Status.Carrier, "agent/"), link.Status.Carrier)
	require.Equal(t, "agent", scene.Member(t, s, s.name).Status.Shard)

	// The hub takes its leave by way of the agent.
	require.NoError(t, s.Delete(t.Context(), scene.Member(t, s, s.name)))
	require.True(t, scene.Await(t, func() bool {
		return plan(t, s.member.Client(), agent.Namespace) == nil && scene.Member(t, s, s.name).UID == ""
	}), "plan in the member: %+v", plan(t, s.member.Client(), agent.Namespace))
	s.told(t, metav1.ConditionFalse, v1alpha1.ReasonUnauthorized)
}

func TestACredentialIsRenewed(t *testing.T) {
	s := shared
	s.create(t, &v1alpha1.MemberPull{AutoAccept: true})
	a := s.agent(t, nil, "--hub-renew-after=2s")
	s.invite(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	first := s.credential(t)
	require.True(t, scene.Await(t, func() bool { return s.credential(t) != first }), "the token stays what it is")
	s.ready(t)
	var metrics string
	require.True(t, scene.Await(t, func() bool { // it is counted once it is stored
		var err error
		metrics, err = a.Metrics(t.Context())
		require.NoError(t, err)
		return !strings.Contains(metrics, `ot_agent_hub_credential_renewals_total{result="success"} 0`)
	}), "no renewal is counted")
	require.Contains(t, metrics, "ot_agent_hub_connected 1")

	// The next process goes on with what is stored.
	a.Kill()
	<-a.Done()
	s.agent(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)

	// The hub's door moves: another address, and another authority behind it. What the
	// agent has leads to the old one, until it is given the new one.
	moved, err := proxy.StartTLS(s.plane.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = moved.Close() })
	s.way.Cut()
	t.Cleanup(func() { require.NoError(t, s.way.Mend(context.Background())) })
	s.told(t, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	s.another(t)
	s.invite(t, moved)
	url, _ := moved.Reach()
	require.Contains(t, s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected), url)
	s.joined(t)
}

// credential is the token that the agent has stored.
func (s *stage) credential(t *testing.T) string {
	t.Helper()
	secret := &corev1.Secret{}
	err := s.member.Client().Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: join.CredentialSecret}, secret)
	if apierrors.IsNotFound(err) {
		return ""
	}
	require.NoError(t, err)
	access, err := join.ParseAccess(secret.Data[join.KubeconfigKey])
	if err != nil {
		return ""
	}
	return access.Token
}

func TestAHubThatIsAwayIsComeBackTo(t *testing.T) {
	s := shared
	s.create(t, &v1alpha1.MemberPull{AutoAccept: true})
	s.agent(t, nil)
	s.invite(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.ready(t)
	s.way.Cut()
	s.told(t, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	img := s.image(t, "alone") // it works alone
	require.True(t, scene.Await(t, func() bool {
		require.NoError(t, s.member.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
		return img.Status.Phase == v1alpha1.PhaseSucceeded
	}))
	require.NoError(t, s.way.Mend(t.Context()))
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	scene.EventuallyMember(t, s, s.name, "told of what was done meanwhile", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Ready == 1
	})
}

// revoke shuts the agent out, and waits until nothing is left of what it was given.
func (s *stage) revoke(t *testing.T) {
	t.Helper()
	s.change(t, func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.Revoked = true })
	s.joinedSays(t, v1alpha1.ReasonRevoked)
}

// joinedSays waits for a reason of condition Joined.
func (s *stage) joinedSays(t *testing.T, reason string) {
	t.Helper()
	scene.EventuallyMember(t, s, s.name, "Joined says "+reason, func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionJoined)
		return c != nil && c.Reason == reason
	})
}

// A credential that was revoked is worth nothing, as one that expired is: with a new
// join token the agent is in again, by the key that was accepted once.
func TestWhoWasRevokedJoinsAnew(t *testing.T) {
	s := shared
	s.create(t, &v1alpha1.MemberPull{AutoAccept: true})
	s.agent(t, nil)
	s.invite(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	before := s.ready(t).Status.Plan
	s.joined(t)
	s.revoke(t)
	require.Contains(t, s.told(t, metav1.ConditionFalse, v1alpha1.ReasonUnauthorized), join.JoinSecret)
	s.change(t, func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.Revoked = false })
	s.invite(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
	s.joined(t)
	require.Equal(t, before, s.ready(t).Status.Plan, "nothing was planned anew")
}

func TestAJoinSecretThatIsNoneIsTold(t *testing.T) {
	s := shared
	s.create(t, &v1alpha1.MemberPull{AutoAccept: true})
	s.agent(t, nil)
	require.NoError(t, s.member.Client().Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: join.JoinSecret}, Data: map[string][]byte{join.KubeconfigKey: []byte("hello")},
	}))
	require.Contains(t, s.told(t, metav1.ConditionFalse, v1alpha1.ReasonJoinSecretInvalid), "Secret ot-hub-join, key kubeconfig")
	s.invite(t, nil)
	s.told(t, metav1.ConditionTrue, v1alpha1.ReasonConnected)
}
