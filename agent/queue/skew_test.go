package queue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestOrderUnderClockSkew has images created by API servers whose clocks differ
// by up to a day and jump, and agents that come and go. What arrived while an
// agent ran is in the order of its arrival, whoever leads now; what came
// meanwhile is by creation time.
//
// No end-to-end test can show this: a creation time is the API server's own, and
// one machine has one clock.
func TestOrderUnderClockSkew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := queue.NewIndex()
		var (
			stored  = map[string]v1alpha1.OrderingKey{} // as in the status of the images
			arrived []string                            // while an agent ran
			fast    = rapid.SliceOfN(rapid.IntRange(-86400, 86400), 3, 3).Draw(t, "how fast the API servers' clocks are")
		)
		arrive := func(name string, k v1alpha1.OrderingKey) {
			stored[name] = k
			x.Set(queue.Item{Image: key(name), Revision: "r1", Key: k, Standing: queue.Ready, Since: now})
		}
		for i := range rapid.IntRange(2, 40).Draw(t, "events") {
			created := at(i + rapid.SampledFrom(fast).Draw(t, "clock"))
			switch rapid.SampledFrom([]string{"arrival", "arrival", "arrival", "return", "restart"}).Draw(t, "event") {
			case "arrival":
				name := fmt.Sprintf("running-%d", i)
				arrive(name, x.NewKey(created))
				arrived = append(arrived, name)
			case "return": // of one that had left the queue: to its end
				if len(arrived) == 0 {
					continue
				}
				name := rapid.SampledFrom(arrived).Draw(t, "who returns")
				arrive(name, x.NewKey(metav1.Time{}))
				arrived = append(slices.DeleteFunc(arrived, func(n string) bool { return n == name }), name)
			case "restart":
				x = queue.NewIndex()
				for name, k := range stored {
					x.Saw(k)
					x.Set(queue.Item{Image: key(name), Revision: "r1", Key: k, Standing: queue.Ready, Since: now})
				}
				if rapid.Bool().Draw(t, "one came meanwhile") {
					arrive(fmt.Sprintf("meanwhile-%d", i), x.NewKeyByAge(created))
				}
			}
		}
		head, _ := x.Head(len(stored), now, nil)
		require.Len(t, head, len(stored))
		var order []string
		for _, item := range head {
			if slices.Contains(arrived, item.Image.Name) {
				order = append(order, item.Image.Name)
			}
		}
		require.Equal(t, arrived, order)
	})
}

// TestNextUnderClockSkew: no slot is given, kept or freed by what a clock says.
func TestNextUnderClockSkew(t *testing.T) {
	a, b := key("a"), key("b")
	slot := v1alpha1.Slot{Image: a, Revision: "r1", Attempt: 1, DataVolume: queue.DataVolumeName(a, 1), StartedAt: at(0)}
	for _, skew := range []time.Duration{0, -24 * time.Hour, 24 * time.Hour, -30 * 365 * 24 * time.Hour} {
		step := queue.Next(queue.View{
			Now: now.Add(skew), Budget: 2,
			Ledger:     &v1alpha1.SyncLedgerStatus{Budget: 2, Slots: []v1alpha1.Slot{slot}},
			Facts:      map[string]queue.Facts{queue.DataVolumeKey(slot): {DataVolume: true, Begun: true, Remains: true}},
			Candidates: []queue.Candidate{{Image: b, Revision: "r1", Attempt: 1}},
		})
		require.Empty(t, step.Released, "%s", skew)
		require.Len(t, step.Slots, 2, "%s", skew)
		require.Equal(t, b, step.Admitted[0].Image)
	}
}
