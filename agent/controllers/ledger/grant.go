package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// grantKind may come to be served after the agent runs.
var grantKind = v1alpha1.GroupVersion.WithKind("TransferGrant")

// stepLimits is what the policy and the hub's grant let run, for one step.
type stepLimits struct {
	terms         grant.Terms
	share         grant.Share
	limits        grant.Limits
	wanted        int32
	sourceGroupOf func(host string) string
}

// observeGrant has the book take note of the TransferGrant, as the cache shows it: one
// that is older than another seen before changes nothing, and one that is gone gives
// nothing.
func (r *Reconciler) observeGrant(ctx context.Context, t grant.Terms) error {
	if !t.FleetLimited {
		r.Grants.LoseLedger() // there is nothing to be asked for
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

// computeLimits works out what may run now. A ledger that another process has written since
// this one asked leaves it without a grant: the other may have told the hub that none
// is gone by.
func (r *Reconciler) computeLimits(ledger *v1alpha1.SyncLedger, p *policy.Policy) stepLimits {
	l := stepLimits{terms: grant.TermsFromPolicy(p), sourceGroupOf: grant.SourceGroupFunc(p)}
	if g := ledgerStatus(ledger).Grant; l.terms.FleetLimited && (g == nil || g.BootID != r.Grants.BootID()) {
		r.Grants.LoseLedger()
	}
	l.share = r.Grants.ShareAt(r.Elapsed())
	l.limits = grant.ComputeLimits(l.terms, l.share)
	return l
}

// errGrantExpired: what a step was worked out under has ended before it was written.
var errGrantExpired = errors.New("the grant has ended meanwhile")

// limitsStillHold tells whether a step may still be written: the process may have been paused
// since it looked at its clock. What is on its way to the API server when the grant
// ends got its slot before that, by the slot's startedAt.
func (r *Reconciler) limitsStillHold(l stepLimits) bool {
	return !l.terms.FleetLimited || grant.ComputeLimits(l.terms, r.Grants.ShareAt(r.Elapsed())).Covers(l.limits)
}

// requeueAtGrantExpiry has a later step lower the budget when a grant ends.
func (r *Reconciler) requeueAtGrantExpiry(result ctrl.Result, l stepLimits) ctrl.Result {
	if l.limits.ValidUntil == 0 {
		return result
	}
	left := max(time.Millisecond, l.limits.ValidUntil-r.Elapsed())
	if result.RequeueAfter == 0 || left < result.RequeueAfter {
		result.RequeueAfter = left
	}
	return result
}

// queueFront are the images that could run beside those that have a slot, were there no
// fleet-wide budget.
func (r *Reconciler) queueFront(t grant.Terms, slots []v1alpha1.Slot) []ledger.QueuedImage {
	return r.Queue.ListAdmissible(int(t.Concurrency)-len(slots), slotHolders(slots))
}

func slotHolders(slots []v1alpha1.Slot) map[types.UID]bool {
	held := map[types.UID]bool{}
	for _, slot := range slots {
		held[slot.Image.UID] = true
	}
	return held
}

// publishDemand lets the report know what is wanted, and images why they wait.
func (r *Reconciler) publishDemand(ctx context.Context, l stepLimits, slots []v1alpha1.Slot) {
	front := r.queueFront(l.terms, slots)
	if r.Grants.SetDemand(grant.ComputeDemand(l.terms, slots, l.sourceGroupOf, front)) {
		r.EnqueueReport()
	}
	if l.terms.FleetLimited && r.Grants.ClaimLedger() {
		r.EnqueueReport()
	}
	if changed := r.Queue.SetWithheldReasons(grant.WithheldReasons(l.terms, l.limits, slots, l.sourceGroupOf, front)); len(changed) > 0 {
		r.EnqueueImages(ctx, changed...)
	}
}

// updateSourceGroups has the queue know the policy's groups of sources.
func (r *Reconciler) updateSourceGroups(p *policy.Policy) {
	var sources policy.Sources
	if p != nil && p.UsesGrants {
		sources = p.Sources
	}
	if !sources.Equal(r.queueSources) {
		r.queueSources = sources
		r.Queue.SetSourceGroups(grant.SourceGroupFunc(p))
	}
}
