//go:build linux

package registration_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// frankfurt is the member in the pages, and the context that leads to it.
const frankfurt = "frankfurt"

// openTerminal opens a terminal whose current context is the hub.
func (s *testFleet) openTerminal(t *testing.T) *pages.Terminal {
	t.Helper()
	return pages.OpenTerminal(t, "hub", map[string]string{"hub": s.Plane.Kubeconfig(), frankfurt: s.member.ControlPlane.Kubeconfig()})
}

// testChartFlags are the values by which the chart is in the member already, and has helm
// take over what is there.
const testChartFlags = " --set policy.create=false --take-ownership"

// documentedCommand is the one command by which both pages have a member join, with the name
// that it has in this test, and with further arguments.
func (s *testFleet) documentedCommand(t *testing.T, mode string, args ...string) string {
	t.Helper()
	var found []string
	for _, page := range []string{"README.md", "docs/operate/install.md", "docs/operate/members.md"} {
		for _, command := range pages.Read(t, page).Commands() {
			if strings.HasPrefix(command, "kubectl ot join "+mode+" "+frankfurt+" ") {
				found = append(found, command)
			}
		}
	}
	require.Len(t, found, 3, "one command in each page")
	require.Equal(t, slices.Repeat(found[:1], 3), found)
	join, values, ok := strings.Cut(found[0], " -- ")
	require.True(t, ok, "%s installs no agent", found[0])
	if !s.chartChanged { // in pull mode, helm removes the hub's account
		s.chartChanged = true
		t.Cleanup(func() {
			s.chartChanged = false
			require.NoError(t, s.member.InstallChart(context.Background()))
		})
	}
	join = strings.Replace(join, mode+" "+frankfurt, mode+" "+s.memberName, 1)
	return strings.Join(append([]string{join}, args...), " ") + " -- " + strings.ReplaceAll(values, "<version>", "v1.2.3") + testChartFlags
}

// runInstall is what helm has made a Deployment of in the member, which nobody runs there.
func (s *testFleet) runInstall(t *testing.T) string {
	t.Helper()
	deployment := &appsv1.Deployment{}
	require.NoError(t, s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: "ot-agent"}, deployment))
	assert.Equal(t, "ot-agent", deployment.Annotations["meta.helm.sh/release-name"])
	return deployment.Spec.Template.Spec.Containers[0].Image
}

// getKubeconfigSecret that the hub has of the member.
func (s *testFleet) getKubeconfigSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: s.memberName}, secret))
	return secret
}

