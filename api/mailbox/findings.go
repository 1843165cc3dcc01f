package mailbox

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Directions in which a sync copies objects, as labels of metrics.
const (
	DirectionUp   = "up"
	DirectionDown = "down"
)

// Findings is what syncing has shown about a member so far, for the status of its
// MemberLink.
type Findings struct {
	// OtherCluster is the UID of the cluster that answers instead of the known one.
	OtherCluster types.UID
	// ReportOlder: the member's report is older than the hub's copy.
	ReportOlder bool
	// NewerPlan is the version of the member's plan if it is newer than the hub's; zero
	// otherwise.
	NewerPlan v1alpha1.PlanVersion
	// NewerGrant is the sequence of the member's grant if it is newer than the hub's; 0
	// otherwise.
	NewerGrant int64
	// DroppedFields lists fields of plan and grant that the member's API server drops.
	DroppedFields []string
	// SyncError says why the last syncs failed; empty if they did not.
	SyncError string
	// ReportRefused: SyncError is about the report itself, which no other replica could copy.
	ReportRefused bool
	// ConfirmedSequence is a report sequence: since the first Merge, the hub's copy of
	// the report was compared with the member's own and was at least this new. 0 if not
	// compared yet.
	ConfirmedSequence int64
	// Connection is the ConnectionID of the MemberCluster that this process syncs by, if it
	// is known, and ReportConnection the one by which the report was last read.
	Connection, ReportConnection string
}

// NeedsRecheck returns which directions of the next sync have to read every copy live: without a
// confirmed report both, unless the hub refuses the report.
func (r Findings) NeedsRecheck(copies *EqualCopies, now time.Time) Recheck {
	return copies.needsRecheck(r.ConfirmedSequence > 0, now)
}

// Merge returns the findings after one more sync. A failed direction changes nothing.
func (r Findings) Merge(up UpResult, upErr error, down DownResult, downErr error) Findings {
	next := r
	if upErr == nil {
		next.OtherCluster, next.ReportOlder = up.OtherCluster, up.ReportOlder
	}
	if upErr == nil && up.RootSequence > 0 && r.Connection != "" {
		next.ReportConnection = r.Connection
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

// SetStatus writes the findings to the status of a MemberLink. challenge is the spec's
// challenge from before the first Merge: syncs before a challenge do not confirm it.
func (r Findings) SetStatus(status *v1alpha1.MemberLinkStatus, challenge string) {
	status.Challenge, status.Confirmed = challenge, r.ConfirmedSequence
	status.ReportConnection = r.ReportConnection
	status.Another, status.Older = r.OtherCluster, r.ReportOlder
	status.SyncError, status.ReportRefused = v1alpha1.SanitizeText(r.SyncError, 1024), r.ReportRefused
	// Invariant: the status shares no memory with the findings, which may be those of an object in a cache.
	// An answer to the status' update is decoded into it.
	status.Ahead, status.AheadGrant, status.Dropped = nil, r.NewerGrant, slices.Clone(r.DroppedFields)
	if ahead := r.NewerPlan; ahead != (v1alpha1.PlanVersion{}) {
		status.Ahead = &ahead
	}
}

// FindingsFromStatus restores the findings of a status for a process that takes over.
// ConfirmedSequence is dropped if it was for another challenge.
func FindingsFromStatus(status *v1alpha1.MemberLinkStatus, challenge string) Findings {
	r := Findings{OtherCluster: status.Another, ReportOlder: status.Older, NewerGrant: status.AheadGrant, DroppedFields: status.Dropped, SyncError: status.SyncError, ReportRefused: status.ReportRefused, ReportConnection: status.ReportConnection}
	if status.Ahead != nil {
		r.NewerPlan = *status.Ahead
	}
	if status.Challenge == challenge {
		r.ConfirmedSequence = status.Confirmed
	}
	return r
}
