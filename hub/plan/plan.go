package plan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// Input is all that the next plan of a member depends on.
type Input struct {
	// ClusterUID of the member as the hub knows it; see memberstatus.ResolveClusterUID.
	ClusterUID types.UID
	// Current is the plan on the hub; nil for none. The next plan may be written only
	// over this one, guarded by its resourceVersion.
	Current *v1alpha1.ClusterPlanSpec
	// Report of the member, nil for none, and the clusterUID of that report.
	Report           *v1alpha1.ReportRoot
	ReportClusterUID types.UID
	// ReportUnconfirmed: this process has not read the report in the member itself. After
	// a restore from a backup the hub's copy is as old as the hub, and hides what the
	// member has seen since. The plan then stays as it is.
	ReportUnconfirmed bool
	// CutOff: ReportUnconfirmed, and the member is away, rather than not read yet. Prunes that run there
	// do not count then: see withdrawsPrunes.
	CutOff bool
	// NewerMemberPlan is the version of the member's copy of the plan, if it is newer
	// than the hub's; otherwise zero.
	NewerMemberPlan v1alpha1.PlanVersion
	// Contested: another hub plans for the member, too; see Raises.
	Contested bool
	// DesiredPolicy is what the fleet's ConfigMap asks for, and PolicySource its source:
	// see Policy.ForMember. Nil means that there is no valid policy, not that it is
	// unknown.
	DesiredPolicy map[string]string
	PolicySource  string
	// PolicyNow is what of DesiredPolicy a plan says now: see policy.InForce. Nil: all of it.
	PolicyNow map[string]string
	// Images that the member has to have, images that it has to leave alone, and images
	// that it has to remove. No image is in two of these lists.
	Images  []v1alpha1.PlannedImage
	Kept    []v1alpha1.KeptImage
	Retired []v1alpha1.RetiredImage
	// Inquiries are the UIDs of PruneReports that ask the member.
	Inquiries []types.UID
	// Prunes are the images that ImagePrunes delete; none is listed twice.
	Prunes []v1alpha1.PlannedPrune
	// PruneNonce is what the member asks the hub to confirm Prunes by; empty where it asks for nothing,
	// or Prunes are those of Current since the requested ones are not known.
	PruneNonce string
}

// heldAnyPolicy is stored as heldPolicy while the ConfigMap asks for no policy: it stands for the
// first one that it will ask for.
const heldAnyPolicy = "any"

// Next returns the next plan of a member, and whether it has to be written. If not, next
// is the current plan, or empty. held: the ConfigMap's policy is held back.
//
// Invariant: the version only rises, above the current plan and above what the member
// acknowledged.
//
// A member that acknowledged a plan which this hub did not make shows that the hub was
// restored from a backup or set up again. The ConfigMap is then as old as the hub, and the
// member's policy is the newer one: a new epoch starts with the member's policy, and the
// ConfigMap's is held back until it asks for something else. A window that opens or closes
// asks for nothing else.
//
// A copy in the member that is ahead, and whose policy the agent refuses, blocks the
// relay: the plan rises above it. A copy that is ahead and not refused is about to be
// acknowledged, and is waited for. Above the plans of another hub, which rise above these
// in turn, the plan rises so often only; see Raises.
//
// A member that is behind needs no new plan; the relay brings it the current one. Without
// a confirmed report no plan is made, since it might be older than the member's, except to
// withdraw prunes: see withdrawsPrunes. An agent
// refuses a plan of the version that it acknowledged if the hash differs, so that the
// conflict shows here.
//
// A new inquiry gets the version of the plan that first has it: a report that answers
// this version or a later one was made after the member was asked. In a new epoch, and
// for another cluster, all inquiries count as new.
//
// Invariant: a plan that confirms a nonce has only prunes that were requested after the agent drew that
// nonce. Other plans say only that a prune was requested when they were written: they may lie in a
// mailbox while no hub runs.
func Next(v Input) (next v1alpha1.ClusterPlanSpec, write, held bool) {
	if v.Current != nil {
		next = *v.Current
	}
	if v.Report == nil || v.ReportUnconfirmed || v.ClusterUID == "" || v.ReportClusterUID != v.ClusterUID {
		write = v.withdrawsPrunes()
		if write {
			next.Prunes, next.ConfirmedNonce = nil, nil
			next.Sequence++
			next.Hash = Hash(&next)
		}
		return next, write, next.HeldPolicy != ""
	}

	ahead, blocked := isMemberAhead(v.Report.Plan, v.Current), isBlockedByMemberCopy(v.NewerMemberPlan, v.Current, v.Report)
	if v.Contested && (ahead || blocked) {
		return next, false, next.HeldPolicy != ""
	}
	data, source, heldPolicy := v.nextPolicy(ahead)
	if v.Current == nil && !ahead && len(data)+len(v.Images)+len(v.Kept)+len(v.Retired)+len(v.Inquiries)+len(v.Prunes) == 0 {
		return next, false, false
	}

	next.ClusterUID = v.ClusterUID
	next.Policy, next.PolicySource, next.HeldPolicy = data, source, heldPolicy
	next.Images, next.Kept, next.Retired = sortedByName(v.Images, imageKey), sortedByName(v.Kept, keptKey), sortedByName(v.Retired, retiredKey)
	next.Inquiries, next.Prunes, next.ConfirmedNonce = v.nextInquiries(), sortedByName(v.Prunes, pruneKey), v.nextNonce()
	same := v.Current != nil && v.Current.Hash != "" && equalContent(&next, v.Current)
	if !same {
		next.Hash = Hash(&next)
	}
	switch {
	case ahead && blocked:
		next.Epoch, next.Sequence = max(v.Report.Plan.Epoch, v.NewerMemberPlan.Epoch)+1, 1
	case ahead:
		next.Epoch, next.Sequence = v.Report.Plan.Epoch+1, 1
	case blocked:
		next.Epoch, next.Sequence = v.NewerMemberPlan.Epoch+1, 1
	case v.Current == nil:
		next.Epoch, next.Sequence = 1, 1
	// The content is compared too: somebody may have edited the plan.
	case !same && (next.Hash != v.Current.Hash || next.Hash != Hash(v.Current)):
		next.Sequence++
	default:
		// A later plannedAt alone is not written. An earlier one replaces that of a hub whose clock was
		// ahead.
		isEarlier := same && hasEarlierTime(next.Images, v.Current.Images)
		if !isEarlier {
			next.Images = v.Current.Images
		}
		next.Kept, next.Retired = v.Current.Kept, v.Current.Retired
		next.Inquiries, next.Prunes = v.Current.Inquiries, v.Current.Prunes
		write = isEarlier || next.PolicySource != v.Current.PolicySource || next.HeldPolicy != v.Current.HeldPolicy
		return next, write, next.HeldPolicy != ""
	}
	v.stampInquiries(&next)
	return next, true, next.HeldPolicy != ""
}

