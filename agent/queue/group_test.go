package queue_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestNextWithGroups: a candidate whose group of sources has no room is passed, and
// nobody else.
func TestNextWithGroups(t *testing.T) {
	from := func(host string, c queue.Candidate) queue.Candidate { c.Host = host; return c }
	at := func(host string, s v1alpha1.Slot) v1alpha1.Slot { s.Host = host; return s }
	done := ended(at("a.x", slot("r", 1)))
	for name, tt := range map[string]struct {
		view queue.View
		want []string
	}{
		"no limits": {queue.View{Budget: 3, Candidates: []queue.Candidate{from("a.x", candidate("i", 1)), from("a.y", candidate("j", 1))}}, []string{"i", "j"}},
		"room for one": {queue.View{Budget: 3, Rooms: map[string]int32{"a": 1}, Candidates: []queue.Candidate{
			from("a.x", candidate("i", 1)), from("a.y", candidate("j", 1)), from("b.x", candidate("k", 1)), candidate("l", 1),
		}}, []string{"i", "k", "l"}},
		"which one has that runs": {queue.View{Budget: 3, Rooms: map[string]int32{"a": 1}, Ledger: &v1alpha1.SyncLedgerStatus{Slots: slots(at("a.z", slot("r", 1)))}, Candidates: []queue.Candidate{
			from("a.x", candidate("i", 1)), candidate("l", 1),
		}}, []string{"l"}},
		"or runs in no slot": {queue.View{Budget: 3, Rooms: map[string]int32{"a": 1}, Unlisted: []queue.Unlisted{{Slot: at("a.z", slot("r", 1))}}, Candidates: []queue.Candidate{
			from("a.x", candidate("i", 1)), candidate("l", 1),
		}}, []string{"l"}},
		"or is listed again": {queue.View{Budget: 3, Rooms: map[string]int32{"a": 1}, Unlisted: []queue.Unlisted{{Slot: at("a.z", slot("r", 1)), Wanted: true}}, Candidates: []queue.Candidate{
			from("a.x", candidate("i", 1)), candidate("l", 1),
		}}, []string{"l"}},
		"what is freed makes room": {queue.View{Budget: 1, Rooms: map[string]int32{"a": 1}, Ledger: &v1alpha1.SyncLedgerStatus{Slots: slots(done)},
			Facts: map[string]queue.Facts{queue.DataVolumeKey(done): factCleared}, Candidates: []queue.Candidate{from("a.x", candidate("i", 1))}}, []string{"i"}},
		"room, and no slot": {queue.View{Budget: 1, Rooms: map[string]int32{"a": 2}, Candidates: []queue.Candidate{from("a.x", candidate("i", 1)), from("a.y", candidate("j", 1))}}, []string{"i"}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.GroupOf = byHost
			var got []string
			for _, s := range queue.Next(tt.view).Admitted {
				got = append(got, s.Image.Name)
				for _, c := range tt.view.Candidates {
					if c.Image.Name == s.Image.Name {
						assert.Equal(t, c.Host, s.Host, "it is counted by it")
					}
				}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
