package grant

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// planIntent is a plan that this process was admitted to write. It counts as written
// until the cache shows a later version than the one that it replaces: by then it has
// been written or refused.
type planIntent struct {
	replaces string // resourceVersion; empty for a new plan
	bounds   budget.Bounds
	// held: only the member says that it had this policy.
	held bool
}

// AdmitPlan decides whether a plan may be written in place of another, nil for none. What
// an admitted plan lets the member run counts from then on. A plan that lets it run more
// than is counted is not admitted, and is decided again. While an allocation is running
// no plan is admitted, since the allocation could not count it.
//
// An admitted plan is annotated with this process, so that the writes of earlier leaders
// conflict. busy: it is not admitted only because an allocation is running.
func (s *Shares) AdmitPlan(next, before *v1alpha1.ClusterPlan) (admitted, busy bool) {
	bounds, _ := budget.ParseBounds(next.Spec.Policy)
	previous := storedBounds(before)
	member, _ := report.MemberForNamespace(next.Namespace)
	s.mu.Lock() // policies are parsed before: a member's may take long
	defer s.mu.Unlock()
	if !s.isCounted(member, planBounds{bounds, next.Spec.HeldPolicy != ""}, previous) || s.allocating {
		return false, s.allocating
	}
	if s.intents == nil {
		s.intents = map[string][]planIntent{}
	}
	// Intents to replace earlier versions have been written or refused.
	added := planIntent{next.ResourceVersion, bounds, next.Spec.HeldPolicy != ""}
	s.intents[member] = append(slices.DeleteFunc(s.intents[member], func(o planIntent) bool { return o == added || o.replaces != added.replaces }), added)
	if s.challenge != "" {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationPlanner, s.challenge)
	}
	return true, false
}

// planBounds are the bounds of a plan.
type planBounds struct {
	budget.Bounds
	// held: only the member says that it had this policy.
	held bool
}

// storedBounds returns the bounds of a stored plan; nil for none.
func storedBounds(plan *v1alpha1.ClusterPlan) *planBounds {
	if plan == nil {
		return nil
	}
	bounds, _ := budget.ParseBounds(plan.Spec.Policy)
	return &planBounds{bounds, plan.Spec.HeldPolicy != ""}
}

// isCounted reports whether what a plan allows is counted, or may be from now on. previous is the
// plan that it replaces; nil for none.
func (s *Shares) isCounted(member string, next planBounds, previous *planBounds) bool {
	b := next.Bounds
	if !s.limited {
		return true // without a budget; once there is one, intents are counted first
	}
	// A held policy without limits counts as the fleet's only: another one is planned again with
	// the budget's limits.
	if previous != nil && (next == *previous || b.IsWithin(previous.Bounds) && (b.Limited || !next.held)) {
		return true
	}
	memberShare, ok := s.shares[member]
	switch {
	case !ok:
		return false
	case b.Limited && memberShare.mayPlan && b.Safe <= memberShare.safe:
		return true
	case next.held:
		return false // only the member says that it had this policy
	default:
		// A restored hub continues with the policy that the member has.
		return memberShare.reportedBounds != nil && b.IsWithin(*memberShare.reportedBounds)
	}
}

// setChallenge sets the identity of this process.
func (s *Shares) setChallenge(challenge string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.challenge = challenge
}

// beginAllocation blocks AdmitPlan until the shares are published.
func (s *Shares) beginAllocation() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allocating = true
}

// pendingIntents returns the plans that may have been written and that the cache does not show.
func (s *Shares) pendingIntents(member string, cached *v1alpha1.ClusterPlan) (left []planIntent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.intents[member] {
		if cached != nil && (i.replaces == "" || trigger.IsOlderVersion(i.replaces, cached.ResourceVersion)) {
			continue
		}
		left = append(left, i)
	}
	if len(left) > 0 {
		s.intents[member] = left
	} else {
		delete(s.intents, member)
	}
	return left
}

// ForgetMember drops the intents of a member that is gone: its namespace, and what was counted of
// it, went before.
func (s *Shares) ForgetMember(member string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.intents, member)
}

// planMarkRetryDelay is the retry delay of a plan that could not be annotated.
const planMarkRetryDelay = 5 * time.Second

// markPlans writes every plan that this process has not written, unchanged but for the
// annotation: a pending write of an earlier leader, which may allow more than is counted,
// then conflicts.
func (r *Reconciler) markPlans(ctx context.Context, all []memberState) {
	var unmarked []*memberState
	now := time.Now()
	for i := range all {
		s := &all[i]
		if s.plan != nil && s.plan.DeletionTimestamp.IsZero() && !s.isMarked() && !now.Before(r.nextPlanMark[s.member.Name]) {
			unmarked = append(unmarked, s)
		}
	}
	failed := make([]error, len(unmarked))
	workqueue.ParallelizeUntil(ctx, maxConcurrentWrites, len(unmarked), func(i int) { failed[i] = r.markPlan(ctx, unmarked[i].plan) })
	for i, s := range unmarked {
		// Until then the cache shows the write.
		r.nextPlanMark[s.member.Name] = now.Add(planMarkRetryDelay)
		if failed[i] != nil {
			log.FromContext(ctx).Error(failed[i], "Failed to annotate ClusterPlan; counting what another replica may have planned", "member", s.member.Name)
		}
	}
}

func (r *Reconciler) markPlan(ctx context.Context, cached *v1alpha1.ClusterPlan) error {
	plan := cached.DeepCopy()
	metav1.SetMetaDataAnnotation(&plan.ObjectMeta, annotationPlanner, r.Challenge)
	err := r.Live.Update(ctx, plan)
	if apierrors.IsConflict(err) {
		key := client.ObjectKeyFromObject(cached)
		plan = &v1alpha1.ClusterPlan{}
		if err = r.Live.Get(ctx, key, plan); err == nil && plan.Annotations[annotationPlanner] != r.Challenge {
			metav1.SetMetaDataAnnotation(&plan.ObjectMeta, annotationPlanner, r.Challenge)
			err = r.Live.Update(ctx, plan)
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotating ClusterPlan %s/%s: %w", cached.Namespace, cached.Name, err)
	}
	return nil
}

// isMarked reports whether this process wrote the plan.
func (s *memberState) isMarked() bool {
	return s.plan != nil && s.plan.Annotations[annotationPlanner] == s.challenge
}
