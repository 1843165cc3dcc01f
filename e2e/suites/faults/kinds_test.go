//go:build linux

package faults

import (
	"context"
	"os"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestClusterWithoutCDI has CDI, and then the snapshots' kinds, installed under
// an agent that runs already. The API server goes by no admission policies, and the
// agent says so once there is something to import with.
func TestClusterWithoutCDI(t *testing.T) {
	s, err := testenv.Start(context.Background(), member.Options{Name: "bare", WithoutCDI: true, WithoutSnapshots: true, LogDir: os.Getenv("OT_FLEET_LOG_DIR"),
		APIServerArgs: []string{"--disable-admission-plugins=ValidatingAdmissionPolicy"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	require.NoError(t, s.StartAgent())
	t.Cleanup(s.Agent.Kill)
	s.SetPolicy(t, newPolicy())

	ns := s.CreateNamespace(t)
	img, snapshotted := s.NewImage(ns, "image", "/ok/200ms/a"), s.NewSnapshottedImage(ns, "snapshotted", "/ok/200ms/b")
	s.Create(t, img, snapshotted)
	got := s.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonCDIMissing))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	assert.Contains(t, got.Status.Message, "install CDI")
	s.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionUnknown, "NotTried")
	dropped := s.NewImage(ns, "dropped", "/ok/200ms/c")
	s.Create(t, dropped)
	s.AwaitImage(t, dropped, testenv.HasReason(v1alpha1.ReasonCDIMissing))
	require.NoError(t, s.Client().Delete(t.Context(), dropped))
	s.AwaitGone(t, dropped)

	require.NoError(t, s.InstallCDI(t.Context()))
	o := s.StartObserver(t)
	got = s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	assert.Empty(t, got.Status.Serving.VolumeSnapshot)
	s.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionFalse, "PolicyNotInForce")
	got = s.AwaitImage(t, snapshotted, testenv.HasReason(v1alpha1.ReasonSnapshotClassMissing))
	assert.Contains(t, got.Status.Message, "does not serve VolumeSnapshots")
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())

	require.NoError(t, s.InstallSnapshotCRDs(t.Context()))
	class := newSnapshotClass("sim-snapclass")
	s.Create(t, class)
	// Nobody makes the snapshot here. That the agent asks for it is what counts.
	s.AwaitImage(t, snapshotted, testenv.HasReason(v1alpha1.ReasonSnapshotting))
	require.True(t, testenv.Await(t, func() bool {
		var list snapshotv1.VolumeSnapshotList
		return s.Client().List(t.Context(), &list, client.InNamespace(ns)) == nil && len(list.Items) == 1
	}))
	require.NoError(t, s.Client().Delete(t.Context(), img))
	s.AwaitGone(t, img)
}
