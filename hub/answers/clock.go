package answers

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of a time that a member tells, by the hub's clock. Others are unknown.
const (
	maxPast   = 365 * 24 * time.Hour
	maxFuture = 24 * time.Hour
)

// Clock converts the times of a member's activity to the hub's clock. The zero Clock knows
// nothing.
type Clock struct {
	// Now by the hub's clock.
	Now time.Time
	// offset is how much the hub's clock is ahead of the member's; known is false where the
	// hub has not seen a report arrive.
	offset time.Duration
	known  bool
}

// NewClock compares when a report was observed by the member with when the hub received it;
// root is nil, or receivedAt, where that is unknown.
func NewClock(root *v1alpha1.ReportRoot, receivedAt *time.Time, now time.Time) Clock {
	c := Clock{Now: now}
	if root != nil && receivedAt != nil {
		c.offset, c.known = receivedAt.Sub(root.ObservedAt.Time), true
	}
	return c
}

// convert returns a time by the hub's clock; false where it cannot be one.
func (c Clock) convert(t time.Time) (time.Time, bool) {
	at := t.Add(c.offset)
	return at, !t.IsZero() && at.After(c.Now.Add(-maxPast)) && at.Before(c.Now.Add(maxFuture))
}

// toHub returns a time by the hub's clock; nil if it is unknown.
func (c Clock) toHub(at *metav1.Time) *metav1.Time {
	if at == nil {
		return nil
	}
	converted, ok := c.convert(at.Time)
	if !ok {
		return nil
	}
	t := storedtime.Truncate(converted)
	return &t
}

// snapshot returns an activity with times by the hub's clock, and the limits of a grant.
// Without a time that can be, there is no activity to estimate from.
func (c Clock) snapshot(activity *v1alpha1.ReportedActivity, grant *v1alpha1.TransferGrant, p PolicyInForce) eta.Snapshot {
	s := eta.Snapshot{Activity: activity, Now: c.Now}
	observedAt, ok := c.convert(activity.ObservedAt.Time)
	if !ok {
		return eta.Snapshot{Now: c.Now}
	}
	if c.known {
		s.ObservedAt = observedAt
	}
	s.SourceLimits = p.budget().SourceLimits(grant)
	return s
}
