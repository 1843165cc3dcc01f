package grant

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// planIntent is a plan that this process was let write. It counts as if it were there
// until the cache shows one that was written later than the one that it was to replace:
// by then it has been written, or is refused.
type planIntent struct {
	replaces string // resourceVersion; empty for a plan that is created
	bounds   budget.Bounds
}

// AdmitPlan asks, before a plan is written in the place of another, nil for none, whether
// that may be. What it lets a member run is counted from then on. Where it lets it run
// more than is counted, it may not: what has changed since it was decided upon decides
// anew. While the shares are worked out, nothing may be planned: they could not count
// it any more.
//
// The plan gets the mark of this process. One that has it was written by this one: what
// another had decided before is refused.
func (s *Shares) AdmitPlan(next, before *v1alpha1.ClusterPlan) bool {
	bounds, _ := budget.ParseBounds(next.Spec.Policy)
	member, _ := report.MemberForNamespace(next.Namespace)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.allocating || !s.isCounted(member, bounds, before) {
		return false
	}
	if s.intents == nil {
		s.intents = map[string][]planIntent{}
	}
	// Those that were to replace an earlier one are seen, or refused.
	one := planIntent{next.ResourceVersion, bounds}
	s.intents[member] = append(slices.DeleteFunc(s.intents[member], func(o planIntent) bool { return o == one || o.replaces != one.replaces }), one)
	if s.challenge != "" {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationPlanner, s.challenge)
	}
	return true
}

// isCounted tells that what a plan allows is counted, or may be from now on.
func (s *Shares) isCounted(member string, b budget.Bounds, before *v1alpha1.ClusterPlan) bool {
	if !s.limited {
		return true // as long as there is no budget; when there is one, intents are counted first
	}
	if before != nil {
		if was, _ := budget.ParseBounds(before.Spec.Policy); b.IsWithin(was) {
			return true
		}
	}
	one, is := s.shares[member]
	switch {
	case !is:
		return false
	case b.Limited && one.mayPlan && b.Safe <= one.safe:
		return true
	default:
		// A hub that was restored goes on with the policy that the member has.
		return one.reportedBounds != nil && b.IsWithin(*one.reportedBounds)
	}
}

// setChallenge notes the identity of this process.
func (s *Shares) setChallenge(challenge string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.challenge = challenge
}

// beginAllocation has nothing planned until the shares are set.
func (s *Shares) beginAllocation() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allocating = true
}

// pendingBounds is the most that plans allow which may have been written, and which the
// cache does not show; nil for nothing.
func (s *Shares) pendingBounds(member string, cached *v1alpha1.ClusterPlan) (most *budget.Bounds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []planIntent
	for _, one := range s.intents[member] {
		if cached != nil && (one.replaces == "" || isNewer(cached.ResourceVersion, one.replaces)) {
			continue
		}
		left = append(left, one)
		most = most.Max(one.bounds)
	}
	if len(left) > 0 {
		s.intents[member] = left
	} else {
		delete(s.intents, member)
	}
	return most
}

func isNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// planMarkRetryDelay is when a plan that could not be marked is tried again.
const planMarkRetryDelay = 5 * time.Second

// markPlans writes to every plan that this process has not written, as it is: a plan
// that another had decided upon, with more in it than is counted, is refused.
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
		// The cache shows it soon; else it is looked at again.
		r.nextPlanMark[s.member.Name] = now.Add(planMarkRetryDelay)
		if failed[i] != nil {
			log.FromContext(ctx).Error(failed[i], "A plan is not marked: what another replica may have planned counts", "member", s.member.Name)
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
		return fmt.Errorf("marking ClusterPlan %s/%s: %w", cached.Namespace, cached.Name, err)
	}
	return nil
}

// isMarked tells that the plan was written by this process.
func (s *memberState) isMarked() bool {
	return s.plan != nil && s.plan.Annotations[annotationPlanner] == s.challenge
}
