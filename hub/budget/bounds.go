package budget

import (
	"encoding/json"
	"time"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AnnotationUnacknowledged of a ClusterPlan on the hub has the maximum of earlier plans
// that the member may have taken up without acknowledging them. It does not travel to the
// member. Without it, a replica that sees only the newest plan would not know that the
// previous one had no limits.
const AnnotationUnacknowledged = "pelotech.ot/unacknowledged"

// Bounds are what a policy says about how many transfers a member may run.
type Bounds struct {
	// Limited: beyond Safe the member needs a grant.
	Limited        bool          `json:"limited"`
	Concurrency    int32         `json:"concurrency"`
	Safe           int32         `json:"safe"`
	AttemptTimeout time.Duration `json:"attemptTimeout"`
}

// ParseBounds reads a policy. If this hub cannot read it, the highest bounds are assumed.
func ParseBounds(data map[string]string) (Bounds, policy.Sources) {
	read, _, errs := policy.Parse(data)
	if len(errs) > 0 {
		return unreadableBounds(), nil
	}
	// The member judges windows by its own clock: any of them may be open.
	for _, w := range read.Windows {
		read.Concurrency = max(read.Concurrency, *w.Concurrency)
	}
	return Bounds{Limited: read.UsesGrants, Concurrency: read.Concurrency, Safe: read.SafeConcurrency, AttemptTimeout: read.AttemptTimeout}, read.Sources
}

func unreadableBounds() Bounds {
	return Bounds{Concurrency: v1alpha1.MaxSlots, AttemptTimeout: policy.Default().AttemptTimeout}
}

// RecordSuperseded annotates a plan with the bounds of the plan that it replaces, and of
// those before unless the member has acknowledged that plan. Until the member
// acknowledges the new one, they are in force.
func RecordSuperseded(next, before *v1alpha1.ClusterPlan, acknowledged *v1alpha1.PlanVersion) {
	b, _ := ParseBounds(before.Spec.Policy)
	var earlier *Bounds
	if acknowledged == nil || *acknowledged != before.Spec.PlanVersion {
		earlier = UnacknowledgedBounds(before)
	}
	all := *earlier.Max(b)
	if before.Spec.HeldPolicy != "" && !all.Limited { // otherwise a member's word would count until it acknowledges a plan
		following, _ := ParseBounds(next.Spec.Policy)
		all = all.LimitTo(following)
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // numbers and a bool always encode
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[AnnotationUnacknowledged] = string(text)
}

// UnacknowledgedBounds returns what RecordSuperseded recorded on a plan; nil for nothing.
func UnacknowledgedBounds(plan *v1alpha1.ClusterPlan) *Bounds {
	text, ok := plan.Annotations[AnnotationUnacknowledged]
	if !ok {
		return nil
	}
	var b Bounds
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		b = unreadableBounds()
	}
	return &b
}

// Max returns the bounds that allow whatever b or o allows.
func (b *Bounds) Max(o Bounds) *Bounds {
	if o.Limited {
		o.Concurrency = 0 // it needs a grant
	}
	if b != nil {
		o.Limited = o.Limited && b.Limited
		o.Concurrency, o.Safe, o.AttemptTimeout = max(o.Concurrency, b.Concurrency), max(o.Safe, b.Safe), max(o.AttemptTimeout, b.AttemptTimeout)
	}
	return &o
}

// LimitTo returns the bounds without what exceeds the numbers of o.
func (b Bounds) LimitTo(o Bounds) Bounds {
	b.Concurrency, b.Safe, b.AttemptTimeout = min(b.Concurrency, o.Concurrency), min(b.Safe, max(o.Safe, o.Concurrency)), min(b.AttemptTimeout, o.AttemptTimeout)
	return b
}

// IsWithin reports whether everything that b allows is allowed by o.
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
