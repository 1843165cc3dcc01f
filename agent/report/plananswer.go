package report

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// PlanAnswer is a plan, or the lack of one, that was seen to be acknowledged, and when: all
// images were read after it. A page is an answer as well: to the plan under which its stored
// state was last found to be current. The zero PlanAnswer belongs to a page that may show
// anything.
//
// Answers are ordered by when their plans were seen, not by versions: versions go back when
// a cluster is restored from a backup, and two hubs may give one version to two plans.
type PlanAnswer struct {
	// order is higher for a plan that was seen later.
	order int64
	// monotonicSince is the order of the first plan since which versions have only risen.
	monotonicSince int64
	plan           *v1alpha1.PlanVersion
}

// IsFor: the answer is to the plan that is acknowledged now; nil for none. If it is not, all
// images have to be read again after that plan: events of earlier changes may be on their
// way.
func (a PlanAnswer) IsFor(plan *v1alpha1.PlanVersion) bool {
	return a.order > 0 && (plan == nil) == (a.plan == nil) && (plan == nil || *plan == *a.plan)
}

// NextAnswer returns the answer to a plan for which all images were read.
func (a PlanAnswer) NextAnswer(plan *v1alpha1.PlanVersion) PlanAnswer {
	next := PlanAnswer{order: a.order + 1, monotonicSince: a.monotonicSince, plan: plan.DeepCopy()}
	if a.plan == nil || plan == nil || plan.Compare(*a.plan) <= 0 {
		next.monotonicSince = next.order
	}
	return next
}

// AnsweredPlan returns the plan that a report answers as a whole: the earliest of those that
// its pages answer. The Paginator answers current. While there is no such plan it returns
// the version before all plans, since an agent that reports none does not know answers.
func AnsweredPlan(current PlanAnswer, pages []PlanAnswer) *v1alpha1.PlanVersion {
	if current.plan == nil {
		return nil
	}
	earliest := current
	for _, page := range pages {
		if page.order < earliest.order {
			earliest = page
		}
	}
	if earliest.order < current.monotonicSince || earliest.plan == nil {
		return &v1alpha1.PlanVersion{}
	}
	return earliest.plan.DeepCopy()
}
