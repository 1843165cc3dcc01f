package inventory

import (
	"reflect"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Activity is what a member imports, as it last said.
type Activity struct {
	// Unknown is why Reported may not be what the member does now; empty if it is.
	Unknown string
	// Reported is nil if the hub has none. It is sanitized, and must not be changed.
	Reported *v1alpha1.ReportedActivity
}

// memberActivity is what the Index keeps to tell a member's activity from an outdated one.
type memberActivity struct {
	reported  *v1alpha1.ReportedActivity
	oversized bool
	root      rootOfActivity
}

// rootOfActivity is the part of a report's root that an activity is compared with.
type rootOfActivity struct {
	bootID     string
	observedAt time.Time
	heartbeat  time.Duration
	slots      int32
}

// activityHeartbeats is how many heartbeats an activity may be older than the root. While
// something is imported or waits, an agent writes one with each.
const activityHeartbeats = 3

// SetActivity sets the activity of a member, nil for none, and adds the member. It keeps a
// copy that is bounded, its times by the hub's.
func (x *Index) SetActivity(member string, reported *v1alpha1.ReportedActivity, now time.Time) {
	reported, oversized := boundActivity(reported, now)
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.ensureMember(member)
	changed := m.activity.oversized != oversized || !reflect.DeepEqual(m.activity.reported, reported)
	m.activity.reported, m.activity.oversized = reported, oversized
	if changed {
		x.notify(ChangedActivity)
	}
}

// Activity returns what a member imports. Invariant: it is unknown while the member may be
// silent, and where its agent reports none; it is never taken for nothing.
func (x *Index) Activity(member string) Activity {
	x.mu.RLock()
	defer x.mu.RUnlock()
	m := x.members[member]
	if m == nil {
		return Activity{Unknown: v1alpha1.ReasonNeverReported}
	}
	a := Activity{Reported: m.activity.reported, Unknown: m.staleReason}
	switch {
	case !m.hasRoot:
		a.Unknown = v1alpha1.ReasonNeverReported
	case a.Unknown != "":
	case m.activity.oversized:
		a.Unknown = v1alpha1.ReasonActivityOversized
	case a.Reported == nil:
		a.Unknown = v1alpha1.ReasonActivityMissing
	case m.activity.root.isLaterThan(a.Reported):
		a.Unknown = v1alpha1.ReasonActivityOutdated
	}
	return a
}

// SetObservedAt sets the time of a member's root, by the member's clock: the root is later
// and says the same.
func (x *Index) SetObservedAt(member string, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.members[member]; m != nil && m.hasRoot {
		m.activity.root.observedAt = at
	}
}

func newRootOfActivity(root *v1alpha1.ReportRoot) rootOfActivity {
	if root == nil {
		return rootOfActivity{}
	}
	return rootOfActivity{
		bootID: root.BootID, observedAt: root.ObservedAt.Time, slots: root.Slots,
		heartbeat: time.Duration(root.HeartbeatSeconds) * time.Second,
	}
}

// isLaterThan reports whether an activity is outdated by the root, both by the member's clock.
// One that says that nothing is imported or waits is the last one, and stays.
func (r rootOfActivity) isLaterThan(a *v1alpha1.ReportedActivity) bool {
	if r.bootID != a.BootID {
		return true
	}
	if a.Slots == 0 && a.Queued == 0 {
		return r.slots > 0
	}
	return r.observedAt.Sub(a.ObservedAt.Time) > activityHeartbeats*r.heartbeat
}
