// Package report writes the ClusterReport of a member: what package agent/report
// works out, object by object, never over what somebody else has written since.
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
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterreports,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=list;watch

// Reconciler keeps the ClusterReport.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live client.Reader
	// Mailbox is the cache that watches the agent's namespace.
	Mailbox cache.Cache
	Kinds   *apidiscovery.KindTracker
	Metrics *metrics.Report
	// ClusterUID tells which cluster this is.
	ClusterUID func(context.Context) (types.UID, error)
	// PlanResults are what became of the plan's images; nil for not known yet, and
	// then what was reported before holds.
	PlanResults func() map[types.NamespacedName]v1alpha1.PlanItemReport
	// PrunedImages are the plan's prunes whose image is gone; nil for not known yet, and
	// then what was reported before holds.
	PrunedImages func() map[types.NamespacedName]v1alpha1.ReportedPrune

	// Grants is what is asked of the fleet-wide budget, and Elapsed how long this
	// process has been running.
	Grants  *grant.RequestTracker
	Elapsed func() time.Duration

	// Namespace of the agent, and of the report.
	Namespace string
	// Version of the agent.
	Version string
	// Interval between two reports, at the least.
	Interval time.Duration
	// Heartbeat is how often the root is written where nothing happens.
	Heartbeat time.Duration

	triggers chan event.GenericEvent
	served   atomic.Bool
	changes  changeTracker

	// What follows is Reconcile's alone, one at a time.

	clusterUID types.UID
	paginator  *report.Paginator // nil until what is stored has been read
	// answer that the book is: all images were taken into it after the ledger was seen
	// to acknowledge that plan.
	answer  report.PlanAnswer
	stored  map[string]*storedObject
	orphans orphanState
	// lastRewrittenPage is the page that was last rewritten, and rootWrittenAt when the root was
	// written; zero where this process has not done so yet.
	lastRewrittenPage string
	rootWrittenAt     time.Time
}

// maxPageRewrites are how many pages that are stored are written anew for one report.
// Where more have changed they take turns: reporting is not to keep the API
// server, or the agent, from the images. The root is always of now.
const maxPageRewrites = 4

// errReportChanged: an object is not as it was known to be. It has been marked to be
// read again.
var errReportChanged = errors.New("somebody else has written it")

// errForeignLedger: the ledger, as the cache shows it, was written by another process under a
// grant that this one does not know. A hub that saw this one report might take that
// grant for given up, while the other can still go by it.
var errForeignLedger = errors.New("the SyncLedger is not written by this process yet")

// ledgerTakeoverTimeout is how long it may take until the ledger is.
const ledgerTakeoverTimeout = time.Minute

// Reconcile writes what has changed since the last report: pages, then the root
// that lists them, and only then are the pages deleted that it does not list.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.served.Load() {
		return ctrl.Result{}, nil // taken up when the kind is served
	}
	again, err := r.writeReport(ctx)
	if errors.Is(err, errReportChanged) || errors.Is(err, errForeignLedger) && r.Elapsed() < ledgerTakeoverTimeout {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if again {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	next := r.Heartbeat - time.Since(r.rootWrittenAt)
	if at, asks := r.Grants.NextRequestAt(); asks {
		next = min(next, at-r.Elapsed())
	}
	return ctrl.Result{RequeueAfter: max(r.Interval, next)}, nil
}

// writeReport tells whether there is more to be written after an interval.
func (r *Reconciler) writeReport(ctx context.Context) (again bool, err error) {
	if err := r.updatePaginator(ctx); err != nil {
		return false, err
	}
	pages := r.paginator.Pages()
	again, err = r.writePages(ctx, pages)
	if err != nil {
		return false, err
	}
	again = r.refreshOrphans(ctx) || again
	if err := r.writeRoot(ctx, pages); err != nil {
		return false, err
	}
	return again, r.deleteUnlistedPages(ctx)
}

// updatePaginator brings the book, and what is known of the stored objects, up to date. The
// ledger is read first: what the cache shows of the images after that is what an
// acknowledged plan is answered with.
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
		case apierrors.IsNotFound(err):
			r.paginator.RemoveImage(key)
		default:
			r.paginator = nil // begun anew: the names of the others are gone
			return fmt.Errorf("reading VMDiskImage %s: %w", key, err)
		}
	}
	return nil
}

