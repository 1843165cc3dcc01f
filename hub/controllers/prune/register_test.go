package prune

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// testTracker is one that knows what is asked, with what it has asked for.
type testTracker struct {
	*Tracker
	replanned, reportedChanges map[string]int
}

func newTestTracker(awaited ...Object) *testTracker {
	r := &testTracker{Tracker: NewTracker(), replanned: map[string]int{}, reportedChanges: map[string]int{}}
	r.OnRequestsChange(func(member string) { r.replanned[member]++ })
	r.OnReportedChange(func(prune string) { r.reportedChanges[prune]++ })
	r.ExpectStored(awaited)
	return r
}

// newStartedReport is a PruneReport that was begun so many seconds after the epoch.
func newStartedReport(name string, second int) *v1alpha1.PruneReport {
	at := metav1.NewTime(apitest.Epoch.Add(time.Duration(second) * time.Second))
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")},
		Status:     v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportCollecting, StartedAt: &at},
	}
}

// newStartedPrune is an ImagePrune that has run since so many seconds after the epoch.
func newStartedPrune(name string, second int) *v1alpha1.ImagePrune {
	at := metav1.NewTime(apitest.Epoch.Add(time.Duration(second) * time.Second))
	return &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid"), CreationTimestamp: at},
		Status:     v1alpha1.ImagePruneStatus{Phase: v1alpha1.ImagePruneRunning, StartedAt: &at},
	}
}

// startPrune has an ImagePrune ask a member for images.
func (r *testTracker) startPrune(prune *v1alpha1.ImagePrune, member string, images ...string) {
	r.SetPrune(prune, []string{member}, map[string][]v1alpha1.PlannedPrune{member: newPlannedPrunes(prune.UID, images...)})
}

func newPlannedPrunes(prune types.UID, images ...string) (list []v1alpha1.PlannedPrune) {
	for _, name := range images {
		list = append(list, v1alpha1.PlannedPrune{Namespace: "farm", Name: name, ImageUID: types.UID(name), UID: prune})
	}
	return list
}

// plannedImages is what a member is asked: reports, then prunes as image of prune.
func (r *testTracker) plannedImages(t testing.TB, member string) (all []string) {
	t.Helper()
	inquiries, prunes, known := r.ForMember(member)
	require.True(t, known)
	for _, uid := range inquiries {
		all = append(all, string(uid))
	}
	for _, p := range prunes {
		all = append(all, p.Name+" of "+string(p.UID))
	}
	return all
}

func farmKey(name string) imageKey { return imageKey{Namespace: "farm", Name: name} }

func TestTrackerIsReadyOnceAllObjectsAreSeen(t *testing.T) {
	r := newTestTracker()
	r.Tracker = NewTracker()
	r.OnRequestsChange(func(member string) { r.replanned[member]++ })
	r.SetRoot("a", &v1alpha1.ReportRoot{})
	r.AddReport(newStartedReport("report", 0), []string{"a"})
	r.startPrune(newStartedPrune("prune", 0), "a", "ubuntu")
	knows := func() bool {
		_, _, known := r.ForMember("a")
		return known
	}
	assert.False(t, knows(), "what was stored at the start is not known")
	r.MarkSeen(Object{KindReport, "report"}) // before it was asked for: an older state may have been looked at

	r.ExpectStored([]Object{{KindReport, "report"}, {KindPrune, "prune"}, {KindPrune, "report"}})
	assert.False(t, knows())
	r.MarkSeen(Object{KindReport, "report"})
	r.MarkSeen(Object{KindPrune, "prune"})
	assert.False(t, knows(), "an ImagePrune of a report's name is another object")
	clear(r.replanned)
	r.MarkSeen(Object{KindPrune, "report"})
	assert.Equal(t, []string{"report-uid", "ubuntu of prune-uid"}, r.plannedImages(t, "a"))
	assert.Equal(t, map[string]int{"a": 1}, r.replanned, "plans have waited for it")

	r.MarkSeen(Object{KindPrune, "report"})
	assert.Equal(t, map[string]int{"a": 1}, r.replanned)
}

