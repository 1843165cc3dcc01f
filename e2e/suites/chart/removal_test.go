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
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var (
	removalPattern      = regexp.MustCompile("(?s)\nTo remove all of it.*?```console\n(.*?)```")
	notesRemovalPattern = regexp.MustCompile(`\nTo remove them, while the agent runs:\n((?:  .*\n?)+)`)
)

// removalCommands is what a chart's page tells people to remove all of it by, a command a line.
func removalCommands(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(chartPath(t, filepath.Join("charts", name, "README.md")))
	require.NoError(t, err)
	found := removalPattern.FindStringSubmatch(string(text))
	require.NotNil(t, found, name)
	return strings.Split(strings.TrimSpace(found[1]), "\n")
}

// runShell runs a command as people do, who have helm, kubectl and a kubeconfig.
func (s *helmCluster) runShell(t *testing.T, command string) {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), binaries.Helm, binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), programs.PathVariable(), "KUBECONFIG="+s.plane.Kubeconfig())
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", command, output)
}

// removeHubAndAgent removes a hub and the agent beside it, the hub's own cluster being a
// member, by the commands of their pages: nothing of ours is left.
func removeHubAndAgent(t *testing.T, s *helmCluster) {
	require.NoError(t, s.Create(t.Context(), newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")))
	require.NoError(t, program.InstallClusterCRD(t.Context(), s.plane.Config()))
	syncs, err := program.StartAgent(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	t.Cleanup(syncs.Kill)
	plans, err := program.StartHub(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	t.Cleanup(plans.Kill)
	require.NoError(t, program.CreateMemberSecret(t.Context(), s, "own", s.plane.Config()))
	rollout := newFleetImage(t, map[string]any{"placement": map[string]any{"clusterNames": []any{"own"}}, "rollout": nil})
	require.NoError(t, s.Create(t.Context(), rollout))
	require.NoError(t, s.Create(t.Context(), newPruneReport(t, nil)))
	planned := client.ObjectKey{Namespace: "vmdi-farm", Name: "ubuntu-lts-2.1.0"}
	require.NoError(t, s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: planned.Namespace}}))
	require.Eventually(t, func() bool {
		image := &v1alpha1.VMDiskImage{}
		return s.Get(t.Context(), planned, image) == nil && len(image.Finalizers) > 0
	}, testenv.Patience, 100*time.Millisecond, "the agent takes up what the hub has planned")

	// Where both are, the hub's part ends where what the agent needs would go, and goes on
	// when the agent is gone, which leaves out what the hub needs.
	var last []string
	for _, command := range removalCommands(t, "ot-hub") {
		if strings.Contains(command, "not where ot-agent runs too") || len(last) > 0 {
			last = append(last, command)
			continue
		}
		s.runShell(t, command)
	}
	require.Len(t, last, 2)
	assert.False(t, s.objectExists(t, "pelotech.ot/v1alpha1", "ClusterPlan", program.AgentNamespace, v1alpha1.MailboxName), "the plan goes with its member")
	for _, command := range removalCommands(t, "ot-agent") {
		if !strings.Contains(command, "not where ot-hub runs too") && !strings.Contains(command, "nor this") {
			s.runShell(t, command)
		}
	}
	for _, command := range last {
		s.runShell(t, command)
	}
	s.requireNothingLeft(t)
}

// removeAgentOnly removes an agent that is alone in its cluster: images and machines by
// what its chart's notes say, and once more with all else by its page.
func removeAgentOnly(t *testing.T, s *helmCluster) {
	s.requireHelm(t, "install", "ot-agent", chartPath(t, agentChart), "--namespace", program.AgentNamespace, "--create-namespace")
	noted := notesRemovalPattern.FindSubmatch(s.queryHelm(t, "get", "notes", "ot-agent", "--namespace", program.AgentNamespace))
	require.NotNil(t, noted, "the notes say how to remove images and machines")
	syncs, err := program.StartAgent(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	t.Cleanup(syncs.Kill)
	takenUp := func() []*unstructured.Unstructured {
		t.Helper()
		objects := []*unstructured.Unstructured{newImage(t, nil), newVM(t, nil)}
		for _, object := range objects {
			object.SetNamespace(program.AgentNamespace)
			require.NoError(t, s.Create(t.Context(), object))
			require.Eventually(t, func() bool {
				err := s.Get(t.Context(), client.ObjectKeyFromObject(object), object)
				phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
				return err == nil && phase != ""
			}, testenv.Patience, 100*time.Millisecond, "the agent takes up %s", object.GetName())
		}
		return objects
	}
	objects := takenUp()
	s.runShell(t, string(noted[1]))
	for _, object := range objects {
		assert.True(t, apierrors.IsNotFound(s.Get(t.Context(), client.ObjectKeyFromObject(object), object)), "%s is left", object.GetName())
	}
	takenUp()
	for _, command := range removalCommands(t, "ot-agent") {
		s.runShell(t, command)
	}
	s.requireNothingLeft(t)
}

// requireNothingLeft has nothing of ours be in the cluster: no kind, no object that a chart or a
// program makes.
func (s *helmCluster) requireNothingLeft(t *testing.T) {
	t.Helper()
	assert.Empty(t, s.servedKinds(t))
	for _, name := range []string{program.AgentNamespace, program.HubNamespace, program.PolicyNamespace, v1alpha1.MemberNamespacePrefix + "own"} {
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
			assert.False(t, isOurs(&object), "%s %s", kind, client.ObjectKeyFromObject(&object))
		}
	}
}

// isOurs tells of an object that a chart or a program has made.
func isOurs(o client.Object) bool {
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
