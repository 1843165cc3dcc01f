//go:build linux

package restore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestRestoredHubDoesNotPruneUndone shows that a prune undone after the backup does not
// start again although the restored hub requests it: the member remembers the undo and
// reports it.
func TestRestoredHubDoesNotPruneUndone(t *testing.T) {
	testenv.RunInTurn(t, 1)
	h := shared.startHub(t, nil)
	const name = "undone"
	createImage(t, shared.realMember.Client(), name)
	img := &v1alpha1.VMDiskImage{}
	key := client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}
	phase := func(phase v1alpha1.Phase) {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool {
			require.NoError(t, shared.realMember.Client().Get(t.Context(), key, img))
			return img.Status.Phase == phase
		}), "%s: %+v", phase, &img.Status)
	}
	phase(v1alpha1.PhaseSucceeded)
	r := &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.PruneReportSpec{
			Placement: &v1alpha1.Placement{ClusterNames: []string{realName}}, ImageSelector: &v1alpha1.ImageSelector{Names: []string{name}},
		},
	}
	require.NoError(t, shared.Create(t.Context(), r))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(r), r))
		return r.Status.Phase == v1alpha1.PruneReportComplete
	}), "%+v", &r.Status)
	p := &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ImagePruneSpec{
			ReportRef: v1alpha1.PruneReportRef{Name: name, Digest: r.Status.Digest}, ApprovedBy: "admin", IncludeOthers: true,
			UndoWindow: &metav1.Duration{Duration: time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
		},
	}
	require.NoError(t, shared.Create(t.Context(), p))
	state := func(wanted string, holds func(*v1alpha1.ImagePruneStatus) bool) {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool {
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(p), p))
			return holds(&p.Status)
		}), "%s: %+v", wanted, &p.Status)
	}
	state("pending", func(st *v1alpha1.ImagePruneStatus) bool { return st.Targets.Pending == 1 })
	phase(v1alpha1.PhasePrunePending)
	require.NoError(t, h.Stop(testenv.Patience))
	backup, err := shared.HubMember.ControlPlane.Backup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backup.Remove()) })

	h = shared.startHub(t, nil)
	require.NoError(t, shared.Patch(t.Context(), p, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"undo":true}}`))))
	state("undone", func(st *v1alpha1.ImagePruneStatus) bool { return st.Phase == v1alpha1.ImagePruneUndone })
	phase(v1alpha1.PhaseSucceeded)
	require.NoError(t, h.Stop(testenv.Patience))
	require.NoError(t, backup.Restore(t.Context()))

	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	require.False(t, p.Spec.Undo)
	require.Equal(t, v1alpha1.ImagePruneRunning, p.Status.Phase)
	began := img.ResourceVersion
	shared.startHub(t, nil)
	state("ended", func(st *v1alpha1.ImagePruneStatus) bool { return st.Phase.IsFinal() })
	assert.Equal(t, v1alpha1.TargetCounts{Total: 1, Undone: 1}, p.Status.Targets)
	phase(v1alpha1.PhaseSucceeded)
	assert.Equal(t, began, img.ResourceVersion, "nothing was written to it again")
	assert.Contains(t, img.Status.EndedPrunes, p.UID)
}