// withdrawsPrunes reports whether a plan without prunes has to be written although no report is
// confirmed: a member that returns would carry out prunes that have ended, before another plan
// reaches it.
//
// Invariant: this raises the version once, since a plan without prunes is not raised again. A hub
// that was restored from a backup cannot come to a version above what the member acknowledged
// meanwhile: the next version is at most an equal one, which its hash tells apart. So all prunes are
// withdrawn together: once none of them is requested, or, of a member that is cut off, once one is not.
// A member that was cut off and still has the others leaves their images; one that has only just not
// been read, as after a restart of the hub, must not.
func (v *Input) withdrawsPrunes() bool {
	if v.Current == nil || len(v.Current.Prunes) == 0 || v.NewerMemberPlan.Compare(v.Current.PlanVersion) > 0 || v.Report != nil && isMemberAhead(v.Report.Plan, v.Current) {
		return false
	}
	planned, requested := 0, 0
	for _, p := range v.Current.Prunes {
		if p.Undo {
			continue
		}
		planned++
		if slices.ContainsFunc(v.Prunes, func(r v1alpha1.PlannedPrune) bool { return !r.Undo && r.UID == p.UID && r.ImageUID == p.ImageUID }) {
			requested++
		}
	}
	return requested == 0 || v.CutOff && requested < planned
}

// hasEarlierTime reports whether an image is planned since an earlier time than in the current plan,
// which has the same images in the same order.
func hasEarlierTime(next, current []v1alpha1.PlannedImage) bool {
	for i := range min(len(next), len(current)) {
		at, before := next[i].PlannedAt, current[i].PlannedAt
		if at != nil && before != nil && at.Before(before) && equalImage(next[i], current[i]) {
			return true
		}
	}
	return false
}

// nextInquiries returns the inquiries of the next plan, by UID. Beyond the limit, those
// that the current plan has come first, then the oldest; the others wait.
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

// nextNonce returns the nonce that the next plan confirms. What the current plan confirms stays until the
// member asks again, which saves a plan.
func (v *Input) nextNonce() *string {
	if len(v.Prunes) == 0 {
		return nil
	}
	if v.PruneNonce == "" && v.Current != nil && v.Current.ConfirmedNonce != nil {
		return v.Current.ConfirmedNonce
	}
	return &v.PruneNonce
}

// inquiryRank orders inquiries that the current plan has before the others.
func (v *Input) inquiryRank(uid types.UID) int {
	if findInquiry(v.Current, uid) == nil {
		return 1
	}
	return 0
}

// stampInquiries sets the plan version since which each inquiry is asked.
func (v *Input) stampInquiries(next *v1alpha1.ClusterPlanSpec) {
	restart := v.Current == nil || next.Epoch != v.Current.Epoch || next.ClusterUID != v.Current.ClusterUID
	for i := range next.Inquiries {
		asked := &next.Inquiries[i]
		asked.Epoch, asked.Sequence = next.Epoch, next.Sequence
		if former := findInquiry(v.Current, asked.UID); former != nil && !restart {
			*asked = *former
		}
	}
}

// findInquiry returns an inquiry of a plan; nil for none.
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

