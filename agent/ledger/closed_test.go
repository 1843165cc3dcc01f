package ledger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The age of the queue alerts: the time during which images wait for a window is no part of it.
func TestAgeOfQueueLeavesOutWindows(t *testing.T) {
	arrived := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	q := ledger.NewQueue()
	for i, uid := range []types.UID{"a", "b"} {
		at := arrived.Add(time.Duration(i) * time.Hour)
		q.Set(ledger.QueuedImage{Image: v1alpha1.ImageKey{Namespace: "ns", Name: string(uid), UID: uid}, Key: v1alpha1.OrderingKey{Time: metav1.NewTime(at), Sequence: int64(i)}, State: ledger.Admissible})
	}
	assert.Equal(t, arrived, q.Stats().OldestArrival)
	q.SetWithheldReasons(map[types.UID]v1alpha1.Reason{"a": v1alpha1.ReasonWaitingForWindow})
	assert.Equal(t, arrived.Add(time.Hour), q.Stats().OldestArrival, "b waits for a slot")
	q.SetClosed(true, true, arrived.Add(2*time.Hour))
	assert.Zero(t, q.Stats().OldestArrival)
	assert.Equal(t, 2, q.Stats().Admissible)
	q.SetWithheldReasons(nil)
	opened := arrived.Add(30 * time.Hour)
	q.SetClosed(true, false, opened)
	q.SetClosed(true, false, opened.Add(time.Hour))
	assert.Equal(t, opened, q.Stats().OldestArrival)
	assert.Equal(t, opened, q.OpenedAt())
}

// A process that starts within a window has not seen it open: what waited before is no age.
func TestAgeOfQueueAfterARestartWithinAWindow(t *testing.T) {
	arrived := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	started := arrived.Add(6 * 24 * time.Hour)
	for name, tt := range map[string]struct {
		hasWindows bool
		want       time.Time
	}{
		"windows":    {true, started},
		"no windows": {false, arrived},
	} {
		t.Run(name, func(t *testing.T) {
			q := ledger.NewQueue()
			q.Set(ledger.QueuedImage{Image: v1alpha1.ImageKey{Namespace: "ns", Name: "a", UID: "a"}, Key: v1alpha1.OrderingKey{Time: metav1.NewTime(arrived)}, State: ledger.Admissible})
			q.SetClosed(tt.hasWindows, false, started)
			q.SetClosed(tt.hasWindows, false, started.Add(time.Hour))
			assert.Equal(t, tt.want, q.Stats().OldestArrival)
		})
	}
}
