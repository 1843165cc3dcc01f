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
	// ReportUID is the UID of the PruneReport.
	ReportUID types.UID
	// Plan is the one that is stored on the hub, nil for none.
	Plan *v1alpha1.ClusterPlanSpec
	// Root of the cluster's report, nil for none, and the clusterUID of that report.
	Root           *v1alpha1.ReportRoot
	RootClusterUID types.UID
	// StaleReason is why the member may have more than is known of it, by a reason of the
	// fleet's; empty: all of it is known.
	StaleReason string
	// Offline: its agent does not report.
	Offline bool
}

// UnansweredReason tells why a cluster has not answered a PruneReport; empty: it has. Versions
// of plans are compared, never clocks: its report was made after the first plan that
// carried the inquiry, and of the plan that is stored or one before it. A version
// above that is of another hub's making, as before a restore from a backup, and need
// not have carried the inquiry.
func UnansweredReason(a AnswerView) (unknown, message string) {
	silent := a.StaleReason == "" || a.StaleReason == v1alpha1.ReasonSilent || a.StaleReason == v1alpha1.ReasonUnknown
	switch {
	case a.Offline && silent:
		return v1alpha1.ReasonOffline, "its agent does not report" + parenthesized(a.StaleReason) + ": make another PruneReport when it does (see its MemberCluster)"
	case a.StaleReason != "":
		return truncateText(a.StaleReason, maxReasonLength), staleMessage(a.StaleReason)
	case a.Root == nil:
		return v1alpha1.ReasonNeverReported, staleMessage(v1alpha1.ReasonNeverReported)
	case a.Plan == nil:
		return v1alpha1.ReasonNotAnswered, "the hub has made no plan for it: see its MemberCluster"
	case a.RootClusterUID != a.Plan.ClusterUID:
		return v1alpha1.ReasonAnotherCluster, "what reports is not the cluster that its plan is for: see IdentityConfirmed of its MemberCluster"
	}
	i := slices.IndexFunc(a.Plan.Inquiries, func(q v1alpha1.PlanInquiry) bool { return q.UID == a.ReportUID })
	if i < 0 {
		return v1alpha1.ReasonNotAnswered, "its plan does not carry the inquiry yet"
	}
	asked := v1alpha1.PlanVersion{Epoch: a.Plan.Inquiries[i].Epoch, Sequence: a.Plan.Inquiries[i].Sequence}
	answered := a.Root.AnsweredPlan
	switch {
	case answered == nil && a.Root.Plan != nil && a.Root.Plan.Compare(asked) >= 0:
		return v1alpha1.ReasonAgentTooOld, fmt.Sprintf("its agent, version %s, does not say which plan its report answers: bring it up to date", truncateText(a.Root.AgentVersion, maxReasonLength))
	case answered == nil || answered.Compare(asked) < 0:
		return v1alpha1.ReasonNotAnswered, truncateText("its report does not answer the inquiry yet"+refusalMessage(a.Root), maxMessageLength)
	case answered.Compare(a.Plan.PlanVersion) > 0 || answered.Compare(a.Plan.PlanVersion) == 0 && answered.Hash != a.Plan.Hash:
		return v1alpha1.ReasonNotAnswered, "it answers a plan that this hub does not know to have made: the hub makes it another one"
	}
	return "", ""
}

func parenthesized(doubt string) string {
	if doubt == "" {
		return ""
	}
	return truncateText(" ("+doubt+")", maxReasonLength)
}

// refusalMessage says why the agent does not go by its plan, where it says so.
func refusalMessage(root *v1alpha1.ReportRoot) string {
	c := meta.FindStatusCondition(root.Conditions, v1alpha1.ConditionPlanAccepted)
	if c == nil || c.Status != metav1.ConditionFalse {
		return ""
	}
	return ", for its agent refuses the plan: " + c.Message
}

func staleMessage(doubt string) string {
	switch doubt {
	case v1alpha1.ReasonNeverReported:
		return "it has not reported yet: does ot-agent run in it?"
	case v1alpha1.ReasonPagesMissing:
		return "pages of its report are missing: see ReportComplete of its MemberCluster"
	case v1alpha1.ReasonPagesOmitted:
		return "its report has no room for all of its images: see ReportComplete of its MemberCluster"
	case v1alpha1.ReasonAnotherCluster, v1alpha1.ReasonDuplicateCluster:
		return "it is not the cluster that it was, or another member is the same one: see IdentityConfirmed of its MemberCluster"
	default:
		return "the hub does not know all of it: see its MemberCluster"
	}
}
