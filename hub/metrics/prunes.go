package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	pruneReports        = newDesc("prune_reports", "PruneReports, by phase.", "phase")
	pruneReportTime     = newDesc("prune_report_timestamp_seconds", "Completion time of the last complete report of a schedule.", "schedule")
	pruneReportUnknown  = newDesc("prune_report_unknown_clusters", "Clusters that are unknown in the last complete report of a schedule.", "schedule")
	pruneCandidates     = newDesc("prune_candidates", "Images that can be pruned by the last complete report of a schedule.", "schedule")
	pruneCandidateBytes = newDesc("prune_candidates_bytes", "Provisioned storage of the images that can be pruned.", "schedule")
	pruneOrphanBytes    = newDesc("prune_orphans_bytes", "Provisioned storage that belongs to no image, by the last complete report of a schedule.", "schedule")
	imagePrunes         = newDesc("image_prunes", "ImagePrunes, by phase.", "phase")
	imagePruneTargets   = newDesc("image_prune_targets", "Images of ImagePrunes that have not ended, by state.", "state")
)

var (
	pruneReportPhases = []v1alpha1.PruneReportPhase{v1alpha1.PruneReportScheduled, v1alpha1.PruneReportCollecting, v1alpha1.PruneReportComplete, v1alpha1.PruneReportFailed}
	imagePrunePhases  = []v1alpha1.ImagePrunePhase{
		v1alpha1.ImagePrunePending, v1alpha1.ImagePruneRunning, v1alpha1.ImagePruneComplete, v1alpha1.ImagePruneUndone, v1alpha1.ImagePruneFailed,
	}
)

// collectPruneReports counts PruneReports. Series are by schedule: each report has a name
// of its own.
func (f *FleetCollector) collectPruneReports(ctx context.Context, gauge func(d *prometheus.Desc, value float64, labels ...string)) {
	var list v1alpha1.PruneReportList
	if err := f.Reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list PruneReports; their metrics are missing from this scrape")
		return
	}
	phases := map[v1alpha1.PruneReportPhase]int{}
	last := map[types.UID]*v1alpha1.PruneReportStatus{} // by the UID of their schedule
	for i := range list.Items {
		r := &list.Items[i]
		phases[r.Status.Phase]++
		owner := metav1.GetControllerOf(r)
		if owner == nil || r.Status.Phase != v1alpha1.PruneReportComplete || r.Status.CompletedAt == nil {
			continue
		}
		if before := last[owner.UID]; before == nil || before.CompletedAt.Before(r.Status.CompletedAt) {
			last[owner.UID] = &r.Status
		}
	}
	for _, phase := range pruneReportPhases {
		gauge(pruneReports, float64(phases[phase]), string(phase))
	}
	for i := range list.Items {
		r := &list.Items[i]
		st := last[r.UID]
		if r.Spec.Schedule == "" || st == nil {
			continue
		}
		gauge(pruneReportTime, float64(st.CompletedAt.Unix()), r.Name)
		gauge(pruneReportUnknown, float64(st.Clusters.Unknown), r.Name)
		gauge(pruneCandidates, float64(st.Candidates.Count), r.Name)
		gauge(pruneCandidateBytes, float64(st.Candidates.Bytes), r.Name)
		gauge(pruneOrphanBytes, float64(st.Orphans.Bytes), r.Name)
	}
}

// collectImagePrunes counts ImagePrunes, and the targets of those that have not ended.
func (f *FleetCollector) collectImagePrunes(ctx context.Context, gauge func(d *prometheus.Desc, value float64, labels ...string)) {
	var list v1alpha1.ImagePruneList
	if err := f.Reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list ImagePrunes; their metrics are missing from this scrape")
		return
	}
	phases, targets := map[v1alpha1.ImagePrunePhase]int{}, map[v1alpha1.PruneState]int{}
	for i := range list.Items {
		st := list.Items[i].Status // a copy: CountOf returns a pointer for writing
		phases[st.Phase]++
		if st.Phase.IsFinal() {
			continue
		}
		for _, state := range v1alpha1.PruneStates() {
			targets[state] += int(*st.Targets.CountOf(state))
		}
	}
	for _, phase := range imagePrunePhases {
		gauge(imagePrunes, float64(phases[phase]), string(phase))
	}
	for _, state := range v1alpha1.PruneStates() {
		gauge(imagePruneTargets, float64(targets[state]), string(state))
	}
}
