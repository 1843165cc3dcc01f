package relay

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Result is what carrying has shown of a member so far, as a MemberLink tells it.
type Result struct {
	// Another is the cluster that answers in place of the one that is known.
	Another types.UID
	// Older: the member shows a report from before the hub's copy.
	Older bool
	// Ahead is the version of a plan in the member that is newer than the hub's; the
	// zero version for none.
	Ahead v1alpha1.PlanVersion
	// AheadGrant is the sequence of a grant in the member that is newer than the
	// hub's; 0 for none.
	AheadGrant int64
	// Dropped are fields of plan and grant that the member's API server does not store.
	Dropped []string
	// Confirmed: since the first Merge, the hub's copy of the report was compared with
	// the member's own, and was not of before this sequence then. 0 for not yet.
	Confirmed int64
}

// Merge is the Result after what came of one more carrying. What failed says
// nothing new.
func (r Result) Merge(up Up, upErr error, down Down, downErr error) Result {
	next := r
	if upErr == nil {
		next.Another, next.Older = up.Another, up.Older
	}
	// The first one is enough, and does not change with every report. A lower one is
	// of a cluster that took the first one's place. A page that was refused is an
	// error, and does not matter here.
	if up.Root > 0 && (r.Confirmed == 0 || up.Root < r.Confirmed) {
		next.Confirmed = up.Root
	}
	if downErr == nil {
		next.Ahead, next.AheadGrant = v1alpha1.PlanVersion{}, 0
		if len(down.Carried) == 0 {
			next.Dropped = down.Dropped
		}
		if down.Ahead != nil {
			next.Ahead = *down.Ahead
		}
		if down.AheadGrant != nil {
			next.AheadGrant = *down.AheadGrant
		}
	}
	return next
}

// Tell puts a Result into the status of a MemberLink. challenge is what its spec
// had before the first Merge: what was merged under another says nothing of it.
func (r Result) Tell(status *v1alpha1.MemberLinkStatus, challenge string) {
	status.Challenge, status.Confirmed = challenge, r.Confirmed
	status.Another, status.Older = r.Another, r.Older
	status.Ahead, status.AheadGrant, status.Dropped = nil, r.AheadGrant, r.Dropped
	if ahead := r.Ahead; ahead != (v1alpha1.PlanVersion{}) {
		status.Ahead = &ahead
	}
}

// Told is the Result that a status tells, which whoever carries from now on under a
// challenge goes on from. What was confirmed under another is not confirmed.
func Told(status *v1alpha1.MemberLinkStatus, challenge string) Result {
	r := Result{Another: status.Another, Older: status.Older, AheadGrant: status.AheadGrant, Dropped: status.Dropped}
	if status.Ahead != nil {
		r.Ahead = *status.Ahead
	}
	if status.Challenge == challenge {
		r.Confirmed = status.Confirmed
	}
	return r
}
