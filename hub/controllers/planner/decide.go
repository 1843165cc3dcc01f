package planner

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/mailbox"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/grant"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// snapshot is everything that a decision about one member depends on. What root, syncResult, policy
// and plan say is set in Input by decide.
type snapshot struct {
	memberstatus.Input
	namespace  *corev1.Namespace // nil: it does not exist
	plan       *v1alpha1.ClusterPlan
	grant      *v1alpha1.TransferGrant
	root       report.Root
	syncResult mailbox.Findings
	policy     policycontroller.State
	// safe is the share without a grant that its plan may have; it is unknown without safeKnown.
	safe      int32
	safeKnown bool
	// mayRemove: what the member may be running is stored, so that plan and grant may be withdrawn.
	mayRemove bool
	// images that FleetDiskImages place in the member; unknown without imagesKnown.
	images      rollout.DesiredImages
	imagesKnown bool
	// inquiries and prunes of PruneReports and ImagePrunes; unknown without
	// requestsKnown.
	inquiries     []types.UID
	prunes        []v1alpha1.PlannedPrune
	requestsKnown bool
	// reportsSynced: all stored reports have been read. Before, a member that reports
	// looks like one that never has.
	reportsSynced bool
	// mayPlan: the stored reports and the fleet's policy have been read.
	mayPlan bool
	// missingNamespace is why the member's namespace cannot be created; empty for nothing.
	missingNamespace string
	// contestedFor is how long another hub, which writes to the member too, is given way; 0
	// for none.
	contestedFor time.Duration
}

// decision is what to write for one member.
type decision struct {
	createNamespace bool
	// plan to write; nil for none.
	plan   *v1alpha1.ClusterPlan
	status v1alpha1.MemberClusterStatus
	// withdrawMailbox deletes plan and grant on the hub.
	withdrawMailbox bool
	// recheckAfter is when to decide again; 0 for never.
	recheckAfter time.Duration
}

// namespaceRetryDelay is the retry delay while the namespace is taken or being deleted.
const namespaceRetryDelay = 30 * time.Second

// maxEdgeDelay bounds the wait for an edge of a window: a clock that is set forward does not
// end it.
const maxEdgeDelay = time.Minute

// confirmRetryDelay is the requeue delay while the report that the syncing process has
// confirmed is not read: it may be a heartbeat, which requeues no member.
const confirmRetryDelay = time.Second

// isMemberNamespace reports whether a namespace was created for a member.
func isMemberNamespace(ns *corev1.Namespace, member string) bool {
	return ns.Labels[v1alpha1.LabelMember] == member
}

// dropFormerReport drops what the hub has read in a namespace that is not the member's, or not for
// long: it may be the report of a deleted MemberCluster of the same name, and would make the
// member that cluster.
func (s *snapshot) dropFormerReport() {
	if !report.IsNamespaceUsable(s.namespace, s.Member.Name) {
		s.root, s.Totals = report.Root{}, nil
	}
}

