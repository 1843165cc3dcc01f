// Package prunereport makes PruneReports: it requests answers from the members, judges
// their images by package hub/prune, and stores the pages. It also makes the reports of
// schedules.
package prunereport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereportpages,verbs=get;list;create;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// startupRetryDelay is the requeue delay while the hub still reads what it decides on.
const startupRetryDelay = 200 * time.Millisecond

// Reconciler makes PruneReports. It runs in the elected replica.
type Reconciler struct {
	// Client reads from the cache, which has no PruneReportPages: they are large.
	client.Client
	Live     client.Reader
	Events   events.EventRecorder
	Tracker  *prunetracker.Tracker
	Roots    *report.Store
	Pages    *report.Reconciler
	Index    *inventory.Index
	Rollouts *rollout.FleetState

	requeue     trigger.Source[ctrl.Request]
	statusPacer trigger.StatusPacer
	throttle    trigger.Throttle
	mu          sync.Mutex
	judged      map[string]*judgedMembers // by the name of a report that is being made
}

// Reconcile makes or continues one PruneReport.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.throttle.Reconcile(ctx, request.Name, r.reconcile)
}

// reconcile reads the PruneReport live: a stale one could look as if it had not started
// although members are already asked.
func (r *Reconciler) reconcile(ctx context.Context, name string) (after time.Duration, err error) {
	countsAsSeen := r.Tracker.Initialized()
	stored, err := GetStored(ctx, r.Live, name)
	switch {
	case err != nil:
		return 0, err
	case stored == nil:
		r.statusPacer.Forget(name)
		r.throttle.Forget(name)
		r.withdrawRequests(name, countsAsSeen)
		return 0, nil
	case stored.Spec.Schedule != "":
		r.withdrawRequests(name, countsAsSeen)
		return r.reconcileSchedule(ctx, stored)
	case prune.IsFinished(&stored.Status):
		r.withdrawRequests(name, countsAsSeen)
		return 0, r.deleteOtherPages(ctx, stored, stored.Status.Digest, int(stored.Status.Pages))
	}
	return r.reconcileCollecting(ctx, stored, countsAsSeen)
}

// GetStored reads a PruneReport; nil where there is none, or it is being deleted. None has
// a name that is no path segment: the client refuses to ask for it, with an error that no
// retry ends.
func GetStored(ctx context.Context, live client.Reader, name string) (*v1alpha1.PruneReport, error) {
	if len(content.IsPathSegmentName(name)) > 0 {
		return nil, nil
	}
	stored := &v1alpha1.PruneReport{}
	switch err := live.Get(ctx, client.ObjectKey{Name: name}, stored); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading PruneReport %s: %w", name, err)
	case !stored.DeletionTimestamp.IsZero():
		return nil, nil
	}
	return stored, nil
}

func (r *Reconciler) withdrawRequests(name string, countsAsSeen bool) {
	r.Tracker.RemoveReport(name)
	r.forgetJudged(name)
	if countsAsSeen {
		r.Tracker.MarkSeen(prunetracker.Object{Kind: prunetracker.KindReport, Name: name})
	}
}

// requestAnswers asks the members while the stored phase is Collecting. Invariant: no
// member answers before startedAt is stored.
func (r *Reconciler) requestAnswers(stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, countsAsSeen bool) {
	if stored.Status.Phase != v1alpha1.PruneReportCollecting || stored.Status.StartedAt == nil {
		r.withdrawRequests(stored.Name, countsAsSeen)
		return
	}
	names := make([]string, len(placed))
	for i, m := range placed {
		names[i] = m.Name
	}
	r.Tracker.AddReport(stored, names)
	if countsAsSeen {
		r.Tracker.MarkSeen(prunetracker.Object{Kind: prunetracker.KindReport, Name: stored.Name})
	}
}

