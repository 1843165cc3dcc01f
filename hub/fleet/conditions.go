package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// judge writes all conditions, in one place and on every visit. Messages hold
// nothing that changes with time alone: each change is a write.
func (s *memberStep) judge() {
	s.set(v1alpha1.ConditionIdentityConfirmed, s.identity())
	s.take(v1alpha1.ConditionJoined, s.Joined)
	s.take(v1alpha1.ConditionAgentInstalled, s.Installed)
	s.set(v1alpha1.ConditionReachable, s.reachable())
	s.set(v1alpha1.ConditionAgentHealthy, s.agentHealthy())
	s.set(v1alpha1.ConditionPolicyAcknowledged, s.policyAcknowledged())
	s.set(v1alpha1.ConditionWithinBudget, s.withinBudget())
	s.set(v1alpha1.ConditionReportComplete, s.reportComplete())
	s.set(v1alpha1.ConditionVersionSupported, s.versionSupported())
	s.set(v1alpha1.ConditionReady, s.ready())
}

type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func holds(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionTrue, reason, fmt.Sprintf(format, args...)}
}

func fails(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
}

func unknown(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionUnknown, reason, fmt.Sprintf(format, args...)}
}

func (s *memberStep) set(t string, v verdict) {
	meta.SetStatusCondition(&s.st.Conditions, metav1.Condition{
		Type: t, Status: v.status, Reason: v.reason, Message: Cut(v.message, 1024),
		ObservedGeneration: s.Member.Generation,
		LastTransitionTime: metav1.NewTime(s.Now.UTC().Truncate(time.Second)),
	})
}

// take over a condition that somebody else has worked out; nil: there is none.
func (s *memberStep) take(t string, c *metav1.Condition) {
	if c == nil {
		meta.RemoveStatusCondition(&s.st.Conditions, t)
		return
	}
	taken := *c
	if taken.LastTransitionTime.IsZero() {
		taken.LastTransitionTime = metav1.NewTime(s.Now.UTC().Truncate(time.Second))
	}
	meta.SetStatusCondition(&s.st.Conditions, taken)
}

func (s *memberStep) neverReported() verdict {
	if s.Holder != "" {
		return s.heldByAnother()
	}
	return unknown(v1alpha1.ReasonNeverReported, "the member has not reported yet: does ot-agent run in it, with the mailbox kinds installed?")
}

func (s *memberStep) heldByAnother() verdict {
	return unknown(v1alpha1.ReasonDuplicateCluster, "its cluster belongs to MemberCluster %s: see there, and IdentityConfirmed", s.Holder)
}

func (s *memberStep) identity() verdict {
	switch {
	case s.Holder != "":
		return fails(v1alpha1.ReasonDuplicateCluster,
			"cluster %s, with its agent in namespace %s, belongs to MemberCluster %s already: under this name nothing is planned for it, counted, or cleaned up. "+
				"Delete the MemberCluster that is one too many (if that is %s, this one takes its place), or make the credentials of this one lead to another cluster",
			s.duplicate, s.Member.Spec.AgentNamespace, s.Holder, s.Holder)
	case s.Another != "":
		known := s.st.ClusterUID
		return fails(v1alpha1.ReasonAnotherCluster,
			"the cluster that answers is %s, and this member was %s: it was rebuilt, or the credentials lead to another cluster. Its report is not taken, and the plans made here are not for it. "+
				"If it is to take the member's place, accept it: kubectl annotate --overwrite membercluster %s %s=%s",
			s.Another, known, s.Member.Name, v1alpha1.AnnotationAcceptCluster, s.Another)
	case s.Report == nil && s.st.ClusterUID != "":
		return unknown(v1alpha1.ReasonNeverReported, "cluster %s has not reported yet", s.st.ClusterUID)
	case s.Report == nil:
		return s.neverReported()
	default:
		return holds(v1alpha1.ReasonSameCluster, "it is cluster %s", s.st.ClusterUID)
	}
}

