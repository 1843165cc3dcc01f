// Package mailbox syncs the mailbox between the hub and one member: ClusterPlan and
// TransferGrant down, ClusterReport up, nothing else.
//
// A Relay keeps no state that must survive. Several relays may sync for one member at
// the same time, and one that was paused may continue at any later time.
//
// Invariant: a copy is written only with the resourceVersion it was read with, and only
// after the source was found newer by its own version, or was read live after the copy.
// So an older state of the source never replaces a newer one.
//
// Which copies a Relay reads is decided by the caches of both sides: one that a cache shows
// as it was when it was found equal, or as it was before this process's own recent write, is
// not read. A stale cache can only delay a write until the next Recheck, or have it refused.
package mailbox

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Side is one side of a member's mailbox.
type Side struct {
	// Cached reads sources, and finds which copies have changed. It may be stale. Of the
	// hub's ClusterReports it needs the metadata only.
	Cached client.Reader
	// Live reads and writes copies, and re-reads a source if the cache may be stale. It
	// must not answer from a cache.
	Live client.Client
	// Namespace of the mailbox: the member's on the hub, the agent's in the member.
	Namespace string
}

// Relay syncs the mailbox of one member.
type Relay struct {
	Hub, Member Side
	// Copies avoids reading copies that have not changed since this process found them
	// equal to their source. Keep it across calls, one per member. Without it, every
	// copy is read every time.
	Copies *EqualCopies
	// Recheck is where every copy is read live. See Findings.NeedsRecheck.
	Recheck Recheck
	// SpareHeartbeats leaves the hub's copy of the root as it is where the member's differs
	// only in its time, and returns a Heartbeat instead. A Recheck copies it nevertheless.
	SpareHeartbeats bool
	// WholeReads bounds, by its capacity, of how many members all copies are read at the same time. If it is
	// nil, each copy is read by itself.
	WholeReads chan struct{}
}

// Recheck is in which directions every copy is read live, whatever the caches show: a challenge is
// confirmed by nothing else.
type Recheck struct{ Up, Down bool }

// readsLiveUp reports whether caches must not decide which copies of the report are read.
func (r Relay) readsLiveUp() bool { return r.Recheck.Up || r.Copies == nil }

// readsLiveDown reports whether caches must not decide which copies of plan and grant are read.
func (r Relay) readsLiveDown() bool { return r.Recheck.Down || r.Copies == nil }

// DownResult is the outcome of SyncDown.
type DownResult struct {
	// Written lists the kinds that were written.
	Written []string
	// NewerPlan is the version of the member's plan if it is newer than the hub's for
	// the same cluster: the hub was restored from a backup, or somebody changed the
	// copy. The copy is left alone.
	NewerPlan *v1alpha1.PlanVersion
	// NewerGrant is the sequence of the member's grant if it is newer than the hub's
	// for the same cluster. The copy is left alone.
	NewerGrant *int64
	// OtherCluster is the UID that the member's agent reports if plan or grant are for
	// another cluster. They are not copied.
	OtherCluster types.UID
	// DroppedFields lists the first fields of plan and grant, as Kind.path, that the
	// member's API server dropped because its CustomResourceDefinitions are older. For
	// kinds in Written it is known only after the next sync.
	DroppedFields []string
}

// UpResult is the outcome of SyncUp.
type UpResult struct {
	// Written is how many objects on the hub were written or deleted.
	Written int
	// OtherCluster is the clusterUID of the report if it is not the cluster that the
	// hub knows. Nothing is copied.
	OtherCluster types.UID
	// ReportOlder: the member's report is older than the hub's copy, because the member
	// was restored from a backup, or somebody changed the copy. Nothing is copied. It
	// ends with the agent's next write, unless the cluster's clock went back; then
	// somebody must delete the hub's copy of the root.
	ReportOlder bool
	// ReportMissing: the member has no report. The hub's copy is left alone.
	ReportMissing bool
	// RootSequence is the sequence of the hub's copy of the root afterwards, or of the
	// Heartbeat that goes with it; 0 with OtherCluster or ReportMissing, and of the first root that
	// is not refused, if caches decided.
	RootSequence int64
	// OnlyRefused: the error is about objects that the hub's API server refuses, and about
	// nothing else. A Recheck would find no more.
	OnlyRefused bool
	// Heartbeat is set if the hub's copy of the root was left as it is: see
	// Relay.SpareHeartbeats.
	Heartbeat *Heartbeat
	// ActivityRefused is the error if the hub's API server refused the activity, as that of
	// an older hub does. The sync has succeeded without it.
	ActivityRefused error
}
