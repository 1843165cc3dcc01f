//go:build linux

package registration_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// requireSecret wants a Secret of the agent's namespace to be there, or not to be.
func (s *testFleet) requireSecret(t *testing.T, name string, there bool) {
	t.Helper()
	err := s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: name}, &corev1.Secret{})
	assert.Equal(t, there, err == nil, "Secret %s: %v", name, err)
}

// requireNoMember wants the MemberCluster of this test to be gone.
func (s *testFleet) requireNoMember(t *testing.T) {
	t.Helper()
	err := s.Get(t.Context(), client.ObjectKey{Name: s.memberName}, &v1alpha1.MemberCluster{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

// TestLeaveCommandInPullMode shows that a member leaves only when somebody agrees, that its agent
// loses its credential, and what is said to stay.
func TestLeaveCommandInPullMode(t *testing.T) {
	s := shared
	term := s.openTerminal(t)
	s.nameMember(t)
	s.startAgent(t, nil)
	term.MustRun(t, s.documentedCommand(t, "pull"))
	leave := "kubectl ot leave " + s.memberName

	said, err := term.Run(t, leave+" --member frankfurt")
	assert.Equal(t, 4, exitCode(t, err), said)
	assert.Contains(t, term.MustRun(t, leave+" --dry-run"), "kubectl --context "+s.memberName+" -n ot-agent delete secret ot-hub-join ot-hub-credential --ignore-not-found")
	assert.Contains(t, term.MustRun(t, leave+" --dry-run --member frankfurt -o json"), `"action": "DeleteCredential"`)
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: s.memberName}, &v1alpha1.MemberCluster{}), "it is there until somebody agrees")
	s.requireSecret(t, registration.CredentialSecret, true)

	said = term.MustRun(t, leave+" --member frankfurt -y")
	assert.Contains(t, said, "has left the fleet")
	assert.Contains(t, said, "its images, machines and its agent")
	s.requireNoMember(t)
	s.requireSecret(t, registration.CredentialSecret, false)
	said, err = term.Run(t, leave)
	assert.Equal(t, 2, exitCode(t, err), said)
	assert.Contains(t, said, "there is no MemberCluster "+s.memberName)
}

// TestLeaveCommandInPushMode shows that the Secret goes first, which would make the MemberCluster
// again, and the hub's tokens last, with which it removes its plan.
func TestLeaveCommandInPushMode(t *testing.T) {
	testenv.RunInTurn(t, 1)
	s := shared
	term := s.openTerminal(t)
	s.nameMember(t)
	s.startAgent(t, nil)
	given := client.ObjectKey{Namespace: program.HubNamespace, Name: s.memberName}
	t.Cleanup(func() {
		require.NoError(t, client.IgnoreNotFound(s.Delete(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: given.Namespace, Name: given.Name}})))
	})
	term.MustRun(t, s.documentedCommand(t, "push"))
	s.requireSecret(t, "ot-hub-access", true)

	said := term.MustRun(t, "kubectl ot leave "+s.memberName+" --member frankfurt -y")
	assert.Contains(t, said, "has left the fleet")
	s.requireNoMember(t)
	assert.True(t, apierrors.IsNotFound(s.Get(t.Context(), given, &corev1.Secret{})))
	s.requireSecret(t, "ot-hub-access", false)
	plan := s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, &v1alpha1.ClusterPlan{})
	assert.True(t, apierrors.IsNotFound(plan), "the hub could still remove its plan: %v", plan)
}
