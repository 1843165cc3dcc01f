package budget

import (
	"encoding/json"
	"time"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AnnotationUnacknowledged of a ClusterPlan on the hub, which does not travel to the
// member, has the most that plans before it allow which the member may have taken up
// and has not said so: whoever sees the newest plan alone would not know that the one
// before it had no limits.
const AnnotationUnacknowledged = "pelotech.ot/unacknowledged"

// Bounds are what a policy says about how many transfers a member may run.
type Bounds struct {
	// Limited: it goes by grants beyond Safe.
	Limited        bool          `json:"limited"`
	Concurrency    int32         `json:"concurrency"`
	Safe           int32         `json:"safe"`
	AttemptTimeout time.Duration `json:"attemptTimeout"`
}

// ParseBounds reads a policy. Of one that this hub cannot read, the most is assumed.
func ParseBounds(data map[string]string) (Bounds, policy.Sources) {
	read, _, errs := policy.Parse(data)
	if len(errs) > 0 {
		return unreadableBounds(), nil
	}
	return Bounds{Limited: read.UsesGrants, Concurrency: read.Concurrency, Safe: read.SafeConcurrency, AttemptTimeout: read.AttemptTimeout}, read.Sources
}

func unreadableBounds() Bounds {
	return Bounds{Concurrency: v1alpha1.MaxSlots, AttemptTimeout: policy.Default().AttemptTimeout}
}

// RecordSuperseded notes on the plan that takes the place of another what that one allows,
// and those before it, unless the member has acknowledged that one.
func RecordSuperseded(next, before *v1alpha1.ClusterPlan, acknowledged *v1alpha1.PlanVersion) {
	delete(next.Annotations, AnnotationUnacknowledged)
	if acknowledged != nil && *acknowledged == before.Spec.PlanVersion {
		return
	}
	b, _ := ParseBounds(before.Spec.Policy)
	text, err := json.Marshal(UnacknowledgedBounds(before).Max(b))
	if err != nil {
		panic(err) // numbers and a truth value
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[AnnotationUnacknowledged] = string(text)
}

// UnacknowledgedBounds is what Supersede has noted on a plan; nil for nothing.
func UnacknowledgedBounds(plan *v1alpha1.ClusterPlan) *Bounds {
	text, is := plan.Annotations[AnnotationUnacknowledged]
	if !is {
		return nil
	}
	var b Bounds
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		b = unreadableBounds()
	}
	return &b
}

// Max is the most that either allows.
func (b *Bounds) Max(o Bounds) *Bounds {
	if o.Limited {
		o.Concurrency = 0 // without a grant it is of no account
	}
	if b != nil {
		o.Limited = o.Limited && b.Limited
		o.Concurrency, o.Safe, o.AttemptTimeout = max(o.Concurrency, b.Concurrency), max(o.Safe, b.Safe), max(o.AttemptTimeout, b.AttemptTimeout)
	}
	return &o
}

// IsWithin tells that nothing may run by these that may not by others.
func (b Bounds) IsWithin(o Bounds) bool {
	switch {
	case !b.Limited:
		return !o.Limited && b.Concurrency <= o.Concurrency
	case o.Limited:
		return b.Safe <= o.Safe
	default:
		return b.Safe <= o.Concurrency
	}
}
