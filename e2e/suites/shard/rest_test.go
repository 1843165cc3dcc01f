//go:build linux

package shard_test

import (
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// writeCounter counts the changes of objects by name.
type writeCounter struct {
	mu sync.Mutex
	of map[string]int
	// unreachable are the members that a MemberLink said were not reachable for a moment.
	unreachable map[string]bool
}

// mostWritten leaves out the members that were unreachable, which has to be written.
func (w *writeCounter) mostWritten(unreachable map[string]bool) (name string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of, count := range w.of {
		if count > n && !unreachable[of] {
			name, n = of, count
		}
	}
	return name, n
}

func (w *writeCounter) unreachableMembers() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.unreachable)
}

// countWrites counts writes until the test ends.
func (f *testFleet) countWrites(t *testing.T, list client.ObjectList) *writeCounter {
	t.Helper()
	all := &writeCounter{of: map[string]int{}, unreachable: map[string]bool{}}
	stop, err := controlplane.WatchObjects(t.Context(), f, list, func(c controlplane.Change[client.Object]) {
		if c.Type != watch.Added {
			all.mu.Lock()
			defer all.mu.Unlock()
			all.of[c.Object.GetName()]++
			if link, isLink := c.Object.(*v1alpha1.MemberLink); isLink && !link.Status.Reachable {
				all.unreachable[link.Name] = true
			}
		}
	})
	require.NoError(t, err)
	t.Cleanup(stop)
	return all
}

// TestHeartbeatsWriteNoStatus shows that a synced heartbeat writes no status, except the
// time of the last report at long intervals.
func TestHeartbeatsWriteNoStatus(t *testing.T) {
	shared.awaitBalanced(t, replicaNames...)
	shared.awaitNewReports(t)
	// The status of earlier changes may still be written.
	for member, link := range shared.getMemberLinks(t) {
		testenv.AwaitMember(t, shared, member, "with its full status", func(m *v1alpha1.MemberCluster) bool {
			return m.Status.Shard == link.Spec.Replica && m.Status.Images != nil && m.Status.Plan != nil && m.Status.AcknowledgedPlan != nil &&
				*m.Status.Plan == *m.Status.AcknowledgedPlan && meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady)
		})
	}
	ofMembers, ofLinks := shared.countWrites(t, &v1alpha1.MemberClusterList{}), shared.countWrites(t, &v1alpha1.MemberLinkList{})
	beats, begun := 0, time.Now()
	// A status is written at most once a second.
	for end := time.Now().Add(3500 * time.Millisecond); beats < 3 || time.Now().Before(end); beats++ {
		wanted := map[string]int64{}
		for _, m := range shared.Fakes.List {
			require.NoError(t, m.SendHeartbeat(t.Context()))
			root := &v1alpha1.ClusterReport{}
			require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, root))
			wanted[m.Name] = root.Sequence
		}
		for member, sequence := range wanted {
			shared.awaitReport(t, member, sequence)
		}
	}
	unreachable := ofLinks.unreachableMembers()
	require.Less(t, len(unreachable), fakeCount, "nothing is judged: all members were unreachable for a moment")
	name, n := ofLinks.mostWritten(unreachable)
	assert.Zero(t, n, "MemberLink %s is written at %d heartbeats", name, beats)
	name, n = ofMembers.mostWritten(unreachable)
	assert.LessOrEqual(t, n, 1+int(time.Since(begun)/time.Minute), "MemberCluster %s is written at %d heartbeats, which say a time of the last report once a minute", name, beats)
}

// TestThirdOfMembersDark shows that unreachable members stay with their replica and delay
// no other member.
func TestThirdOfMembersDark(t *testing.T) {
	before := shared.awaitBalanced(t, replicaNames...)
	dark := map[string]bool{}
	for _, r := range replicaNames[:2] {
		dark[membersOf(before, r)[0]] = true
	}
	for member := range dark {
		shared.blockMember(t, member, replicaNames...)
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		links := shared.getMemberLinks(t)
		for member := range dark {
			if links[member].Status.Reachable {
				return false
			}
		}
		return true
	}), "they count as reachable")
	for _, m := range shared.Fakes.List {
		if dark[m.Name] {
			continue
		}
		require.NoError(t, m.SetImages(t.Context(), "page-0", nil))
		root := &v1alpha1.ClusterReport{}
		require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, root))
		shared.awaitReport(t, m.Name, root.Sequence)
	}
	for _, r := range shared.replicas {
		for member := range dark {
			r.memberLinks.setBlocked(member, false)
		}
	}
	assert.Equal(t, before, shared.awaitBalanced(t, replicaNames...), "a member moved")
	shared.judge.requireNoFaults(t)
}

// countGoroutines adds up the goroutines of all replicas.
func (f *testFleet) countGoroutines(t *testing.T) (n int) {
	t.Helper()
	for _, r := range f.replicas {
		text, err := r.ReadMetrics(t.Context())
		require.NoError(t, err)
		for line := range strings.Lines(text) {
			if count, ok := strings.CutPrefix(line, "go_goroutines "); ok {
				one, err := strconv.Atoi(strings.TrimSpace(count))
				require.NoError(t, err)
				n += one
			}
		}
	}
	return n
}
