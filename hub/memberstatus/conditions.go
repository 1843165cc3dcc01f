package memberstatus

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/kstatus"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// setConditions computes all conditions on every call. Messages have no text that changes
// with time alone: each change is a write.
func (s *statusBuilder) setConditions() {
	s.setCondition(v1alpha1.ConditionIdentityConfirmed, s.identityConfirmed())
	s.setQuarantined()
	s.copyCondition(v1alpha1.ConditionJoined, s.checkedForSpec(s.Joined))
	s.copyCondition(v1alpha1.ConditionAgentInstalled, s.checkedForSpec(s.Installed))
	s.copyCondition(v1alpha1.ConditionCredentialRotated, s.Rotated)
	s.setCondition(v1alpha1.ConditionReachable, s.reachable())
	s.setCondition(v1alpha1.ConditionMailboxSynced, s.mailboxSynced())
	s.setServerVerified()
	s.setCondition(v1alpha1.ConditionAgentHealthy, s.agentHealthy())
	s.setCondition(v1alpha1.ConditionPolicyAcknowledged, s.policyAcknowledged())
	s.setCondition(v1alpha1.ConditionWithinBudget, s.withinBudget())
	s.setTransfersAccounted()
	s.setCondition(v1alpha1.ConditionReportComplete, s.reportComplete())
	s.setCondition(v1alpha1.ConditionVersionSupported, s.versionSupported())
	ready := s.ready()
	kstatus.SetConditions(&s.status.Conditions, s.newCondition(v1alpha1.ConditionReady, ready), s.isStalled(ready.reason))
}

// maxMessageBytes bounds the message of a condition, which may quote a member.
const maxMessageBytes = 1024

// setQuarantined sets Quarantined. While it is set, what the member last reported stays
// shown.
func (s *statusBuilder) setQuarantined() {
	if q := s.Member.Spec.Quarantine; q != nil {
		s.setCondition(v1alpha1.ConditionQuarantined, conditionTrue(v1alpha1.ReasonQuarantined, "the member is in quarantine (%s): nothing is synced, it gets no grants, and what it may be running does not count; remove spec.quarantine to let it take part again", q.Reason))
		return
	}
	s.removeCondition(v1alpha1.ConditionQuarantined)
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
	meta.SetStatusCondition(&s.status.Conditions, s.newCondition(t, v))
}

func (s *statusBuilder) newCondition(t string, v conditionState) metav1.Condition {
	return metav1.Condition{
		Type: t, Status: v.status, Reason: v.reason, Message: v1alpha1.SanitizeText(v.message, maxMessageBytes),
		ObservedGeneration: s.Member.Generation,
		LastTransitionTime: storedtime.Truncate(s.Now),
	}
}

// removeCondition looks first: to remove copies all conditions, also where there is none of that type.
func (s *statusBuilder) removeCondition(t string) {
	if meta.FindStatusCondition(s.status.Conditions, t) != nil {
		meta.RemoveStatusCondition(&s.status.Conditions, t)
	}
}

// copyCondition takes over a condition that another controller computed; nil removes it.
func (s *statusBuilder) copyCondition(t string, c *metav1.Condition) {
	if c == nil {
		s.removeCondition(t)
		return
	}
	taken := *c
	taken.Message = v1alpha1.SanitizeText(taken.Message, maxMessageBytes)
	if taken.LastTransitionTime.IsZero() {
		taken.LastTransitionTime = storedtime.Truncate(s.Now)
	}
	meta.SetStatusCondition(&s.status.Conditions, taken)
}

// checkedForSpec returns a condition of another controller, which is Unknown instead of True
// where that controller has not seen the current spec.
func (s *statusBuilder) checkedForSpec(c *metav1.Condition) *metav1.Condition {
	if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration == 0 || c.ObservedGeneration >= s.Member.Generation {
		return c
	}
	pending := *c
	pending.Status, pending.Reason = metav1.ConditionUnknown, v1alpha1.ReasonConnectionChanged
	pending.Message = "the spec changed, and the hub has not checked this for the new one yet"
	return &pending
}

func (s *statusBuilder) neverReportedState() conditionState {
	if s.Holder != "" {
		return s.duplicateClusterState()
	}
	return conditionUnknown(v1alpha1.ReasonNeverReported, "the member has not reported yet: check that ot-agent runs in it and that the mailbox CRDs are installed")
}

func (s *statusBuilder) duplicateClusterState() conditionState {
	return conditionUnknown(v1alpha1.ReasonDuplicateCluster, "the cluster belongs to MemberCluster %s; see its status, and IdentityConfirmed", s.Holder)
}

