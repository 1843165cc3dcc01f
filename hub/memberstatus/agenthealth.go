package memberstatus

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// lastHeard returns when the member last reported, as far as is known, and how long it
// may be silent after that.
func (s *statusBuilder) lastHeard() (last time.Time, silence time.Duration, known bool) {
	silence = SilenceTimeout(s.Report)
	switch {
	case s.ReceivedAt != nil:
		return *s.ReceivedAt, silence, true
	case s.Now.Sub(s.WatchedSince) <= silence && meta.IsStatusConditionTrue(s.Member.Status.Conditions, v1alpha1.ConditionAgentHealthy):
		return s.WatchedSince, silence, true // the hub may have been down for longer than that
	case s.Member.Status.LastReport != nil: // it lags behind by up to lastReportInterval
		last = s.Member.Status.LastReport.Time
		// What was stored before this process began to watch is no later than that, unless a clock was ahead.
		if !s.WatchedSince.IsZero() && (last.After(s.WatchedSince) || last.After(s.Now)) {
			last = s.WatchedSince
		}
		return last, silence + lastReportInterval, true
	}
	return time.Time{}, silence, false
}

// SilenceTimeout returns how long a member with this report may be silent.
func SilenceTimeout(r *v1alpha1.ReportRoot) time.Duration {
	return min(max(maxMissedHeartbeats*time.Duration(r.HeartbeatSeconds)*time.Second, minSilence), maxSilence)
}

func (s *statusBuilder) agentHealthy() conditionState {
	if s.Report == nil {
		return s.neverReportedState()
	}
	last, silence, known := s.lastHeard()
	if !known {
		return conditionUnknown(v1alpha1.ReasonUnknown, "the agent has not reported since the hub started")
	}
	if s.Now.Sub(last) <= silence {
		s.recheckAt(last.Add(silence + time.Millisecond))
		return conditionTrue(v1alpha1.ReasonReporting, "the agent reports at least every %d s%s", s.Report.HeartbeatSeconds, s.clockNote())
	}
	since := last.UTC().Format(time.RFC3339)
	silentSince := storedtime.Truncate(last)
	s.status.SilentSince = &silentSince
	switch reachable := s.reachable().status; {
	case s.Connection.PullMode:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s: the agent does not sync (see Reachable); the status shows that time", since)
	case s.SyncStalled != "":
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s: no replica syncs it (see Reachable); the status shows that time", since)
	case reachable == metav1.ConditionFalse:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s: the hub does not reach the member (see Reachable); the status shows that time", since)
	case reachable == metav1.ConditionUnknown:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s, and the hub does not know whether it reaches the member (see Reachable); the status shows that time", since)
	case s.ReportOlder:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s, and the report in the member is older than the hub's copy: the member was restored from a backup, and its agent has not reported since; check that ot-agent runs in it", since)
	case s.ReportRefused:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s: it is not copied (see MailboxSynced); the status shows that time", since)
	default:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s although the member is reachable: check that ot-agent runs in it and has a leader; the status shows that time", since)
	}
}