// TestJoinPushCommand shows that one command installs the agent and connects the hub to
// it, with only the account that the chart created.
func TestJoinPushCommand(t *testing.T) {
	testenv.RunInTurn(t, 3)
	s := shared
	term := s.openTerminal(t)
	s.nameMember(t)
	forget := func() { // before the member goes: the hub makes it of the Secret
		require.NoError(t, client.IgnoreNotFound(s.Delete(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: s.memberName}})))
		require.NoError(t, client.IgnoreNotFound(s.member.Delete(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: "ot-hub-token"}})))
	}
	t.Cleanup(forget)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: "ot-hub"}}
	require.NoError(t, s.member.Delete(t.Context(), account))
	said, err := term.Run(t, "kubectl ot join push "+s.memberName+" --member frankfurt")
	require.Error(t, err)
	assert.Contains(t, said, "the cluster has no ServiceAccount ot-agent/ot-hub: have this install chart ot-agent")
	said, err = term.Run(t, s.documentedCommand(t, "push", "--timeout 1"))
	require.Error(t, err)
	assert.Contains(t, said, "error: MemberCluster "+s.memberName+" is not Ready: ", "no agent runs")
	assert.Equal(t, "ghcr.io/pelotech/ot-agent:v1.2.3", s.runInstall(t))

	s.startAgent(t, nil)
	t.Cleanup(forget)
	said = term.MustRun(t, s.documentedCommand(t, "push", "--label edge=true --label fleet.example/ring=canary"))
	assert.Contains(t, said, "warning: a hub elsewhere does not reach https://127.0.0.1:")
	assert.Contains(t, said, "MemberCluster "+s.memberName+" is Ready")
	ready := s.awaitMemberReady(t)
	assert.Equal(t, s.member.ClusterUID(t), ready.Status.ClusterUID)
	assert.NotEqual(t, "agent", ready.Status.Shard)

	s.requireLabels(t, labelSet{"edge": "true", "fleet.example/ring": "canary"})
	given := s.getKubeconfigSecret(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(given.Data["kubeconfig"])
	require.NoError(t, err)
	c, err := client.New(config, client.Options{Scheme: s.Scheme()})
	require.NoError(t, err)
	review := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, c.Create(t.Context(), review))
	assert.Equal(t, "system:serviceaccount:ot-agent:ot-hub", review.Status.UserInfo.Username)

	assert.False(t, credential.Describe(config.BearerToken).Expires.IsZero(), "the token that is given ends")
	rotated := &corev1.Secret{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: "ot-member-" + s.memberName + "-token"}, rotated), "the command waits for the hub's own token")

	term.MustRun(t, s.documentedCommand(t, "push"))
	assert.Equal(t, given.ResourceVersion, s.getKubeconfigSecret(t).ResourceVersion, "what is there already is kept")
	assert.Equal(t, ready.UID, testenv.GetMember(t, s, s.memberName).UID)

	// Where something else has installed the agent, helm has nothing to do.
	elsewhere := s.member.ControlPlane.Config().Host + "/"
	said = term.MustRun(t, "kubectl ot join push "+s.memberName+" --member frankfurt --server "+elsewhere)
	assert.Contains(t, said, elsewhere)
	assert.NotContains(t, said, "installing")
	assert.Contains(t, string(s.getKubeconfigSecret(t).Data["kubeconfig"]), elsewhere)
	s.requireLabels(t, labelSet{"edge": "true", "fleet.example/ring": "canary"}) // of the first command

	// What was set by hand changes only with --label.
	term.MustRun(t, "kubectl label --overwrite membercluster "+s.memberName+" edge=by-hand size=small")
	term.MustRun(t, "kubectl ot join push "+s.memberName+" --member frankfurt --label fleet.example/ring=production")
	s.requireLabels(t, labelSet{"edge": "by-hand", "size": "small", "fleet.example/ring": "production"})
	term.MustRun(t, "kubectl ot join push "+s.memberName+" --member frankfurt --label edge=false")
	s.requireLabels(t, labelSet{"edge": "false", "size": "small", "fleet.example/ring": "production"})

	// The token without end that earlier versions made is deleted.
	createLegacyToken(t, s, "ot-hub-token")
	term.MustRun(t, "kubectl ot join push "+s.memberName+" --member frankfurt")
	assert.True(t, apierrors.IsNotFound(s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: "ot-hub-token"}, &corev1.Secret{})))

	// Another cluster does not take the name by mistake, and nothing is installed there.
	said, err = term.Run(t, "kubectl ot join push "+s.memberName+" --member hub -- --set image.tag=v1.2.3")
	require.Error(t, err)
	assert.Contains(t, said, "is another cluster, "+string(ready.Status.ClusterUID))
	assert.Contains(t, said, "pelotech.ot/accept-cluster="+string(fleet.ClusterUID(t, s)))
	assert.NotContains(t, said, "installing")
}

type labelSet = map[string]string

// requireLabels waits until the MemberCluster has labels.
func (s *testFleet) requireLabels(t *testing.T, want labelSet) {
	t.Helper()
	var labels labelSet
	require.True(t, testenv.AwaitCondition(t, func() bool {
		labels = testenv.GetMember(t, s, s.memberName).Labels
		for key, value := range want {
			if labels[key] != value {
				return false
			}
		}
		return true
	}), "%v, not %v", &labels, want)
}

