package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestDecidePassesOverFullSourceGroups: only candidates of a source group at its limit are
// passed over.
func TestDecidePassesOverFullSourceGroups(t *testing.T) {
	from := func(host string, c ledger.Candidate) ledger.Candidate { c.Host = host; return c }
	at := func(host string, s v1alpha1.Slot) v1alpha1.Slot { s.Host = host; return s }
	done := markEnded(at("a.x", newSlot("r", 1)))
	for name, tt := range map[string]struct {
		view ledger.View
		want []string
	}{
		"no limits": {ledger.View{Budget: 3, Candidates: []ledger.Candidate{from("a.x", newCandidate("i", 1)), from("a.y", newCandidate("j", 1))}}, []string{"i", "j"}},
		"a limit of one": {ledger.View{Budget: 3, SourceGroupLimits: map[string]int32{"a": 1}, Candidates: []ledger.Candidate{
			from("a.x", newCandidate("i", 1)), from("a.y", newCandidate("j", 1)), from("b.x", newCandidate("k", 1)), newCandidate("l", 1),
		}}, []string{"i", "k", "l"}},
		"a running import counts": {ledger.View{Budget: 3, SourceGroupLimits: map[string]int32{"a": 1}, Ledger: &v1alpha1.SyncLedgerStatus{Slots: slotList(at("a.z", newSlot("r", 1)))}, Candidates: []ledger.Candidate{
			from("a.x", newCandidate("i", 1)), newCandidate("l", 1),
		}}, []string{"l"}},
		"an unlisted import counts": {ledger.View{Budget: 3, SourceGroupLimits: map[string]int32{"a": 1}, Unlisted: []ledger.UnlistedDataVolume{{Slot: at("a.z", newSlot("r", 1))}}, Candidates: []ledger.Candidate{
			from("a.x", newCandidate("i", 1)), newCandidate("l", 1),
		}}, []string{"l"}},
		"an adopted import counts": {ledger.View{Budget: 3, SourceGroupLimits: map[string]int32{"a": 1}, Unlisted: []ledger.UnlistedDataVolume{{Slot: at("a.z", newSlot("r", 1)), Adoptable: true}}, Candidates: []ledger.Candidate{
			from("a.x", newCandidate("i", 1)), newCandidate("l", 1),
		}}, []string{"l"}},
		"a freed slot does not count": {ledger.View{Budget: 1, SourceGroupLimits: map[string]int32{"a": 1}, Ledger: &v1alpha1.SyncLedgerStatus{Slots: slotList(done)},
			Facts: map[string]ledger.SlotFacts{ledger.DataVolumeKey(done): clearedFacts}, Candidates: []ledger.Candidate{from("a.x", newCandidate("i", 1))}}, []string{"i"}},
		"below the limit, without a free slot": {ledger.View{Budget: 1, SourceGroupLimits: map[string]int32{"a": 2}, Candidates: []ledger.Candidate{from("a.x", newCandidate("i", 1)), from("a.y", newCandidate("j", 1))}}, []string{"i"}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.SourceGroupOf = groupByHostPrefix
			var got []string
			for _, s := range ledger.Decide(tt.view).Admitted {
				got = append(got, s.Image.Name)
				for _, c := range tt.view.Candidates {
					if c.Image.Name == s.Image.Name {
						assert.Equal(t, c.Host, s.Host, "the host of the candidate")
					}
				}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func groupedImage(name string, sequence int64, group string) ledger.QueuedImage {
	return modified(queuedImage(name, sequence, ledger.Admissible), func(i *ledger.QueuedImage) { i.Host = group + ".example.com" })
}

// groupByHostPrefix maps a host to the group that it begins with; z to none.
func groupByHostPrefix(host string) string {
	group, _, _ := strings.Cut(host, ".")
	return strings.TrimPrefix(group, "z")
}

func TestQueuePassesOverFullSourceGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		most map[string]int
		n    int
		want []string
	}{
		"no limits":                       {nil, 5, []string{"a1", "a2", "b1", "z1", "a3"}},
		"a limit of one":                  {map[string]int{"a": 1}, 5, []string{"a1", "b1", "z1"}},
		"limits of zero":                  {map[string]int{"a": 0, "b": 0}, 5, []string{"z1"}},
		"passed over images do not count": {map[string]int{"a": 1}, 2, []string{"a1", "b1"}},
		"the limit of another group":      {map[string]int{"c": 0}, 2, []string{"a1", "a2"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queueOf(groupedImage("a1", 1, "a"), groupedImage("a2", 2, "a"), groupedImage("b1", 3, "b"), groupedImage("z1", 4, "z"))
			q.SetSourceGroups(groupByHostPrefix)
			q.Set(groupedImage("a3", 5, "a"))
			head, _ := q.PeekHead(tt.n, now, tt.most, ledger.NamespaceShare{})
			var got []string
			for _, i := range head {
				got = append(got, i.Image.Name)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// TestPendingImageOfFullGroupBlocksNobody: an image that cannot be admitted does not block
// others.
func TestPendingImageOfFullGroupBlocksNobody(t *testing.T) {
	q := queueOf(modified(groupedImage("a1", 1, "a"), func(i *ledger.QueuedImage) { i.State = ledger.Pending }), groupedImage("b1", 2, "b"))
	q.SetSourceGroups(groupByHostPrefix)
	head, wait := q.PeekHead(5, now, map[string]int{"a": 0}, ledger.NamespaceShare{})
	assert.Len(t, head, 1)
	assert.Zero(t, wait)
}

func TestQueueListAdmissible(t *testing.T) {
	for name, tt := range map[string]struct {
		n    int
		room map[string]int32
		want []string
	}{
		"none":                       {0, nil, nil},
		"fewer than none":            {-1, nil, nil},
		"the first":                  {2, nil, []string{"a2", "a3"}},
		"with those that are passed": {2, map[string]int32{"a": 0}, []string{"a2", "a3", "b1", "a4", "b2"}},
		"those before the next":      {0, map[string]int32{"a": 0}, []string{"a2", "a3"}},
		"within the room":            {2, map[string]int32{"a": 1}, []string{"a2", "a3", "b1", "a4"}},
		"not behind the last":        {9, map[string]int32{"a": 0, "b": 1}, []string{"a2", "a3", "b1", "a4", "b2", "b3"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queueOf(groupedImage("a1", 1, "a"), groupedImage("a2", 2, "a"),
				modified(groupedImage("pending", 3, "b"), func(i *ledger.QueuedImage) { i.State = ledger.Pending }), modified(groupedImage("skipped", 4, "b"), func(i *ledger.QueuedImage) { i.State = ledger.Skipped }),
				groupedImage("a3", 5, "a"), groupedImage("b1", 6, "b"), groupedImage("a4", 7, "a"), groupedImage("b2", 8, "b"), groupedImage("b3", 9, "b"))
			q.SetSourceGroups(groupByHostPrefix)
			var got []string
			for _, i := range q.ListAdmissible(tt.n, map[types.UID]bool{imageKey("a1").UID: true}, tt.room) {
				got = append(got, i.Image.Name)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// A backlog of a full group is not copied whole at each step.
func TestQueueListsAdmissibleWithinBounds(t *testing.T) {
	q := queueOf()
	for i := range 1000 {
		q.Set(groupedImage(fmt.Sprintf("a%d", i), int64(i), "a"))
	}
	q.Set(groupedImage("b", 1001, "b"))
	q.SetSourceGroups(groupByHostPrefix)
	for _, room := range []map[string]int32{{"a": 0}, {"a": 0, "b": 0}} {
		got := q.ListAdmissible(1, nil, room)
		assert.Len(t, got, 257)
		assert.Equal(t, "b", got[256].Image.Name, "another group is not hidden")
	}
}

func TestQueueReportsChangedWithheldReasons(t *testing.T) {
	fleet, source := v1alpha1.ReasonWaitingForFleet, v1alpha1.ReasonWaitingForSource
	q := queueOf(queuedImage("a", 1, ledger.Admissible), queuedImage("b", 2, ledger.Admissible))
	a, b, gone := imageKey("a"), imageKey("b"), imageKey("gone")
	assert.ElementsMatch(t, []v1alpha1.ImageKey{a, b}, q.SetWithheldReasons(map[types.UID]v1alpha1.Reason{a.UID: fleet, b.UID: source, gone.UID: fleet}))
	assert.Equal(t, source, q.WithheldReason(b.UID))
	assert.Empty(t, q.SetWithheldReasons(map[types.UID]v1alpha1.Reason{a.UID: fleet, b.UID: source}), "no change")
	assert.Equal(t, []v1alpha1.ImageKey{b}, q.SetWithheldReasons(map[types.UID]v1alpha1.Reason{a.UID: fleet, b.UID: fleet}))
	assert.ElementsMatch(t, []v1alpha1.ImageKey{a, b}, q.SetWithheldReasons(nil))
	assert.Empty(t, q.WithheldReason(a.UID))
}

// TestQueueWithSourceGroupsIsFirstInFirstOut: the images of a group, and those of none, keep
// their order; only images of a group at its limit are passed over.
func TestQueueWithSourceGroupsIsFirstInFirstOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ledger.NewQueue()
		q.SetSourceGroups(groupByHostPrefix)
		for i := range rapid.IntRange(0, 12).Draw(t, "items") {
			q.Set(groupedImage(fmt.Sprint("i", i), rapid.Int64Range(1, 20).Draw(t, "sequence"), rapid.SampledFrom([]string{"a", "b", "z"}).Draw(t, "group")))
		}
		most := map[string]int{"a": rapid.IntRange(0, 3).Draw(t, "a"), "b": rapid.IntRange(0, 3).Draw(t, "b")}
		n := rapid.IntRange(0, 12).Draw(t, "n")
		all, _ := q.PeekHead(12, now, nil, ledger.NamespaceShare{})
		got, _ := q.PeekHead(n, now, most, ledger.NamespaceShare{})
		var want []ledger.QueuedImage
		taken := map[string]int{}
		for _, i := range all {
			room, limited := most[i.SourceGroup]
			if len(want) < n && (!limited || taken[i.SourceGroup] < room) {
				taken[i.SourceGroup]++
				want = append(want, i)
			}
		}
		require.Equal(t, want, got)
	})
}
