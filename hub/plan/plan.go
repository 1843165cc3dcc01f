package plan

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// Input is all that a member's next plan rests on.
type Input struct {
	// ResolveClusterUID of the member as the hub knows it; see the function ResolveClusterUID.
	ClusterUID types.UID
	// Current is the plan on the hub, nil for none. What Next says may be
	// written only where Current still stands: against its resourceVersion, or by
	// a creation.
	Current *v1alpha1.ClusterPlanSpec
	// Report of the member, nil for none, and the clusterUID of that report.
	Report           *v1alpha1.ReportRoot
	ReportClusterUID types.UID
	// Unconfirmed: this process has not yet read the report in the member itself.
	// The hub's copy is then as old as the hub: after a restore from a backup it
	// would hide what the member has seen, and the plan stays as it is.
	ReportUnconfirmed bool
	// NewerMemberPlan is the version of the member's copy of the plan, where that is newer than
	// the hub's; the zero version for none.
	NewerMemberPlan v1alpha1.PlanVersion
	// DesiredPolicy is the policy that the fleet's ConfigMap asks for, and Source where
	// it comes from: see Policy.For. Nil says that there is no valid one, not that
	// it is not known yet.
	DesiredPolicy map[string]string
	PolicySource  string
	// Images that the member is to have, those that are not to go there, and those
	// that are to. No image is in two of them.
	Images  []v1alpha1.PlannedImage
	Kept    []v1alpha1.KeptImage
	Retired []v1alpha1.RetiredImage
	// Inquiries are the PruneReports that are being made and ask the member.
	Inquiries []types.UID
	// Prunes are the images that ImagePrunes have go, none of them twice.
	Prunes []v1alpha1.PlannedPrune
}

// heldAnyPolicy as heldPolicy stands for the first policy that the ConfigMap will
// ask for: there was none when the hub found the member ahead.
const heldAnyPolicy = "any"

// Next returns the plan that a member is to have next, and whether it is to
// be written. Where it is not, next is the current plan, or empty where there is
// none.
//
// The version only rises, above the current one and above what the member
// acknowledged. A member that acknowledged what this hub did not plan shows that
// the hub is not what it was: restored from a backup, or set up anew. Its
// ConfigMap is then as old as the rest of it, and the member's policy is the
// newer one: the plan goes on in a new epoch with the member's policy, and the
// ConfigMap's is held back until it asks for something else. held tells that.
// A copy that is ahead, and that the member refuses for its policy, says nothing
// of what the member goes by, but the relay brings nothing over it: the plan goes
// on above it. One that is not refused is being acknowledged, and waited for.
//
// A member that is behind, or that acknowledged nothing, needs no new plan: the
// relay brings it the current one. Without a report that the member is known to
// stand by no plan is made, for it might be older than the member's. For the
// same reason a member must refuse a plan of the version that it acknowledged
// when the hash is another: only then it shows here.
//
// An inquiry that comes new bears the version of the plan: a report that answers
// this or a later one was made after the member was asked. In a new epoch, and for
// another cluster, all inquiries come new: of what such a member acknowledged
// before, whatever its version, the hub does not know that it carried them.
func Next(v Input) (next v1alpha1.ClusterPlanSpec, write, held bool) {
	if v.Current != nil {
		next = *v.Current
	}
	if v.Report == nil || v.ReportUnconfirmed || v.ClusterUID == "" || v.ReportClusterUID != v.ClusterUID {
		return next, false, next.HeldPolicy != ""
	}

	ahead := isMemberAhead(v.Report.Plan, v.Current)
	data, source, holds := v.nextPolicy(ahead)
	if v.Current == nil && !ahead && len(data)+len(v.Images)+len(v.Kept)+len(v.Retired)+len(v.Inquiries)+len(v.Prunes) == 0 {
		return next, false, false
	}

	next.ClusterUID = v.ClusterUID
	next.Policy, next.PolicySource, next.HeldPolicy = data, source, holds
	next.Images, next.Kept, next.Retired = sortedByName(v.Images, imageKey), sortedByName(v.Kept, keptKey), sortedByName(v.Retired, retiredKey)
	next.Inquiries, next.Prunes = v.nextInquiries(), sortedByName(v.Prunes, pruneKey)
	same := v.Current != nil && v.Current.Hash != "" && equalContent(&next, v.Current)
	if !same {
		next.Hash = Hash(&next)
	}
	blocked := isBlockedByMemberCopy(v.NewerMemberPlan, v.Current, v.Report)
	switch {
	case ahead && blocked:
		next.Epoch, next.Sequence = max(v.Report.Plan.Epoch, v.NewerMemberPlan.Epoch)+1, 1
	case ahead:
		next.Epoch, next.Sequence = v.Report.Plan.Epoch+1, 1
	case blocked:
		next.Epoch, next.Sequence = v.NewerMemberPlan.Epoch+1, 1
	case v.Current == nil:
		next.Epoch, next.Sequence = 1, 1
	// The content itself is looked at, too: somebody may have edited the plan.
	case !same && (next.Hash != v.Current.Hash || next.Hash != Hash(v.Current)):
		next.Sequence++
	default:
		// Since when an image has been planned is no reason to write.
		next.Images, next.Kept, next.Retired = v.Current.Images, v.Current.Kept, v.Current.Retired
		next.Inquiries, next.Prunes = v.Current.Inquiries, v.Current.Prunes
		write = next.PolicySource != v.Current.PolicySource || next.HeldPolicy != v.Current.HeldPolicy
		return next, write, next.HeldPolicy != ""
	}
	v.stampInquiries(&next)
	return next, true, next.HeldPolicy != ""
}

