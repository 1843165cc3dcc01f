// Package report writes the ClusterReport of a member. Package agent/report computes what
// it says. An object is written only in place of the one that is known, never over what
// somebody else has written since.
package report

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterreports,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=list;watch

// ledgerTakeoverTimeout is how long a foreign ledger delays the report without an error.
const ledgerTakeoverTimeout = time.Minute

// Reconciler writes the ClusterReport.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live client.Reader
	// Mailbox is the cache that watches the agent's namespace.
	Mailbox cache.Cache
	Kinds   *apidiscovery.KindTracker
	Metrics *metrics.Report
	// ClusterUID identifies this cluster.
	ClusterUID func(context.Context) (types.UID, error)
	// PlanResults are the results of the plan's images, PrunedImages those of its prunes
	// whose image is gone. While they return nil, the former results are reported.
	PlanResults  func() map[types.NamespacedName]v1alpha1.PlanItemReport
	PrunedImages func() map[types.NamespacedName]v1alpha1.ReportedPrune

	// PruneNonce returns the one by which the root that is about to be written asks for prunes; empty for
	// none.
	PruneNonce func() string

	// Queue has the order in which images get slots; Policy is the one in force, nil before
	// there is one.
	Queue  *ledger.Queue
	Policy func() *policy.Policy

	// Grants tracks what this process requests of the fleet-wide budget.
	Grants *grant.RequestTracker
	// Elapsed is how long this process has been running.
	Elapsed func() time.Duration

	// Namespace of the agent, and of the report.
	Namespace string
	// Version of the agent.
	Version string
	// ImageFields are those of images that agent and cluster know; nil where unknown.
	ImageFields func() []string
	// PlanFields are those of planned images that the agent follows.
	PlanFields func() []string
	// Interval is the least time between two reports.
	Interval time.Duration
	// Heartbeat is how often the root is written while nothing changes.
	Heartbeat time.Duration

	triggers trigger.Source[reconcile.Request]
	served   atomic.Bool
	changes  changeTracker
	// The fields below belong to Reconcile, which runs one at a time.

	clusterUID types.UID
	// paginator is nil until the stored report has been read.
	paginator *report.Paginator
	// answer is the acknowledged plan that the paginator answers: all images were read
	// after the ledger was.
	answer  report.PlanAnswer
	stored  map[string]*storedObject
	orphans orphanState
	// lastRewrittenPage and rootWrittenAt are zero until this process has written one;
	// reportedAt, until it has reported.
	lastRewrittenPage string
	rootWrittenAt     time.Time
	reportedAt        time.Time
	rates             *report.RateTracker
	activity          activityState
}

// errReportChanged: an object of the report differs from what is known of it. It is marked
// as stale.
var errReportChanged = errors.New("another writer has changed it")

// errForeignLedger: the cached ledger was written by another process under a grant that this
// one does not know. If this process reported it, the hub could count that grant as unused
// while the other process still uses it.
var errForeignLedger = errors.New("another process has written the SyncLedger last")