// TestJoinPullCommand shows that one command creates a join token on the hub, installs
// the agent with it, and that the agent then registers without confirmation.
func TestJoinPullCommand(t *testing.T) {
	testenv.RunInTurn(t, 2)
	s := shared
	term := s.openTerminal(t)
	s.nameMember(t)
	said, err := term.Run(t, s.documentedCommand(t, "pull", "--timeout 5"))
	require.Error(t, err)
	assert.Contains(t, said, "error: MemberCluster "+s.memberName+" is not Ready: ", "no agent runs")
	assert.Equal(t, "ghcr.io/pelotech/ot-agent:v1.2.3", s.runInstall(t))

	// A Secret that somebody made by hand, with a token that is no good, is in nobody's way.
	invite := client.ObjectKey{Namespace: program.AgentNamespace, Name: registration.JoinSecret}
	require.NoError(t, client.IgnoreNotFound(s.member.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: invite.Namespace, Name: invite.Name}})))
	term.MustRun(t, "kubectl --context frankfurt -n "+invite.Namespace+" create secret generic "+invite.Name+" --from-literal=kubeconfig=old")

	s.startAgent(t, nil)
	assert.Contains(t, term.MustRun(t, s.documentedCommand(t, "pull", "--label edge=true")), "MemberCluster "+s.memberName+" is Ready")
	s.requireLabels(t, labelSet{"edge": "true"})
	s.awaitMemberReady(t)
	s.awaitJoined(t)
	credential, in := s.storedCredential(t), testenv.GetMember(t, s, s.memberName)

	term.MustRun(t, s.documentedCommand(t, "pull"))
	assert.Equal(t, credential, s.storedCredential(t), "what is there already is kept")
	assert.Equal(t, in.UID, testenv.GetMember(t, s, s.memberName).UID)
	invitation := s.member.Get(t.Context(), invite, &corev1.Secret{})
	assert.True(t, apierrors.IsNotFound(invitation), "a token that was used is of no use: %v", invitation)

	// No other agent takes its place by mistake.
	for _, args := range []string{"", " --member hub -- --set image.tag=v1.2.3"} {
		said, err := term.Run(t, "kubectl ot join pull "+s.memberName+args)
		require.Error(t, err)
		assert.Contains(t, said, "the agent of "+s.memberName+" is registered already")
		assert.NotContains(t, said, "installing")
	}
}

// TestJoinCommandConfirmsKey shows that without automatic acceptance the command prints
// the key of the agent that asks to register, and that its user can decline.
func TestJoinCommandConfirmsKey(t *testing.T) {
	testenv.RunInTurn(t, 0)
	s := shared
	term := s.openTerminal(t)
	s.nameMember(t)
	s.startAgent(t, nil)
	asking := strings.Replace(s.documentedCommand(t, "pull"), " --auto-accept", "", 1)
	for range 2 {
		said, err := term.Run(t, asking)
		assert.Equal(t, 4, exitCode(t, err), "a person has to accept it: %s", said)
		assert.Contains(t, said, "SHA256:")
		assert.Contains(t, said, "the same")
		assert.Contains(t, said, "kubectl ot accept "+s.memberName)
		assert.NotContains(t, said, "is Ready")
	}
	said, err := term.Run(t, "kubectl ot join pull "+s.memberName)
	require.Error(t, err)
	assert.Contains(t, said, "an agent has presented the join token of "+s.memberName)

	// The key that an agent shows must be the one that the hub was sent.
	accept := "kubectl ot accept " + s.memberName + " -y"
	said, err = term.Run(t, accept)
	assert.Equal(t, 4, exitCode(t, err), "nobody has compared the keys: %s", said)
	said, err = term.Run(t, accept+" --key SHA256:"+strings.Repeat("A", 43))
	assert.Equal(t, 1, exitCode(t, err), said)
	assert.Contains(t, said, "another agent has presented the join token")
	assert.Empty(t, testenv.GetMember(t, s, s.memberName).Spec.Connection.Pull.AcceptedKey)
	assert.Contains(t, term.MustRun(t, accept+" --member frankfurt"), "is accepted")
	s.awaitMemberReady(t)
	assert.Contains(t, term.MustRun(t, accept+" --member frankfurt"), "no agent asks to be let in", "again")
	assert.Contains(t, term.MustRun(t, asking), "MemberCluster "+s.memberName+" is Ready")
}

// TestJoinCommandWritesTokenFile shows that the token is written to a file for a cluster
// that cannot be reached from where the hub is.
func TestJoinCommandWritesTokenFile(t *testing.T) {
	s := shared
	term := s.openTerminal(t)
	s.nameMember(t)
	command := "kubectl ot join pull " + s.memberName
	said := term.MustRun(t, command)
	first := readJoinToken(t, term)
	assert.Contains(t, said, first.Server)
	assert.Contains(t, said, "then accept the agent's key")
	assert.False(t, testenv.GetMember(t, s, s.memberName).Spec.Connection.Pull.AutoAccept)
	assert.NotContains(t, term.MustRun(t, command+" --auto-accept"), "then accept the agent's key")
	assert.True(t, testenv.GetMember(t, s, s.memberName).Spec.Connection.Pull.AutoAccept)
	assert.Equal(t, first, readJoinToken(t, term), "the token that waits is the token")

	// One that nobody has presented in time is replaced.
	key := client.ObjectKey{Namespace: program.HubNamespace, Name: registration.JoinSecretName(s.memberName)}
	secret := &corev1.Secret{}
	require.NoError(t, s.Get(t.Context(), key, secret))
	secret.Annotations["pelotech.ot/expires"] = "2020-01-01T00:00:00Z"
	require.NoError(t, s.Update(t.Context(), secret))
	s.awaitJoinedReason(t, v1alpha1.ReasonJoinTokenExpired)
	assert.Contains(t, term.MustRun(t, command), "has expired")
	assert.NotEqual(t, first.Token, readJoinToken(t, term).Token)

	s.revokeCredential(t)
	said, err := term.Run(t, command)
	require.Error(t, err)
	assert.Contains(t, said, "are revoked (spec.connection.pull.revoked")
}

