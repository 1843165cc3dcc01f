package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// States of a Transfer that Transfers can be asked for.
const (
	// TransferRunning: imports that hold a slot.
	TransferRunning = "running"
	// TransferQueued: images that wait for one.
	TransferQueued = "queued"
)

// What Transfers are sorted by. What is unknown is last.
const (
	// TransfersByExpected: what is expected first.
	TransfersByExpected = "expected"
	// TransfersByOldest: what started, or waits, for longest.
	TransfersByOldest = "oldest"
	// TransfersByRate: the fastest first.
	TransfersByRate = "rate"
	// TransfersByCluster: by cluster, namespace and name.
	TransfersByCluster = "cluster"
	// TransfersByImage: by namespace, name and cluster.
	TransfersByImage = "image"
)

// TransferOrders lists what Transfers can be sorted by, the default first.
func TransferOrders() []string {
	return []string{TransfersByExpected, TransfersByOldest, TransfersByRate, TransfersByCluster, TransfersByImage}
}

// Transfers are the imports that run and the images that wait, over all members.
type Transfers struct {
	// Running and Queued are the first that match, of RunningTotal and QueuedTotal.
	Running      []Transfer `json:"running"`
	Queued       []Transfer `json:"queued"`
	RunningTotal int        `json:"runningTotal"`
	QueuedTotal  int        `json:"queuedTotal"`
	// Unlisted images wait behind those that their members list. Nothing else is known of
	// them, so that they are counted whatever is asked for but the cluster.
	Unlisted int `json:"unlisted,omitempty"`
	// UnknownMembers of these members it is not known what they import now.
	UnknownMembers []UnknownMember `json:"unknownMembers,omitempty"`
	// UnknownMembersTotal is how many there are; UnknownMembers are the first.
	UnknownMembersTotal int `json:"unknownMembersTotal,omitempty"`
}

// MaxTransferUnknownMembers bounds the unknown members that Transfers name.
const MaxTransferUnknownMembers = 20

// Transfer is an import that runs, or an image that waits. Times are by the hub's clock.
type Transfer struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Source is the group of sources; absent if the member does not tell.
	Source string `json:"source,omitempty"`
	// Unknown is why it may have ended or started since; empty if it has not.
	Unknown string `json:"unknown,omitempty"`
	// BytesDone of Bytes; the latter is absent if unknown. AtMost: Bytes is the size of the
	// disk, and the download may be smaller.
	BytesDone *int64 `json:"bytesDone,omitempty"`
	Bytes     *int64 `json:"bytes,omitempty"`
	AtMost    bool   `json:"atMost,omitempty"`
	// BytesPerSecond of late; absent if unknown.
	BytesPerSecond *int64 `json:"bytesPerSecond,omitempty"`
	// Slow: it has less than half the rate of the slowest fifth from its source.
	Slow      bool         `json:"slow,omitempty"`
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	QueuedAt  *metav1.Time `json:"queuedAt,omitempty"`
	// Attempt of MaxAttempts that runs.
	Attempt     int32 `json:"attempt,omitempty"`
	MaxAttempts int32 `json:"maxAttempts,omitempty"`
	// Position in the member's queue, from 1; absent for an import that runs.
	Position int   `json:"position,omitempty"`
	Priority int32 `json:"priority,omitempty"`
	// NotBefore is the end of its backoff.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// Reason why it waits.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// References is how many machines need the image; absent if unknown.
	References *int32 `json:"references,omitempty"`
	// Expected is when it will be ready.
	Expected *Estimate `json:"expected,omitempty"`
}

// CompareTimes puts what has no time last.
func CompareTimes(a, b *metav1.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	default:
		return a.Compare(b.Time)
	}
}
