package rollout

import (
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// evaluateState finds the state of a cluster by what it reports, and when it is to be
// looked at again.
func (s *evaluation) evaluateState(m *placedCluster) {
	r := &m.Report
	switch {
	case m.started && r.servesRevision(s.version.Revision):
		m.state = v1alpha1.ClusterSucceeded
	// Also of one that is offline by now: an image may be what has cut it off.
	case m.started && r.failsRevision(s.version.Revision):
		m.state = v1alpha1.ClusterFailed
	case m.OfflineReason != "":
		m.state = v1alpha1.ClusterDeferred
	case !m.started:
		m.state = v1alpha1.ClusterToApply
	default:
		m.state = v1alpha1.ClusterProgressing
		s.checkProgressDeadline(m)
	}
}

// explainState says more of a cluster's state where there is more to say.
func (s *evaluation) explainState(m *placedCluster) (reason, message string) {
	r := &m.Report
	switch {
	case m.state == v1alpha1.ClusterSucceeded:
		return "", ""
	case m.state == v1alpha1.ClusterDeferred:
		return m.OfflineReason, ""
	case m.state == v1alpha1.ClusterToApply && m.PlanFull:
		return v1alpha1.ReasonPlanFull, ""
	case m.state == v1alpha1.ClusterToApply, m.PlannedRevision != s.version.Revision: // it begins now
		return "", ""
	case r.refusesRevision(s.version.Revision), r.ItemState == v1alpha1.PlanItemWaiting && m.state != v1alpha1.ClusterFailed:
		return string(r.ItemState), r.ItemMessage
	case !r.Exists:
		return "", "it is planned, and the member has not reported of it yet"
	default:
		return string(r.Reason), r.Message
	}
}

// failsRevision tells whether a revision does not come to the member by itself.
func (r *Report) failsRevision(revision string) bool {
	return r.refusesRevision(revision) || r.Exists && r.Revision == revision && r.Phase == v1alpha1.PhaseFailed
}

// refusesRevision tells whether the agent cannot make what is planned. What it says of the
// template before counts for nothing.
func (r *Report) refusesRevision(revision string) bool {
	return (r.ItemRevision == "" || r.ItemRevision == revision) &&
		(r.ItemState == v1alpha1.PlanItemNotOurs || r.ItemState == v1alpha1.PlanItemRejected)
}

// servesRevision tells whether the member has a revision as its plan asks for it. A report
// can tell of a spec that was changed and a phase that is still that of the
// revision before, which then serves.
func (r *Report) servesRevision(revision string) bool {
	return r.Exists && r.ItemState == v1alpha1.PlanItemApplied && r.Phase == v1alpha1.PhaseSucceeded &&
		r.Revision == revision && (r.ServingRevision == "" || r.ServingRevision == revision)
}

// checkProgressDeadline tells whether a cluster takes too long. Only the time counts that
// it has been online for without a break.
func (s *evaluation) checkProgressDeadline(m *placedCluster) {
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
		s.requeueAt(end)
	} else {
		m.state = v1alpha1.ClusterTimedOut
	}
}