func (s *statusBuilder) identityConfirmed() conditionState {
	switch {
	case s.Holder != "":
		return conditionFalse(v1alpha1.ReasonDuplicateCluster,
			"cluster %s, with its agent in namespace %s, already belongs to MemberCluster %s; this MemberCluster is ignored. "+
				"Delete one of the two (if you delete %s, this one takes its place), or change the credentials of this one",
			s.duplicateCluster, s.Member.Spec.AgentNamespace, s.Holder, s.Holder)
	case s.OtherClusterUID != "":
		known := s.status.ClusterUID
		return conditionFalse(v1alpha1.ReasonAnotherCluster,
			"cluster %s answers, but this member is cluster %s: it was rebuilt, or the credentials point to another cluster. Its report is ignored, and it gets no plan. "+
				"To accept the new cluster: %s",
			shellword.Quote(string(s.OtherClusterUID)), shellword.Quote(string(known)),
			shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s", s.Member.Name, v1alpha1.AnnotationAcceptCluster+"="+string(s.OtherClusterUID)))
	case s.HasTwoAgents():
		return s.twoAgentsState()
	case s.Report == nil && s.status.ClusterUID != "":
		return conditionUnknown(v1alpha1.ReasonNeverReported, "cluster %s has not reported yet", s.status.ClusterUID)
	case s.Report == nil:
		return s.neverReportedState()
	default:
		return conditionTrue(v1alpha1.ReasonSameCluster, "the member is cluster %s", s.status.ClusterUID)
	}
}

func (s *statusBuilder) reachable() conditionState {
	c := s.Connection
	switch {
	case c.PullMode:
		return s.pullReachable()
	case s.SyncStalled != "" && c.Known && !c.Reachable && c.Message != "":
		return conditionFalse(v1alpha1.ReasonReportNotCarried, "%s. What that replica says: %s", s.SyncStalled, c.Message)
	case s.SyncStalled != "":
		return conditionFalse(v1alpha1.ReasonReportNotCarried, "%s", s.SyncStalled)
	case c.SpecChanged:
		return conditionUnknown(v1alpha1.ReasonConnectionChanged, "the spec changed, and the hub has not tried to connect by the new one yet")
	case !c.Known:
		return conditionUnknown(v1alpha1.ReasonNeverConnected, "%s", cmp.Or(c.Message, "the hub has not connected to the member's API server yet"))
	case c.Reachable:
		// The connection's message may have more to say.
		return conditionTrue(v1alpha1.ReasonConnected, "the hub is connected to the member's API server%s", strings.TrimPrefix(c.Message, "connected"))
	default:
		return conditionFalse(cmp.Or(c.Reason, v1alpha1.ReasonUnreachable), "%s", cmp.Or(c.Message, "the member's API server does not answer: check that it is up and that the kubeconfig has the right address"))
	}
}

// setServerVerified goes by the spec: whether the kubeconfig uses what it allows may change
// at any time.
func (s *statusBuilder) setServerVerified() {
	switch {
	case s.Connection.PullMode || s.Member.Spec.Connection.Pull != nil:
		s.removeCondition(v1alpha1.ConditionServerVerified)
	case s.Member.Spec.InsecureSkipTLSVerify:
		s.setCondition(v1alpha1.ConditionServerVerified, conditionFalse(v1alpha1.ReasonVerificationSkipped,
			"spec.insecureSkipTLSVerify allows a kubeconfig that does not verify the member's API server, so a machine between hub and member can read the hub's credential and answer as the member: "+
				"put the CA into the kubeconfig as certificate-authority-data, and unset spec.insecureSkipTLSVerify"))
	default:
		s.setCondition(v1alpha1.ConditionServerVerified, conditionTrue(v1alpha1.ReasonCertificateVerified, "the hub verifies the certificate of the member's API server"))
	}
}

// pullReachable is Reachable in pull mode. A written MemberLink shows that the agent
// synced once; only its reports show that it still does.
func (s *statusBuilder) pullReachable() conditionState {
	const connected = "the agent syncs in pull mode"
	var last time.Time
	var silence time.Duration
	heard := false
	if s.Report != nil {
		last, silence, heard = s.lastHeard()
	}
	// No replica tries to connect: a change of the spec must not hide that the agent is silent.
	isSilent := heard && s.Now.Sub(last) > silence
	switch {
	case s.Connection.SpecChanged && !isSilent:
		return conditionUnknown(v1alpha1.ReasonConnectionChanged, "the spec changed, and the agent in pull mode has not synced by the new one yet (see %s)", v1alpha1.ConditionJoined)
	case s.Report == nil && s.Connection.Known:
		return conditionTrue(v1alpha1.ReasonConnected, connected)
	case s.Report == nil:
		return conditionUnknown(v1alpha1.ReasonNeverConnected, "the agent in pull mode has not connected yet (see %s)", v1alpha1.ConditionJoined)
	case !heard:
		return conditionUnknown(v1alpha1.ReasonUnknown, "the agent has not synced since the hub started")
	case !isSilent:
		return conditionTrue(v1alpha1.ReasonConnected, connected)
	}
	return conditionFalse(v1alpha1.ReasonNotDialledIn, "the agent has not synced since %s: check that ot-agent runs, that it reaches the hub's API server, and that its credential is valid (see its log and condition %s)",
		last.UTC().Format(time.RFC3339), v1alpha1.ConditionJoined)
}

// planThatStays says what the member has while its policy is refused.
func (s *statusBuilder) planThatStays() string {
	if s.Plan == nil {
		return "It has no plan" + s.waitingPlan()
	}
	return "The previous plan stays" + s.waitingPlan()
}

// whyPlanWaits says why the next plan is not written; empty for no reason.
func (s *statusBuilder) whyPlanWaits() string {
	if s.PlanRefused {
		return planRefusedMessage
	}
	return s.WaitingFor
}

// waitingPlan is whyPlanWaits behind another sentence.
func (s *statusBuilder) waitingPlan() string {
	if why := s.whyPlanWaits(); why != "" {
		return "; the next plan waits: " + why
	}
	return ""
}

// heldWithinBudget says what a held policy has of the ConfigMap's.
func heldWithinBudget(data map[string]string) string {
	if _, limited := data[apipolicy.KeySafeConcurrency]; !limited {
		return ""
	}
	return " as far as the fleet's budget permits: concurrency, windows, attemptTimeout, safe share and groups of sources are the ConfigMap's at most"
}

const planRefusedMessage = "writing it would exceed the member's share of the fleet's budget; the hub retries. If this persists, check overrides for contradictions, and status.transfers"

func (s *statusBuilder) policyAcknowledged() conditionState {
	plan, r := s.Plan, s.Report
	switch {
	case s.Holder != "" && s.InvalidPlan != "":
		return conditionUnknown(v1alpha1.ReasonDuplicateCluster, "the cluster belongs to MemberCluster %s, and the plan of this one cannot be deleted on the hub; the hub retries: %s", s.Holder, v1alpha1.SanitizeText(s.InvalidPlan, 512))
	case s.Holder != "":
		return s.duplicateClusterState()
	case s.Contested:
		return conditionFalse(v1alpha1.ReasonAnotherHub, "another hub writes plans or grants of this member too, and each raised its versions above those of the other: this hub goes on after half an hour. "+
			"Stop the other hub, or delete this MemberCluster on the hub that is not to have it: %s", shellword.FormatCommand("kubectl delete membercluster %s", s.Member.Name))
	case len(s.PolicyErrors) > 0:
		return conditionFalse(v1alpha1.ReasonPolicyRefused, "the overrides of this member contradict each other (%s): %s. %s", s.PolicySource, policy.FormatErrors(s.PolicyErrors), s.planThatStays())
	case plan == nil && s.DesiredPolicy == nil:
		return conditionFalse(v1alpha1.ReasonNoPolicy, "%s", s.noPolicyMessage())
	case plan == nil && s.OtherClusterUID != "":
		return conditionUnknown(v1alpha1.ReasonAnotherCluster, "a cluster that is not accepted gets no plan (see IdentityConfirmed)")
	case plan == nil && r == nil:
		return conditionUnknown(v1alpha1.ReasonNeverReported, "the first plan waits for the member's report: the member may have a newer plan")
	case s.InvalidPlan != "":
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "the next plan cannot be written, so nothing new reaches the member: %s", v1alpha1.SanitizeText(s.InvalidPlan, 512))
	case plan == nil && s.whyPlanWaits() != "":
		return conditionUnknown(v1alpha1.ReasonUnknown, "the first plan waits: %s", s.whyPlanWaits())
	case plan == nil:
		return conditionUnknown(v1alpha1.ReasonUnknown, "the first plan is about to be written")
	case len(plan.Policy) == 0:
		return conditionFalse(v1alpha1.ReasonNoPolicy, "the plan has no policy: %s", s.noPolicyMessage())
	case plan.HeldPolicy != "":
		return conditionFalse(v1alpha1.ReasonPolicyHeld, "the member had a newer plan than the hub, which was restored from a backup or set up again: the member keeps its policy (%s)%s, "+
			"and the policy of the hub's ConfigMap (%s) is held back until that changes%s", cmp.Or(plan.PolicySource, "of unknown source"), heldWithinBudget(plan.Policy), cmp.Or(s.PolicySource, "nothing yet"), s.waitingPlan())
	case s.whyPlanWaits() != "" && s.DesiredPolicy != nil && !policy.Equal(plan.Policy, s.DesiredPolicy):
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "the policy of the ConfigMap (%s) is not planned yet: %s", s.PolicySource, s.whyPlanWaits())
	case s.DesiredPolicy != nil && !policy.Equal(plan.Policy, s.DesiredPolicy):
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "the policy of the ConfigMap (%s) is not planned yet: the hub has to read the member's report first%s", s.PolicySource, s.unacknowledgedHint())
	case r == nil:
		return conditionUnknown(v1alpha1.ReasonNeverReported, "%s is written; the member has not reported", formatPlanVersion(plan.PlanVersion))
	}
	accepted := meta.FindStatusCondition(r.Conditions, v1alpha1.ConditionPlanAccepted)
	refused := accepted != nil && accepted.Status == metav1.ConditionFalse
	same := r.Plan != nil && r.Plan.Compare(plan.PlanVersion) == 0 && (r.Plan.Hash == "" || r.Plan.Hash == plan.Hash)
	switch {
	case refused && accepted.Reason == v1alpha1.ReasonPlanPolicyInvalid:
		return conditionFalse(v1alpha1.ReasonPolicyRefused, "the agent refuses the policy of the plan: %s", accepted.Message)
	case same:
		return conditionTrue(v1alpha1.ReasonAcknowledged, "the member runs %s (%s)%s", formatPlanVersion(plan.PlanVersion), cmp.Or(plan.PolicySource, "of unknown source"), s.policyNotes())
	case refused && accepted.Reason != v1alpha1.ReasonNoPlan:
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "the member does not acknowledge %s: %s", formatPlanVersion(plan.PlanVersion), accepted.Message)
	case r.Plan == nil:
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "waiting for the member to acknowledge %s, its first plan%s", formatPlanVersion(plan.PlanVersion), s.unacknowledgedHint())
	default:
		return conditionFalse(v1alpha1.ReasonNotAcknowledged, "waiting for the member to acknowledge %s (it runs %s)%s", formatPlanVersion(plan.PlanVersion), formatPlanVersion(*r.Plan), s.unacknowledgedHint())
	}
}