// reconcileCollecting starts a report, waits for answers, and completes it.
func (r *Reconciler) reconcileCollecting(ctx context.Context, stored *v1alpha1.PruneReport, countsAsSeen bool) (after time.Duration, err error) {
	placed, invalid, err := r.placedMembers(ctx, &stored.Spec)
	if err != nil {
		return 0, err
	}
	r.requestAnswers(stored, placed, countsAsSeen)
	if !r.Roots.HasSynced() || !r.Rollouts.Ready() {
		return startupRetryDelay, nil
	}
	answers, err := r.gatherAnswers(ctx, stored, placed)
	if err != nil {
		return 0, err
	}
	d := prune.DecideReport(prune.ReportView{Now: time.Now(), Report: stored, Clusters: answers, Invalid: invalid})
	if d.Complete {
		return r.completeReport(ctx, stored, placed, answers)
	}
	wait, err := r.updateStatus(ctx, stored, &d.Status)
	if err != nil {
		return 0, err
	}
	r.requestAnswers(stored, placed, countsAsSeen)
	return trigger.Earliest(d.RequeueAfter, wait), nil
}

// completeReport judges the members, stores the pages, and then the Complete status.
func (r *Reconciler) completeReport(ctx context.Context, stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, answers []prune.AnswerState) (after time.Duration, err error) {
	clusters, settled, err := r.judgeMembers(ctx, stored, placed, answers)
	if err != nil {
		return 0, err
	}
	if !settled {
		return unsettledRetryDelay, nil
	}
	status, err := r.storePages(ctx, stored, clusters)
	if err != nil {
		return 0, err
	}
	if _, err := r.updateStatus(ctx, stored, status); err != nil {
		return 0, err
	}
	r.Tracker.RemoveReport(stored.Name)
	r.forgetJudged(stored.Name)
	return 0, r.deleteOtherPages(ctx, stored, stored.Status.Digest, int(stored.Status.Pages))
}

// storePages writes the pages of a report and returns the status that completes it, or
// the Failed status of a report that is too large.
func (r *Reconciler) storePages(ctx context.Context, stored *v1alpha1.PruneReport, clusters []v1alpha1.ReportedCluster) (*v1alpha1.PruneReportStatus, error) {
	pages, digest, err := prune.Paginate(stored.UID, clusters)
	if errors.Is(err, prune.ErrTooLarge) {
		clusters = prune.OmitLargest(clusters)
		pages, digest, err = prune.Paginate(stored.UID, clusters)
	}
	if errors.Is(err, prune.ErrTooLarge) {
		status := prune.TooLargeStatus(stored, time.Now())
		return &status, nil
	}
	if err != nil {
		return nil, fmt.Errorf("dividing PruneReport %s into pages: %w", stored.Name, err)
	}
	// Each aborted attempt may have another digest: its pages must not pile up.
	if err := r.deleteOtherPages(ctx, stored, digest, len(pages)); err != nil {
		return nil, err
	}
	if err := r.writePages(ctx, stored, pages, digest); err != nil {
		return nil, err
	}
	status := prune.CompleteStatus(stored, clusters, len(pages), digest, time.Now())
	return &status, nil
}

// updateStatus writes a status that changes. A change of the answer counts alone is
// paced: wait is the time until it may be written.
func (r *Reconciler) updateStatus(ctx context.Context, stored *v1alpha1.PruneReport, status *v1alpha1.PruneReportStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&stored.Status, status) {
		return 0, nil
	}
	before := stored.Status
	if before.Phase == status.Phase && status.Phase == v1alpha1.PruneReportCollecting {
		if wait := r.statusPacer.ReserveWrite(stored.Name, trigger.ConditionsChanged(before.Conditions, status.Conditions), time.Now()); wait > 0 {
			return wait, nil
		}
	}
	stored.Status = *status
	if err := r.Status().Update(ctx, stored); err != nil {
		return 0, fmt.Errorf("updating the status of PruneReport %s: %w", stored.Name, err)
	}
	if before.Phase != status.Phase || before.Reason != status.Reason && needsAction(status) {
		eventType := corev1.EventTypeNormal
		if needsAction(status) {
			eventType = corev1.EventTypeWarning
		}
		r.Events.Eventf(stored, nil, eventType, status.Reason, "Report", "PruneReport is %s: %s", status.Phase, status.Message)
	}
	return 0, nil
}

// needsAction reports whether a person has to act.
func needsAction(status *v1alpha1.PruneReportStatus) bool {
	return status.Phase == v1alpha1.PruneReportFailed || status.Reason == v1alpha1.ReasonScheduleInvalid
}