func decide(s snapshot) decision {
	var d decision
	s.dropFormerReport()
	name := v1alpha1.MemberNamespacePrefix + s.Member.Name
	var obstacle memberstatus.Obstacle
	switch {
	case s.namespace == nil:
		d.createNamespace = true
		if s.missingNamespace != "" {
			obstacle = memberstatus.Obstacle{Reason: string(v1alpha1.ReasonNamespaceMissing), Message: fmt.Sprintf("namespace %s cannot be created on the hub, so nothing reaches the member; the hub retries: %s", name, s.missingNamespace)}
		}
	case !isMemberNamespace(s.namespace, s.Member.Name):
		obstacle = memberstatus.Obstacle{Reason: v1alpha1.ReasonNamespaceTaken, Message: fmt.Sprintf("namespace %s on the hub does not belong to this member: delete it or, to give it to the member, label it: %s",
			name, shellword.FormatCommand("kubectl label namespace %s %s", name, v1alpha1.LabelMember+"="+s.Member.Name))}
	case !s.namespace.DeletionTimestamp.IsZero():
		obstacle = memberstatus.Obstacle{Reason: string(v1alpha1.ReasonNamespaceTerminating), Message: fmt.Sprintf("namespace %s is being deleted on the hub; it is created again afterwards", name)}
	}

	var written, desired map[string]string
	var edge time.Time
	awaitsBudget := false
	view := s.Input
	view.Obstacle, view.Contested = obstacle, s.isHeldBack()
	view.Report, view.ReportClusterUID, view.ReceivedAt, view.TwoAgentsAt = s.root.Report, s.root.ClusterUID, s.root.ReceivedAt, s.root.TwoAgentsAt
	view.IncompleteSince, view.Excess = s.root.IncompleteSince, s.root.Excess
	view.NewerMemberPlan, view.OtherClusterUID, view.ReportOlder = s.syncResult.NewerPlan, s.syncResult.OtherCluster, s.syncResult.ReportOlder
	view.SyncError, view.ReportRefused, view.UnsupportedFields = s.syncResult.SyncError, s.syncResult.ReportRefused, s.syncResult.DroppedFields
	if s.policy.Refused {
		view.PolicyRefused = s.policy.Message
	}
	if s.policy.Policy != nil {
		written, view.PolicySource, view.PolicyErrors = s.policy.Policy.ForMember(s.Member.Name, s.Member.Labels)
		s.applySafeShare(written)
		desired, edge = policy.InForce(written, s.knowsWindows(), s.Now)
		view.DesiredPolicy = desired
		view.WindowOpensAt = s.policy.Policy.OpensAt(written, s.Now)
	}
	current := s.plan
	switch {
	case obstacle.Reason != "":
	case s.Holder != "":
		hasMailbox := s.plan != nil || s.grant != nil
		d.withdrawMailbox, awaitsBudget = hasMailbox && s.mayRemove, hasMailbox && !s.mayRemove
	case s.mayPlan:
		if view.WaitingFor = s.waitsFor(desired); view.WaitingFor == "" {
			d.plan = decidePlan(s, name, written, desired, view.PolicySource, view.HasTwoAgents())
		}
		if d.plan != nil {
			current = d.plan
		}
	}
	if current != nil {
		view.Plan = &current.Spec
	}
	if !s.reportsSynced {
		// The stored status stays: rollouts would skip a member that looks offline.
		d.status = s.Member.Status
		return d
	}
	d.status, d.recheckAfter = memberstatus.Compute(view)
	if obstacle.Reason != "" {
		d.recheckAfter = namespaceRetryDelay
	}
	d.recheckAfter = trigger.Earliest(d.recheckAfter, s.contestedFor)
	if awaitsBudget {
		d.recheckAfter = trigger.Earliest(d.recheckAfter, budgetRetryDelay)
	}
	if s.awaitsConfirmedReport() || s.mayBeCutOff(&d.status) {
		d.recheckAfter = trigger.Earliest(d.recheckAfter, confirmRetryDelay)
	}
	if !edge.IsZero() {
		d.recheckAfter = trigger.Earliest(d.recheckAfter, max(time.Millisecond, min(edge.Sub(s.Now), maxEdgeDelay)))
	}
	return d
}

// awaitsConfirmedReport reports whether a report is confirmed that is later than the known
// one.
func (s *snapshot) awaitsConfirmedReport() bool {
	return s.root.Report != nil && s.root.Sequence < s.syncResult.ConfirmedSequence
}

// knowsWindows reports whether the member's agent judges windows itself.
func (s *snapshot) knowsWindows() bool {
	return s.root.Report != nil && slices.Contains(s.root.Report.PolicyKeys, apipolicy.KeyWindows)
}

// applySafeShare sets the safe share to the admitted one: members use it without a
// request.
func (s *snapshot) applySafeShare(desired map[string]string) {
	if _, limited := desired[apipolicy.KeySafeConcurrency]; !limited {
		return
	}
	if s.safeKnown {
		desired[apipolicy.KeySafeConcurrency] = strconv.Itoa(int(s.safe))
	} else if s.plan != nil {
		if last, limited := s.plan.Spec.Policy[apipolicy.KeySafeConcurrency]; limited {
			desired[apipolicy.KeySafeConcurrency] = last
		}
	}
}

// waitsFor returns what the hub has to know before it plans; empty for nothing. Images and requests
// that are unknown keep what the plan has: an image that it stops naming loses its protection, and
// a prune that it stops naming is undone. Without a plan on the hub the member may have a newer
// one, so the plan waits.
func (s *snapshot) waitsFor(desired map[string]string) string {
	_, limited := desired[apipolicy.KeySafeConcurrency]
	switch {
	case s.plan == nil && !s.imagesKnown:
		return "the hub has not read all FleetDiskImages and ClusterPlans since its election; if this persists, see its log"
	case s.plan == nil && !s.requestsKnown:
		return "the hub has not read all PruneReports and ImagePrunes since its election; if this persists, see its log"
	case limited && !s.safeKnown && !s.isReportUnconfirmed():
		return fmt.Sprintf("the hub does not know yet what the members hold of the fleet's budget; if this persists, see its log, and ConfigMap %s in its namespace", grant.DepartedConfigMap)
	default:
		return ""
	}
}

// isHeldBack reports whether plan or grant do not rise above what another hub has written, since both
// hubs would go on so.
func (s *snapshot) isHeldBack() bool {
	if s.contestedFor == 0 {
		return false
	}
	var current *v1alpha1.ClusterPlanSpec
	if s.plan != nil {
		current = &s.plan.Spec
	}
	return plan.IsOutranked(current, s.root.Report, s.syncResult.NewerPlan) ||
		s.grant != nil && s.grant.Spec.Unlimited && v1alpha1.ClaimedSequence(s.syncResult.NewerGrant) > s.grant.Spec.Sequence
}