func (s *statusBuilder) noPolicyMessage() string {
	if s.PolicyRefused != "" {
		return "on the hub, " + s.PolicyRefused
	}
	if s.DesiredPolicy != nil {
		return fmt.Sprintf("the next plan has that of the ConfigMap (%s)%s", s.PolicySource, s.waitingPlan())
	}
	return "the hub has not read its policy ConfigMap yet"
}

// unacknowledgedHint names the condition that explains why a plan is not acknowledged.
func (s *statusBuilder) unacknowledgedHint() string {
	if epoch := s.NewerMemberPlan.Epoch; !v1alpha1.IsCredibleClaim(epoch) {
		return fmt.Sprintf(": the plan in the member has epoch %d, which no hub writes; delete ClusterPlan %s there, and see who else writes to it", epoch, v1alpha1.MailboxName)
	}
	for _, t := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy} {
		if !meta.IsStatusConditionTrue(s.status.Conditions, t) {
			return " (see " + t + ")"
		}
	}
	return ""
}

// withinBudget compares the ledger with the member's own budget and, once the plan is
// acknowledged, with the plan's.
func (s *statusBuilder) withinBudget() conditionState {
	r := s.Report
	switch {
	case r == nil:
		return s.neverReportedState()
	case r.NoLedger:
		return conditionUnknown(v1alpha1.ReasonUnknown, "the agent has no SyncLedger yet; nothing is downloaded")
	case r.Slots > r.Budget:
		return conditionFalse(v1alpha1.ReasonOverBudget, "%d slots are taken, and the budget is %d: no slot is taken until enough imports have ended", r.Slots, r.Budget)
	}
	if s.Plan != nil && r.Plan != nil && r.Plan.Compare(s.Plan.PlanVersion) == 0 && s.Plan.Policy[apipolicy.KeyConcurrency] != "" {
		// The report may be from before a window closed, as that of a member which is offline.
		planned := max(policy.ConcurrencyAt(s.Plan.Policy, s.Now), policy.ConcurrencyAt(s.Plan.Policy, r.ObservedAt.Time))
		if int64(r.Budget) > planned {
			return conditionFalse(v1alpha1.ReasonOverBudget, "the ledger's budget is %d, and the acknowledged plan allows %d: the SyncLedger is being rebuilt, or something else writes it", r.Budget, planned)
		}
	}
	return conditionTrue(v1alpha1.ReasonWithinBudget, "the slots taken are within the budget")
}