// readAcknowledgedPlan is the plan that the ledger was last written under, nil for none.
func (r *Reconciler) readAcknowledgedPlan(ctx context.Context) (*v1alpha1.PlanVersion, error) {
	ledger, err := r.readLedger(ctx)
	if err != nil || ledger == nil || ledger.Status == nil {
		return nil, err
	}
	return ledger.Status.Plan, nil
}

// readLedger as the cache shows it, nil for none.
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

// readStaleObjects reads those objects again that may not be as they are known to be.
func (r *Reconciler) readStaleObjects(ctx context.Context) error {
	doubts := r.changes.takeStaleObjects()
	for i, name := range doubts {
		if r.paginator == nil {
			return nil // everything is read
		}
		if err := r.readObject(ctx, name); err != nil {
			for _, left := range doubts[i:] {
				r.changes.markStale(left)
			}
			return err
		}
	}
	return nil
}

// loadStoredReport reads what is stored and divides the images as it is divided.
func (r *Reconciler) loadStoredReport(ctx context.Context) (err error) {
	if r.clusterUID, err = r.ClusterUID(ctx); err != nil {
		return err
	}
	was, err := r.readStoredReport(ctx)
	if err != nil {
		return err
	}
	book := report.NewPaginator(was.pages)
	book.SetPlanItems(was.planItems)
	book.SetPrunedImages(was.pruned)
	r.paginator = book
	return nil
}

// reloadImages takes all images as the cache shows them now, whatever events are still to
// tell of them.
func (r *Reconciler) reloadImages(ctx context.Context) error {
	if r.paginator == nil {
		if err := r.loadStoredReport(ctx); err != nil {
			return err
		}
	}
	r.changes.takeChangedImages() // the list shows them
	var images v1alpha1.VMDiskImageList
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		r.paginator = nil // begun anew: their names are gone
		return fmt.Errorf("listing VMDiskImages: %w", err)
	}
	r.paginator.ReplaceImages(images.Items)
	return nil
}

// writePages writes those that are not stored as they are: all that are new, and
// some of the others.
func (r *Reconciler) writePages(ctx context.Context, pages []report.Page) (more bool, err error) {
	var changed []report.Page
	for _, page := range pages {
		rec := r.stored[page.Name]
		switch {
		case rec != nil && rec.refusedDigest == page.Digest:
		case rec == nil || !rec.exists():
			if err := r.writePage(ctx, page); err != nil {
				return false, err
			}
		case rec.mustRewrite || rec.digest != page.Digest:
			changed = append(changed, page)
		}
	}
	// Those after the one that was written last come first.
	turn := 0
	for turn < len(changed) && changed[turn].Name <= r.lastRewrittenPage {
		turn++
	}
	for i := range min(maxPageRewrites, len(changed)) {
		page := changed[(turn+i)%len(changed)]
		if err := r.writePage(ctx, page); err != nil {
			return false, err
		}
		r.lastRewrittenPage = page.Name
	}
	return len(changed) > maxPageRewrites, nil
}

// writePage writes one page. One that is refused for what it says is not tried
// again until it says something else, and keeps none of the others back.
func (r *Reconciler) writePage(ctx context.Context, page report.Page) error {
	err := r.writeObject(ctx, page.Name, func(obj *v1alpha1.ClusterReport) {
		obj.Page = &v1alpha1.ReportPage{Images: r.paginator.PageImages(page.Name)}
	})
	switch {
	case err == nil:
		r.Metrics.CountWrite(metrics.ReportPage)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		r.objectFor(page.Name).refusedDigest = page.Digest
		ctrl.LoggerFrom(ctx).Error(err, "A page of the report is refused: its images are reported as they were, or not at all. Are the CRDs those of the agent's version?", "page", page.Name)
		return nil
	default:
		return err
	}
}

