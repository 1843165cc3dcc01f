package memberstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// setConditions writes all conditions, in one place and on every visit. Messages hold
// nothing that changes with time alone: each change is a write.
func (s *statusBuilder) setConditions() {
	s.setCondition(v1alpha1.ConditionIdentityConfirmed, s.identityConfirmed())
	s.copyCondition(v1alpha1.ConditionJoined, s.Joined)
	s.copyCondition(v1alpha1.ConditionAgentInstalled, s.Installed)
	s.setCondition(v1alpha1.ConditionReachable, s.reachable())
	s.setCondition(v1alpha1.ConditionAgentHealthy, s.agentHealthy())
	s.setCondition(v1alpha1.ConditionPolicyAcknowledged, s.policyAcknowledged())
	s.setCondition(v1alpha1.ConditionWithinBudget, s.withinBudget())
	s.setCondition(v1alpha1.ConditionReportComplete, s.reportComplete())
	s.setCondition(v1alpha1.ConditionVersionSupported, s.versionSupported())
	s.setCondition(v1alpha1.ConditionReady, s.ready())
}

type conditionState struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func conditionTrue(reason, format string, args ...any) conditionState {
	return conditionState{metav1.ConditionTrue, reason, fmt.Sprintf(format, args...)}
}

func conditionFalse(reason, format string, args ...any) conditionState {
	return conditionState{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
}

func conditionUnknown(reason, format string, args ...any) conditionState {
	return conditionState{metav1.ConditionUnknown, reason, fmt.Sprintf(format, args...)}
}

func (s *statusBuilder) setCondition(t string, v conditionState) {
	meta.SetStatusCondition(&s.status.Conditions, metav1.Condition{
		Type: t, Status: v.status, Reason: v.reason, Message: v1alpha1.Truncate(v.message, 1024),
		ObservedGeneration: s.Member.Generation,
		LastTransitionTime: metav1.NewTime(s.Now.UTC().Truncate(time.Second)),
	})
}

// copyCondition over a condition that somebody else has worked out; nil: there is none.
func (s *statusBuilder) copyCondition(t string, c *metav1.Condition) {
	if c == nil {
		meta.RemoveStatusCondition(&s.status.Conditions, t)
		return
	}
	taken := *c
	if taken.LastTransitionTime.IsZero() {
		taken.LastTransitionTime = metav1.NewTime(s.Now.UTC().Truncate(time.Second))
	}
	meta.SetStatusCondition(&s.status.Conditions, taken)
}

func (s *statusBuilder) neverReportedState() conditionState {
	if s.Holder != "" {
		return s.duplicateClusterState()
	}
	return conditionUnknown(v1alpha1.ReasonNeverReported, "the member has not reported yet: does ot-agent run in it, with the mailbox kinds installed?")
}

func (s *statusBuilder) duplicateClusterState() conditionState {
	return conditionUnknown(v1alpha1.ReasonDuplicateCluster, "its cluster belongs to MemberCluster %s: see there, and IdentityConfirmed", s.Holder)
}

func (s *statusBuilder) identityConfirmed() conditionState {
	switch {
	case s.Holder != "":
		return conditionFalse(v1alpha1.ReasonDuplicateCluster,
			"cluster %s, with its agent in namespace %s, belongs to MemberCluster %s already: under this name nothing is planned for it, counted, or cleaned up. "+
				"Delete the MemberCluster that is one too many (if that is %s, this one takes its place), or make the credentials of this one lead to another cluster",
			s.duplicateCluster, s.Member.Spec.AgentNamespace, s.Holder, s.Holder)
	case s.OtherClusterUID != "":
		known := s.status.ClusterUID
		return conditionFalse(v1alpha1.ReasonAnotherCluster,
			"the cluster that answers is %s, and this member was %s: it was rebuilt, or the credentials lead to another cluster. Its report is not taken, and the plans made here are not for it. "+
				"If it is to take the member's place, accept it: kubectl annotate --overwrite membercluster %s %s=%s",
			s.OtherClusterUID, known, s.Member.Name, v1alpha1.AnnotationAcceptCluster, s.OtherClusterUID)
	case s.Report == nil && s.status.ClusterUID != "":
		return conditionUnknown(v1alpha1.ReasonNeverReported, "cluster %s has not reported yet", s.status.ClusterUID)
	case s.Report == nil:
		return s.neverReportedState()
	default:
		return conditionTrue(v1alpha1.ReasonSameCluster, "it is cluster %s", s.status.ClusterUID)
	}
}

func (s *statusBuilder) reachable() conditionState {
	c := s.Connection
	switch {
	case c.PullMode:
		return s.pullReachable()
	case s.SyncStalled != "":
		return conditionFalse(v1alpha1.ReasonReportNotCarried, "%s", s.SyncStalled)
	case !c.Known:
		return conditionUnknown(v1alpha1.ReasonNeverConnected, "%s", cmp.Or(c.Message, "the hub has not talked to the member's API server yet"))
	case c.Reachable:
		// There may be more to say of a connection than that it is there.
		return conditionTrue(v1alpha1.ReasonConnected, "the hub talks to the member's API server%s", strings.TrimPrefix(c.Message, "connected"))
	default:
		return conditionFalse(cmp.Or(c.Reason, v1alpha1.ReasonUnreachable), "%s", cmp.Or(c.Message, "the member's API server does not answer: is it up, and does the kubeconfig name the right address?"))
	}
}

// pullReachable is Reachable where the agent dials in. That it has written to its
// MemberLink says that it has, and not that it does: its reports do.
func (s *statusBuilder) pullReachable() conditionState {
	const yes = "its agent dials in"
	if s.Report == nil {
		if s.Connection.Known {
			return conditionTrue(v1alpha1.ReasonConnected, yes)
		}
		return conditionUnknown(v1alpha1.ReasonNeverConnected, "its agent, which is to dial in, has not done so yet (see %s)", v1alpha1.ConditionJoined)
	}
	last, silence, known := s.lastHeard()
	switch {
	case !known:
		return conditionUnknown(v1alpha1.ReasonUnknown, "its agent has not dialled in since the hub began to watch")
	case s.Now.Sub(last) <= silence:
		return conditionTrue(v1alpha1.ReasonConnected, yes)
	}
	return conditionFalse(v1alpha1.ReasonNotDialledIn, "its agent has not dialled in since %s: does ot-agent run in it, does it reach the hub's API server, and is its credential valid? Its log and condition %s tell",
		last.UTC().Format(time.RFC3339), v1alpha1.ConditionJoined)
}

// lastHeard is when the member was last heard of, as far as is known, and how long it may
// be silent since.
func (s *statusBuilder) lastHeard() (last time.Time, silence time.Duration, known bool) {
	silence = SilenceTimeout(s.Report)
	switch {
	case s.ReceivedAt != nil:
		return *s.ReceivedAt, silence, true
	case s.Now.Sub(s.WatchedSince) <= silence && meta.IsStatusConditionTrue(s.Member.Status.Conditions, v1alpha1.ConditionAgentHealthy):
		return s.WatchedSince, silence, true // the hub may have been away for longer than that
	case s.Member.Status.LastReport != nil: // which lags behind
		return s.Member.Status.LastReport.Time, silence + lastReportInterval, true
	}
	return time.Time{}, silence, false
}

// SilenceTimeout is how long a member that reports so may be silent before something is
// wrong with it.
func SilenceTimeout(r *v1alpha1.ReportRoot) time.Duration {
	return min(max(maxMissedHeartbeats*time.Duration(r.HeartbeatSeconds)*time.Second, minSilence), maxSilence)
}

func (s *statusBuilder) agentHealthy() conditionState {
	if s.Report == nil {
		return s.neverReportedState()
	}
	last, silence, known := s.lastHeard()
	if !known {
		return conditionUnknown(v1alpha1.ReasonUnknown, "the agent has not reported since the hub began to watch it")
	}
	if s.Now.Sub(last) <= silence {
		s.recheckAt(last.Add(silence + time.Millisecond))
		return conditionTrue(v1alpha1.ReasonReporting, "the agent reports at least every %d s", s.Report.HeartbeatSeconds)
	}
	since := last.UTC().Format(time.RFC3339)
	switch {
	case s.Connection.PullMode:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s, for its agent does not dial in (see Reachable); what is shown is of then", since)
	case s.SyncStalled != "":
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s, for nobody carries it (see Reachable); what is shown is of then", since)
	case s.Connection.Known && !s.Connection.Reachable:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s, for the hub does not reach the member (see Reachable); what is shown is of then", since)
	case s.ReportOlder:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s, and the one in the member is older than the hub's copy: the member was restored from a backup, and its agent has not reported since. Does ot-agent run in it?", since)
	default:
		return conditionFalse(v1alpha1.ReasonSilent, "no report since %s although the member is reachable: does ot-agent run in it, and has it elected a leader? What is shown is of then", since)
	}
}

func (s *statusBuilder) policyAcknowledged() conditionState {
	plan, r := s.Plan, s.Report
	switch {
	case s.Holder != "":
		return s.duplicateClusterState()
	case len(s.PolicyErrors) > 0:
		return conditionFalse(v1alpha1.ReasonPolicyRefused, "the overrides that apply to it contradict each other (%s): %s. What was planned before stays", s.PolicySource, policy.FormatErrors(s.PolicyErrors))
	case plan == nil && s.DesiredPolicy == nil:
		return conditionFalse(v1alpha1.ReasonNoPolicy, "there has never been a valid policy: make ConfigMap %s in namespace %s of the hub", apipolicy.DefaultName, apipolicy.DefaultNamespace)
	case plan == nil && s.OtherClusterUID != "":
		return conditionUnknown(v1alpha1.ReasonAnotherCluster, "no plan is made for a cluster that is not accepted (see IdentityConfirmed)")
	case plan == nil && r == nil:
		return conditionUnknown(v1alpha1.ReasonNeverReported, "no plan is made before the member has reported: it may know a newer one")
	case plan == nil:
		return conditionUnknown(v1alpha1.ReasonUnknown, "its first plan is being made")
	case len(plan.Policy) == 0:
		return conditionFalse(v1alpha1.ReasonNoPolicy, "the plan carries no policy, for there has never been a valid one: make ConfigMap %s in namespace %s of the hub", apipolicy.DefaultName, apipolicy.DefaultNamespace)
	case plan.HeldPolicy != "":
		return conditionFalse(v1alpha1.ReasonPolicyHeld, "the member had a newer plan than the hub, which was restored from a backup or set up anew: it keeps its policy (%s), "+
			"and what the hub's ConfigMap asks for (%s) is held back until it asks for something else", cmp.Or(plan.PolicySource, "of unknown source"), cmp.Or(s.PolicySource, "nothing yet"))
	case s.DesiredPolicy != nil && !policy.Equal(plan.Policy, s.DesiredPolicy):
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "what the ConfigMap asks for (%s) is not planned yet: that needs a report which the hub has read since it started%s", s.PolicySource, s.unacknowledgedHint())
	case r == nil:
		return conditionUnknown(v1alpha1.ReasonNeverReported, "%s was made; the member has not reported", formatPlanVersion(plan.PlanVersion))
	}
	accepted := meta.FindStatusCondition(r.Conditions, v1alpha1.ConditionPlanAccepted)
	refused := accepted != nil && accepted.Status == metav1.ConditionFalse
	same := r.Plan != nil && r.Plan.Compare(plan.PlanVersion) == 0 && (r.Plan.Hash == "" || r.Plan.Hash == plan.Hash)
	switch {
	case refused && accepted.Reason == v1alpha1.ReasonPlanPolicyInvalid:
		return conditionFalse(v1alpha1.ReasonPolicyRefused, "the agent refuses the policy of the plan: %s", accepted.Message)
	case same:
		return conditionTrue(v1alpha1.ReasonAcknowledged, "the member works under %s (%s)", formatPlanVersion(plan.PlanVersion), cmp.Or(plan.PolicySource, "of unknown source"))
	case refused && accepted.Reason != v1alpha1.ReasonNoPlan:
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "%s is not acknowledged: %s", formatPlanVersion(plan.PlanVersion), accepted.Message)
	case r.Plan == nil:
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "%s is not acknowledged, nor was any before it%s", formatPlanVersion(plan.PlanVersion), s.unacknowledgedHint())
	default:
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "%s is not acknowledged: the member last said that it works under %s%s", formatPlanVersion(plan.PlanVersion), formatPlanVersion(*r.Plan), s.unacknowledgedHint())
	}
}