// setTransfersAccounted sets TransfersAccounted from the first report on, whether or not
// what the member claims still counts.
func (s *statusBuilder) setTransfersAccounted() {
	switch t := s.Transfers; {
	case t == nil:
		s.removeCondition(v1alpha1.ConditionTransfersAccounted)
	case t.Excess > 0 && s.isJoining():
		s.setCondition(v1alpha1.ConditionTransfersAccounted, conditionUnknown(v1alpha1.ReasonNotAcknowledged,
			"the member may run %d imports more than the hub has planned, under its own policy, until it acknowledges its first plan. They count against all members for fleetExcessTolerance, once", t.Excess))
	case t.Excess > 0:
		s.setCondition(v1alpha1.ConditionTransfersAccounted, conditionFalse(v1alpha1.ReasonReportedSlotsExceedGrants,
			"the member reports %d more imports than the hub has planned or granted. They count against all members for fleetExcessTolerance, and only once. "+
				"If the hub was not restored and the member did not just join, do not trust it: %s", t.Excess, shellword.FormatCommand(`kubectl patch membercluster %s --type=merge --patch='{"spec":{"quarantine":{"reason":"…"}}}'`, s.Member.Name)))
	default:
		s.setCondition(v1alpha1.ConditionTransfersAccounted, conditionTrue(v1alpha1.ReasonWithinGrants, "the member reports no more imports than the hub has planned or granted"))
	}
}