func TestReportsAreRequestedFromTheirMembers(t *testing.T) {
	r := newTestTracker()
	r.AddReport(newStartedReport("later", 2), []string{"a", "b"})
	r.AddReport(newStartedReport("first", 1), []string{"a"})
	assert.Equal(t, []string{"first-uid", "later-uid"}, r.plannedImages(t, "a"))
	assert.Equal(t, []string{"later-uid"}, r.plannedImages(t, "b"))
	assert.Equal(t, []string{"first", "later"}, r.ActiveReports())

	clear(r.replanned)
	r.AddReport(newStartedReport("later", 2), []string{"b", "c"})
	assert.Equal(t, map[string]int{"a": 1, "c": 1}, r.replanned, "those of which it changed")
	assert.Equal(t, []string{"first-uid"}, r.plannedImages(t, "a"))

	another := newStartedReport("later", 3)
	another.UID = "another"
	clear(r.replanned)
	r.AddReport(another, []string{"b", "c"})
	assert.Equal(t, []string{"b", "c"}, slices.Sorted(maps.Keys(r.replanned)), "it is another report of that name")
	assert.Equal(t, []string{"another"}, r.plannedImages(t, "b"))

	clear(r.replanned)
	r.RemoveReport("later")
	assert.Equal(t, map[string]int{"b": 1, "c": 1}, r.replanned)
	assert.Empty(t, r.plannedImages(t, "b"))
	r.RemoveReport("later")
	assert.Equal(t, map[string]int{"b": 1, "c": 1}, r.replanned)
}

// Which of them fit into a plan depends on those that it carries already.
func TestReportsBeyondPlanLimitAreReturned(t *testing.T) {
	r := newTestTracker()
	var want []string
	for i := range v1alpha1.MaxInquiries + 2 {
		report := newStartedReport(fmt.Sprintf("report-%02d", i), i)
		r.AddReport(report, []string{"a"})
		want = append(want, string(report.UID))
	}
	assert.Equal(t, want, r.plannedImages(t, "a"))
}

func TestImageBelongsToOnePrune(t *testing.T) {
	r := newTestTracker()
	r.startPrune(newStartedPrune("second", 2), "a", "ubuntu", "debian")
	r.startPrune(newStartedPrune("first", 1), "a", "ubuntu", "fedora")
	assert.Equal(t, []string{"debian of second-uid", "fedora of first-uid", "ubuntu of first-uid"}, r.plannedImages(t, "a"))
	assert.Equal(t, v1alpha1.PruneAnotherPrune, r.HeldReason("second-uid", "a", farmKey("ubuntu"), "ubuntu"))
	assert.Empty(t, r.HeldReason("second-uid", "a", farmKey("debian"), "debian"))
	assert.Empty(t, r.HeldReason("first-uid", "a", farmKey("ubuntu"), "ubuntu"))
	assert.Empty(t, r.HeldReason("unknown", "a", farmKey("ubuntu"), "ubuntu"), "of one that does not run nothing is said")
	assert.Empty(t, r.HeldReason("first-uid", "b", farmKey("ubuntu"), "ubuntu"))

	clear(r.replanned)
	clear(r.reportedChanges)
	r.RemovePrune("first")
	assert.Equal(t, []string{"debian of second-uid"}, r.plannedImages(t, "a"), "the second may have been undone meanwhile")
	assert.Equal(t, map[string]int{"a": 1}, r.replanned)
	assert.Equal(t, map[string]int{"second": 1}, r.reportedChanges, "its turn has come: it is looked at")
	r.startPrune(newStartedPrune("third", 3), "a", "ubuntu")
	assert.Equal(t, []string{"debian of second-uid"}, r.plannedImages(t, "a"), "its place is kept")
	assert.Equal(t, v1alpha1.PruneAnotherPrune, r.HeldReason("third-uid", "a", farmKey("ubuntu"), "ubuntu"))
	r.startPrune(newStartedPrune("second", 2), "a", "ubuntu", "debian")
	assert.Equal(t, []string{"debian of second-uid", "ubuntu of second-uid"}, r.plannedImages(t, "a"))
	assert.Equal(t, map[string]int{"a": 2}, r.replanned)
	r.RemovePrune("first")
	assert.Equal(t, map[string]int{"a": 2}, r.replanned)
}

func TestUnchangedPruneIsNotReplanned(t *testing.T) {
	r := newTestTracker()
	assert.False(t, r.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"a"}), "it was not asked for")
	r.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	clear(r.replanned)
	assert.True(t, r.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"a"}))
	assert.Empty(t, r.replanned)
	assert.Equal(t, []string{"ubuntu of prune-uid"}, r.plannedImages(t, "a"))

	assert.False(t, r.ConfirmUnchanged(newStartedPrune("prune", 2), []string{"a"}), "began at another time")
	assert.False(t, r.ConfirmUnchanged(newStartedPrune("prune", 1), nil), "the member is another cluster")
	assert.False(t, r.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"a", "b"}), "another member is its cluster again")
	assert.False(t, r.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"b"}))
	undone := newStartedPrune("prune", 1)
	undone.Generation++
	assert.False(t, r.ConfirmUnchanged(undone, []string{"a"}), "it is undone")
	another := newStartedPrune("prune", 1)
	another.UID = "another"
	assert.False(t, r.ConfirmUnchanged(another, []string{"a"}), "another of that name")
}

