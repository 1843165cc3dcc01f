package rollout

import (
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// see finds the state of a cluster by what it reports, and when it is to be
// looked at again.
func (s *step) see(m *member) {
	r := &m.Report
	switch {
	case m.begun && r.has(s.version.Revision):
		m.state = v1alpha1.ClusterSucceeded
	// Also of one that is offline by now: an image may be what has cut it off.
	case m.begun && r.failed(s.version.Revision):
		m.state = v1alpha1.ClusterFailed
	case m.Offline != "":
		m.state = v1alpha1.ClusterDeferred
	case !m.begun:
		m.state = v1alpha1.ClusterToApply
	default:
		m.state = v1alpha1.ClusterProgressing
		s.seeDeadline(m)
	}
}

// why says more of a cluster's state where there is more to say.
func (s *step) why(m *member) (reason, message string) {
	r := &m.Report
	switch {
	case m.state == v1alpha1.ClusterSucceeded:
		return "", ""
	case m.state == v1alpha1.ClusterDeferred:
		return m.Offline, ""
	case m.state == v1alpha1.ClusterToApply && m.Full:
		return v1alpha1.ReasonPlanFull, ""
	case m.state == v1alpha1.ClusterToApply, m.Planned != s.version.Revision: // it begins now
		return "", ""
	case r.refused(s.version.Revision), r.Item == v1alpha1.PlanItemWaiting && m.state != v1alpha1.ClusterFailed:
		return string(r.Item), r.ItemMessage
	case !r.There:
		return "", "it is planned, and the member has not reported of it yet"
	default:
		return string(r.Reason), r.Message
	}
}

// failed tells whether a revision does not come to the member by itself.
func (r *Report) failed(revision string) bool {
	return r.refused(revision) || r.There && r.Revision == revision && r.Phase == v1alpha1.PhaseFailed
}

// refused tells whether the agent cannot make what is planned. What it says of the
// template before counts for nothing.
func (r *Report) refused(revision string) bool {
	return (r.ItemRevision == "" || r.ItemRevision == revision) &&
		(r.Item == v1alpha1.PlanItemNotOurs || r.Item == v1alpha1.PlanItemRejected)
}

// has tells whether the member has a revision as its plan asks for it. A report
// can tell of a spec that was changed and a phase that is still that of the
// revision before, which then serves.
func (r *Report) has(revision string) bool {
	return r.There && r.Item == v1alpha1.PlanItemApplied && r.Phase == v1alpha1.PhaseSucceeded &&
		r.Revision == revision && (r.ServingRevision == "" || r.ServingRevision == revision)
}

// seeDeadline tells whether a cluster takes too long. Only the time counts that
// it has been online for without a break.
func (s *step) seeDeadline(m *member) {
	deadline := s.Image.Spec.Rollout.ProgressDeadline
	if deadline == nil {
		return
	}
	since := m.PlannedAt
	if m.OnlineSince.After(since) {
		since = m.OnlineSince
	}
	if since.IsZero() {
		return
	}
	// What is left of a second does not count: a rule of more than a deadline would
	// be looked at a moment too early.
	if end := since.Add(deadline.Duration + time.Millisecond); s.Now.Before(end) {
		s.lookAgain(end)
	} else {
		m.state = v1alpha1.ClusterTimedOut
	}
}
