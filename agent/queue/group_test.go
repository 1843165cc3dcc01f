package queue_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

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

func groupItem(name string, sequence int64, group string) queue.Item {
	return with(item(name, sequence, queue.Ready), func(i *queue.Item) { i.Host = group + ".example.com" })
}

// byHost has hosts belong to the group that they begin with, but for z.
func byHost(host string) string {
	group, _, _ := strings.Cut(host, ".")
	return strings.TrimPrefix(group, "z")
}

func TestIndexPassesGroupsWithoutRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		most map[string]int
		n    int
		want []string
	}{
		"no limits":                {nil, 5, []string{"a1", "a2", "b1", "z1", "a3"}},
		"one of a group":           {map[string]int{"a": 1}, 5, []string{"a1", "b1", "z1"}},
		"none":                     {map[string]int{"a": 0, "b": 0}, 5, []string{"z1"}},
		"what is passed is beside": {map[string]int{"a": 1}, 2, []string{"a1", "b1"}},
		"another group's":          {map[string]int{"c": 0}, 2, []string{"a1", "a2"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := indexOf(groupItem("a1", 1, "a"), groupItem("a2", 2, "a"), groupItem("b1", 3, "b"), groupItem("z1", 4, "z"))
			x.SetGroups(byHost)
			x.Set(groupItem("a3", 5, "a"))
			head, _ := x.Head(tt.n, now, tt.most)
			var got []string
			for _, i := range head {
				got = append(got, i.Image.Name)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// TestIndexPendingOfAGroupWithoutRoom: who cannot go holds up nobody.
func TestIndexPendingOfAGroupWithoutRoom(t *testing.T) {
	x := indexOf(with(groupItem("a1", 1, "a"), func(i *queue.Item) { i.Standing = queue.Pending }), groupItem("b1", 2, "b"))
	x.SetGroups(byHost)
	head, wait := x.Head(5, now, map[string]int{"a": 0})
	assert.Len(t, head, 1)
	assert.Zero(t, wait)
}

func TestIndexFront(t *testing.T) {
	x := indexOf(item("a", 1, queue.Ready), item("b", 2, queue.Pending), item("c", 3, queue.Skipped), item("d", 4, queue.Ready), item("e", 5, queue.Ready))
	var got []string
	for _, i := range x.Front(2, map[types.UID]bool{key("a").UID: true}) {
		got = append(got, i.Image.Name)
	}
	assert.Equal(t, []string{"d", "e"}, got)
	assert.Empty(t, x.Front(0, nil))
	assert.Empty(t, x.Front(-1, nil))
}

func TestIndexWithheld(t *testing.T) {
	fleet, source := v1alpha1.ReasonWaitingForFleet, v1alpha1.ReasonWaitingForSource
	x := indexOf(item("a", 1, queue.Ready), item("b", 2, queue.Ready))
	a, b, gone := key("a"), key("b"), key("gone")
	assert.ElementsMatch(t, []v1alpha1.ImageKey{a, b}, x.Withhold(map[types.UID]v1alpha1.Reason{a.UID: fleet, b.UID: source, gone.UID: fleet}))
	assert.Equal(t, source, x.Withheld(b.UID))
	assert.Empty(t, x.Withhold(map[types.UID]v1alpha1.Reason{a.UID: fleet, b.UID: source}), "nothing new")
	assert.Equal(t, []v1alpha1.ImageKey{b}, x.Withhold(map[types.UID]v1alpha1.Reason{a.UID: fleet, b.UID: fleet}))
	assert.ElementsMatch(t, []v1alpha1.ImageKey{a, b}, x.Withhold(nil))
	assert.Empty(t, x.Withheld(a.UID))
}

// TestIndexWithGroupsIsFirstInFirstOut: with groups, those of one group, and those of
// none, go in the order in which they go without; none is passed that has room.
func TestIndexWithGroupsIsFirstInFirstOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := queue.NewIndex()
		x.SetGroups(byHost)
		for i := range rapid.IntRange(0, 12).Draw(t, "items") {
			x.Set(groupItem(fmt.Sprint("i", i), rapid.Int64Range(1, 20).Draw(t, "sequence"), rapid.SampledFrom([]string{"a", "b", "z"}).Draw(t, "group")))
		}
		most := map[string]int{"a": rapid.IntRange(0, 3).Draw(t, "a"), "b": rapid.IntRange(0, 3).Draw(t, "b")}
		n := rapid.IntRange(0, 12).Draw(t, "n")
		all, _ := x.Head(12, now, nil)
		got, _ := x.Head(n, now, most)
		var want []queue.Item
		taken := map[string]int{}
		for _, i := range all {
			room, limited := most[i.Group]
			if len(want) < n && (!limited || taken[i.Group] < room) {
				taken[i.Group]++
				want = append(want, i)
			}
		}
		require.Equal(t, want, got)
	})
}