func (s *memberStep) reachable() verdict {
	c := s.Connection
	switch {
	case c.Pull:
		return s.dialledIn()
	case s.NotCarried != "":
		return fails(v1alpha1.ReasonNotCarried, "%s", s.NotCarried)
	case !c.Known:
		return unknown(v1alpha1.ReasonNeverConnected, "%s", cmp.Or(c.Message, "the hub has not talked to the member's API server yet"))
	case c.Reachable:
		// There may be more to say of a connection than that it is there.
		return holds(v1alpha1.ReasonConnected, "the hub talks to the member's API server%s", strings.TrimPrefix(c.Message, "connected"))
	default:
		return fails(cmp.Or(c.Reason, v1alpha1.ReasonUnreachable), "%s", cmp.Or(c.Message, "the member's API server does not answer: is it up, and does the kubeconfig name the right address?"))
	}
}

// dialledIn is Reachable where the agent dials in. That it has written to its
// MemberLink says that it has, and not that it does: its reports do.
func (s *memberStep) dialledIn() verdict {
	const yes = "its agent dials in"
	if s.Report == nil {
		if s.Connection.Known {
			return holds(v1alpha1.ReasonConnected, yes)
		}
		return unknown(v1alpha1.ReasonNeverConnected, "its agent, which is to dial in, has not done so yet (see %s)", v1alpha1.ConditionJoined)
	}
	last, silence, known := s.heard()
	switch {
	case !known:
		return unknown(v1alpha1.ReasonUnknown, "its agent has not dialled in since the hub began to watch")
	case s.Now.Sub(last) <= silence:
		return holds(v1alpha1.ReasonConnected, yes)
	}
	return fails(v1alpha1.ReasonNotDialledIn, "its agent has not dialled in since %s: does ot-agent run in it, does it reach the hub's API server, and is its credential valid? Its log and condition %s tell",
		last.UTC().Format(time.RFC3339), v1alpha1.ConditionJoined)
}

// heard is when the member was last heard of, as far as is known, and how long it may
// be silent since.
func (s *memberStep) heard() (last time.Time, silence time.Duration, known bool) {
	silence = Silence(s.Report)
	switch {
	case s.ReceivedAt != nil:
		return *s.ReceivedAt, silence, true
	case s.Now.Sub(s.WatchedSince) <= silence && meta.IsStatusConditionTrue(s.Member.Status.Conditions, v1alpha1.ConditionAgentHealthy):
		return s.WatchedSince, silence, true // the hub may have been away for longer than that
	case s.Member.Status.LastReport != nil: // which lags behind
		return s.Member.Status.LastReport.Time, silence + lastReportEvery, true
	}
	return time.Time{}, silence, false
}

// Silence is how long a member that reports so may be silent before something is
// wrong with it.
func Silence(r *v1alpha1.ReportRoot) time.Duration {
	return min(max(heartbeatsMissed*time.Duration(r.HeartbeatSeconds)*time.Second, leastSilence), mostSilence)
}

func (s *memberStep) agentHealthy() verdict {
	if s.Report == nil {
		return s.neverReported()
	}
	last, silence, known := s.heard()
	if !known {
		return unknown(v1alpha1.ReasonUnknown, "the agent has not reported since the hub began to watch it")
	}
	if s.Now.Sub(last) <= silence {
		s.lookAgain(last.Add(silence + time.Millisecond))
		return holds(v1alpha1.ReasonReporting, "the agent reports at least every %d s", s.Report.HeartbeatSeconds)
	}
	since := last.UTC().Format(time.RFC3339)
	switch {
	case s.Connection.Pull:
		return fails(v1alpha1.ReasonSilent, "no report since %s, for its agent does not dial in (see Reachable); what is shown is of then", since)
	case s.NotCarried != "":
		return fails(v1alpha1.ReasonSilent, "no report since %s, for nobody carries it (see Reachable); what is shown is of then", since)
	case s.Connection.Known && !s.Connection.Reachable:
		return fails(v1alpha1.ReasonSilent, "no report since %s, for the hub does not reach the member (see Reachable); what is shown is of then", since)
	case s.Older:
		return fails(v1alpha1.ReasonSilent, "no report since %s, and the one in the member is older than the hub's copy: the member was restored from a backup, and its agent has not reported since. Does ot-agent run in it?", since)
	default:
		return fails(v1alpha1.ReasonSilent, "no report since %s although the member is reachable: does ot-agent run in it, and has it elected a leader? What is shown is of then", since)
	}
}

