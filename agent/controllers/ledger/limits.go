package ledger

import (
	"context"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// grantKind may come to be served after the agent has started.
var grantKind = v1alpha1.GroupVersion.WithKind("TransferGrant")

// stepLimits is what policy and grant allow to run, for one step.
type stepLimits struct {
	terms         grant.Terms
	share         grant.Share
	limits        grant.Limits
	sourceGroupOf func(host string) string
	// namespaceShare of the policy; 0 for no limit.
	namespaceShare int32
	// policy in force; nil for none.
	policy *policy.Policy
}

// observeGrant passes the TransferGrant that the cache shows to the RequestTracker.
func (r *Reconciler) observeGrant(ctx context.Context, p *policy.Policy) error {
	if !grant.TermsFromPolicy(p).FleetLimited {
		r.Grants.LoseLedger() // there is nothing to request
		return nil
	}
	own, err := r.Cluster.UID(ctx)
	if err != nil {
		return err
	}
	if !r.grantServed.Load() {
		r.Grants.ObserveGrant(nil, own)
		return nil
	}
	g := &v1alpha1.TransferGrant{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}
	err = r.Mailbox.Get(ctx, key, g)
	switch {
	case apierrors.IsNotFound(err):
		r.Grants.ObserveGrant(nil, own)
	case err != nil:
		return fmt.Errorf("reading TransferGrant %s: %w", key, err)
	default:
		r.Grants.ObserveGrant(&g.Spec, own)
	}
	return nil
}

// computeLimits computes what may run now. After another process has written the ledger
// there is no grant: that process may have reported the grant as unused.
func (r *Reconciler) computeLimits(syncLedger *v1alpha1.SyncLedger, p *policy.Policy) stepLimits {
	l := stepLimits{terms: grant.TermsFromPolicy(p), sourceGroupOf: grant.SourceGroupFunc(p), policy: p}
	if p != nil {
		l.namespaceShare = p.NamespaceShare
	}
	ownsLedger := syncLedger.Status != nil && syncLedger.Status.Grant != nil && syncLedger.Status.Grant.BootID == r.Grants.BootID()
	if l.terms.FleetLimited && !ownsLedger {
		r.Grants.LoseLedger()
	}
	l.share = r.Grants.ShareAt(r.Elapsed())
	l.limits = grant.ComputeLimits(l.terms, l.share)
	return l
}

// limitsStillHold is asked right before a write: the process may have been paused since it
// read its clock.
//
// Invariant: no slot is taken by a window that has closed. A write that is on its way when the grant expires is safe: its slots
// count from their startedAt, which is earlier.
func (r *Reconciler) limitsStillHold(policyState policycontroller.State, l stepLimits) bool {
	if policyState.ConcurrencyAt(r.Now()) != l.terms.Concurrency {
		return false
	}
	return !l.terms.FleetLimited || grant.ComputeLimits(l.terms, r.Grants.ShareAt(r.Elapsed())).Covers(l.limits)
}

// maxEdgeDelay bounds how late a change of the clock, or a suspended host, is noticed.
const maxEdgeDelay = 5 * time.Minute

// untilNextEdge is when the next step has to follow the windows; 0 for never.
func (r *Reconciler) untilNextEdge(w policycontroller.Window) time.Duration {
	if w.NextEdge.IsZero() {
		return 0
	}
	return min(max(time.Millisecond, w.NextEdge.Sub(r.Now())), maxEdgeDelay)
}

// untilGrantExpiry is when the next step has to lower the budget; 0 for never.
func (r *Reconciler) untilGrantExpiry(l stepLimits) time.Duration {
	if l.limits.ValidUntil == 0 {
		return 0
	}
	return max(time.Millisecond, l.limits.ValidUntil-r.Elapsed())
}

// queueFront returns the images that could run beside those that hold a slot, were there no
// fleet-wide budget, and what this cluster demands of that budget.
func (r *Reconciler) queueFront(l stepLimits, slots []v1alpha1.Slot) ([]ledger.QueuedImage, grant.Demand) {
	room := grant.RoomByGroup(l.terms, l.share, slots, l.sourceGroupOf)
	front := r.Queue.ListAdmissible(int(l.terms.Concurrency)-len(slots), imagesWithSlots(slots), room)
	return front, grant.ComputeDemand(l.terms, slots, l.sourceGroupOf, front, room)
}

func imagesWithSlots(slots []v1alpha1.Slot) map[types.UID]bool {
	images := map[types.UID]bool{}
	for _, slot := range slots {
		images[slot.Image.UID] = true
	}
	return images
}

// publishDemand passes on what this cluster would run, to the report, and why images wait,
// to the images.
func (r *Reconciler) publishDemand(l stepLimits, w policycontroller.Window, slots []v1alpha1.Slot) {
	front, demand := r.queueFront(l, slots)
	if r.Grants.SetDemand(demand) {
		r.EnqueueReport()
	}
	if l.terms.FleetLimited && r.Grants.ClaimLedger() {
		r.EnqueueReport()
	}
	reasons := map[types.UID]v1alpha1.Reason{}
	for uid := range r.waitingForWindow(l.terms, w, slots) {
		reasons[uid] = v1alpha1.ReasonWaitingForWindow
	}
	maps.Copy(reasons, grant.WithheldReasons(l.terms, l.limits, slots, l.sourceGroupOf, front))
	for uid := range r.Queue.ListPassedOver(ledger.NewNamespaceShare(l.namespaceShare, slots, nil)) {
		reasons[uid] = v1alpha1.ReasonNamespaceShare
	}
	if changed := r.Queue.SetWithheldReasons(reasons); len(changed) > 0 {
		r.EnqueueImages(changed...)
	}
}

// waitingForWindow returns the images that would have a slot, were the next window open.
func (r *Reconciler) waitingForWindow(t grant.Terms, w policycontroller.Window, slots []v1alpha1.Slot) map[types.UID]bool {
	images := map[types.UID]bool{}
	if w.Opening == nil {
		return images
	}
	front := r.Queue.ListAdmissible(int(w.Opening.Concurrency)-len(slots), imagesWithSlots(slots), nil)
	for _, item := range front[min(len(front), max(0, int(t.Concurrency)-len(slots))):] {
		images[item.Image.UID] = true
	}
	return images
}

// updateQueue passes the policy's groups of sources, and the share of a namespace, to the
// queue.
func (r *Reconciler) updateQueue(p *policy.Policy) {
	if p != nil {
		r.Queue.SetNamespaceShare(p.NamespaceShare)
	}
	var sources policy.Sources
	if p != nil && p.UsesGrants {
		sources = p.Sources
	}
	if !sources.Equal(r.queueSources) {
		r.queueSources = sources
		r.Queue.SetSourceGroups(grant.SourceGroupFunc(p))
	}
}