// Its agent may be off for long meanwhile.
func TestReservedPlaceIsRequestedByNextReconcile(t *testing.T) {
	r := newTestTracker()
	r.startPrune(newStartedPrune("first", 1), "a", "ubuntu")
	r.startPrune(newStartedPrune("second", 2), "a", "ubuntu")
	r.RemovePrune("first")
	assert.Empty(t, r.plannedImages(t, "a"), "the second may have been undone meanwhile")
	r.Forget("a")
	clear(r.replanned)
	assert.True(t, r.ConfirmUnchanged(newStartedPrune("second", 2), []string{"a"}))
	assert.Equal(t, []string{"ubuntu of second-uid"}, r.plannedImages(t, "a"))
	assert.Equal(t, map[string]int{"a": 1}, r.replanned)
}

func TestReplacedImageIsHeldByOlderPrune(t *testing.T) {
	r := newTestTracker()
	r.startPrune(newStartedPrune("first", 1), "a", "ubuntu")
	assert.Equal(t, v1alpha1.PruneAnotherPrune, r.HeldReason("first-uid", "a", farmKey("ubuntu"), "another"))
}

func TestPlanLimitHoldsBackPrunes(t *testing.T) {
	r := newTestTracker()
	many := func(prefix string, n int) (names []string) {
		for i := range n {
			names = append(names, prefix+strconv.Itoa(i))
		}
		return names
	}
	r.startPrune(newStartedPrune("first", 1), "a", many("x", v1alpha1.MaxPlannedPrunes-1)...)
	r.startPrune(newStartedPrune("second", 2), "a", "y0", "y1")
	assert.Len(t, r.plannedImages(t, "a"), v1alpha1.MaxPlannedPrunes)
	assert.Empty(t, r.HeldReason("second-uid", "a", farmKey("y0"), "y0"))
	assert.Equal(t, v1alpha1.ReasonPlanFull, r.HeldReason("second-uid", "a", farmKey("y1"), "y1"))
	clear(r.reportedChanges)
	r.RemovePrune("first")
	assert.Equal(t, map[string]int{"second": 1}, r.reportedChanges, "it is looked at before more of it is asked")
	r.startPrune(newStartedPrune("second", 2), "a", "y0", "y1")
	assert.Equal(t, []string{"y0 of second-uid", "y1 of second-uid"}, r.plannedImages(t, "a"))
}

func TestUndoIsPlannedAtOnce(t *testing.T) {
	r := newTestTracker()
	r.startPrune(newStartedPrune("first", 1), "a", "ubuntu")
	undone := newPlannedPrunes("first-uid", "ubuntu")
	undone[0].Undo = true
	clear(r.replanned)
	r.SetPrune(newStartedPrune("first", 1), []string{"a"}, map[string][]v1alpha1.PlannedPrune{"a": undone})
	_, prunes, _ := r.ForMember("a")
	assert.Equal(t, undone, prunes)
	assert.Equal(t, map[string]int{"a": 1}, r.replanned)
	r.SetPrune(newStartedPrune("first", 1), []string{"a"}, map[string][]v1alpha1.PlannedPrune{"a": undone})
	assert.Equal(t, map[string]int{"a": 1}, r.replanned, "nothing has changed")
}

func TestRequestsSurviveForgottenMember(t *testing.T) {
	r := newTestTracker()
	r.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	r.SetRoot("a", &v1alpha1.ReportRoot{})
	r.Forget("a")
	assert.Equal(t, []string{"ubuntu of prune-uid"}, r.plannedImages(t, "a"))
	r.RemovePrune("prune")
	r.Forget("a")
	assert.Empty(t, r.members)
	r.Forget("a")
}

