package top_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/top"
)

func in(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(d))) }

// newListedSnapshot is what the read API says of the clusters of newSnapshot.
func newListedSnapshot() top.Snapshot {
	running := []readapi.Transfer{
		{Cluster: "bergen", Namespace: "vmdi-farm", Name: "win-11", Source: "eu-bucket", BytesDone: ptr.To[int64](17 * gib), Bytes: ptr.To[int64](60 * gib), BytesPerSecond: ptr.To[int64](58 << 20), Attempt: 1, MaxAttempts: 4, Expected: &readapi.Estimate{At: in(13 * time.Minute)}},
		{Cluster: "bergen", Namespace: "vmdi-farm", Name: "fedora-42", Source: "other", BytesDone: ptr.To[int64](gib), Bytes: ptr.To[int64](12 * gib), AtMost: true, BytesPerSecond: ptr.To[int64](1 << 20), Slow: true, Attempt: 3, MaxAttempts: 4, Expected: &readapi.Estimate{Reason: "TooFewSamples"}},
		{Cluster: "frankfurt", Namespace: "vmdi-farm", Name: "ubuntu-2.1.0", Source: "eu-bucket", Attempt: 1, MaxAttempts: 4},
	}
	queued := []readapi.Transfer{{Cluster: "bergen", Namespace: "vmdi-farm", Name: "debian-13", Source: "eu-bucket", QueuedAt: in(-14 * time.Minute), Position: 1}}
	listed := top.ByCluster(append(running, running[0]))
	return top.Snapshot{Now: now, Unread: "From the hub's read API, since you may not list ClusterReports: how much was transferred is not known", Clusters: []top.ClusterActivity{
		{Name: "bergen", Listed: &top.Listed{Running: listed["bergen"], Queued: top.ByCluster(queued)["bergen"], Slots: 2, Budget: 2, Waiting: 2}, Granted: ptr.To[int32](3), Failed: ptr.To[int32](0)},
		{Name: "frankfurt", Listed: &top.Listed{Running: listed["frankfurt"], Slots: 1, Budget: 1}, Failed: ptr.To[int32](1)},
		{Name: "edge-3", Unknown: v1alpha1.ReasonSilent},
	}}
}

func TestScreensOfTheReadAPI(t *testing.T) {
	for _, subject := range top.Subjects {
		rendertest.Golden(t, "listed-"+string(subject), now, top.New(newListedSnapshot(), subject, "", ""))
	}
}

func TestNextFreeSlotOfTheReadAPI(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*top.Listed)
		want   *metav1.Time
	}{
		"all are taken":      {want: in(13 * time.Minute)},
		"one is free":        {change: func(l *top.Listed) { l.Budget = 3 }, want: in(0)},
		"none may be taken":  {change: func(l *top.Listed) { l.Budget = 0 }},
		"no end is expected": {change: func(l *top.Listed) { l.Running = l.Running[1:] }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newListedSnapshot()
			s.Clusters = s.Clusters[:1]
			if test.change != nil {
				test.change(s.Clusters[0].Listed)
			}
			assert.Equal(t, test.want, top.New(s, top.Imports, "", "").Totals.NextFreeAt)
		})
	}
}