func (s *memberStep) policyAcknowledged() verdict {
	plan, r := s.Plan, s.Report
	switch {
	case s.Holder != "":
		return s.heldByAnother()
	case len(s.PolicyErrors) > 0:
		return fails(v1alpha1.ReasonPolicyRefused, "the overrides that apply to it contradict each other (%s): %s. What was planned before stays", s.Source, ErrorText(s.PolicyErrors))
	case plan == nil && s.Desired == nil:
		return fails(v1alpha1.ReasonNoPolicy, "there has never been a valid policy: make ConfigMap %s in namespace %s of the hub", policy.DefaultName, policy.DefaultNamespace)
	case plan == nil && s.Another != "":
		return unknown(v1alpha1.ReasonAnotherCluster, "no plan is made for a cluster that is not accepted (see IdentityConfirmed)")
	case plan == nil && r == nil:
		return unknown(v1alpha1.ReasonNeverReported, "no plan is made before the member has reported: it may know a newer one")
	case plan == nil:
		return unknown(v1alpha1.ReasonUnknown, "its first plan is being made")
	case len(plan.Policy) == 0:
		return fails(v1alpha1.ReasonNoPolicy, "the plan carries no policy, for there has never been a valid one: make ConfigMap %s in namespace %s of the hub", policy.DefaultName, policy.DefaultNamespace)
	case plan.HeldPolicy != "":
		return fails(v1alpha1.ReasonPolicyHeld, "the member had a newer plan than the hub, which was restored from a backup or set up anew: it keeps its policy (%s), "+
			"and what the hub's ConfigMap asks for (%s) is held back until it asks for something else", cmp.Or(plan.PolicySource, "of unknown source"), cmp.Or(s.Source, "nothing yet"))
	case s.Desired != nil && !samePolicy(plan.Policy, s.Desired):
		return fails(v1alpha1.ReasonNotAcknowledged, "what the ConfigMap asks for (%s) is not planned yet: that needs a report which the hub has read since it started%s", s.Source, s.whyNot())
	case r == nil:
		return unknown(v1alpha1.ReasonNeverReported, "%s was made; the member has not reported", versionText(plan.PlanVersion))
	}
	accepted := meta.FindStatusCondition(r.Conditions, v1alpha1.ConditionPlanAccepted)
	refused := accepted != nil && accepted.Status == metav1.ConditionFalse
	same := r.Plan != nil && r.Plan.Compare(plan.PlanVersion) == 0 && (r.Plan.Hash == "" || r.Plan.Hash == plan.Hash)
	switch {
	case refused && accepted.Reason == v1alpha1.ReasonPlanPolicyFaulty:
		return fails(v1alpha1.ReasonPolicyRefused, "the agent refuses the policy of the plan: %s", accepted.Message)
	case same:
		return holds(v1alpha1.ReasonAcknowledged, "the member works under %s (%s)", versionText(plan.PlanVersion), cmp.Or(plan.PolicySource, "of unknown source"))
	case refused && accepted.Reason != v1alpha1.ReasonNoPlan:
		return fails(v1alpha1.ReasonNotAcknowledged, "%s is not acknowledged: %s", versionText(plan.PlanVersion), accepted.Message)
	case r.Plan == nil:
		return fails(v1alpha1.ReasonNotAcknowledged, "%s is not acknowledged, nor was any before it%s", versionText(plan.PlanVersion), s.whyNot())
	default:
		return fails(v1alpha1.ReasonNotAcknowledged, "%s is not acknowledged: the member last said that it works under %s%s", versionText(plan.PlanVersion), versionText(*r.Plan), s.whyNot())
	}
}

