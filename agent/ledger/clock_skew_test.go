package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestOrderUnderClockSkew creates images by API servers whose clocks differ by up to a day,
// and restarts agents. Images that arrive while an agent runs are ordered by arrival;
// those that arrive without an agent by creation time.
//
// No end-to-end test can show this: a creation time is set by the API server, and one
// machine has one clock.
func TestOrderUnderClockSkew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ledger.NewQueue()
		var (
			stored  = map[string]v1alpha1.OrderingKey{} // in the status of the images
			arrived []string                            // while an agent ran
			skews   = rapid.SliceOfN(rapid.IntRange(-86400, 86400), 3, 3).Draw(t, "skew of the API servers' clocks")
		)
		arrive := func(name string, k v1alpha1.OrderingKey) {
			stored[name] = k
			q.Set(ledger.QueuedImage{Image: imageKey(name), Revision: "r1", Key: k, State: ledger.Admissible, Since: now})
		}
		for i := range rapid.IntRange(2, 40).Draw(t, "events") {
			created := secondsAfterNow(i + rapid.SampledFrom(skews).Draw(t, "clock"))
			switch rapid.SampledFrom([]string{"arrival", "arrival", "arrival", "return", "restart"}).Draw(t, "event") {
			case "arrival":
				name := fmt.Sprintf("running-%d", i)
				arrive(name, q.NewKeyOnArrival(created, 0))
				arrived = append(arrived, name)
			case "return": // of an image that had left the queue
				if len(arrived) == 0 {
					continue
				}
				name := rapid.SampledFrom(arrived).Draw(t, "image that returns")
				arrive(name, q.NewKeyAtEnd())
				arrived = append(slices.DeleteFunc(arrived, func(n string) bool { return n == name }), name)
			case "restart":
				q = ledger.NewQueue()
				for name, k := range stored {
					q.ObserveKey(k)
					q.Set(ledger.QueuedImage{Image: imageKey(name), Revision: "r1", Key: k, State: ledger.Admissible, Since: now})
				}
				if rapid.Bool().Draw(t, "one arrived without an agent") {
					arrive(fmt.Sprintf("meanwhile-%d", i), q.NewKeyByCreation(created, 0))
				}
			}
		}
		head, _ := q.PeekHead(len(stored), now, nil, ledger.NamespaceShare{})
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

// TestDecideIgnoresClockSkew: no decision depends on a clock.
func TestDecideIgnoresClockSkew(t *testing.T) {
	a, b := imageKey("a"), imageKey("b")
	slot := v1alpha1.Slot{Image: a, Revision: "r1", Attempt: 1, DataVolume: ledger.DataVolumeName(a, 1), StartedAt: secondsAfterNow(0)}
	for _, skew := range []time.Duration{0, -24 * time.Hour, 24 * time.Hour, -30 * 365 * 24 * time.Hour} {
		step := ledger.Decide(ledger.View{
			Now: now.Add(skew), Budget: 2,
			Ledger:     &v1alpha1.SyncLedgerStatus{Budget: 2, Slots: []v1alpha1.Slot{slot}},
			Facts:      map[string]ledger.SlotFacts{ledger.DataVolumeKey(slot): {DataVolumeExists: true, Started: true, ObjectsRemain: true}},
			Candidates: []ledger.Candidate{{Image: b, Revision: "r1", Attempt: 1}},
		})
		require.Empty(t, step.Freed, "%s", skew)
		require.Len(t, step.Slots, 2, "%s", skew)
		require.Equal(t, b, step.Admitted[0].Image)
	}
}
