//go:build linux

package fleet_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	imagesPage   = "docs/images.md"
	machinesPage = "docs/machines.md"
	membersPage  = "docs/operate/members.md"
	policyPage   = "docs/policy.md"
	rolloutsPage = "docs/rollouts-and-prune.md"
	sourcesPage  = "docs/sources.md"
	waitingPage  = "docs/waiting.md"
)

// reader follows the pages of the documentation and remembers which commands it has run.
type reader struct {
	*pages.Terminal
	done map[string]bool
}

// run runs a command that a page has, with replacements for what a reader fills in.
func (r *reader) run(t *testing.T, command string, replace ...string) string {
	t.Helper()
	r.done[command] = true
	return r.MustRun(t, strings.NewReplacer(replace...).Replace(command))
}

// columns runs a documented `kubectl get` and checks that the page shows the columns it has.
func (r *reader) columns(t *testing.T, page, command string, replace ...string) {
	t.Helper()
	output := r.run(t, command, replace...)
	header, _, _ := strings.Cut(output, "\n")
	assert.Equal(t, pages.Read(t, page).ShownColumns(t, command), strings.Fields(header), "%s: %s", page, command)
}

// findCommand returns the only command of a page that contains a text.
func findCommand(t *testing.T, page, contains string) string {
	t.Helper()
	var found []string
	for _, command := range pages.Read(t, page).Commands() {
		if strings.Contains(command, contains) {
			found = append(found, command)
		}
	}
	require.Len(t, found, 1, "%s: commands that contain %q", page, contains)
	return found[0]
}

// runElsewhere are the commands of pages that other tests run, or that only a real node can.
var runElsewhere = []struct{ pattern, by string }{
	{`^helm upgrade --install images `, "e2e/suites/rollout TestHelmWaitsForRollout"},
	{`^helm (--kube-context \S+ )?(install|upgrade) `, "e2e/suites/chart TestHelmCommandsInDocs"},
	{`^kubectl -n sync-operator patch configmap `, "e2e/suites/chart TestUpgradeOfEditedPolicy"},
	{`^helm (test|uninstall) `, "e2e/suites/kind TestHelm, e2e/suites/chart TestHelmLifecycle"},
	{`^scripts/join (push|pull) `, "e2e/suites/registration TestJoinPushCommand, TestJoinPullCommand"},
	{`^kubectl label (cluster|membercluster) \S+ pelotech`, "e2e/suites/install sets these labels"},
	{`^kubectl wait otvm/`, "e2e/suites/local waits for this condition of a machine that KubeVirt runs"},
	{`^make `, "the Makefile; e2e/suites/kind runs kind-demo"},
	{`port-forward|^kubectl describe pod|^virtctl`, "needs a kubelet"},
}

// TestPages follows the commands and examples of the documentation on a real hub and its
// members. A command that is neither run here nor listed as run elsewhere fails the test.
func TestPages(t *testing.T) {
	inFrankfurt := shared.Members[frankfurt]
	r := &reader{
		pages.OpenTerminal(t, "hub", map[string]string{"hub": shared.Plane.Kubeconfig(), frankfurt: inFrankfurt.ControlPlane.Kubeconfig()}),
		map[string]bool{},
	}
	for _, m := range shared.Members {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "vmdi-farm"}}
		require.NoError(t, client.IgnoreAlreadyExists(m.Create(t.Context(), namespace)))
		t.Cleanup(func() {
			assert.NoError(t, m.DeleteAllOf(context.Background(), &v1alpha1.VMDiskImage{}, client.InNamespace(namespace.Name)))
		})
	}
	t.Run("policy", r.followPolicy)
	t.Run("rollout", r.followRollout)
	t.Run("readme", r.followReadme)
	t.Run("prune", r.followPrune)
	t.Run("images", r.followImages)
	t.Run("push", r.followPushByHand)
	t.Run("pull", r.followPullByHand)
	t.Run("read API", r.readAPI)
	t.Run("reads", r.followReads)
	t.Run("dry runs", r.tryWrites)
	t.Run("edit", func(t *testing.T) {
		edit := findCommand(t, "docs/operate/install.md", "edit configmap")
		assert.Contains(t, r.run(t, edit, "kubectl", "EDITOR=true kubectl"), "no changes made")
	})

	var elsewhere []*regexp.Regexp
	for _, e := range runElsewhere {
		elsewhere = append(elsewhere, regexp.MustCompile(e.pattern))
	}
	for _, page := range pages.List(t) {
	commands:
		for _, command := range page.Commands() {
			for _, pattern := range elsewhere {
				if pattern.MatchString(command) {
					continue commands
				}
			}
			isRemoval := strings.HasPrefix(page.Path, "charts/") // TestHelmLifecycle runs those
			assert.True(t, isRemoval || r.done[command], "%s: no test runs `%s`", page.Path, command)
		}
	}
}