// writeRoot writes the root where it says something new, where it is not as this
// agent left it, and with every heartbeat.
func (r *Reconciler) writeRoot(ctx context.Context, pages []report.Page) error {
	ledger, err := r.readLedger(ctx)
	if err != nil {
		return err
	}
	if ledger != nil && ledger.Status != nil && !grant.MayReport(ledger.Status, r.Grants.BootID()) {
		return errForeignLedger
	}
	view := report.RootInput{
		Now: time.Now(), Heartbeat: r.Heartbeat, BootID: r.Grants.BootID(), AgentVersion: r.Version,
		Ledger: ledger, Totals: r.paginator.Totals(), Answered: r.answeredPlan(pages), Orphans: r.orphans.found,
		// A request is as old as this: a write whose answer is lost, or that is tried
		// again, makes it no younger.
		Transfers: newReportedTransfers(ledger, r.Grants.Demand(), r.Grants.RequestNonce(r.Elapsed())),
	}
	for _, page := range pages {
		if rec := r.stored[page.Name]; rec.exists() {
			view.Pages = append(view.Pages, rec.pageRef(page.Name))
		}
	}
	next := report.BuildRoot(view)
	rec := r.stored[v1alpha1.MailboxName]
	if rec != nil && rec.exists() && !rec.mustRewrite && rec.root != nil && report.EqualRoots(*rec.root, next) &&
		!r.rootWrittenAt.IsZero() && view.Now.Sub(r.rootWrittenAt) < r.Heartbeat {
		return nil
	}
	if err := r.writeObject(ctx, v1alpha1.MailboxName, func(obj *v1alpha1.ClusterReport) { obj.Root = &next }); err != nil {
		return err
	}
	r.rootWrittenAt = view.Now
	r.Metrics.CountWrite(metrics.ReportRoot)
	r.Metrics.SetRoot(view.Now, len(next.Pages), next.OmittedImages)
	return nil
}

// newReportedTransfers is what is asked of the fleet-wide budget, and gone by.
func newReportedTransfers(ledger *v1alpha1.SyncLedger, want grant.Demand, nonce string) *v1alpha1.ReportedTransfers {
	var st *v1alpha1.SyncLedgerStatus
	var under *policy.Policy
	if ledger != nil && ledger.Status != nil {
		st = ledger.Status
		if p, _, errs := policy.Parse(st.Policy); len(errs) == 0 {
			under = &p
		}
	}
	return grant.NewReportedTransfers(grant.TermsFromPolicy(under), st, grant.SourceGroupFunc(under), want, nonce)
}

// answeredPlan is the plan that all pages of the book answer as they are stored. A page
// that waits for its turn, or is refused, answers what it did before; one that is not
// there, or may be another by now, answers nothing.
func (r *Reconciler) answeredPlan(pages []report.Page) *v1alpha1.PlanVersion {
	answers := make([]report.PlanAnswer, len(pages))
	for i, page := range pages {
		rec := r.stored[page.Name]
		if rec == nil || !rec.exists() || rec.mustRewrite || r.changes.isStale(page.Name) {
			continue
		}
		if rec.digest == page.Digest {
			rec.answer = r.answer
		}
		answers[i] = rec.answer
	}
	return report.AnsweredPlan(r.answer, answers)
}

// deleteUnlistedPages deletes the pages that the stored root does not list.
func (r *Reconciler) deleteUnlistedPages(ctx context.Context) error {
	listed := map[string]bool{v1alpha1.MailboxName: true}
	for _, ref := range r.stored[v1alpha1.MailboxName].root.Pages {
		listed[ref.Name] = true
	}
	for name, rec := range r.stored {
		if listed[name] {
			continue
		}
		if rec.exists() {
			if err := r.deleteObject(ctx, name, rec); err != nil {
				return err
			}
			r.Metrics.CountWrite(metrics.ReportPage)
		}
		delete(r.stored, name)
	}
	return nil
}
