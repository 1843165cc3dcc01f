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
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// grantKind may come to be served after the agent runs.
var grantKind = v1alpha1.GroupVersion.WithKind("TransferGrant")

// limited is what the policy and the hub's grant let run, for one step.
type limited struct {
	terms   grant.Terms
	share   grant.Share
	limits  grant.Limits
	wanted  int32
	groupOf func(host string) string
}

// readGrant has the book take note of the TransferGrant, as the cache shows it: one
// that is older than another seen before changes nothing, and one that is gone gives
// nothing.
func (r *Reconciler) readGrant(ctx context.Context, t grant.Terms) error {
	if !t.Limited {
		r.Grants.Lose() // there is nothing to be asked for
		return nil
	}
	own, err := r.Cluster.UID(ctx)
	if err != nil {
		return err
	}
	if !r.grantServed.Load() {
		r.Grants.Take(nil, own)
		return nil
	}
	g := &v1alpha1.TransferGrant{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}
	err = r.Mailbox.Get(ctx, key, g)
	switch {
	case apierrors.IsNotFound(err):
		r.Grants.Take(nil, own)
	case err != nil:
		return fmt.Errorf("reading TransferGrant %s: %w", key, err)
	default:
		r.Grants.Take(&g.Spec, own)
	}
	return nil
}

// limit works out what may run now. A ledger that another process has written since
// this one asked leaves it without a grant: the other may have told the hub that none
// is gone by.
func (r *Reconciler) limit(ledger *v1alpha1.SyncLedger, p *policy.Policy) limited {
	l := limited{terms: grant.TermsOf(p), groupOf: grant.GroupOf(p)}
	if g := statusOf(ledger).Grant; l.terms.Limited && (g == nil || g.BootID != r.Grants.Boot()) {
		r.Grants.Lose()
	}
	l.share = r.Grants.Share(r.Elapsed())
	l.limits = grant.Limit(l.terms, l.share)
	return l
}

// errEnded: what a step was worked out under has ended before it was written.
var errEnded = errors.New("the grant has ended meanwhile")

// holds tells whether a step may still be written: the process may have been paused
// since it looked at its clock. What is on its way to the API server when the grant
// ends got its slot before that, by the slot's startedAt.
func (r *Reconciler) holds(l limited) bool {
	return !l.terms.Limited || grant.Limit(l.terms, r.Grants.Share(r.Elapsed())).Allow(l.limits)
}

// lookAgain has a later step lower the budget when a grant ends.
func (r *Reconciler) lookAgain(result ctrl.Result, l limited) ctrl.Result {
	if l.limits.Until == 0 {
		return result
	}
	left := max(time.Millisecond, l.limits.Until-r.Elapsed())
	if result.RequeueAfter == 0 || left < result.RequeueAfter {
		result.RequeueAfter = left
	}
	return result
}

// front are the images that could run beside those that have a slot, were there no
// fleet-wide budget.
func (r *Reconciler) front(t grant.Terms, slots []v1alpha1.Slot) []queue.Item {
	return r.Index.Front(int(t.Concurrency)-len(slots), holders(slots))
}

func holders(slots []v1alpha1.Slot) map[types.UID]bool {
	held := map[types.UID]bool{}
	for _, slot := range slots {
		held[slot.Image.UID] = true
	}
	return held
}

// ask lets the report know what is wanted, and images why they wait.
func (r *Reconciler) ask(ctx context.Context, l limited, slots []v1alpha1.Slot) {
	front := r.front(l.terms, slots)
	if r.Grants.Want(grant.Demands(l.terms, slots, l.groupOf, front)) {
		r.PokeReport()
	}
	if l.terms.Limited && r.Grants.Hold() {
		r.PokeReport()
	}
	if changed := r.Index.Withhold(grant.Withheld(l.terms, l.limits, slots, l.groupOf, front)); len(changed) > 0 {
		r.Refresh(ctx, changed...)
	}
}

// divide has the queue know the policy's groups of sources.
func (r *Reconciler) divide(p *policy.Policy) {
	var sources policy.Sources
	if p != nil && p.Limited {
		sources = p.Sources
	}
	if !sources.Equal(r.sources) {
		r.sources = sources
		r.Index.SetGroups(grant.GroupOf(p))
	}
}