// followPolicy previews the policy of the page: an override for frankfurt raises its budget.
func (r *reader) followPolicy(t *testing.T) {
	example := pages.Read(t, policyPage).Block(t, "yaml", "kind: ConfigMap")
	r.WriteFile(t, "try.yaml", strings.Replace(example, "name: sync-operator-policy,", `name: try, labels: {pelotech.ot/policy-preview: "true"},`, 1))
	r.MustRun(t, "kubectl apply -f try.yaml")
	t.Cleanup(func() {
		try := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "try"}}
		assert.NoError(t, client.IgnoreNotFound(shared.Delete(context.Background(), try)))
	})
	var answer string
	command := findCommand(t, policyPage, "get cm try")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		answer = r.run(t, command)
		return answer != ""
	}))
	assert.Contains(t, answer, frankfurt)
	assert.Contains(t, answer, "8")
	header, _, _ := strings.Cut(r.run(t, findCommand(t, policyPage, "kubectl get memberclusters -o wide")), "\n")
	for _, column := range []string{"OWNLIMIT", "MESSAGE"} {
		assert.Contains(t, strings.Fields(header), column)
	}
}

// followRollout rolls out the FleetDiskImage of the page over its two waves, with the approval
// that the page gives.
func (r *reader) followRollout(t *testing.T) {
	r.MustRun(t, "kubectl label membercluster "+edge+" region=eu ring=canary")
	r.MustRun(t, "kubectl label membercluster "+frankfurt+" region=eu ring=production")
	t.Cleanup(func() {
		for _, name := range []string{edge, frankfurt} {
			member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
			assert.NoError(t, shared.Patch(context.Background(), member, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"region":null,"ring":null}}}`))))
		}
	})
	r.WriteFile(t, "ubuntu.yaml", strings.Replace(pages.Read(t, rolloutsPage).Block(t, "yaml", "kind: FleetDiskImage"), "minSuccessTime: 1h", "minSuccessTime: 1s", 1))
	img := &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: "ubuntu"}}
	deleteAfter(t, img)
	waited := make(chan error, 1)
	wait := findCommand(t, rolloutsPage, "kubectl apply -f ubuntu.yaml")
	r.done[wait] = true
	go func() {
		_, err := r.Run(t, wait)
		waited <- err
	}()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return shared.Get(t.Context(), client.ObjectKeyFromObject(img), img) == nil && img.Status.Reason == v1alpha1.ReasonAwaitingApproval
	}), "%+v", img.Status)
	r.columns(t, rolloutsPage, "kubectl get fdi")
	r.run(t, findCommand(t, rolloutsPage, "/spec/approvals"), "<you>", "admin")
	require.NoError(t, <-waited)
	for _, command := range []string{"--for=condition=Ready --timeout=6h", "--for=condition=Reconciling=false"} {
		r.run(t, findCommand(t, waitingPage, command))
	}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(img), img))
	assert.Equal(t, v1alpha1.RolloutSucceeded, img.Status.Phase)
}

// followReadme applies an image and waits for it by the last of the README's commands.
func (r *reader) followReadme(t *testing.T) {
	example := pages.Read(t, rolloutsPage).Block(t, "yaml", "kind: FleetDiskImage")
	example = strings.NewReplacer("{name: ubuntu}", "{name: my-image}", "{name: ubuntu,", "{name: my-image,", "clusterSelector: {matchLabels: {region: eu}}", "clusterNames: ["+edge+"]").Replace(example)
	head, tail, _ := strings.Cut(example, "  rollout:\n")
	_, tail, _ = strings.Cut(tail, "  retention:")
	r.WriteFile(t, "my-image.yaml", head+"  retention:"+tail)
	deleteAfter(t, &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: "my-image"}})
	r.run(t, findCommand(t, "README.md", "my-image.yaml"))
}

// followPrune reports and prunes what the rollout has left, and undoes it.
func (r *reader) followPrune(t *testing.T) {
	page := pages.Read(t, rolloutsPage)
	r.WriteFile(t, "spring.yaml", strings.Replace(page.Block(t, "yaml", "kind: PruneReport"), "unreferencedFor: 168h", "unreferencedFor: 0s", 1))
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "spring"}}
	prune := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "spring"}}
	deleteAfter(t, report)
	deleteAfter(t, prune)
	r.run(t, findCommand(t, rolloutsPage, "kubectl apply -f spring.yaml"))
	r.columns(t, rolloutsPage, "kubectl get prunereports")
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(report), report))
	require.Positive(t, report.Status.Candidates.Count, "the images that the FleetDiskImage left")

	example := strings.NewReplacer("5d1f0c9e7a3b8842c0de11faa72b3d90", report.Status.Digest, "<you>", "admin").Replace(page.Block(t, "yaml", "kind: ImagePrune"))
	r.WriteFile(t, "prune.yaml", example)
	r.MustRun(t, "kubectl apply -f prune.yaml")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(prune), prune))
		return prune.Status.Reason == v1alpha1.ReasonUndoWindow
	}), "%+v", prune.Status)
	r.run(t, findCommand(t, rolloutsPage, "kubectl patch imageprune spring"))
	r.run(t, findCommand(t, rolloutsPage, "kubectl wait imageprune/spring"))
}

// followImages applies the examples of images and machines to a member and waits as the pages
// say.
func (r *reader) followImages(t *testing.T) {
	const inMember = "kubectl --context " + frankfurt
	for _, example := range []struct{ page, part string }{
		{imagesPage, "kind: VMDiskImage"}, {machinesPage, "metadata: {name: desk-1"},
		{sourcesPage, "secretExtraHeaders:"}, {sourcesPage, "kind: Secret"}, {sourcesPage, "pullMethod: node"},
	} {
		r.WriteFile(t, "example.yaml", pages.Read(t, example.page).Block(t, "yaml", example.part))
		output := r.MustRun(t, inMember+" create --dry-run=server -f example.yaml --namespace vmdi-farm || "+inMember+" create namespace workspace-7 && "+inMember+" create --dry-run=server -f example.yaml")
		assert.Contains(t, output, "created (server dry run)")
	}
	img := shared.Members[frankfurt].CreateImageForTest(t, "ubuntu-22")
	namespace := " --namespace " + img.Namespace + " "
	r.run(t, findCommand(t, imagesPage, "kubectl wait vmdi/ubuntu-22"), "kubectl wait", inMember+namespace+"wait")
	shared.Members[frankfurt].CreateMachine(t, "desk-1", img.Name)
	r.columns(t, imagesPage, "kubectl get vmdi -A", "kubectl", inMember)
	r.columns(t, machinesPage, "kubectl get otvm -A", "kubectl", inMember)
}

// commandsBetween returns the commands of a page from the one that contains first to the one that
// contains last.
func commandsBetween(t *testing.T, page, first, last string) []string {
	t.Helper()
	commands := pages.Read(t, page).Commands()
	from := slices.IndexFunc(commands, func(c string) bool { return strings.Contains(c, first) })
	require.GreaterOrEqual(t, from, 0, "%s has no command with %q", page, first)
	length := slices.IndexFunc(commands[from:], func(c string) bool { return strings.Contains(c, last) })
	require.GreaterOrEqual(t, length, 0, "%s has no command with %q after that", page, last)
	return commands[from : from+length+1]
}

// byHand replaces the documented member's name on the hub: frankfurt has joined already.
var byHand = []string{
	"secret generic " + frankfurt, "secret generic by-hand", "secret " + frankfurt, "secret by-hand", "member=" + frankfurt, "member=by-hand",
	"membercluster " + frankfurt, "membercluster by-hand", "{name: " + frankfurt + "}", "{name: by-hand}", "ot-member-" + frankfurt, "ot-member-by-hand",
	"SHA256:…", "SHA256:" + strings.Repeat("A", 43),
}

// followPushByHand makes the hub's Secret for frankfurt under another name. Its credential must
// be that of the hub's account in the member.
func (r *reader) followPushByHand(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "by-hand"}}
	deleteAfter(t, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}})
	deleteAfter(t, secret)
	for _, command := range commandsBetween(t, membersPage, "config view --minify --flatten >", "label secret "+frankfurt) {
		r.run(t, command, byHand...)
	}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["kubeconfig"])
	require.NoError(t, err)
	c, err := client.New(config, client.Options{Scheme: shared.Scheme()})
	require.NoError(t, err)
	review := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, c.Create(t.Context(), review))
	assert.Equal(t, "system:serviceaccount:ot-agent:ot-hub", review.Status.UserInfo.Username)

	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}}
	awaitFinalizer(t, member)
	assert.Contains(t, r.MustRun(t, "kubectl delete membercluster by-hand --wait=false 2>&1"), "while Secret ot-hub/by-hand exists, the hub creates MemberCluster by-hand again")
	for _, command := range commandsBetween(t, membersPage, "delete secret "+frankfurt, "--for=delete") {
		r.run(t, command, byHand...)
	}
}

// awaitFinalizer waits until the hub has taken a MemberCluster up.
func awaitFinalizer(t *testing.T, member *v1alpha1.MemberCluster) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		key := client.ObjectKeyFromObject(member)
		*member = v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: key.Name}}
		return shared.Get(t.Context(), key, member) == nil && len(member.Finalizers) > 0
	}), "the hub has not taken up MemberCluster %s", member.Name)
}

// followPullByHand makes a join token, accepts a key and revokes all.
func (r *reader) followPullByHand(t *testing.T) {
	deleteAfter(t, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}})
	for _, command := range commandsBetween(t, membersPage, "kubectl apply -f - <<'YAML'", `"acceptedKey"`) {
		switch {
		case strings.HasPrefix(command, "helm"): // TestHelmCommandsInDocs
		case strings.Contains(command, "grep"):
			// The agent of this test is in push mode: it has no key to show.
			r.run(t, command, "| grep -A6 HubConnected", "")
		default:
			r.run(t, command, byHand...)
		}
	}
	token, err := os.ReadFile(filepath.Join(r.Directory, "join.kubeconfig"))
	require.NoError(t, err)
	_, err = registration.ParseHubAccess(token)
	require.NoError(t, err)
	r.run(t, findCommand(t, membersPage, "annotate --overwrite membercluster"), byHand...)
	for _, command := range commandsBetween(t, membersPage, `"revoked":true`, "=Revoked") {
		r.run(t, command, byHand...)
	}
	r.run(t, findCommand(t, membersPage, `"kubeconfigSecretRef":null`), "kubectl patch", "kubectl patch --dry-run=server")

	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	awaitFinalizer(t, member)
	r.run(t, findCommand(t, membersPage, "kubectl label membercluster "+frankfurt+" edge"), byHand...)
	for _, command := range commandsBetween(t, membersPage, "kubectl delete membercluster", "delete secret ot-hub-credential") {
		r.run(t, command, byHand...)
	}
	r.MustRun(t, strings.NewReplacer(byHand...).Replace(findCommand(t, membersPage, "kubectl apply -f - <<'YAML'")))
	awaitFinalizer(t, member)
	assert.Equal(t, "true", member.Labels["edge"], "labels outlive the member")
}

// readAPI makes the account of the page, and asks the read API with its token.
func (r *reader) readAPI(t *testing.T) {
	deleteAfter(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "fleet-reader"}})
	deleteAfter(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "fleet-reader"}})
	img := shared.Members[frankfurt].CreateImageForTest(t, "ubuntu-read")
	for _, command := range commandsBetween(t, membersPage, "create serviceaccount fleet-reader", "create token fleet-reader") {
		r.run(t, command)
	}
	list := findCommand(t, membersPage, "/fleet/v1/members?limit")
	require.True(t, testenv.AwaitCondition(t, func() bool { // the authorizer may still know the account without its binding
		return strings.Contains(r.run(t, list, "https://localhost:8443", shared.Hub.APIURL), `"member":"`+frankfurt+`"`)
	}))
	detail := findCommand(t, membersPage, "images/detail")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return strings.Contains(r.run(t, detail, "https://localhost:8443", shared.Hub.APIURL, "https://images.example.com/ubuntu.qcow2", img.Spec.URL), `"name":"`+img.Name+`"`)
	}))
}

// tryWrites has the API server check the commands that would cut off a member, or grant rights to
// accounts that the test does not have. Other tests do what they do.
func (r *reader) tryWrites(t *testing.T) {
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "images"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "workspace"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "ot-hub-departed"}},
	} {
		require.NoError(t, client.IgnoreAlreadyExists(shared.Create(t.Context(), object)))
	}
	for page, commands := range map[string][]string{
		machinesPage:             {"rolebinding workspace-authors", "rolebinding ot-agent-secrets"},
		"docs/operate/budget.md": {"annotate configmap ot-hub-departed"},
		membersPage:              {"delete secret ot-hub-access", "delete secret ot-hub-token", "patch secret " + frankfurt, `"quarantine":{"reason"`},
	} {
		for _, command := range commands {
			command = findCommand(t, page, command)
			r.run(t, command, " create rolebinding", " create --dry-run=server rolebinding", " delete ", " delete --dry-run=server ", " patch ", " patch --dry-run=server ", " annotate ", " annotate --dry-run=server ")
		}
	}
	r.run(t, findCommand(t, machinesPage, "auth can-i clone"), "kubectl --namespace", "kubectl --context "+frankfurt+" --namespace", "--as alice", "|| true")
}

// followReads runs every other command that reads, and checks the columns that pages show.
func (r *reader) followReads(t *testing.T) {
	for _, page := range pages.List(t) {
		for _, command := range page.Commands() {
			if r.done[command] || !strings.HasPrefix(command, "kubectl get") && !strings.HasPrefix(command, "kubectl explain") {
				continue
			}
			if strings.Contains(page.Text(), "$ "+command+"\n") {
				r.columns(t, page.Path, command)
				continue
			}
			replace := []string{}
			if regexp.MustCompile(` (vmdi|otvm|syncledgers) |vmdiskimage|otvm`).MatchString(command) {
				replace = []string{"kubectl ", "kubectl --context " + frankfurt + " "}
			}
			// What follows a pipe may delete what was found, or need other tools.
			if _, rest, ok := strings.Cut(command, "|"); ok {
				replace = append(replace, "|"+rest, "")
			}
			r.run(t, command, replace...)
		}
	}
}

// deleteAfter deletes an object after the test and waits until it is gone.
func deleteAfter(t *testing.T, o client.Object) {
	t.Helper()
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(shared.Delete(context.Background(), o)))
		assert.True(t, testenv.AwaitCondition(t, func() bool {
			return apierrors.IsNotFound(shared.Get(context.Background(), client.ObjectKeyFromObject(o), o))
		}), "%T %s is left", o, o.GetName())
	})
}
