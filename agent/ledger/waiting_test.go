package ledger_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestListWaitingAgreesWithPeekHead: what is shown as next is what is admitted next, whatever
// shares and priorities there are.
func TestListWaitingAgreesWithPeekHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ledger.NewQueue()
		q.SetMaxPriority(rapid.Int32Range(0, 2).Draw(t, "max priority"))
		namespaces := rapid.SampledFrom([]string{"a", "b", "c"})
		var slots []v1alpha1.Slot
		for i := range rapid.IntRange(0, 4).Draw(t, "slots") {
			slots = append(slots, slotIn(fmt.Sprint(namespaces.Draw(t, "slot"), "s", i)))
		}
		images := rapid.IntRange(0, 12).Draw(t, "images")
		for i := range images {
			image := imageIn(fmt.Sprint(namespaces.Draw(t, "image"), i), int64(i))
			image.Priority = rapid.Int32Range(-1, 3).Draw(t, "priority")
			q.Set(image)
		}
		share := ledger.NewNamespaceShare(rapid.Int32Range(0, 3).Draw(t, "share"), slots, nil)
		n := rapid.IntRange(0, 12).Draw(t, "n")
		head, _ := q.PeekHead(n, now, nil, share)
		first, waiting := q.ListWaiting(n, share)
		require.Equal(t, namesOf(head, queuedKey), namesOf(first, queuedKey))
		require.Equal(t, images, waiting)
	})
}

func TestListWaitingShowsWhatIsSkippedAtItsPlace(t *testing.T) {
	q := queueOf(
		queuedImage("ready", 3, ledger.Admissible), queuedImage("backs-off", 2, ledger.Skipped),
		queuedImage("checked", 1, ledger.Pending), queuedImage("holds-a-slot", 0, ledger.Admissible),
		queuedImage("last", 4, ledger.Skipped), queuedImage("not-queued", 5, ledger.NotQueued),
	)
	share := ledger.NewNamespaceShare(0, slotList(newSlot("holds-a-slot", 1)), nil)
	first, waiting := q.ListWaiting(3, share)
	assert.Equal(t, []string{"checked", "backs-off", "ready"}, namesOf(first, queuedKey))
	assert.Equal(t, 4, waiting)
}
