package top

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// Listed is what the hub's read API lists of a cluster, where its report may not be read.
type Listed struct {
	// Running and Queued are its imports and the head of its queue.
	Running, Queued []readapi.Transfer
	// Slots, Budget and Waiting are what its MemberCluster counts.
	Slots, Budget, Waiting int32
}

// addListed adds what the read API lists of a cluster. How much was transferred since the agents
// started is not in it.
func (t *Top) addListed(row Cluster, l *Listed, sourceOf func(string) *Source) {
	row.Slots, row.Budget, row.Queued = l.Slots, l.Budget, l.Waiting
	seen := map[string]bool{}
	for i := range l.Running {
		imported := newListedImport(&l.Running[i])
		t.addImport(&row, imported, sourceOf(imported.Source), seen)
	}
	for i := range l.Queued {
		q := &l.Queued[i]
		sourceOf(q.Source).Waiting++
		if q.QueuedAt != nil && (row.OldestQueuedAt == nil || q.QueuedAt.Before(row.OldestQueuedAt)) {
			row.OldestQueuedAt = q.QueuedAt
		}
	}
	t.addRow(row, l.nextFreeSlot(t.now))
}

func newListedImport(r *readapi.Transfer) Import {
	out := Import{
		Cluster: r.Cluster, Namespace: r.Namespace, Name: r.Name, Bytes: valueOf(r.Bytes), BytesDone: valueOf(r.BytesDone), AtMost: r.AtMost || r.Bytes == nil,
		BytesPerSecond: valueOf(r.BytesPerSecond), Slow: r.Slow, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Source: r.Source,
	}
	if !out.AtMost && out.Bytes > 0 {
		out.Share = min(1, float64(out.BytesDone)/float64(out.Bytes))
	}
	if r.Expected != nil {
		out.ExpectedAt, out.NoEstimate = r.Expected.At, r.Expected.Reason
	}
	return out
}

// nextFreeSlot is when a slot is free: now, or when the first import ends; nil where that is unknown.
func (l *Listed) nextFreeSlot(now time.Time) *metav1.Time {
	switch {
	case l.Budget <= 0:
		return nil
	case l.Slots < l.Budget:
		at := metav1.NewTime(now)
		return &at
	}
	var first *metav1.Time
	for i := range l.Running {
		if e := l.Running[i].Expected; e != nil && readapi.CompareTimes(e.At, first) < 0 {
			first = e.At
		}
	}
	return first
}

func valueOf(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// ByCluster divides a list of the read API by cluster. A list that changes while it is read page by
// page may have an entry twice.
func ByCluster(all []readapi.Transfer) map[string][]readapi.Transfer {
	byCluster := map[string][]readapi.Transfer{}
	for _, r := range all {
		same := func(other readapi.Transfer) bool { return other.Namespace == r.Namespace && other.Name == r.Name }
		if !slices.ContainsFunc(byCluster[r.Cluster], same) {
			byCluster[r.Cluster] = append(byCluster[r.Cluster], r)
		}
	}
	return byCluster
}