// isMemberAhead reports whether a member acknowledged a plan that this hub does not know.
func isMemberAhead(acknowledged *v1alpha1.PlanVersion, current *v1alpha1.ClusterPlanSpec) bool {
	switch {
	case acknowledged == nil, !v1alpha1.IsCredibleClaim(acknowledged.Epoch):
		return false
	case current == nil:
		return true
	}
	order := acknowledged.Compare(current.PlanVersion)
	return order > 0 || order == 0 && acknowledged.Hash != "" && acknowledged.Hash != current.Hash
}

// isBlockedByMemberCopy reports whether the member's copy is newer than the hub's plan
// and will never be acknowledged.
func isBlockedByMemberCopy(copied v1alpha1.PlanVersion, current *v1alpha1.ClusterPlanSpec, report *v1alpha1.ReportRoot) bool {
	accepted := meta.FindStatusCondition(report.Conditions, v1alpha1.ConditionPlanAccepted)
	return current != nil && copied.Compare(current.PlanVersion) > 0 && v1alpha1.IsCredibleClaim(copied.Epoch) &&
		accepted != nil && accepted.Status == metav1.ConditionFalse && accepted.Reason == v1alpha1.ReasonPlanPolicyInvalid
}

// IsOutranked reports whether the hub's plan has to rise above one of the member's that the hub did not
// write.
func IsOutranked(current *v1alpha1.ClusterPlanSpec, report *v1alpha1.ReportRoot, copied v1alpha1.PlanVersion) bool {
	return report != nil && (isMemberAhead(report.Plan, current) || isBlockedByMemberCopy(copied, current, report))
}

// nextPolicy returns the policy of the next plan, its source, and the hash of the policy
// that is held back.
func (v *Input) nextPolicy(ahead bool) (data map[string]string, source, heldPolicy string) {
	now := v.DesiredPolicy
	if v.PolicyNow != nil {
		now = v.PolicyNow
	}
	data, source = now, v.PolicySource
	switch {
	case ahead && len(v.Report.PlanPolicy) > 0:
		data, source, heldPolicy = limitHeld(v.Report.PlanPolicy, v.DesiredPolicy), v.Report.PlanPolicySource, heldAnyPolicy
	case v.DesiredPolicy == nil && v.Current != nil: // the current policy stays
		return v.Current.Policy, v.Current.PolicySource, v.Current.HeldPolicy
	case ahead || v.Current == nil:
		return data, source, ""
	case v.Current.HeldPolicy == heldAnyPolicy, v.Current.HeldPolicy == holdHash(v.DesiredPolicy), v.Current.HeldPolicy == HashPolicy(v.DesiredPolicy):
		data, source, heldPolicy = limitHeld(v.Current.Policy, v.DesiredPolicy), v.Current.PolicySource, v.Current.HeldPolicy
	default:
		return data, source, ""
	}
	switch {
	case v.DesiredPolicy == nil:
		return data, source, heldPolicy
	case policy.IsInForceSometime(data, v.DesiredPolicy):
		return now, v.PolicySource, ""
	default:
		return data, source, holdHash(v.DesiredPolicy)
	}
}

// holdHash is the hash of the policy that another one is held instead of. The number of the safe
// share does not count: the budget changes it by itself.
func holdHash(desired map[string]string) string {
	if _, limited := desired[apipolicy.KeySafeConcurrency]; limited {
		desired = maps.Clone(desired)
		desired[apipolicy.KeySafeConcurrency] = ""
	}
	return HashPolicy(desired)
}

// limitHeld returns a held policy as a fleet's budget permits it: only the member says that it
// had this policy, and no member's word may cost the others a share. What counts for the budget
// is therefore as in the ConfigMap's policy, windows included, or less.
func limitHeld(held, desired map[string]string) map[string]string {
	if _, limited := desired[apipolicy.KeySafeConcurrency]; !limited {
		return held
	}
	h, _, errs := apipolicy.Parse(held)
	d, _, others := apipolicy.Parse(desired)
	if len(errs)+len(others) > 0 {
		return desired
	}
	most := d.Concurrency
	for _, w := range d.Windows {
		most = max(most, ptr.Deref(w.Concurrency, 0))
	}
	next := maps.Clone(held)
	if h.Concurrency > most {
		next[apipolicy.KeyConcurrency] = strconv.Itoa(int(most))
	}
	changed := false
	for i := range h.Windows {
		if w := &h.Windows[i]; ptr.Deref(w.Concurrency, 0) > most {
			w.Concurrency, changed = &most, true
		}
	}
	if changed {
		next[apipolicy.KeyWindows] = h.Windows.String()
	}
	keys := []string{apipolicy.KeySafeConcurrency, apipolicy.KeyFleetSources}
	if h.AttemptTimeout > d.AttemptTimeout {
		keys = append(keys, apipolicy.KeyAttemptTimeout)
	}
	for _, key := range keys {
		delete(next, key)
		if value, set := desired[key]; set {
			next[key] = value
		}
	}
	if len(next) > v1alpha1.MaxPolicyKeys {
		return desired // no plan can have it
	}
	return next
}
