//go:build linux

package chart_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
)

// TestHelmInstallsAndUninstalls takes the way that users take, on a control
// plane of its own: the objects that Install applies have no release.
func TestHelmInstallsAndUninstalls(t *testing.T) {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: "helm"})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	c, err := client.New(plane.Config(), client.Options{})
	require.NoError(t, err)
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	directory, err := filepath.Abs(filepath.Join("..", "..", agentChart))
	require.NoError(t, err)
	helm := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), programs[binaries.Helm],
			append(args, "--kubeconfig", plane.Kubeconfig(), "--namespace", agentNamespace)...)
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
	exists := func(apiVersion, kind, namespace, name string) bool {
		t.Helper()
		object := &unstructured.Unstructured{}
		object.SetAPIVersion(apiVersion)
		object.SetKind(kind)
		err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
		require.NoError(t, client.IgnoreNotFound(err))
		return !apierrors.IsNotFound(err)
	}

	helm("install", "agent", directory, "--create-namespace")
	helm("upgrade", "agent", directory, "--set", "replicas=1")
	mine := image(t, nil)
	mine.SetNamespace(agentNamespace)
	require.NoError(t, c.Create(t.Context(), mine))
	require.True(t, exists("apps/v1", "Deployment", agentNamespace, "ot-agent"))

	helm("uninstall", "agent")
	assert.False(t, exists("apps/v1", "Deployment", agentNamespace, "ot-agent"))
	assert.False(t, exists("rbac.authorization.k8s.io/v1", "ClusterRole", "", "ot-agent"))
	assert.True(t, exists("v1", "Namespace", "", "sync-operator"))
	assert.True(t, exists("pelotech.ot/v1alpha1", "VMDiskImage", agentNamespace, mine.GetName()), "images must outlive the chart")

	helm("install", "agent", directory)
	assert.True(t, exists("apps/v1", "Deployment", agentNamespace, "ot-agent"), "an installation takes over what was kept")
}
