package prunetracker

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newPruneReport returns an image with the state of its prune.
func newPruneReport(name string, prune types.UID, state v1alpha1.PruneState) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{Namespace: "farm", Name: name, UID: types.UID(name), Prune: &v1alpha1.ReportedPrune{
		PruneStatus: v1alpha1.PruneStatus{UID: prune, State: state}, ImageUID: types.UID(name),
	}}
}

func newRoot(pages ...string) *v1alpha1.ReportRoot {
	root := &v1alpha1.ReportRoot{}
	for _, name := range pages {
		root.Pages = append(root.Pages, v1alpha1.PageRef{Name: name})
	}
	return root
}

func TestReportedReadsListedPagesOnly(t *testing.T) {
	tracker := newTestTracker()
	tracker.SetPage("a", "page", 1, []v1alpha1.ReportedImage{
		newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePending), {Namespace: "farm", Name: "debian"},
	})
	state := func(prune, image types.UID) v1alpha1.PruneState {
		status, found := tracker.Reported("a", prune, farmKey("ubuntu"), image)
		assert.Equal(t, found, status.State != "")
		return status.State
	}
	assert.Empty(t, state("prune-uid", "ubuntu"), "no root lists the page")
	tracker.SetRoot("a", newRoot("page"))
	assert.Equal(t, v1alpha1.PrunePending, state("prune-uid", "ubuntu"))
	assert.Empty(t, state("another", "ubuntu"), "of another prune")
	assert.Empty(t, state("prune-uid", "another"), "of another image of that name")
	assert.Len(t, tracker.members["a"].pages["page"].prunes, 1, "other images are not kept")

	tracker.SetRoot("a", newRoot("page", "newer"))
	tracker.SetPage("a", "newer", 2, []v1alpha1.ReportedImage{newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePruned)})
	assert.Equal(t, v1alpha1.PrunePruned, state("prune-uid", "ubuntu"), "the newest page counts")
	tracker.DropPage("a", "newer")
	assert.Equal(t, v1alpha1.PrunePending, state("prune-uid", "ubuntu"))
	tracker.Forget("a")
	assert.Empty(t, state("prune-uid", "ubuntu"))
	_, found := tracker.Reported("nobody", "prune-uid", farmKey("ubuntu"), "ubuntu")
	assert.False(t, found)
}

// Heartbeats and changes of other images do not notify.
func TestOnlyPruneChangesNotify(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	tracker.startPrune(newStartedPrune("elsewhere", 2), "b", "ubuntu")
	pending := newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePending)
	until := metav1.NewTime(apitest.Epoch)
	pending.Prune.Until = &until
	changes := func() map[string]int {
		counts := maps.Clone(tracker.reportedChanges)
		clear(tracker.reportedChanges)
		return counts
	}
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"a root", func() { tracker.SetRoot("a", newRoot("page")) }, 0},
		{"a page without prunes", func() {
			tracker.SetPage("a", "other", 1, []v1alpha1.ReportedImage{{Namespace: "farm", Name: "debian"}})
		}, 0},
		{"a prune is taken up", func() { tracker.SetPage("a", "page", 1, []v1alpha1.ReportedImage{pending}) }, 1},
		{"it is said again", func() { tracker.SetPage("a", "page", 2, []v1alpha1.ReportedImage{*pending.DeepCopy()}) }, 0},
		{"a heartbeat", func() { tracker.SetRoot("a", newRoot("page")) }, 0},
		{"the page is no longer listed", func() { tracker.SetRoot("a", newRoot()) }, 1},
		{"the root is gone", func() { tracker.SetRoot("a", nil) }, 0},
		{"it is listed again", func() { tracker.SetRoot("a", newRoot("page")) }, 1},
		{"it has ended", func() {
			tracker.SetPage("a", "page", 3, []v1alpha1.ReportedImage{newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePruned)})
		}, 1},
		{"a page without prunes is gone", func() { tracker.DropPage("a", "other") }, 0},
		{"the page is gone", func() { tracker.DropPage("a", "page") }, 1},
	} {
		step.do()
		want := map[string]int{}
		if step.want > 0 {
			want["prune"] = step.want
		}
		assert.Equal(t, want, changes(), step.name)
	}
}

// A member that lists two pages of one sequence with the same image has one state of its prune,
// whatever the order in which pages are looked through.
func TestPagesOfOneSequence(t *testing.T) {
	tracker := newTestTracker()
	tracker.SetRoot("a", newRoot("b", "a", "c"))
	for name, state := range map[string]v1alpha1.PruneState{"a": v1alpha1.PrunePending, "b": v1alpha1.PrunePruned, "c": v1alpha1.PruneSkipped} {
		tracker.SetPage("a", name, 7, []v1alpha1.ReportedImage{newPruneReport("ubuntu", "prune-uid", state)})
	}
	for range 50 {
		status, _ := tracker.Reported("a", "prune-uid", farmKey("ubuntu"), "ubuntu")
		require.Equal(t, v1alpha1.PrunePending, status.State)
	}
}
