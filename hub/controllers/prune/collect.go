package prune

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"

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

// ReportReconciler makes PruneReports, one at a request. It runs in the elected replica.
type ReportReconciler struct {
	// Client reads from the cache, which has no pages of PruneReports: they are large.
	client.Client
	Live     client.Reader
	Events   events.EventRecorder
	Tracker  *Tracker
	Roots    *report.Store
	Pages    *report.Reconciler
	Index    *inventory.Index
	Rollouts *rollout.FleetState

	requeue     trigger.Source[ctrl.Request]
	statusPaces trigger.StatusPacer
	throttle    throttle
	mu          sync.Mutex
	answers     map[string]*judgedAnswers // to those that are being made, by name
}

// Reconcile looks at one PruneReport.
func (r *ReportReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.throttle.runThrottled(ctx, request.Name, r.reconcileReport)
}

// reconcileReport reads a PruneReport as it is stored now: by an older state, one could be
// taken for not begun whose members are asked already.
func (r *ReportReconciler) reconcileReport(ctx context.Context, name string) (after time.Duration, err error) {
	awaits := r.Tracker.Initialized()
	stored, err := getLiveReport(ctx, r.Live, name)
	switch {
	case err != nil:
		return 0, err
	case stored == nil:
		r.statusPaces.Forget(name)
		r.throttle.forget(name)
		r.stopAsking(name, awaits)
		return 0, nil
	case stored.Spec.Schedule != "":
		r.stopAsking(name, awaits)
		return r.reconcileSchedule(ctx, stored)
	case isFinished(stored):
		r.stopAsking(name, awaits)
		return 0, r.deleteOtherPages(ctx, stored, stored.Status.Digest, int(stored.Status.Pages))
	}
	return r.collectAnswers(ctx, stored, awaits)
}

// getLiveReport returns a PruneReport as it is stored; nil where there is none that is
// to stay.
func getLiveReport(ctx context.Context, live client.Reader, name string) (*v1alpha1.PruneReport, error) {
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

func isFinished(report *v1alpha1.PruneReport) bool {
	return report.Status.Phase == v1alpha1.PruneReportComplete || report.Status.Phase == v1alpha1.PruneReportFailed
}

// stopAsking has no member asked for a report.
func (r *ReportReconciler) stopAsking(name string, awaits bool) {
	r.Tracker.RemoveReport(name)
	r.forgetAnswers(name)
	if awaits {
		r.Tracker.MarkSeen(Object{KindReport, name})
	}
}

// askMembers has members asked as the stored status says, and no sooner: a report must
// not be answered before it is stored when it began.
func (r *ReportReconciler) askMembers(stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, awaits bool) {
	if stored.Status.Phase != v1alpha1.PruneReportCollecting || stored.Status.StartedAt == nil {
		r.stopAsking(stored.Name, awaits)
		return
	}
	names := make([]string, len(placed))
	for i, m := range placed {
		names[i] = m.Name
	}
	r.Tracker.AddReport(stored, names)
	if awaits {
		r.Tracker.MarkSeen(Object{KindReport, stored.Name})
	}
}

// collectAnswers begins a report, and goes on with it until it is there.
func (r *ReportReconciler) collectAnswers(ctx context.Context, stored *v1alpha1.PruneReport, awaits bool) (after time.Duration, err error) {
	placed, invalid, err := r.placedMembers(ctx, &stored.Spec)
	if err != nil {
		return 0, err
	}
	r.askMembers(stored, placed, awaits)
	if !r.Roots.HasSynced() || !r.Rollouts.Ready() {
		return startupRetryDelay, nil // what is not known yet would look as if it were not there
	}
	plans, err := r.plansByMember(ctx)
	if err != nil {
		return 0, err
	}
	standing := make([]prune.AnswerState, len(placed))
	for i, m := range placed {
		standing[i] = r.answerState(stored, m, plans[m.Name], r.Roots.Root(m.Name))
	}
	d := prune.DecideReport(prune.ReportView{Now: time.Now(), Report: stored, Clusters: standing, Invalid: invalid})
	if d.Collect {
		return r.completeReport(ctx, stored, placed, standing)
	}
	wait, err := r.updateStatus(ctx, stored, &d.Status)
	if err != nil {
		return 0, err
	}
	r.askMembers(stored, placed, awaits)
	return shorterDelay(d.RequeueAfter, wait), nil
}

// completeReport reads and judges what the members report, stores the pages, and then that
// the report is there.
func (r *ReportReconciler) completeReport(ctx context.Context, stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, standing []prune.AnswerState) (after time.Duration, err error) {
	clusters, settled, err := r.judgeMembers(ctx, stored, placed, standing)
	if err != nil {
		return 0, err
	}
	if !settled {
		return unsettledRetryDelay, nil
	}
	pages, digest, err := prune.Paginate(stored.UID, clusters)
	var status v1alpha1.PruneReportStatus
	switch {
	case errors.Is(err, prune.ErrTooLarge):
		status = prune.TooLargeStatus(stored, time.Now())
	case err != nil:
		return 0, fmt.Errorf("dividing PruneReport %s into pages: %w", stored.Name, err)
	default:
		// Each try that is broken off may have another digest: without this their
		// pages would pile up.
		if err := r.deleteOtherPages(ctx, stored, digest, len(pages)); err != nil {
			return 0, err
		}
		if err := r.writePages(ctx, stored, pages, digest); err != nil {
			return 0, err
		}
		status = prune.CompleteStatus(stored, clusters, len(pages), digest, time.Now())
	}
	if _, err := r.updateStatus(ctx, stored, &status); err != nil {
		return 0, err
	}
	r.Tracker.RemoveReport(stored.Name)
	r.forgetAnswers(stored.Name)
	return 0, r.deleteOtherPages(ctx, stored, stored.Status.Digest, int(stored.Status.Pages))
}

// updateStatus writes the status. wait is when to come back for what must not be written
// yet: how many have answered waits, all else does not.
func (r *ReportReconciler) updateStatus(ctx context.Context, stored *v1alpha1.PruneReport, status *v1alpha1.PruneReportStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&stored.Status, status) {
		return 0, nil
	}
	before := stored.Status
	if before.Phase == status.Phase && status.Phase == v1alpha1.PruneReportCollecting {
		if wait := r.statusPaces.ReserveWrite(stored.Name, trigger.ConditionsChanged(before.Conditions, status.Conditions), time.Now()); wait > 0 {
			return wait, nil
		}
	}
	stored.Status = *status
	if err := r.Status().Update(ctx, stored); err != nil {
		return 0, fmt.Errorf("storing status of PruneReport %s: %w", stored.Name, err)
	}
	if before.Phase != status.Phase || before.Reason != status.Reason && needsAction(status) {
		kind := corev1.EventTypeNormal
		if needsAction(status) {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(stored, nil, kind, status.Reason, "Report", "it is %s: %s", status.Phase, status.Message)
	}
	return 0, nil
}

// needsAction tells that a person has to act.
func needsAction(status *v1alpha1.PruneReportStatus) bool {
	return status.Phase == v1alpha1.PruneReportFailed || status.Reason == v1alpha1.ReasonScheduleInvalid
}