// whyNot says where to look when a plan is not acknowledged.
func (s *memberStep) whyNot() string {
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy} {
		if !meta.IsStatusConditionTrue(s.st.Conditions, t) {
			return " (see " + t + ")"
		}
	}
	return ""
}

// withinBudget judges by the member's own budget, and by that of the plan once
// the member says that it works under it.
func (s *memberStep) withinBudget() verdict {
	r := s.Report
	switch {
	case r == nil:
		return s.neverReported()
	case r.NoLedger:
		return unknown(v1alpha1.ReasonUnknown, "the agent has no SyncLedger yet, so nothing is downloaded")
	case r.Slots > r.Budget:
		return fails(v1alpha1.ReasonOverBudget, "%d slots are taken where the budget is %d: none is taken until enough of them have ended", r.Slots, r.Budget)
	}
	if s.Plan != nil && r.Plan != nil && r.Plan.Compare(s.Plan.PlanVersion) == 0 && s.Plan.Policy[keyConcurrency] != "" {
		if planned := concurrency(s.Plan.Policy); int64(r.Budget) > planned {
			return fails(v1alpha1.ReasonOverBudget, "its budget is %d where the plan that it acknowledged says %d: is its SyncLedger being rebuilt, or does something else write it?", r.Budget, planned)
		}
	}
	return holds(v1alpha1.ReasonWithinBudget, "no more slots are taken than the budget allows")
}

func (s *memberStep) reportComplete() verdict {
	switch {
	case s.Report == nil:
		return s.neverReported()
	case s.Totals == nil || !s.Totals.Reported:
		return unknown(v1alpha1.ReasonUnknown, "the pages of the report were not read yet")
	case len(s.Totals.Missing) > 0:
		late := fails(v1alpha1.ReasonPagesMissing, "of %d pages these are missing or of another state than the report says, so that images may be shown wrong: %s",
			len(s.Report.Pages), firstFew(s.Totals.Missing))
		if s.IncompleteSince == nil || s.Now.Sub(*s.IncompleteSince) >= IncompleteGrace {
			return late
		}
		s.lookAgain(s.IncompleteSince.Add(IncompleteGrace))
		if old := meta.FindStatusCondition(s.st.Conditions, v1alpha1.ConditionReportComplete); old != nil && old.Reason != v1alpha1.ReasonNeverReported {
			return verdict{old.Status, old.Reason, old.Message}
		}
		return unknown(v1alpha1.ReasonPagesMissing, "the pages of the report are on their way")
	case s.Totals.Omitted > 0:
		return fails(v1alpha1.ReasonPagesOmitted, "%d of %d images have no room in the report: they are counted and not listed", s.Totals.Omitted, s.Report.Images)
	default:
		return holds(v1alpha1.ReasonComplete, "all pages of the report are there")
	}
}

// ready sums up: the first condition that fails, or else the first that is not
// known. Being over budget is no part of it: a budget that was lowered makes
// that of every busy member, and it passes.
func (s *memberStep) ready() verdict {
	for _, bad := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		for _, t := range []string{
			v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionJoined, v1alpha1.ConditionAgentInstalled, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy,
			v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionReportComplete, v1alpha1.ConditionVersionSupported,
		} {
			if bad == metav1.ConditionUnknown && t == v1alpha1.ConditionVersionSupported {
				continue // a build that is of no release may well work
			}
			if c := meta.FindStatusCondition(s.st.Conditions, t); c != nil && c.Status == bad {
				return verdict{bad, c.Reason, c.Message}
			}
		}
	}
	return holds(string(v1alpha1.ReasonReady), "it is reachable, reports, and works under its newest plan")
}

func versionText(v v1alpha1.PlanVersion) string {
	return fmt.Sprintf("plan %d of epoch %d", v.Sequence, v.Epoch)
}

func firstFew(names []string) string {
	const few = 3
	names = slices.Clone(names)
	if more := len(names) - few; more > 0 {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}
