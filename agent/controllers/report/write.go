package report

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxRewrittenImages bounds the images on the existing pages that a report rewrites, the last page
// not counted; the other pages take their turn. Reporting must not keep the API server, or the
// agent, from the images.
const maxRewrittenImages = 2 * v1alpha1.MaxReportedImages

// MinInterval is how long changes are collected at least before they are reported. What
// the agent writes at that pace has to be within transport.Mailbox.
const MinInterval = 200 * time.Millisecond

const (
	// burstImages changed images or more are a burst, in which each report would write the pages of
	// the one before again.
	burstImages = 4
	// burstInterval is the interval of reports in a burst.
	burstInterval = time.Second
)

// burstDelay is how long a burst delays the next report; 0 for not. Requests of the fleet-wide
// budget are not delayed.
func (r *Reconciler) burstDelay(now time.Time) time.Duration {
	if _, requests := r.Grants.NextRequestAt(); requests || r.changes.countChangedImages() < burstImages {
		return 0
	}
	return max(0, r.reportedAt.Add(burstInterval).Sub(now))
}

// writePages writes all new pages, and those that have changed until these have
// maxRewrittenImages. more is true if changed ones are left.
func (r *Reconciler) writePages(ctx context.Context, pages []report.Page) (more bool, err error) {
	pass := &pagePass{Reconciler: r}
	var changed []report.Page
	for _, page := range pages {
		stored := r.stored[page.Name]
		switch {
		case stored != nil && stored.holds(page):
			stored.clearFailure()
		case stored != nil && time.Now().Before(stored.refusedUntil):
		case stored == nil || !stored.exists():
			if err := pass.writePage(ctx, page); err != nil {
				return false, err
			}
		default:
			changed = append(changed, page)
		}
	}
	// Continue after the page that was rewritten last.
	first := 0
	for first < len(changed) && changed[first].Name <= r.lastRewrittenPage {
		first++
	}
	images := 0
	for i := range changed {
		if images >= maxRewrittenImages {
			return true, pass.failure
		}
		page := changed[(first+i)%len(changed)]
		if err := pass.writePage(ctx, page); err != nil {
			return false, err
		}
		r.lastRewrittenPage = page.Name
		images += int(page.Images)
	}
	return pass.skipped, pass.failure
}

// pagePass is what one report writes of its pages.
type pagePass struct {
	*Reconciler
	// failedFor is how long the writes took that failed.
	failedFor time.Duration
	// skipped: a page is left since others failed.
	skipped bool
	// failure joins those that do not last yet: the report is repeated soon.
	failure error
}

// writePage writes one page.
//
// Invariant: a page that is refused, or whose writes go on failing in whatever way, as by a webhook that
// is down, does not answer or denies with a code of its own, keeps neither the others nor the root from
// being written, and the root counts its images as omitted. So the agent beats, and the hub does not take
// images that are not shown for missing. Whether anything can be written, the root's own write tells.
//
// Invariant: a conflict is a failure only where the page is stored as it is known: otherwise another
// writer was first.
func (p *pagePass) writePage(ctx context.Context, page report.Page) error {
	if p.failedFor >= mailbox.MaxFailedPageTime {
		p.objectFor(page.Name).refusedUntil, p.skipped = time.Now(), true
		return nil
	}
	began, before := time.Now(), *p.objectFor(page.Name)
	err := p.writeObject(ctx, page.Name, func(obj *v1alpha1.ClusterReport) {
		obj.Page = &v1alpha1.ReportPage{Images: p.paginator.PageImages(page.Name)}
	})
	now, stored := time.Now(), p.objectFor(page.Name)
	if err == nil {
		stored.clearFailure()
		p.Metrics.CountWrite(metrics.ReportPage)
		return nil
	}
	p.failedFor += now.Sub(began)
	if !mailbox.IsRefused(err) {
		if readErr := p.readObject(ctx, page.Name); readErr != nil {
			return errors.Join(err, readErr)
		}
		switch changed := stored.uid != before.uid || stored.resourceVersion != before.resourceVersion; {
		case stored.holds(page): // stored all the same
			stored.clearFailure()
			return nil
		case changed && errors.Is(err, errReportChanged):
			return err
		}
		if stored.failingSince = before.failingSince; stored.failingSince.IsZero() {
			stored.failingSince = began
		}
		if !p.failuresLast(now) {
			p.failure = errors.Join(p.failure, err)
			return nil
		}
	}
	stored.refusedUntil = now.Add(mailbox.RefusedPageDelay)
	ctrl.LoggerFrom(ctx).Error(err, "Failed to write a page of the report; its images stay as last reported. Check that the CRDs are of the agent's version, and which quotas and webhooks the namespace has",
		"page", page.Name, "retryAfter", mailbox.RefusedPageDelay)
	return nil
}

