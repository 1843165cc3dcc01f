package prune

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newPruneReport is an image, with what became of its prune.
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
	r := newTestTracker()
	r.SetPage("a", "page", 1, []v1alpha1.ReportedImage{
		newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePending), {Namespace: "farm", Name: "debian"},
	})
	state := func(prune, image types.UID) v1alpha1.PruneState {
		told, found := r.Reported("a", prune, farmKey("ubuntu"), image)
		assert.Equal(t, found, told.State != "")
		return told.State
	}
	assert.Empty(t, state("prune-uid", "ubuntu"), "no root lists the page")
	r.SetRoot("a", newRoot("page"))
	assert.Equal(t, v1alpha1.PrunePending, state("prune-uid", "ubuntu"))
	assert.Empty(t, state("another", "ubuntu"), "of another prune")
	assert.Empty(t, state("prune-uid", "another"), "of another image of that name")
	assert.Len(t, r.members["a"].pages["page"].prunes, 1, "of the others nothing is kept")

	r.SetRoot("a", newRoot("page", "newer"))
	r.SetPage("a", "newer", 2, []v1alpha1.ReportedImage{newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePruned)})
	assert.Equal(t, v1alpha1.PrunePruned, state("prune-uid", "ubuntu"), "it has moved")
	r.DropPage("a", "newer")
	assert.Equal(t, v1alpha1.PrunePending, state("prune-uid", "ubuntu"))
	r.Forget("a")
	assert.Empty(t, state("prune-uid", "ubuntu"))
	_, found := r.Reported("nobody", "prune-uid", farmKey("ubuntu"), "ubuntu")
	assert.False(t, found)
}

// What members report all the time, as heartbeats and other images, is no reason to
// look at an ImagePrune.
func TestOnlyPruneChangesNotify(t *testing.T) {
	r := newTestTracker()
	r.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	r.startPrune(newStartedPrune("elsewhere", 2), "b", "ubuntu")
	pending := newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePending)
	until := metav1.NewTime(apitest.Epoch)
	pending.Prune.Until = &until
	told := func() map[string]int {
		is := map[string]int{}
		for name, n := range r.reportedChanges {
			is[name] = n
		}
		clear(r.reportedChanges)
		return is
	}
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"a root", func() { r.SetRoot("a", newRoot("page")) }, 0},
		{"a page without prunes", func() { r.SetPage("a", "other", 1, []v1alpha1.ReportedImage{{Namespace: "farm", Name: "debian"}}) }, 0},
		{"a prune is taken up", func() { r.SetPage("a", "page", 1, []v1alpha1.ReportedImage{pending}) }, 1},
		{"it is said again", func() { r.SetPage("a", "page", 2, []v1alpha1.ReportedImage{*pending.DeepCopy()}) }, 0},
		{"a heartbeat", func() { r.SetRoot("a", newRoot("page")) }, 0},
		{"the page is not listed any more", func() { r.SetRoot("a", newRoot()) }, 1},
		{"the root is gone", func() { r.SetRoot("a", nil) }, 0},
		{"it is listed again", func() { r.SetRoot("a", newRoot("page")) }, 1},
		{"it has ended", func() {
			r.SetPage("a", "page", 3, []v1alpha1.ReportedImage{newPruneReport("ubuntu", "prune-uid", v1alpha1.PrunePruned)})
		}, 1},
		{"a page without prunes is gone", func() { r.DropPage("a", "other") }, 0},
		{"the page is gone", func() { r.DropPage("a", "page") }, 1},
	} {
		step.do()
		want := map[string]int{}
		if step.want > 0 {
			want["prune"] = step.want
		}
		assert.Equal(t, want, told(), step.name)
	}
}
