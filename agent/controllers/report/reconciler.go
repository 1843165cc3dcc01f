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

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/kinds"
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
	Kinds   *kinds.Served
	Metrics *metrics.Report
	// ClusterUID tells which cluster this is.
	ClusterUID func(context.Context) (types.UID, error)
	// PlanResults are what became of the plan's images; nil for not known yet, and
	// then what was reported before holds.
	PlanResults func() map[types.NamespacedName]v1alpha1.PlanItemReport
	// Pruned are the plan's prunes whose image is gone; nil for not known yet, and
	// then what was reported before holds.
	Pruned func() map[types.NamespacedName]v1alpha1.ReportedPrune

	// Grants is what is asked of the fleet-wide budget, and Elapsed how long this
	// process has been running.
	Grants  *grant.Book
	Elapsed func() time.Duration

	// Namespace of the agent, and of the report.
	Namespace string
	// Version of the agent.
	Version string
	// Interval between two reports, at the least.
	Interval time.Duration
	// Heartbeat is how often the root is written where nothing happens.
	Heartbeat time.Duration

	pokes  chan event.GenericEvent
	served atomic.Bool
	news   news

	// What follows is Reconcile's alone, one at a time.

	cluster types.UID
	book    *report.Book // nil until what is stored has been read
	// answer that the book is: all images were taken into it after the ledger was seen
	// to acknowledge that plan.
	answer  report.Answer
	stored  map[string]*record
	orphans orphans
	// last is the page that was last rewritten, and rootAt when the root was
	// written; zero where this process has not done so yet.
	last   string
	rootAt time.Time
}

// rewrites are how many pages that are stored are written anew for one report.
// Where more have changed they take turns: reporting is not to keep the API
// server, or the agent, from the images. The root is always of now.
const rewrites = 4

// errChanged: an object is not as it was known to be. It has been marked to be
// read again.
var errChanged = errors.New("somebody else has written it")

// errOthers: the ledger, as the cache shows it, was written by another process under a
// grant that this one does not know. A hub that saw this one report might take that
// grant for given up, while the other can still go by it.
var errOthers = errors.New("the SyncLedger is not written by this process yet")

// takeover is how long it may take until the ledger is.
const takeover = time.Minute