// failuresLast reports whether the API server has failed to write a page for
// mailbox.LastingFailure. Pages that are new since, as by a division, share its lot.
func (r *Reconciler) failuresLast(now time.Time) bool {
	for _, stored := range r.stored {
		if !stored.failingSince.IsZero() && now.Sub(stored.failingSince) >= mailbox.LastingFailure {
			return true
		}
	}
	return false
}

// writeRoot writes the root if it has changed, if somebody else has changed it, and with
// every heartbeat.
func (r *Reconciler) writeRoot(ctx context.Context, pages []report.Page) error {
	ledger, err := r.readLedger(ctx)
	if err != nil {
		return err
	}
	if ledger != nil && ledger.Status != nil && !grant.MayReport(ledger.Status, r.Grants.BootID()) {
		return errForeignLedger
	}
	input := report.RootInput{
		Now: time.Now(), Heartbeat: r.Heartbeat, BootID: r.Grants.BootID(), AgentVersion: r.Version, ImageFields: r.ImageFields(), PlanFields: r.PlanFields(), PolicyKeys: policy.PlanKeys(),
		Ledger: ledger, Totals: r.paginator.Totals(), Answered: r.answeredPlan(pages), Orphans: r.orphans.found, PruneNonce: r.PruneNonce(),
		// Invariant: the time of a request is taken before the write, which may be repeated.
		Transfers: newReportedTransfers(ledger, r.Grants.Demand(), r.Grants.RequestNonce(r.Elapsed())),
	}
	if oldest, openedAt := input.Totals.OldestQueued, metav1.NewTime(r.Queue.OpenedAt()); oldest != nil && oldest.Before(&openedAt) {
		input.Totals.OldestQueued = &openedAt
	}
	for _, page := range pages {
		stored := r.stored[page.Name]
		if stored.exists() {
			input.Pages = append(input.Pages, stored.pageRef(page.Name))
		}
		if stored.isOutdated(page) {
			input.Totals.Omitted += page.Images
		}
	}
	next := report.BuildRoot(input)
	stored := r.stored[v1alpha1.MailboxName]
	if stored != nil && stored.exists() && !stored.mustRewrite && stored.root != nil && report.EqualRoots(*stored.root, next) &&
		!r.rootWrittenAt.IsZero() && input.Now.Sub(r.rootWrittenAt) < r.Heartbeat {
		return nil
	}
	if err := r.writeObject(ctx, v1alpha1.MailboxName, func(obj *v1alpha1.ClusterReport) { obj.Root = &next }); err != nil {
		return err
	}
	r.rootWrittenAt = input.Now
	r.Metrics.CountWrite(metrics.ReportRoot)
	r.Metrics.SetRoot(input.Now, len(next.Pages), next.OmittedImages)
	return nil
}

// newReportedTransfers returns what the root says of the fleet-wide budget.
func newReportedTransfers(ledger *v1alpha1.SyncLedger, demand grant.Demand, nonce string) *v1alpha1.ReportedTransfers {
	var status *v1alpha1.SyncLedgerStatus
	var inForce *policy.Policy
	if ledger != nil && ledger.Status != nil {
		status = ledger.Status
		if p, _, errs := policy.Parse(status.Policy); len(errs) == 0 {
			inForce = &p
		}
	}
	return grant.NewReportedTransfers(grant.TermsFromPolicy(inForce), status, grant.SourceGroupFunc(inForce), demand, nonce)
}

// answeredPlan returns the plan that all stored pages answer. A page that waits for its turn,
// or is refused, answers the plan that it did before; one that does not exist, or may have
// changed, answers none.
func (r *Reconciler) answeredPlan(pages []report.Page) *v1alpha1.PlanVersion {
	answers := make([]report.PlanAnswer, len(pages))
	for i, page := range pages {
		stored := r.stored[page.Name]
		if stored == nil || !stored.exists() || stored.mustRewrite || r.changes.isStale(page.Name) {
			continue
		}
		if stored.digest == page.Digest {
			stored.answer = r.answer
		}
		answers[i] = stored.answer
	}
	return report.AnsweredPlan(r.answer, answers)
}

// deleteUnlistedPages deletes the pages that the stored root does not list. Of those that do not
// exist it forgets all but the refused ones of this report.
func (r *Reconciler) deleteUnlistedPages(ctx context.Context, pages []report.Page) error {
	listed := map[string]bool{v1alpha1.MailboxName: true, v1alpha1.ActivityName: true}
	for _, page := range pages {
		listed[page.Name] = true
	}
	for _, ref := range r.stored[v1alpha1.MailboxName].root.Pages {
		listed[ref.Name] = true
	}
	for name, stored := range r.stored {
		if listed[name] {
			continue
		}
		if stored.exists() {
			if err := r.deleteObject(ctx, name, stored); err != nil {
				return err
			}
			r.Metrics.CountWrite(metrics.ReportPage)
		}
		delete(r.stored, name)
	}
	return nil
}