// nextInquiries of the next plan, by UID. Where there are more than fit, those that the
// member was asked already come first, and then as they are given, the oldest first:
// the others wait, and the plan can be written.
func (v *Input) nextInquiries() []v1alpha1.PlanInquiry {
	if len(v.Inquiries) == 0 {
		return nil
	}
	asked := slices.Clone(v.Inquiries)
	slices.SortStableFunc(asked, func(a, b types.UID) int { return cmp.Compare(v.inquiryRank(a), v.inquiryRank(b)) })
	uids := make([]types.UID, 0, min(len(asked), v1alpha1.MaxInquiries))
	for _, uid := range asked {
		if len(uids) < v1alpha1.MaxInquiries && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	list := make([]v1alpha1.PlanInquiry, len(uids))
	for i, uid := range uids {
		list[i].UID = uid
	}
	return list
}

// inquiryRank is lower for an inquiry that the current plan carries.
func (v *Input) inquiryRank(uid types.UID) int {
	if findInquiry(v.Current, uid) == nil {
		return 1
	}
	return 0
}

// stampInquiries gives the inquiries of a plan their versions.
func (v *Input) stampInquiries(next *v1alpha1.ClusterPlanSpec) {
	anew := v.Current == nil || next.Epoch != v.Current.Epoch || next.ClusterUID != v.Current.ClusterUID
	for i := range next.Inquiries {
		asked := &next.Inquiries[i]
		asked.Epoch, asked.Sequence = next.Epoch, next.Sequence
		if former := findInquiry(v.Current, asked.UID); former != nil && !anew {
			*asked = *former
		}
	}
}

// findInquiry returns an inquiry as a plan carries it, nil for none.
func findInquiry(p *v1alpha1.ClusterPlanSpec, uid types.UID) *v1alpha1.PlanInquiry {
	if p == nil {
		return nil
	}
	for i := range p.Inquiries {
		if p.Inquiries[i].UID == uid {
			return &p.Inquiries[i]
		}
	}
	return nil
}

// isMemberAhead tells whether a member acknowledged a plan that this hub does not
// know to have made.
func isMemberAhead(acknowledged *v1alpha1.PlanVersion, current *v1alpha1.ClusterPlanSpec) bool {
	switch {
	case acknowledged == nil:
		return false
	case current == nil:
		return true
	}
	order := acknowledged.Compare(current.PlanVersion)
	return order > 0 || order == 0 && acknowledged.Hash != "" && acknowledged.Hash != current.Hash
}

// isBlockedByMemberCopy tells whether a member's copy of the plan is above what the hub
// plans, and will never be acknowledged.
func isBlockedByMemberCopy(copied v1alpha1.PlanVersion, current *v1alpha1.ClusterPlanSpec, report *v1alpha1.ReportRoot) bool {
	accepted := meta.FindStatusCondition(report.Conditions, v1alpha1.ConditionPlanAccepted)
	return current != nil && copied.Compare(current.PlanVersion) > 0 &&
		accepted != nil && accepted.Status == metav1.ConditionFalse && accepted.Reason == v1alpha1.ReasonPlanPolicyInvalid
}

// nextPolicy returns what the plan is to carry, where that is from, and the hash of
// what it holds back for it.
func (v *Input) nextPolicy(ahead bool) (data map[string]string, source, holds string) {
	data, source = v.DesiredPolicy, v.PolicySource
	switch {
	case ahead && len(v.Report.PlanPolicy) > 0:
		data, source, holds = v.Report.PlanPolicy, v.Report.PlanPolicySource, heldAnyPolicy
	case v.DesiredPolicy == nil && v.Current != nil: // what holds goes on
		return v.Current.Policy, v.Current.PolicySource, v.Current.HeldPolicy
	case ahead || v.Current == nil:
		return data, source, ""
	case v.Current.HeldPolicy == heldAnyPolicy, v.Current.HeldPolicy == HashPolicy(v.DesiredPolicy):
		data, source, holds = v.Current.Policy, v.Current.PolicySource, v.Current.HeldPolicy
	default:
		return data, source, ""
	}
	switch {
	case v.DesiredPolicy == nil:
		return data, source, holds
	case policy.Equal(data, v.DesiredPolicy):
		return v.DesiredPolicy, v.PolicySource, ""
	default:
		return data, source, HashPolicy(v.DesiredPolicy)
	}
}