// TestInvalidJoinCommands shows that the command names what prevents a registration and
// overwrites nobody else's objects.
func TestInvalidJoinCommands(t *testing.T) {
	s := shared
	term := s.openTerminal(t)
	s.createMemberWith(t, v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "another"}})
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "theirs"}, StringData: map[string]string{"key": "value"}}
	require.NoError(t, s.Create(t.Context(), theirs))
	t.Cleanup(func() { require.NoError(t, s.Delete(context.Background(), theirs)) })
	for command, want := range map[string]string{
		"":                                    "join is followed by push or pull",
		"pusch oslo":                          "join is followed by push or pull",
		"push":                                "join push is followed by the cluster's name",
		"push --member frankfurt":             "join push is followed by the cluster's name",
		"push oslo bergen --member frankfurt": "only that: there are 2 arguments",
		"push Oslo --member frankfurt":        "the cluster's name on the hub is at most 53 characters",
		"push oslo":                           "push needs --member",
		"push oslo --member":                  "flag needs an argument: --member",
		"push oslo --auto-accept":             "unknown flag: --auto-accept",
		"push oslo --member none":             "the cluster is not reached by context none",
		"push oslo --member hub":              "the cluster has no ServiceAccount ot-agent/ot-hub: have this install chart ot-agent",
		"push oslo --member frankfurt --timeout soon":              "--timeout is a number of seconds",
		"pull oslo --output json":                                  "here it is the file for the join token",
		"pull oslo --label":                                        "flag needs an argument: --label",
		"pull oslo --label edge":                                   `--label is a label as KEY=VALUE: "edge" is none`,
		"pull oslo --label edge=a,b=c":                             `"edge=a,b=c" is none`,
		"pull oslo --label pelotech.ot/member=a":                   "label pelotech.ot/member is the hub's own",
		"pull oslo --member none --":                               "the cluster is not reached by context none",
		"pull oslo --member frankfurt":                             "pull with --member installs the agent",
		"pull oslo -- --set a=b":                                   "what follows -- is for helm, which needs --member",
		"pull oslo --hub none":                                     "the hub is not reached: the kubeconfig has no context none",
		"pull oslo --hub frankfurt":                                "there is no namespace ot-hub on the hub, or it cannot be read",
		"pull oslo --hub-namespace none":                           "there is no namespace none on the hub, or it cannot be read",
		"push theirs --member frankfurt --timeout 5":               "there is a Secret ot-hub/theirs that is no member's",
		"push " + s.memberName + " --member frankfurt --timeout 5": "MemberCluster " + s.memberName + " is there, and is not reached by Secret " + s.memberName,
		"pull " + s.memberName:                                     "MemberCluster " + s.memberName + " is there, and its agent is not in pull mode",
	} {
		said, err := term.Run(t, "kubectl ot join "+command)
		assert.Equal(t, 2, exitCode(t, err), command)
		assert.Contains(t, said, want, command)
	}
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs))
	assert.Equal(t, map[string][]byte{"key": []byte("value")}, theirs.Data)
	assert.True(t, apierrors.IsNotFound(s.member.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: "ot-hub-token"}, &corev1.Secret{})))
}

// exitCode returns the exit code of a command.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended)
	return ended.ExitCode()
}

// readJoinToken reads the join token that the command wrote to a file.
func readJoinToken(t *testing.T, term *pages.Terminal) registration.HubAccess {
	t.Helper()
	path := filepath.Join(term.Directory, "join.kubeconfig")
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "nobody else reads it")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	access, err := registration.ParseHubAccess(text)
	require.NoError(t, err)
	return access
}
