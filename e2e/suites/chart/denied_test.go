//go:build linux

package chart_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// probeURL asks a program as its kubelet does.
func probeURL(url string) (int, string) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// removeRights takes rights away from a role, as somebody does who edits it, or who runs
// another version than that of the chart.
func (s *helmCluster) removeRights(t *testing.T, role string, resources ...string) {
	t.Helper()
	bound := &rbacv1.ClusterRole{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: role}, bound))
	bound.Rules = slices.DeleteFunc(bound.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(r.Resources, func(of string) bool { return slices.Contains(resources, of) })
	})
	require.NoError(t, s.Update(t.Context(), bound))
}

// requireMissingRightsReported has an agent lose rights while it runs, and another one begin without
// them: each says which they are, and what brings them back does.
func (s *helmCluster) requireMissingRightsReported(t *testing.T, upgrade func()) {
	t.Helper()
	port, err := process.FreePort()
	require.NoError(t, err)
	probes := fmt.Sprintf("127.0.0.1:%d", port)
	current, err := program.StartAgent(t.Context(), s.plane, program.Options{LeaseDuration: 15 * time.Second, Args: []string{"--health-probe-bind-address=" + probes}})
	require.NoError(t, err)
	t.Cleanup(current.Kill)
	t.Cleanup(func() {
		if t.Failed() {
			code, text := probeURL("http://" + probes + "/readyz")
			t.Logf("its probe: %d %s", code, text)
		}
	})
	eventually := func(holds func() bool, says string) {
		t.Helper()
		require.Eventually(t, holds, testenv.Patience, 50*time.Millisecond, says)
	}
	condition := func(reason string) func() bool {
		return func() bool {
			ledger := &v1alpha1.SyncLedger{}
			if s.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger) != nil || ledger.Status == nil {
				return false
			}
			c := meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionRightsComplete)
			return c != nil && c.Reason == reason && (reason != "RightsMissing" || strings.Contains(c.Message, "update vmdiskimages.pelotech.ot/status"))
		}
	}
	eventually(func() bool { code, _ := probeURL("http://" + probes + "/readyz"); return code == http.StatusOK }, "it is not ready")
	// The ledger may say this still of an agent before. Only one that leads has all its
	// caches filled: without a right it would never fill them, and end.
	early := newImage(t, nil)
	early.SetName("early")
	early.SetNamespace(program.AgentNamespace)
	require.NoError(t, s.Create(t.Context(), early))
	eventually(func() bool {
		return s.Get(t.Context(), client.ObjectKeyFromObject(early), early) == nil && len(early.GetFinalizers()) > 0
	}, "it does not take an image up")
	eventually(condition("RightsComplete"), "the ledger says nothing of rights")

	s.removeRights(t, "ot-agent", "vmdiskimages/status", "storageclasses")
	late := newImage(t, nil)
	late.SetName("late")
	late.SetNamespace(program.AgentNamespace)
	require.NoError(t, s.Create(t.Context(), late))
	eventually(func() bool { code, _ := probeURL("http://" + probes + "/readyz/rights"); return code != http.StatusOK }, "it goes on being ready")
	code, _ := probeURL("http://" + probes + "/readyz")
	assert.NotEqual(t, http.StatusOK, code)
	_, text := probeURL("http://" + probes + "/readyz/rights")
	assert.Contains(t, text, "its account lacks permissions: update virtualmachines.pelotech.ot/status; update vmdiskimages.pelotech.ot/status; get, list, watch storageclasses.storage.k8s.io. ")
	assert.Contains(t, text, "run `helm upgrade` ot-agent with the chart of this version")
	code, _ = probeURL("http://" + probes + "/healthz")
	assert.Equal(t, http.StatusOK, code, "to end it would give it no right")
	eventually(condition("RightsMissing"), "the ledger does not say which rights are lacking")

	// The other one, which runs on, does not have the last word in this log.
	next, err := program.StartAgent(t.Context(), s.plane, program.Options{Log: filepath.Join(t.TempDir(), "next.log")})
	require.NoError(t, err)
	requireExited(t, next.Process, "ot-agent: its account lacks permissions: update virtualmachines.pelotech.ot/status;")

	upgrade()
	eventually(func() bool { code, _ := probeURL("http://" + probes + "/readyz"); return code == http.StatusOK }, "it does not become ready again")
	eventually(condition("RightsComplete"), "the ledger goes on saying that rights are lacking")
	current.Kill()
}
