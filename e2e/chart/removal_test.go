//go:build linux

package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/capi"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var (
	removal      = regexp.MustCompile("(?s)\nTo remove all of it.*?```console\n(.*?)```")
	notedRemoval = regexp.MustCompile(`\nTo remove them, while the agent runs:\n((?:  .*\n?)+)`)
)

// removalOf is what a chart's page tells people to remove all of it by, a command a line.
func removalOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(folder(t, filepath.Join("charts", name, "README.md")))
	require.NoError(t, err)
	found := removal.FindStringSubmatch(string(text))
	require.NotNil(t, found, name)
	return strings.Split(strings.TrimSpace(found[1]), "\n")
}

// shell runs a command as people do, who have helm, kubectl and a kubeconfig.
func (s *site) shell(t *testing.T, command string) {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), binaries.Helm, binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), programs.Environment(), "KUBECONFIG="+s.plane.Kubeconfig())
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", command, output)
}

// removeByHelm removes a hub and the agent beside it, the hub's own cluster being a
// member, by the commands of their pages: nothing of ours is left.
func removeByHelm(t *testing.T, s *site) {
	require.NoError(t, s.Create(t.Context(), standIn("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")))
	require.NoError(t, capi.InstallCRD(t.Context(), s.plane.Config()))
	syncs, err := agent.Start(t.Context(), s.plane, agent.Options{})
	require.NoError(t, err)
	t.Cleanup(syncs.Kill)
	plans, err := hub.Start(t.Context(), s.plane, hub.Options{})
	require.NoError(t, err)
	t.Cleanup(plans.Kill)
	require.NoError(t, hub.Join(t.Context(), s, "own", s.plane.Config()))
	rollout := fleetImage(t, map[string]any{"placement": map[string]any{"clusterNames": []any{"own"}}, "rollout": nil})
	require.NoError(t, s.Create(t.Context(), rollout))
	require.NoError(t, s.Create(t.Context(), pruneReport(t, nil)))
	planned := client.ObjectKey{Namespace: "vmdi-farm", Name: "ubuntu-lts-2.1.0"}
	require.NoError(t, s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: planned.Namespace}}))
	require.Eventually(t, func() bool {
		image := &v1alpha1.VMDiskImage{}
		return s.Get(t.Context(), planned, image) == nil && len(image.Finalizers) > 0
	}, scene.Patience, 100*time.Millisecond, "the agent takes up what the hub has planned")

	// Where both are, the hub's part ends where what the agent needs would go, and goes on
	// when the agent is gone, which leaves out what the hub needs.
	var last []string
	for _, command := range removalOf(t, "ot-hub") {
		if strings.Contains(command, "not where ot-agent runs too") || len(last) > 0 {
			last = append(last, command)
			continue
		}
		s.shell(t, command)
	}
	require.Len(t, last, 2)
	assert.False(t, s.exists(t, "pelotech.ot/v1alpha1", "ClusterPlan", agent.Namespace, v1alpha1.MailboxName), "the plan goes with its member")
	for _, command := range removalOf(t, "ot-agent") {
		if !strings.Contains(command, "not where ot-hub runs too") && !strings.Contains(command, "nor this") {
			s.shell(t, command)
		}
	}
	for _, command := range last {
		s.shell(t, command)
	}
	s.wantNothing(t)
}

// removeAgentByHelm removes an agent that is alone in its cluster: images and machines by
// what its chart's notes say, and once more with all else by its page.
func removeAgentByHelm(t *testing.T, s *site) {
	s.helm(t, "install", "ot-agent", folder(t, agentChart), "--namespace", agent.Namespace, "--create-namespace")
	noted := notedRemoval.FindSubmatch(s.ask(t, "get", "notes", "ot-agent", "--namespace", agent.Namespace))
	require.NotNil(t, noted, "the notes say how to remove images and machines")
	syncs, err := agent.Start(t.Context(), s.plane, agent.Options{})
	require.NoError(t, err)
	t.Cleanup(syncs.Kill)
	takenUp := func() []*unstructured.Unstructured {
		t.Helper()
		objects := []*unstructured.Unstructured{image(t, nil), machine(t, nil)}
		for _, object := range objects {
			object.SetNamespace(agent.Namespace)
			require.NoError(t, s.Create(t.Context(), object))
			require.Eventually(t, func() bool {
				err := s.Get(t.Context(), client.ObjectKeyFromObject(object), object)
				phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
				return err == nil && phase != ""
			}, scene.Patience, 100*time.Millisecond, "the agent takes up %s", object.GetName())
		}
		return objects
	}
	objects := takenUp()
	s.shell(t, string(noted[1]))
	for _, object := range objects {
		assert.True(t, apierrors.IsNotFound(s.Get(t.Context(), client.ObjectKeyFromObject(object), object)), "%s is left", object.GetName())
	}
	takenUp()
	for _, command := range removalOf(t, "ot-agent") {
		s.shell(t, command)
	}
	s.wantNothing(t)
}

// wantNothing has nothing of ours be in the cluster: no kind, no object that a chart or a
// program makes.
func (s *site) wantNothing(t *testing.T) {
	t.Helper()
	assert.Empty(t, s.kinds(t))
	for _, name := range []string{agent.Namespace, hub.Namespace, agent.PolicyNamespace, v1alpha1.MemberNamespacePrefix + "own"} {
		err := s.Get(t.Context(), client.ObjectKey{Name: name}, &corev1.Namespace{})
		assert.True(t, apierrors.IsNotFound(err), "namespace %s: %v", name, err)
	}
	for kind, apiVersion := range map[string]string{
		"ClusterRole": "rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "rbac.authorization.k8s.io/v1", "Role": "rbac.authorization.k8s.io/v1", "RoleBinding": "rbac.authorization.k8s.io/v1",
		"ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
		"MutatingAdmissionPolicy": "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
		"ConfigMap": "v1", "Secret": "v1", "ServiceAccount": "v1", "Service": "v1", "PersistentVolumeClaim": "v1",
		"Deployment": "apps/v1", "DataVolume": "cdi.kubevirt.io/v1beta1",
	} {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(apiVersion)
		list.SetKind(kind + "List")
		require.NoError(t, s.List(t.Context(), list))
		for _, object := range list.Items {
			assert.False(t, ours(&object), "%s %s", kind, client.ObjectKeyFromObject(&object))
		}
	}
}

// ours tells of an object that a chart or a program has made.
func ours(o client.Object) bool {
	if o.GetLabels()["app.kubernetes.io/part-of"] == "ot-fleet" {
		return true
	}
	for _, of := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		for key := range of {
			if strings.HasPrefix(key, "pelotech.ot/") {
				return true
			}
		}
	}
	return false
}
