package report

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// PlanAnswer is a plan that was seen to be acknowledged, or that none was, and when: all
// images were looked at after it, as they were then or later. What a page shows is an
// answer too: to the plan under which it was last found to be stored as the book has it.
// The zero Answer is of what may show anything.
//
// Answers are ordered by when their plans were seen, not by versions: those of a cluster
// that is restored from a backup go back, and two hubs can have given one version to two
// plans.
type PlanAnswer struct {
	// order is higher for a plan that was seen later; since is that of the first plan
	// since when versions have only risen.
	order, monotonicSince int64
	plan                  *v1alpha1.PlanVersion
}

// IsFor tells that an answer is one to the plan that is acknowledged now, nil for none.
// Where it is not, all images are to be looked at again, after that plan was read: of
// what has changed before, an event may still be on its way.
func (a PlanAnswer) IsFor(plan *v1alpha1.PlanVersion) bool {
	return a.order > 0 && (plan == nil) == (a.plan == nil) && (plan == nil || *plan == *a.plan)
}

// NextAnswer is the answer to a plan for which all images were looked at.
func (a PlanAnswer) NextAnswer(plan *v1alpha1.PlanVersion) PlanAnswer {
	next := PlanAnswer{order: a.order + 1, monotonicSince: a.monotonicSince, plan: plan.DeepCopy()}
	if a.plan == nil || plan == nil || plan.Compare(*a.plan) <= 0 {
		next.monotonicSince = next.order
	}
	return next
}

// AnsweredPlan is the plan that a report answers as a whole, the book that it is made of
// being an answer to now: the first of those that its pages answer. While that is none,
// it is the version before all plans, for an agent that says nothing at all is one that
// does not know how to.
func AnsweredPlan(now PlanAnswer, pages []PlanAnswer) *v1alpha1.PlanVersion {
	if now.plan == nil {
		return nil
	}
	first := now
	for _, page := range pages {
		if page.order < first.order {
			first = page
		}
	}
	if first.order < now.monotonicSince || first.plan == nil {
		return &v1alpha1.PlanVersion{}
	}
	return first.plan.DeepCopy()
}
