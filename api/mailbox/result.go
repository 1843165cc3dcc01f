package mailbox

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Findings is what carrying has shown of a member so far, as a MemberLink tells it.
type Findings struct {
	// OtherCluster is the cluster that answers in place of the one that is known.
	OtherCluster types.UID
	// Older: the member shows a report from before the hub's copy.
	ReportOlder bool
	// NewerPlan is the version of a plan in the member that is newer than the hub's; the
	// zero version for none.
	NewerPlan v1alpha1.PlanVersion
	// NewerGrant is the sequence of a grant in the member that is newer than the
	// hub's; 0 for none.
	NewerGrant int64
	// DroppedFields are fields of plan and grant that the member's API server does not store.
	DroppedFields []string
	// Confirmed: since the first Merge, the hub's copy of the report was compared with
	// the member's own, and was not of before this sequence then. 0 for not yet.
	ConfirmedSequence int64
}

// Merge is the Result after what came of one more carrying. What failed says
// nothing new.
func (r Findings) Merge(up UpResult, upErr error, down DownResult, downErr error) Findings {
	next := r
	if upErr == nil {
		next.OtherCluster, next.ReportOlder = up.OtherCluster, up.ReportOlder
	}
	// The first one is enough, and does not change with every report. A lower one is
	// of a cluster that took the first one's place. A page that was refused is an
	// error, and does not matter here.
	if up.RootSequence > 0 && (r.ConfirmedSequence == 0 || up.RootSequence < r.ConfirmedSequence) {
		next.ConfirmedSequence = up.RootSequence
	}
	if downErr == nil {
		next.NewerPlan, next.NewerGrant = v1alpha1.PlanVersion{}, 0
		if len(down.Written) == 0 {
			next.DroppedFields = down.DroppedFields
		}
		if down.NewerPlan != nil {
			next.NewerPlan = *down.NewerPlan
		}
		if down.NewerGrant != nil {
			next.NewerGrant = *down.NewerGrant
		}
	}
	return next
}

// SetStatus puts a Result into the status of a MemberLink. challenge is what its spec
// had before the first Merge: what was merged under another says nothing of it.
func (r Findings) SetStatus(status *v1alpha1.MemberLinkStatus, challenge string) {
	status.Challenge, status.Confirmed = challenge, r.ConfirmedSequence
	status.Another, status.Older = r.OtherCluster, r.ReportOlder
	status.Ahead, status.AheadGrant, status.Dropped = nil, r.NewerGrant, r.DroppedFields
	if ahead := r.NewerPlan; ahead != (v1alpha1.PlanVersion{}) {
		status.Ahead = &ahead
	}
}

// FindingsFromStatus is the Result that a status tells, which whoever carries from now on under a
// challenge goes on from. What was confirmed under another is not confirmed.
func FindingsFromStatus(status *v1alpha1.MemberLinkStatus, challenge string) Findings {
	r := Findings{OtherCluster: status.Another, ReportOlder: status.Older, NewerGrant: status.AheadGrant, DroppedFields: status.Dropped}
	if status.Ahead != nil {
		r.NewerPlan = *status.Ahead
	}
	if status.Challenge == challenge {
		r.ConfirmedSequence = status.Confirmed
	}
	return r
}