// Reconcile writes what has changed since the last report: pages, then the root
// that lists them, and only then are the pages deleted that it does not list.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.served.Load() {
		return ctrl.Result{}, nil // taken up when the kind is served
	}
	again, err := r.report(ctx)
	if errors.Is(err, errChanged) || errors.Is(err, errOthers) && r.Elapsed() < takeover {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if again {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	next := r.Heartbeat - time.Since(r.rootAt)
	if at, asks := r.Grants.Next(); asks {
		next = min(next, at-r.Elapsed())
	}
	return ctrl.Result{RequeueAfter: max(r.Interval, next)}, nil
}

// report tells whether there is more to be written after an interval.
func (r *Reconciler) report(ctx context.Context) (again bool, err error) {
	if err := r.follow(ctx); err != nil {
		return false, err
	}
	pages := r.book.Pages()
	again, err = r.writePages(ctx, pages)
	if err != nil {
		return false, err
	}
	again = r.findOrphans(ctx) || again
	if err := r.writeRoot(ctx, pages); err != nil {
		return false, err
	}
	return again, r.deleteUnlisted(ctx)
}

// follow brings the book, and what is known of the stored objects, up to date. The
// ledger is read first: what the cache shows of the images after that is what an
// acknowledged plan is answered with.
func (r *Reconciler) follow(ctx context.Context) error {
	plan, err := r.acknowledged(ctx)
	if err != nil {
		return err
	}
	if err := r.readDoubted(ctx); err != nil {
		return err
	}
	if r.book == nil || !r.answer.To(plan) {
		if err := r.takeAll(ctx); err != nil {
			return err
		}
		r.answer = r.answer.After(plan)
	}
	if results := r.PlanResults(); results != nil {
		r.book.SetPlan(results)
	}
	if pruned := r.Pruned(); pruned != nil {
		r.book.SetPruned(pruned)
	}
	for key := range r.news.takeImages() {
		img := &v1alpha1.VMDiskImage{}
		err := r.Get(ctx, key, img)
		switch {
		case err == nil:
			r.book.Set(img)
		case apierrors.IsNotFound(err):
			r.book.Remove(key)
		default:
			r.book = nil // begun anew: the names of the others are gone
			return fmt.Errorf("reading VMDiskImage %s: %w", key, err)
		}
	}
	return nil
}

// acknowledged is the plan that the ledger was last written under, nil for none.
func (r *Reconciler) acknowledged(ctx context.Context) (*v1alpha1.PlanVersion, error) {
	ledger, err := r.ledger(ctx)
	if err != nil || ledger == nil || ledger.Status == nil {
		return nil, err
	}
	return ledger.Status.Plan, nil
}

// ledger as the cache shows it, nil for none.
func (r *Reconciler) ledger(ctx context.Context) (*v1alpha1.SyncLedger, error) {
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

// readDoubted reads those objects again that may not be as they are known to be.
func (r *Reconciler) readDoubted(ctx context.Context) error {
	doubts := r.news.takeDoubts()
	for i, name := range doubts {
		if r.book == nil {
			return nil // everything is read
		}
		if err := r.read(ctx, name); err != nil {
			for _, left := range doubts[i:] {
				r.news.doubt(left)
			}
			return err
		}
	}
	return nil
}

// begin reads what is stored and divides the images as it is divided.
func (r *Reconciler) begin(ctx context.Context) (err error) {
	if r.cluster, err = r.ClusterUID(ctx); err != nil {
		return err
	}
	was, err := r.readAll(ctx)
	if err != nil {
		return err
	}
	book := report.New(was.pages)
	book.SetPlan(was.plan)
	book.SetPruned(was.pruned)
	r.book = book
	return nil
}

// takeAll takes all images as the cache shows them now, whatever events are still to
// tell of them.
func (r *Reconciler) takeAll(ctx context.Context) error {
	if r.book == nil {
		if err := r.begin(ctx); err != nil {
			return err
		}
	}
	r.news.takeImages() // the list shows them
	var images v1alpha1.VMDiskImageList
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		r.book = nil // begun anew: their names are gone
		return fmt.Errorf("listing VMDiskImages: %w", err)
	}
	r.book.SetAll(images.Items)
	return nil
}

// writePages writes those that are not stored as they are: all that are new, and
// some of the others.
func (r *Reconciler) writePages(ctx context.Context, pages []report.Page) (more bool, err error) {
	var changed []report.Page
	for _, page := range pages {
		rec := r.stored[page.Name]
		switch {
		case rec != nil && rec.refused == page.Digest:
		case rec == nil || !rec.exists():
			if err := r.writePage(ctx, page); err != nil {
				return false, err
			}
		case rec.rewrite || rec.digest != page.Digest:
			changed = append(changed, page)
		}
	}
	// Those after the one that was written last come first.
	turn := 0
	for turn < len(changed) && changed[turn].Name <= r.last {
		turn++
	}
	for i := range min(rewrites, len(changed)) {
		page := changed[(turn+i)%len(changed)]
		if err := r.writePage(ctx, page); err != nil {
			return false, err
		}
		r.last = page.Name
	}
	return len(changed) > rewrites, nil
}

// writePage writes one page. One that is refused for what it says is not tried
// again until it says something else, and keeps none of the others back.
func (r *Reconciler) writePage(ctx context.Context, page report.Page) error {
	err := r.write(ctx, page.Name, func(obj *v1alpha1.ClusterReport) {
		obj.Page = &v1alpha1.ReportPage{Images: r.book.Images(page.Name)}
	})
	switch {
	case err == nil:
		r.Metrics.Wrote(metrics.ReportPage)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		r.recordOf(page.Name).refused = page.Digest
		ctrl.LoggerFrom(ctx).Error(err, "A page of the report is refused: its images are reported as they were, or not at all. Are the CRDs those of the agent's version?", "page", page.Name)
		return nil
	default:
		return err
	}
}

// writeRoot writes the root where it says something new, where it is not as this
// agent left it, and with every heartbeat.
func (r *Reconciler) writeRoot(ctx context.Context, pages []report.Page) error {
	ledger, err := r.ledger(ctx)
	if err != nil {
		return err
	}
	if ledger != nil && ledger.Status != nil && !grant.Owns(ledger.Status, r.Grants.Boot()) {
		return errOthers
	}
	view := report.View{
		Now: time.Now(), Heartbeat: r.Heartbeat, BootID: r.Grants.Boot(), AgentVersion: r.Version,
		Ledger: ledger, Totals: r.book.Totals(), Answered: r.answered(pages), Orphans: r.orphans.found,
		// A request is as old as this: a write whose answer is lost, or that is tried
		// again, makes it no younger.
		Transfers: transfers(ledger, r.Grants.Wanted(), r.Grants.Ask(r.Elapsed())),
	}
	for _, page := range pages {
		if rec := r.stored[page.Name]; rec.exists() {
			view.Pages = append(view.Pages, rec.ref(page.Name))
		}
	}
	next := report.Root(view)
	rec := r.stored[v1alpha1.MailboxName]
	if rec != nil && rec.exists() && !rec.rewrite && rec.root != nil && report.SameRoot(*rec.root, next) &&
		!r.rootAt.IsZero() && view.Now.Sub(r.rootAt) < r.Heartbeat {
		return nil
	}
	if err := r.write(ctx, v1alpha1.MailboxName, func(obj *v1alpha1.ClusterReport) { obj.Root = &next }); err != nil {
		return err
	}
	r.rootAt = view.Now
	r.Metrics.Wrote(metrics.ReportRoot)
	r.Metrics.Root(view.Now, len(next.Pages), next.OmittedImages)
	return nil
}

// transfers is what is asked of the fleet-wide budget, and gone by.
func transfers(ledger *v1alpha1.SyncLedger, want grant.Demand, nonce string) *v1alpha1.ReportedTransfers {
	var st *v1alpha1.SyncLedgerStatus
	var under *policy.Policy
	if ledger != nil && ledger.Status != nil {
		st = ledger.Status
		if p, _, errs := policy.Parse(st.Policy); len(errs) == 0 {
			under = &p
		}
	}
	return grant.Transfers(grant.TermsOf(under), st, grant.GroupOf(under), want, nonce)
}

// answered is the plan that all pages of the book answer as they are stored. A page
// that waits for its turn, or is refused, answers what it did before; one that is not
// there, or may be another by now, answers nothing.
func (r *Reconciler) answered(pages []report.Page) *v1alpha1.PlanVersion {
	answers := make([]report.Answer, len(pages))
	for i, page := range pages {
		rec := r.stored[page.Name]
		if rec == nil || !rec.exists() || rec.rewrite || r.news.doubted(page.Name) {
			continue
		}
		if rec.digest == page.Digest {
			rec.answer = r.answer
		}
		answers[i] = rec.answer
	}
	return report.Answered(r.answer, answers)
}

// deleteUnlisted deletes the pages that the stored root does not list.
func (r *Reconciler) deleteUnlisted(ctx context.Context) error {
	listed := map[string]bool{v1alpha1.MailboxName: true}
	for _, ref := range r.stored[v1alpha1.MailboxName].root.Pages {
		listed[ref.Name] = true
	}
	for name, rec := range r.stored {
		if listed[name] {
			continue
		}
		if rec.exists() {
			if err := r.remove(ctx, name, rec); err != nil {
				return err
			}
			r.Metrics.Wrote(metrics.ReportPage)
		}
		delete(r.stored, name)
	}
	return nil
}
