//go:build linux

package chart_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	agentguard "github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	hubguard "github.com/pelotech/ot-fleet/hub/admissionpolicy"
)

// An API server that does not serve ValidatingAdmissionPolicies is told of by helm, by
// name, before anything is installed, and by agent and hub that run on one.
func TestAPIServerWithoutAdmissionPolicies(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: "nopolicies",
		APIServerArgs: []string{"--runtime-config=admissionregistration.k8s.io/v1/validatingadmissionpolicies=false", "--disable-admission-plugins=ValidatingAdmissionPolicy"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	for name, path := range chartPaths {
		output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], "install", name, chartPath(t, path),
			"--namespace", name, "--create-namespace", "--kubeconfig", plane.Kubeconfig()).CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(output), "this cluster does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1", name)
	}

	known := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(known))
	require.NoError(t, cdiv1.AddToScheme(known))
	c, err := client.New(plane.Config(), client.Options{Scheme: known})
	require.NoError(t, err)
	told := map[string]metav1.Condition{"agent": agentAPICondition(t, c)}
	for _, p := range []hubguard.Policy{hubguard.WavesPolicy, hubguard.PrunesPolicy} {
		told["hub, "+p.Name], err = (&hubguard.ApprovalCheck{Live: c, Enforced: true}).CheckPolicy(t.Context(), p)
		require.NoError(t, err)
	}
	for name, got := range told {
		assert.Equal(t, metav1.ConditionFalse, got.Status, name)
		assert.Equal(t, v1alpha1.ReasonPoliciesNotServed, got.Reason, name)
		assert.Contains(t, got.Message, "does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1", name)
	}
}

// agentAPICondition is what an agent says of its API server, where CDI is installed.
func agentAPICondition(t *testing.T, c client.Client) metav1.Condition {
	t.Helper()
	require.NoError(t, c.Create(t.Context(), newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")))
	ctx, cancel := context.WithCancel(t.Context())
	g := agentguard.NewBudgetGuardPoller(c, metav1.NamespaceDefault, func() {})
	ended := make(chan error, 1)
	go func() { ended <- g.Start(ctx) }()
	require.True(t, testenv.Await(t, func() bool { return g.Condition().Status != metav1.ConditionUnknown }))
	cancel()
	require.NoError(t, <-ended)
	return g.Condition()
}