// unacknowledgedHint says where to look when a plan is not acknowledged.
func (s *statusBuilder) unacknowledgedHint() string {
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy} {
		if !meta.IsStatusConditionTrue(s.status.Conditions, t) {
			return " (see " + t + ")"
		}
	}
	return ""
}

// withinBudget judges by the member's own budget, and by that of the plan once
// the member says that it works under it.
func (s *statusBuilder) withinBudget() conditionState {
	r := s.Report
	switch {
	case r == nil:
		return s.neverReportedState()
	case r.NoLedger:
		return conditionUnknown(v1alpha1.ReasonUnknown, "the agent has no SyncLedger yet, so nothing is downloaded")
	case r.Slots > r.Budget:
		return conditionFalse(v1alpha1.ReasonOverBudget, "%d slots are taken where the budget is %d: none is taken until enough of them have ended", r.Slots, r.Budget)
	}
	if s.Plan != nil && r.Plan != nil && r.Plan.Compare(s.Plan.PlanVersion) == 0 && s.Plan.Policy[policy.KeyConcurrency] != "" {
		if planned := policy.ConcurrencyOf(s.Plan.Policy); int64(r.Budget) > planned {
			return conditionFalse(v1alpha1.ReasonOverBudget, "its budget is %d where the plan that it acknowledged says %d: is its SyncLedger being rebuilt, or does something else write it?", r.Budget, planned)
		}
	}
	return conditionTrue(v1alpha1.ReasonWithinBudget, "no more slots are taken than the budget allows")
}

