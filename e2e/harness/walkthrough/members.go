//go:build linux

package walkthrough

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// byHand replaces the documented member's name on the hub: frankfurt has joined already.
var byHand = []string{
	"secret generic frankfurt", "secret generic by-hand", "secret frankfurt", "secret by-hand", "member=frankfurt", "member=by-hand",
	"membercluster frankfurt", "membercluster by-hand", "{name: frankfurt}", "{name: by-hand}", "ot-member-frankfurt", "ot-member-by-hand",
	"SHA256:…", "SHA256:" + strings.Repeat("A", 43),
}

// followPushByHand makes the hub's Secret for frankfurt under another name. Its credential must
// be that of the hub's account in the member.
func followPushByHand(t *testing.T, r *Reader) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "by-hand"}}
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}}
	fleetjourneys.DeleteAfterTest(t, r.hub, secret.DeepCopy(), member.DeepCopy()) // the Secret first: the hub makes the member of it
	for _, command := range CommandsBetween(t, MembersPage, "config view --minify --flatten >", "label secret frankfurt") {
		r.Run(t, command, byHand...)
	}
	require.NoError(t, r.hub.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["kubeconfig"])
	require.NoError(t, err)
	c, err := client.New(config, client.Options{Scheme: r.hub.Scheme()})
	require.NoError(t, err)
	review := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, c.Create(t.Context(), review))
	assert.Equal(t, "system:serviceaccount:ot-agent:ot-hub", review.Status.UserInfo.Username)

	r.awaitFinalizer(t, member)
	assert.Contains(t, r.MustRun(t, "kubectl delete membercluster by-hand --wait=false 2>&1"), "while Secret ot-hub/by-hand exists, the hub creates MemberCluster by-hand again")
	for _, command := range CommandsBetween(t, MembersPage, "delete secret frankfurt", "--for=delete") {
		r.Run(t, command, byHand...)
	}
}

// awaitFinalizer waits until the hub has taken a MemberCluster up.
func (r *Reader) awaitFinalizer(t *testing.T, member *v1alpha1.MemberCluster) {
	t.Helper()
	fleetjourneys.AwaitCondition(t, "MemberCluster "+member.Name+" to be taken up by the hub", func() bool {
		key := client.ObjectKeyFromObject(member)
		*member = v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: key.Name}}
		return r.hub.Get(t.Context(), key, member) == nil && len(member.Finalizers) > 0
	}, func() string { return "" })
}

// followPullByHand makes a join token, accepts a key and revokes all. No agent uses the token.
func followPullByHand(t *testing.T, r *Reader) {
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	fleetjourneys.DeleteAfterTest(t, r.hub, member.DeepCopy())
	for _, command := range CommandsBetween(t, MembersPage, "kubectl apply -f - <<'YAML'", `"acceptedKey"`) {
		if !strings.HasPrefix(command, "helm") { // the agent is installed
			r.Run(t, command, byHand...)
		}
	}
	token, err := os.ReadFile(filepath.Join(r.Directory, "join.kubeconfig"))
	require.NoError(t, err)
	_, err = registration.ParseHubAccess(token)
	require.NoError(t, err)
	r.Run(t, FindCommand(t, MembersPage, "annotate --overwrite membercluster"), byHand...)
	for _, command := range CommandsBetween(t, MembersPage, `"revoked":true`, "=Revoked") {
		r.Run(t, command, byHand...)
	}
	r.Run(t, FindCommand(t, MembersPage, `"kubeconfigSecretRef":null`), "kubectl patch", "kubectl patch --dry-run=server")

	r.awaitFinalizer(t, member)
	r.Run(t, FindCommand(t, MembersPage, "kubectl label membercluster frankfurt edge"), byHand...)
	for _, command := range CommandsBetween(t, MembersPage, "kubectl delete membercluster", "delete secret ot-hub-join ot-hub-credential") {
		r.Run(t, command, byHand...)
	}
	r.Run(t, FindCommand(t, MembersPage, "kubectl apply -f - <<'YAML'"), byHand...)
	r.awaitFinalizer(t, member)
	assert.Equal(t, "true", member.Labels["edge"], "labels outlive the member")
}

// followReadAPI makes the account of the page, and asks the read API with its token.
func followReadAPI(t *testing.T, r *Reader) {
	fleetjourneys.DeleteAfterTest(t, r.hub, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "fleet-reader"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "fleet-reader"}})
	img := r.createImage(t, "ubuntu-read")
	for _, command := range CommandsBetween(t, MembersPage, "create serviceaccount fleet-reader", "create token fleet-reader") {
		r.Run(t, command)
	}
	url := r.fleet.ReadAPI(t, r)
	var answer string
	await := func(command, wanted string, replace ...string) {
		t.Helper()
		command = FindCommand(t, MembersPage, command)
		fleetjourneys.AwaitCondition(t, wanted+" in the answer", func() bool { // the authorizer may still know the account without its binding
			answer = r.Run(t, command, append(replace, "https://localhost:8443", url)...)
			return strings.Contains(answer, wanted)
		}, func() string { return answer })
	}
	await("/fleet/v1/members?limit", `"member":"`+r.Frankfurt.Name+`"`)
	await("images/detail", `"name":"`+img.Name+`"`, "https://images.example.com/ubuntu.qcow2", img.Spec.URL)
}
