//go:build linux

package prune_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// newImagePrune is a prune of a report's candidates that plans have created, without an undo
// window, not created yet.
func newImagePrune(name string, r *v1alpha1.PruneReport) *v1alpha1.ImagePrune {
	return &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ImagePruneSpec{
			ReportRef:  v1alpha1.PruneReportRef{Name: r.Name, Digest: r.Status.Digest},
			ApprovedBy: approver, UndoWindow: &metav1.Duration{}, Deadline: &metav1.Duration{Duration: time.Hour},
		},
	}
}

// withUndoWindow sets the undo window of an ImagePrune.
func withUndoWindow(p *v1alpha1.ImagePrune, window time.Duration) *v1alpha1.ImagePrune {
	p.Spec.UndoWindow = &metav1.Duration{Duration: window}
	return p
}

// createPendingPrune prunes a report's candidates with an undo window and waits until all of
// them are pending.
func (f *testFleet) createPendingPrune(t *testing.T, name string, r *v1alpha1.PruneReport, window time.Duration) *v1alpha1.ImagePrune {
	t.Helper()
	p := withUndoWindow(newImagePrune(name, r), window)
	f.CreateForTest(t, p)
	return f.awaitPrune(t, p, "all pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets.Total > 0 && p.Status.Targets.Pending == p.Status.Targets.Total
	})
}

// awaitPrune reads an ImagePrune until it meets all conditions.
func (f *testFleet) awaitPrune(t *testing.T, p *v1alpha1.ImagePrune, wanted string, holds ...func(*v1alpha1.ImagePrune) bool) *v1alpha1.ImagePrune {
	t.Helper()
	got := &v1alpha1.ImagePrune{}
	if !testenv.AwaitCondition(t, func() bool {
		got = &v1alpha1.ImagePrune{}
		return f.Get(t.Context(), client.ObjectKeyFromObject(p), got) == nil && got.Status.ObservedGeneration == got.Generation &&
			!slices.ContainsFunc(holds, func(hold func(*v1alpha1.ImagePrune) bool) bool { return !hold(got) })
	}) {
		require.Failf(t, "ImagePrune "+p.Name+" is not as wanted: "+wanted, "generation %d: %+v\nthe hub's log is %s", got.Generation, got.Status, f.Hub.LogFile())
	}
	return got
}

// awaitPruneEnd waits until an ImagePrune has ended and requires phase, reason and counts.
func (f *testFleet) awaitPruneEnd(t *testing.T, p *v1alpha1.ImagePrune, phase v1alpha1.ImagePrunePhase, reason string, want v1alpha1.TargetCounts) *v1alpha1.ImagePrune {
	t.Helper()
	got := f.awaitPrune(t, p, "ended", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.IsFinal() })
	assert.Equal(t, phase, got.Status.Phase, "%+v", got.Status)
	assert.Equal(t, reason, got.Status.Reason, "%+v", got.Status)
	assert.Equal(t, want, got.Status.Targets, "%+v", got.Status)
	finished := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionFinished)
	if assert.NotNil(t, finished) {
		assert.Equal(t, metav1.ConditionTrue, finished.Status)
		assert.Equal(t, got.Generation, finished.ObservedGeneration)
	}
	assert.Equal(t, want.Skipped+want.Unknown == 0, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionSucceeded))
	assert.NotNil(t, got.Status.FinishedAt)
	return got
}

// awaitPruned waits until an ImagePrune has deleted all of its n images.
func (f *testFleet) awaitPruned(t *testing.T, p *v1alpha1.ImagePrune, n int32) *v1alpha1.ImagePrune {
	t.Helper()
	got := f.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPruned, v1alpha1.TargetCounts{Total: n, Pruned: n})
	assert.Equal(t, int64(n)*gibibyte, got.Status.PrunedBytes)
	return got
}

// undoPrune undoes an ImagePrune.
func (f *testFleet) undoPrune(t *testing.T, p *v1alpha1.ImagePrune) {
	t.Helper()
	require.NoError(t, f.Patch(t.Context(), p.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"undo":true}}`))))
}

// skippedReasons maps the images that an ImagePrune did not prune, as cluster/name, to the
// reason.
func skippedReasons(p *v1alpha1.ImagePrune) map[string]string {
	why := map[string]string{}
	for _, s := range p.Status.Skipped {
		why[s.Cluster+"/"+s.Name] = fmt.Sprintf("%s %s", s.State, s.Reason)
	}
	return why
}
