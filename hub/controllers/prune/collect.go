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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/pace"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereportpages,verbs=get;list;create;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reports makes PruneReports, one at a request. It runs in the elected replica.
type Reports struct {
	// Client reads from the cache, which has no pages of PruneReports: they are large.
	client.Client
	Live     client.Reader
	Events   events.EventRecorder
	Register *Register
	Roots    *report.Store
	Pages    *report.Reconciler
	Index    *fleet.Index
	Board    *rollout.Board

	again   poke.Source[ctrl.Request]
	paces   pace.Paces
	looks   looks
	mu      sync.Mutex
	answers map[string]*answers // to those that are being made, by name
}

// Reconcile looks at one PruneReport.
func (r *Reports) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.looks.take(ctx, request.Name, r.look)
}

// look reads a PruneReport as it is stored now: by an older state, one could be
// taken for not begun whose members are asked already.
func (r *Reports) look(ctx context.Context, name string) (after time.Duration, err error) {
	awaits := r.Register.awaits()
	stored, err := liveReport(ctx, r.Live, name)
	switch {
	case err != nil:
		return 0, err
	case stored == nil:
		r.paces.Forget(name)
		r.looks.forget(name)
		r.leave(name, awaits)
		return 0, nil
	case stored.Spec.Schedule != "":
		r.leave(name, awaits)
		return r.schedule(ctx, stored)
	case ended(stored):
		r.leave(name, awaits)
		return 0, r.sweepPages(ctx, stored, stored.Status.Digest, int(stored.Status.Pages))
	}
	return r.collect(ctx, stored, awaits)
}

// liveReport returns a PruneReport as it is stored; nil where there is none that is
// to stay.
func liveReport(ctx context.Context, live client.Reader, name string) (*v1alpha1.PruneReport, error) {
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

func ended(report *v1alpha1.PruneReport) bool {
	return report.Status.Phase == v1alpha1.PruneReportComplete || report.Status.Phase == v1alpha1.PruneReportFailed
}

// leave has no member asked for a report.
func (r *Reports) leave(name string, awaits bool) {
	r.Register.answered(name)
	r.forget(name)
	if awaits {
		r.Register.seen(object{kindReport, name})
	}
}

// enter has members asked as the stored status says, and no sooner: a report must
// not be answered before it is stored when it began.
func (r *Reports) enter(stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, awaits bool) {
	if stored.Status.Phase != v1alpha1.PruneReportCollecting || stored.Status.StartedAt == nil {
		r.leave(stored.Name, awaits)
		return
	}
	names := make([]string, len(placed))
	for i, m := range placed {
		names[i] = m.Name
	}
	r.Register.ask(stored, names)
	if awaits {
		r.Register.seen(object{kindReport, stored.Name})
	}
}

// collect begins a report, and goes on with it until it is there.
func (r *Reports) collect(ctx context.Context, stored *v1alpha1.PruneReport, awaits bool) (after time.Duration, err error) {
	placed, invalid, err := r.placed(ctx, &stored.Spec)
	if err != nil {
		return 0, err
	}
	r.enter(stored, placed, awaits)
	if !r.Roots.Filled() || !r.Board.Ready() {
		return starting, nil // what is not known yet would look as if it were not there
	}
	plans, err := r.plans(ctx)
	if err != nil {
		return 0, err
	}
	standing := make([]prune.Standing, len(placed))
	for i, m := range placed {
		standing[i] = r.standing(stored, m, plans[m.Name], r.Roots.Root(m.Name))
	}
	d := prune.Collect(prune.CollectView{Now: time.Now(), Report: stored, Clusters: standing, Invalid: invalid})
	if d.Collect {
		return r.complete(ctx, stored, placed, standing)
	}
	wait, err := r.tell(ctx, stored, &d.Status)
	if err != nil {
		return 0, err
	}
	r.enter(stored, placed, awaits)
	return sooner(d.After, wait), nil
}

// complete reads and judges what the members report, stores the pages, and then that
// the report is there.
func (r *Reports) complete(ctx context.Context, stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, standing []prune.Standing) (after time.Duration, err error) {
	clusters, settled, err := r.judge(ctx, stored, placed, standing)
	if err != nil {
		return 0, err
	}
	if !settled {
		return unsettled, nil
	}
	pages, digest, err := prune.Paginate(stored.UID, clusters)
	var status v1alpha1.PruneReportStatus
	switch {
	case errors.Is(err, prune.ErrTooLarge):
		status = prune.TooLarge(stored, time.Now())
	case err != nil:
		return 0, fmt.Errorf("dividing PruneReport %s into pages: %w", stored.Name, err)
	default:
		// Each try that is broken off may have another digest: without this their
		// pages would pile up.
		if err := r.sweepPages(ctx, stored, digest, len(pages)); err != nil {
			return 0, err
		}
		if err := r.writePages(ctx, stored, pages, digest); err != nil {
			return 0, err
		}
		status = prune.Complete(stored, clusters, len(pages), digest, time.Now())
	}
	if _, err := r.tell(ctx, stored, &status); err != nil {
		return 0, err
	}
	r.Register.answered(stored.Name)
	r.forget(stored.Name)
	return 0, r.sweepPages(ctx, stored, stored.Status.Digest, int(stored.Status.Pages))
}

// tell writes the status. wait is when to come back for what must not be written
// yet: how many have answered waits, all else does not.
func (r *Reports) tell(ctx context.Context, stored *v1alpha1.PruneReport, status *v1alpha1.PruneReportStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&stored.Status, status) {
		return 0, nil
	}
	before := stored.Status
	if before.Phase == status.Phase && status.Phase == v1alpha1.PruneReportCollecting {
		if wait := r.paces.Wait(stored.Name, pace.Urgent(before.Conditions, status.Conditions), time.Now()); wait > 0 {
			return wait, nil
		}
	}
	stored.Status = *status
	if err := r.Status().Update(ctx, stored); err != nil {
		return 0, fmt.Errorf("storing status of PruneReport %s: %w", stored.Name, err)
	}
	if before.Phase != status.Phase || before.Reason != status.Reason && failing(status) {
		kind := corev1.EventTypeNormal
		if failing(status) {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(stored, nil, kind, status.Reason, "Report", "it is %s: %s", status.Phase, status.Message)
	}
	return 0, nil
}

// failing tells that a person has to act.
func failing(status *v1alpha1.PruneReportStatus) bool {
	return status.Phase == v1alpha1.PruneReportFailed || status.Reason == v1alpha1.ReasonScheduleInvalid
}
