package prune

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AnswerView is what is known of a cluster that a PruneReport asks.
type AnswerView struct {
	ReportUID types.UID // of the PruneReport
	// Plan is stored on the hub; nil for none.
	Plan *v1alpha1.ClusterPlanSpec
	// Root of the cluster's report, nil for none, and the report's clusterUID.
	Root           *v1alpha1.ReportRoot
	RootClusterUID types.UID
	// StaleReason is why the member may have more than the hub knows of; empty: the hub
	// knows all.
	StaleReason string
	// Offline: its agent does not report.
	Offline bool
}

// UnansweredReason returns why a cluster has not answered a PruneReport; empty: it has.
// This keeps a silent cluster from every prune: an unknown cluster has no candidates, see
// JudgeCluster.
//
// An answer is a report made under a plan between the first one with the inquiry and the
// stored one. Plan versions are compared, never clocks. A version above the stored one is
// another hub's, as before a restore from a backup, and may lack the inquiry.
func UnansweredReason(a AnswerView) (unknown, message string) {
	silent := a.StaleReason == "" || a.StaleReason == v1alpha1.ReasonSilent || a.StaleReason == v1alpha1.ReasonUnknown
	switch {
	case a.Offline && silent:
		return v1alpha1.ReasonOffline, "its agent does not report" + parenthesized(a.StaleReason) + ": create another PruneReport when it does (see its MemberCluster)"
	case a.StaleReason != "":
		return v1alpha1.SanitizeText(a.StaleReason, maxReasonLength), staleMessage(a.StaleReason)
	case a.Root == nil:
		return v1alpha1.ReasonNeverReported, staleMessage(v1alpha1.ReasonNeverReported)
	case a.Plan == nil:
		return v1alpha1.ReasonNotAnswered, "it has no plan: see its MemberCluster"
	case a.RootClusterUID != a.Plan.ClusterUID:
		return v1alpha1.ReasonAnotherCluster, "the report is of another cluster than the plan: see IdentityConfirmed of its MemberCluster"
	}
	i := slices.IndexFunc(a.Plan.Inquiries, func(q v1alpha1.PlanInquiry) bool { return q.UID == a.ReportUID })
	if i < 0 {
		return v1alpha1.ReasonNotAnswered, "its plan does not contain the inquiry yet"
	}
	asked := v1alpha1.PlanVersion{Epoch: a.Plan.Inquiries[i].Epoch, Sequence: a.Plan.Inquiries[i].Sequence}
	answered := a.Root.AnsweredPlan
	switch {
	case answered == nil && a.Root.Plan != nil && a.Root.Plan.Compare(asked) >= 0:
		return v1alpha1.ReasonAgentTooOld, fmt.Sprintf("its agent, version %s, does not report which plan it answers: upgrade the agent", v1alpha1.SanitizeText(a.Root.AgentVersion, maxReasonLength))
	case answered == nil || answered.Compare(asked) < 0:
		return v1alpha1.ReasonNotAnswered, v1alpha1.SanitizeText("its report does not answer the inquiry yet"+refusalMessage(a.Root), maxMessageLength)
	case answered.Compare(a.Plan.PlanVersion) > 0 || answered.Compare(a.Plan.PlanVersion) == 0 && answered.Hash != a.Plan.Hash:
		return v1alpha1.ReasonNotAnswered, "its report answers a plan that this hub does not know; the hub writes it a newer plan"
	}
	return "", ""
}

func parenthesized(reason string) string {
	if reason == "" {
		return ""
	}
	return v1alpha1.SanitizeText(" ("+reason+")", maxReasonLength)
}

// refusalMessage returns why the agent refuses its plan, where it reports that.
func refusalMessage(root *v1alpha1.ReportRoot) string {
	c := meta.FindStatusCondition(root.Conditions, v1alpha1.ConditionPlanAccepted)
	if c == nil || c.Status != metav1.ConditionFalse {
		return ""
	}
	return ", because its agent refuses the plan: " + c.Message
}

func staleMessage(reason string) string {
	switch reason {
	case v1alpha1.ReasonNeverReported:
		return "it has not reported yet: check that ot-agent runs in it"
	case v1alpha1.ReasonQuarantined:
		return "it is in quarantine: what it references is unknown until spec.quarantine of its MemberCluster is removed, or the MemberCluster is deleted"
	case v1alpha1.ReasonPagesMissing:
		return "pages of its report are missing: see ReportComplete of its MemberCluster"
	case v1alpha1.ReasonPagesOmitted:
		return "its report has no room for all of its images, or pages of it are refused there: see ReportComplete of its MemberCluster"
	case v1alpha1.ReasonAnotherCluster, v1alpha1.ReasonDuplicateCluster:
		return "it was replaced by another cluster, or another member is the same cluster: see IdentityConfirmed of its MemberCluster"
	case v1alpha1.ReasonTwoAgents:
		return "two agents report as this member in turns: see IdentityConfirmed of its MemberCluster"
	default:
		return "the hub does not know all of its images: see its MemberCluster"
	}
}