func (s *statusBuilder) reportComplete() conditionState {
	switch {
	case s.Report == nil:
		return s.neverReportedState()
	case s.Totals == nil || !s.Totals.Reported:
		return conditionUnknown(v1alpha1.ReasonUnknown, "the pages of the report were not read yet")
	case len(s.Totals.MissingPages) > 0:
		late := conditionFalse(v1alpha1.ReasonPagesMissing, "of %d pages these are missing or of another state than the report says, so that images may be shown wrong: %s",
			len(s.Report.Pages), joinFirst(s.Totals.MissingPages))
		if s.IncompleteSince == nil || s.Now.Sub(*s.IncompleteSince) >= IncompleteReportGrace {
			return late
		}
		s.recheckAt(s.IncompleteSince.Add(IncompleteReportGrace))
		if old := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReportComplete); old != nil && old.Reason != v1alpha1.ReasonNeverReported {
			return conditionState{old.Status, old.Reason, old.Message}
		}
		return conditionUnknown(v1alpha1.ReasonPagesMissing, "the pages of the report are on their way")
	case s.Totals.OmittedImages > 0:
		return conditionFalse(v1alpha1.ReasonPagesOmitted, "%d of %d images have no room in the report: they are counted and not listed", s.Totals.OmittedImages, s.Report.Images)
	default:
		return conditionTrue(v1alpha1.ReasonComplete, "all pages of the report are there")
	}
}

// ready sums up: the first condition that fails, or else the first that is not
// known. Being over budget is no part of it: a budget that was lowered makes
// that of every busy member, and it passes.
func (s *statusBuilder) ready() conditionState {
	for _, bad := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		for _, t := range []string{
			v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionJoined, v1alpha1.ConditionAgentInstalled, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy,
			v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionReportComplete, v1alpha1.ConditionVersionSupported,
		} {
			if bad == metav1.ConditionUnknown && t == v1alpha1.ConditionVersionSupported {
				continue // a build that is of no release may well work
			}
			if c := meta.FindStatusCondition(s.status.Conditions, t); c != nil && c.Status == bad {
				return conditionState{bad, c.Reason, c.Message}
			}
		}
	}
	return conditionTrue(string(v1alpha1.ReasonReady), "it is reachable, reports, and works under its newest plan")
}

func formatPlanVersion(v v1alpha1.PlanVersion) string {
	return fmt.Sprintf("plan %d of epoch %d", v.Sequence, v.Epoch)
}

func joinFirst(names []string) string {
	const few = 3
	names = slices.Clone(names)
	if more := len(names) - few; more > 0 {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}