// What a plan has of an ImagePrune that runs is not taken out of it before that has
// ended, whatever begins and ends beside it: it would be undone.
func TestActivePruneIsNeverDisplaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newTestTracker()
		now := apitest.Epoch
		running := map[string]*v1alpha1.ImagePrune{}
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{3}`), 1, 12, rapid.ID[string]).Draw(t, "names")
		images := numberedNames(v1alpha1.MaxPlannedPrunes + 200)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "milliseconds")) * time.Millisecond)
			_, before, _ := r.ForMember("a")
			name := rapid.SampledFrom(names).Draw(t, "name")
			ended, looked := types.UID(""), types.UID("")
			switch p := running[name]; {
			case p == nil:
				if r.StartDelay(now) > 0 {
					continue
				}
				p = newStartedPrune(name, 0)
				at := metav1.NewTime(now.Truncate(time.Second))
				p.Status.StartedAt = &at
				p.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "age")) * time.Second))
				running[name] = p
				from := rapid.IntRange(0, len(images)-1).Draw(t, "from")
				looked = p.UID
				r.startPrune(p, "a", images[from:min(len(images), from+v1alpha1.MaxPlannedPrunes)]...)
			case rapid.Bool().Draw(t, "ends"):
				ended = p.UID
				delete(running, name)
				r.RemovePrune(name)
			default: // it is looked at again
				looked = p.UID
				if !r.ConfirmUnchanged(p, []string{"a"}) {
					t.Fatalf("%s is not as it was", name)
				}
				for k, by := range r.members["a"].holders {
					if by.prune == p.UID && !slices.ContainsFunc(r.members["a"].allotted, func(x v1alpha1.PlannedPrune) bool { return imageKeyOf(&x) == k }) {
						t.Fatalf("%s has its place kept, and is not asked for", k)
					}
				}
			}
			_, after, known := r.ForMember("a")
			require.True(t, known)
			require.LessOrEqual(t, len(after), v1alpha1.MaxPlannedPrunes)
			stays, was := toSet(after), toSet(before)
			for _, p := range before {
				if p.UID != ended && !stays[p] {
					t.Fatalf("%s of %s was taken back", p.Name, p.UID)
				}
			}
			for _, p := range after {
				if p.UID != looked && !was[p] {
					t.Fatalf("%s of %s is asked for, and what is stored of it was not looked at", p.Name, p.UID)
				}
			}
		}
	})
}

func toSet(list []v1alpha1.PlannedPrune) map[v1alpha1.PlannedPrune]bool {
	set := make(map[v1alpha1.PlannedPrune]bool, len(list))
	for _, p := range list {
		set[p] = true
	}
	return set
}

func numberedNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("image-%04d", i)
	}
	return all
}

func TestStartDelayKeepsPrunesApart(t *testing.T) {
	r := newTestTracker()
	assert.Zero(t, r.StartDelay(apitest.Epoch))
	r.startPrune(newStartedPrune("first", 0), "a", "ubuntu")
	assert.Equal(t, 600*time.Millisecond, r.StartDelay(apitest.Epoch.Add(400*time.Millisecond)))
	assert.Zero(t, r.StartDelay(apitest.Epoch.Add(time.Second)))
	assert.Equal(t, 11*time.Second, r.StartDelay(apitest.Epoch.Add(-10*time.Second)), "the clock of a hub before was ahead")
	assert.Zero(t, r.StartDelay(apitest.Epoch.Add(-time.Hour)), "that one was wrong")
}

func TestTrackerIsSafeForConcurrentUse(t *testing.T) {
	r := NewTracker()
	r.OnRequestsChange(func(string) {})
	r.OnReportedChange(func(string) {})
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := range 50 {
				member, prune := strconv.Itoa(i%3), strconv.Itoa((worker+i)%4)
				p := newStartedPrune(prune, i)
				r.SetPrune(p, []string{member}, map[string][]v1alpha1.PlannedPrune{member: newPlannedPrunes(p.UID, "x", prune)})
				r.AddReport(newStartedReport(prune, i), []string{member})
				r.ExpectStored([]Object{{KindPrune, prune}})
				r.SetRoot(member, &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: int64(i)}}})
				r.SetPage(member, "page", int64(i), []v1alpha1.ReportedImage{newPruneReport("x", p.UID, v1alpha1.PrunePending)})
				_, _, _ = r.ForMember(member)
				r.HeldReason(p.UID, member, farmKey("x"), "x")
				r.Reported(member, p.UID, farmKey("x"), "x")
				r.MarkSeen(Object{KindPrune, prune})
				r.DropPage(member, "page")
				r.Forget(member)
				r.RemovePrune(prune)
				r.RemoveReport(prune)
			}
		})
	}
	group.Wait()
	assert.Empty(t, r.ActiveReports())
	assert.Empty(t, r.ActivePrunes())
}
