package metrics_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

func newRegistry(t *testing.T, objects ...client.Object) *prometheus.Registry {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(&metrics.FleetCollector{Elected: closedChannel(), Reports: fakeReports{}, Index: inventory.NewIndex(), Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()})
	return r
}

func TestPruneReportMetrics(t *testing.T) {
	schedule := func(name string) *v1alpha1.PruneReport {
		return &v1alpha1.PruneReport{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Spec: v1alpha1.PruneReportSpec{Schedule: "0 6 * * 1"},
			Status: v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportScheduled},
		}
	}
	report := func(name, owner string, phase v1alpha1.PruneReportPhase, completed int64, candidates int32) *v1alpha1.PruneReport {
		r := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.PruneReportStatus{
			Phase: phase, Candidates: v1alpha1.PruneTotal{Count: candidates, Bytes: 10 * int64(candidates)}, Orphans: v1alpha1.PruneTotal{Count: 1, Bytes: 7},
			Clusters: v1alpha1.AnswerCounts{Total: 9, Unknown: 2},
		}}
		if completed > 0 {
			r.Status.CompletedAt = ptr.To(metav1.NewTime(time.Unix(completed, 0)))
		}
		if owner != "" {
			r.OwnerReferences = []metav1.OwnerReference{{Kind: "PruneReport", Name: owner, UID: types.UID("uid-" + owner), Controller: ptr.To(true)}}
		}
		return r
	}
	r := newRegistry(t, schedule("weekly"), schedule("new"),
		report("weekly-1", "weekly", v1alpha1.PruneReportComplete, 100, 1), report("weekly-2", "weekly", v1alpha1.PruneReportComplete, 300, 5),
		report("weekly-3", "weekly", v1alpha1.PruneReportComplete, 200, 3), report("weekly-4", "weekly", v1alpha1.PruneReportFailed, 400, 0),
		report("weekly-5", "weekly", v1alpha1.PruneReportCollecting, 0, 0), report("once", "", v1alpha1.PruneReportComplete, 500, 9),
		report("new-1", "new", v1alpha1.PruneReportCollecting, 0, 0), report("orphan", "gone", v1alpha1.PruneReportComplete, 500, 9), report("unseen", "", "", 0, 0),
	)
	for name, want := range map[string]map[string]float64{
		"ot_hub_prune_reports":                  {"Scheduled": 2, "Collecting": 2, "Complete": 5, "Failed": 1},
		"ot_hub_prune_report_timestamp_seconds": {"weekly": 300},
		"ot_hub_prune_report_unknown_clusters":  {"weekly": 2},
		"ot_hub_prune_candidates":               {"weekly": 5},
		"ot_hub_prune_candidates_bytes":         {"weekly": 50},
		"ot_hub_prune_orphans_bytes":            {"weekly": 7},
	} {
		assert.Equal(t, want, gatherSeries(t, r, name), name)
	}
}

func TestImagePruneMetrics(t *testing.T) {
	prune := func(name string, phase v1alpha1.ImagePrunePhase, targets v1alpha1.TargetCounts) *v1alpha1.ImagePrune {
		return &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ImagePruneStatus{Phase: phase, Targets: targets}}
	}
	r := newRegistry(t,
		prune("a", v1alpha1.ImagePruneRunning, v1alpha1.TargetCounts{Total: 6, Waiting: 1, Pending: 2, Pruned: 3}),
		prune("b", v1alpha1.ImagePruneRunning, v1alpha1.TargetCounts{Total: 6, Waiting: 3, Skipped: 1, Unknown: 2}),
		prune("c", v1alpha1.ImagePruneComplete, v1alpha1.TargetCounts{Total: 9, Pruned: 7, Skipped: 2}),
		prune("d", v1alpha1.ImagePruneUndone, v1alpha1.TargetCounts{Total: 9, Undone: 9}),
		prune("e", v1alpha1.ImagePruneFailed, v1alpha1.TargetCounts{}), prune("new", "", v1alpha1.TargetCounts{}),
	)
	assert.Equal(t, map[string]float64{"Pending": 0, "Running": 2, "Complete": 1, "Undone": 1, "Failed": 1}, gatherSeries(t, r, "ot_hub_image_prunes"))
	assert.Equal(t, map[string]float64{"Waiting": 4, "Pending": 2, "Pruned": 3, "Skipped": 1, "Undone": 0, "Unknown": 2}, gatherSeries(t, r, "ot_hub_image_prune_targets"))
}