// isJoining reports whether the member has never acknowledged a plan, and was not found
// to exceed its grants before. What it claims is bounded as any other claim;
// PolicyAcknowledged says what it waits for.
func (s *statusBuilder) isJoining() bool {
	return s.Report != nil && s.Report.Plan == nil && s.Member.Status.AcknowledgedPlan == nil &&
		!meta.IsStatusConditionFalse(s.Member.Status.Conditions, v1alpha1.ConditionTransfersAccounted)
}

func (s *statusBuilder) reportComplete() conditionState {
	switch {
	case s.Excess.RootTooLarge:
		return conditionFalse(v1alpha1.ReasonReportOversized, "the report's root exceeds %d KiB and is ignored: no agent writes such a report; upgrade the agent if it is 0.2 or older, otherwise see whether somebody else uses its credential", v1alpha1.MaxReportObjectBytes>>10)
	case s.Excess.FloodedAt != nil:
		return conditionFalse(v1alpha1.ReasonUnlistedReports, "the hub deleted ClusterReports that the report does not list, more than an agent writes (last at %s): see whether somebody else uses the credential of the member, and revoke it",
			s.Excess.FloodedAt.UTC().Truncate(time.Minute).Format(time.RFC3339))
	case s.Excess.Undecodable:
		return conditionFalse(v1alpha1.ReasonReportUndecodable, "the hub cannot decode a part of the report, and its log says which: no agent writes such a report; see whether somebody else uses its credential")
	case s.Excess.IgnoredPages > 0:
		return conditionFalse(v1alpha1.ReasonReportOversized, "the hub ignores %d of %d pages, since a report has at most %d MiB and a page %d KiB: images may be shown wrong; upgrade the agent if it is 0.2 or older",
			s.Excess.IgnoredPages, len(s.reportedPages()), v1alpha1.MaxReportBytes>>20, v1alpha1.MaxReportObjectBytes>>10)
	case s.Report == nil:
		return s.neverReportedState()
	case s.Totals == nil || !s.Totals.Reported:
		return conditionUnknown(v1alpha1.ReasonUnknown, "the pages of the report have not been read yet")
	case len(s.Totals.MissingPages) > 0:
		late := conditionFalse(v1alpha1.ReasonPagesMissing, "of %d pages these are missing or outdated, so images may be shown wrong: %s",
			len(s.Report.Pages), v1alpha1.JoinFirst(s.Totals.MissingPages, 3, len(s.Totals.MissingPages)))
		if s.IncompleteSince == nil || s.Now.Sub(*s.IncompleteSince) >= IncompleteReportGrace {
			return late
		}
		s.recheckAt(s.IncompleteSince.Add(IncompleteReportGrace))
		if old := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReportComplete); old != nil && old.Reason != v1alpha1.ReasonNeverReported {
			return conditionState{old.Status, old.Reason, old.Message}
		}
		return conditionUnknown(v1alpha1.ReasonPagesMissing, "the pages of the report are being copied")
	case s.Totals.OmittedImages > 0:
		return conditionFalse(v1alpha1.ReasonPagesOmitted, "%d of %d images have no room in the report, or are on pages that the member's API server refuses (see the agent's log): the hub does not know how they are", s.Totals.OmittedImages, s.Report.Images)
	default:
		return conditionTrue(v1alpha1.ReasonComplete, "all pages of the report are present")
	}
}