// isReportUnconfirmed reports whether the member may have changed since its report was read. In
// quarantine nothing that it says counts.
func (s *snapshot) isReportUnconfirmed() bool {
	return s.Member.Spec.Quarantine != nil || s.syncResult.ConfirmedSequence == 0 || s.root.Sequence < s.syncResult.ConfirmedSequence
}

// confirmGrace is how long after a hub was elected a silent member may not have been read yet: a minute after
// the reports were, at the latest.
const confirmGrace = time.Minute + report.MaxSyncWait

// isCutOff reports whether a member is in quarantine, or silent and not read since this hub was elected.
// One that is only read again, as over another connection, is not.
func (s *snapshot) isCutOff() bool {
	isSilent := meta.IsStatusConditionFalse(s.Member.Status.Conditions, v1alpha1.ConditionAgentHealthy)
	return s.Member.Spec.Quarantine != nil || isSilent && s.syncResult.ConfirmedSequence == 0 && s.Now.Sub(s.WatchedSince) >= confirmGrace
}

// mayBeCutOff reports whether time alone may show that a member with prunes is cut off.
func (s *snapshot) mayBeCutOff(next *v1alpha1.MemberClusterStatus) bool {
	return s.plan != nil && len(s.plan.Spec.Prunes) > 0 && s.syncResult.ConfirmedSequence == 0 && !s.isCutOff() &&
		meta.IsStatusConditionFalse(next.Conditions, v1alpha1.ConditionAgentHealthy)
}

// hasPlanned reports whether the current plan has a prune.
func (s *snapshot) hasPlanned(p v1alpha1.PlannedPrune) bool {
	return s.plan != nil && slices.ContainsFunc(s.plan.Spec.Prunes, func(planned v1alpha1.PlannedPrune) bool {
		return planned.UID == p.UID && planned.ImageUID == p.ImageUID
	})
}

// decidePlan returns the plan to write, with the resourceVersion that it was decided on;
// nil for none. While two agents read it, it begins no prune that the current one has not: both would carry it
// out, and the report of a cluster without the image says that it is pruned. An undo begins none.
func decidePlan(s snapshot, namespace string, written, desired map[string]string, source string, twoAgents bool) *v1alpha1.ClusterPlan {
	view := plan.Input{
		ClusterUID: memberstatus.ResolveClusterUID(s.Member, s.root.ClusterUID),
		Report:     s.root.Report, ReportClusterUID: s.root.ClusterUID,
		ReportUnconfirmed: s.isReportUnconfirmed(), CutOff: s.isCutOff(), NewerMemberPlan: s.syncResult.NewerPlan, Contested: s.contestedFor > 0,
		DesiredPolicy: written, PolicyNow: desired, PolicySource: source,
		Images: s.images.Images, Kept: s.images.Kept, Retired: s.images.Retired,
		Inquiries: s.inquiries, Prunes: s.prunes,
	}
	if s.root.Report != nil && !twoAgents {
		view.PruneNonce = s.root.Report.PruneNonce
	}
	if s.requestsKnown && twoAgents {
		view.Prunes = slices.DeleteFunc(slices.Clone(view.Prunes), func(p v1alpha1.PlannedPrune) bool { return !p.Undo && !s.hasPlanned(p) })
	}
	if !s.imagesKnown {
		view.Images, view.Kept, view.Retired = s.plan.Spec.Images, s.plan.Spec.Kept, s.plan.Spec.Retired
	}
	if !s.requestsKnown {
		view.Inquiries, view.Prunes, view.PruneNonce = nil, s.plan.Spec.Prunes, ""
		for _, asked := range s.plan.Spec.Inquiries {
			view.Inquiries = append(view.Inquiries, asked.UID)
		}
	}
	next := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}}
	if s.plan != nil {
		if !s.plan.DeletionTimestamp.IsZero() {
			return nil
		}
		next, view.Current = s.plan.DeepCopy(), &s.plan.Spec
	}
	spec, write, _ := plan.Next(view)
	if !write {
		return nil
	}
	// Invariant: the plan shares no memory with rollouts and reports, which others read at the same time. The
	// answer to its write is decoded into it.
	next.Spec = *spec.DeepCopy()
	if s.plan != nil {
		budget.RecordSuperseded(next, s.plan, s.acknowledgedPlan())
	}
	return next
}

// acknowledgedPlan returns the plan under which the member's ledger is written by its
// report; nil for none.
func (s *snapshot) acknowledgedPlan() *v1alpha1.PlanVersion {
	if s.root.Report == nil || s.plan == nil || s.root.ClusterUID != s.plan.Spec.ClusterUID {
		return nil
	}
	return s.root.Report.Plan
}
