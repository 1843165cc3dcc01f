//go:build linux

package mailbox

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestMailboxCRDsInstalledLater has the mailbox's kinds installed under an agent that
// runs already, as with the chart of a hub in the same cluster.
func TestMailboxCRDsInstalledLater(t *testing.T) {
	ctx := context.Background()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	m, err := member.Start(ctx, member.Options{Name: "standalone", Scheme: scheme, InstantImporter: true, LogDir: os.Getenv("OT_FLEET_LOG_DIR")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Stop()) })
	require.NoError(t, program.InstallAgent(ctx, m.ControlPlane, map[string]any{"crds": map[string]any{"mailbox": false}}))
	a, err := program.StartAgent(ctx, m.ControlPlane, program.Options{LeaseDuration: 15 * time.Second})
	require.NoError(t, err)
	t.Cleanup(a.Kill)

	status := func() v1alpha1.SyncLedgerStatus {
		l := &v1alpha1.SyncLedger{}
		if err := m.Client().Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, l); err != nil || l.Status == nil {
			return v1alpha1.SyncLedgerStatus{}
		}
		return *l.Status
	}
	require.True(t, testenv.Await(t, func() bool { return status().Budget == 3 }), "the policy of its own holds")

	files, err := filepath.Glob("../../../charts/ot-agent/files/mailbox/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.Unmarshal(text, crd))
		crds = append(crds, crd)
	}
	_, err = envtest.InstallCRDs(m.ControlPlane.Config(), envtest.CRDInstallOptions{CRDs: crds, MaxTime: testenv.Patience})
	require.NoError(t, err)

	system := readClusterUID(t, m.Client())
	p := emptyPlan()
	p.Spec = v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: system, Policy: newPolicy("concurrency", "2")}
	require.NoError(t, m.Client().Create(t.Context(), p))
	require.True(t, testenv.Await(t, func() bool { st := status(); return st.Plan != nil && st.Budget == 2 }), "the plan is gone by: %+v", status())
}