func (s *statusBuilder) reportedPages() []v1alpha1.PageRef {
	if s.Report == nil {
		return nil
	}
	return s.Report.Pages
}

// ready is the first condition that is False, or else the first that is Unknown.
// MailboxSynced is Unknown for other reasons than a changed spec where Reachable or
// AgentHealthy says why; a build of no release may well work. WithinBudget is not part of it: lowering a budget puts every busy member over it for a
// while.
func (s *statusBuilder) ready() conditionState {
	if s.Obstacle.Reason != "" {
		return conditionFalse(s.Obstacle.Reason, "%s", s.Obstacle.Message)
	}
	if c := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionQuarantined); c != nil {
		return conditionState{metav1.ConditionFalse, c.Reason, c.Message}
	}
	for _, bad := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		for _, t := range []string{
			v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionJoined, v1alpha1.ConditionAgentInstalled, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy,
			v1alpha1.ConditionMailboxSynced, v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionTransfersAccounted, v1alpha1.ConditionReportComplete, v1alpha1.ConditionVersionSupported,
		} {
			c := meta.FindStatusCondition(s.status.Conditions, t)
			if c == nil || c.Status != bad {
				continue
			}
			mayWork := t == v1alpha1.ConditionVersionSupported || t == v1alpha1.ConditionMailboxSynced && c.Reason != v1alpha1.ReasonConnectionChanged
			if bad == metav1.ConditionFalse || !mayWork {
				return conditionState{bad, c.Reason, c.Message}
			}
		}
	}
	return conditionTrue(string(v1alpha1.ReasonReady), "the member is reachable, reports, and runs its newest plan%s", s.policyNotes())
}

// isStalled reports whether a member that is not Ready for this reason becomes so only when
// a person acts. What the hub tries again by itself is not stalled, even where a person may
// have to help: the Secret of a kubeconfig is often applied after its MemberCluster.
func (s *statusBuilder) isStalled(reason string) bool {
	switch reason {
	case v1alpha1.ReasonQuarantined, v1alpha1.ReasonDuplicateCluster, v1alpha1.ReasonAnotherCluster, v1alpha1.ReasonTwoAgents,
		v1alpha1.ReasonJoinTokenExpired, v1alpha1.ReasonRevoked,
		v1alpha1.ReasonForeignAgent, v1alpha1.ReasonDowngradeRefused, v1alpha1.ReasonValuesInvalid, v1alpha1.ReasonAgentDialsIn,
		v1alpha1.ReasonInstallAttemptsExhausted, v1alpha1.ReasonNamespaceTaken,
		v1alpha1.ReasonPolicyRefused, v1alpha1.ReasonPolicyHeld, v1alpha1.ReasonAnotherHub,
		v1alpha1.ReasonReportOversized, v1alpha1.ReasonReportUndecodable, v1alpha1.ReasonUnlistedReports, v1alpha1.ReasonPagesOmitted:
		return true
	case v1alpha1.ReasonVersionTooOld, v1alpha1.ReasonVersionTooNew, v1alpha1.ReasonKindsOlder:
		return s.Installed == nil || reason == v1alpha1.ReasonVersionTooNew // the hub upgrades what it installed
	default:
		return false
	}
}

// formatPlanVersion omits the first epoch, which most members never leave.
func formatPlanVersion(v v1alpha1.PlanVersion) string {
	if v.Epoch > 1 {
		return fmt.Sprintf("plan %d of epoch %d", v.Sequence, v.Epoch)
	}
	return fmt.Sprintf("plan %d", v.Sequence)
}