// Reconcile writes what has changed since the last report.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.served.Load() {
		return ctrl.Result{}, nil // requeued once the kind is served
	}
	if wait := r.burstDelay(time.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	more, err := r.writeReport(ctx)
	var activityAfter time.Duration
	if err == nil {
		activityAfter, err = r.writeActivity(ctx)
	}
	if err != nil {
		return trigger.Result(ctx, err, r.Interval, r.isExpectedConflict)
	}
	if more {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	next := r.Heartbeat - time.Since(r.rootWrittenAt)
	if at, needed := r.Grants.NextRequestAt(); needed {
		next = min(next, at-r.Elapsed())
	}
	if activityAfter > 0 {
		next = min(next, activityAfter)
	}
	return ctrl.Result{RequeueAfter: max(r.Interval, next)}, nil
}

func (r *Reconciler) isExpectedConflict(err error) bool {
	return errors.Is(err, errReportChanged) || errors.Is(err, errForeignLedger) && r.Elapsed() < ledgerTakeoverTimeout
}

// writeReport writes pages, then the root that lists them, and then deletes the pages that
// it does not list. more is true if something is left for the next report.
func (r *Reconciler) writeReport(ctx context.Context) (more bool, err error) {
	if err := r.updatePaginator(ctx); err != nil {
		return false, err
	}
	pages := r.paginator.Pages()
	now := time.Now()
	more, err = r.writePages(ctx, pages)
	if err != nil {
		return false, err
	}
	r.reportedAt = now
	more = r.refreshOrphans(ctx) || more
	if err := r.writeRoot(ctx, pages); err != nil {
		return false, err
	}
	return more, r.deleteUnlistedPages(ctx, pages)
}

// updatePaginator updates the paginator, and what is known of the stored objects. Invariant:
// the ledger is read before the images, which answer the plan that it acknowledges.
func (r *Reconciler) updatePaginator(ctx context.Context) error {
	plan, err := r.readAcknowledgedPlan(ctx)
	if err != nil {
		return err
	}
	if err := r.readStaleObjects(ctx); err != nil {
		return err
	}
	if r.paginator == nil || !r.answer.IsFor(plan) {
		if err := r.reloadImages(ctx); err != nil {
			return err
		}
		r.answer = r.answer.NextAnswer(plan)
	}
	if results := r.PlanResults(); results != nil {
		r.paginator.SetPlanItems(results)
	}
	if pruned := r.PrunedImages(); pruned != nil {
		r.paginator.SetPrunedImages(pruned)
	}
	for key := range r.changes.takeChangedImages() {
		img := &v1alpha1.VMDiskImage{}
		err := r.Get(ctx, key, img)
		switch {
		case err == nil:
			r.paginator.SetImage(img)
			r.observeRates(img)
		case apierrors.IsNotFound(err):
			r.paginator.RemoveImage(key)
			r.rates.ForgetImage(key)
		default:
			r.paginator = nil // the other changed images are lost: read everything again
			return fmt.Errorf("reading VMDiskImage %s: %w", key, err)
		}
	}
	return nil
}

// readAcknowledgedPlan returns the plan that the ledger was last written under; nil for
// none.
func (r *Reconciler) readAcknowledgedPlan(ctx context.Context) (*v1alpha1.PlanVersion, error) {
	ledger, err := r.readLedger(ctx)
	if err != nil || ledger == nil || ledger.Status == nil {
		return nil, err
	}
	return ledger.Status.Plan, nil
}

// readLedger returns the ledger that the cache shows; nil for none.
func (r *Reconciler) readLedger(ctx context.Context) (*v1alpha1.SyncLedger, error) {
	ledger := &v1alpha1.SyncLedger{}
	err := r.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.LedgerName}, ledger)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading SyncLedger %s/%s: %w", r.Namespace, v1alpha1.LedgerName, err)
	}
	return ledger, nil
}

// readStaleObjects reads the stale objects of the report again.
func (r *Reconciler) readStaleObjects(ctx context.Context) error {
	names := r.changes.takeStaleObjects()
	for i, name := range names {
		if r.paginator == nil {
			return nil // the whole report is read again
		}
		if err := r.readObject(ctx, name); err != nil {
			for _, left := range names[i:] {
				r.changes.markStale(left)
			}
			return err
		}
	}
	return nil
}

// loadStoredReport reads the stored report, and creates a paginator with its division.
func (r *Reconciler) loadStoredReport(ctx context.Context) (err error) {
	if r.clusterUID, err = r.ClusterUID(ctx); err != nil {
		return err
	}
	stored, err := r.readStoredReport(ctx)
	if err != nil {
		return err
	}
	paginator := report.NewPaginator(stored.pages)
	paginator.SetPlanItems(stored.planItems)
	paginator.SetPrunedImages(stored.pruned)
	r.paginator = paginator
	return nil
}

// reloadImages reads all images from the cache, whether or not their events have come.
func (r *Reconciler) reloadImages(ctx context.Context) error {
	if r.paginator == nil {
		if err := r.loadStoredReport(ctx); err != nil {
			return err
		}
	}
	if r.rates == nil {
		// Not before this process is elected: what was downloaded until then, another one counted.
		r.rates = report.NewRateTracker(time.Now())
	}
	r.changes.takeChangedImages() // the list includes them
	var images v1alpha1.VMDiskImageList
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		r.paginator = nil // the changed images are lost: read everything again
		return fmt.Errorf("listing VMDiskImages: %w", err)
	}
	r.paginator.ReplaceImages(images.Items)
	exists := make(map[report.Key]bool, len(images.Items))
	for i := range images.Items {
		exists[types.NamespacedName{Namespace: images.Items[i].Namespace, Name: images.Items[i].Name}] = true
		r.observeRates(&images.Items[i])
	}
	r.rates.KeepImages(func(key report.Key) bool { return exists[key] })
	return nil
}
