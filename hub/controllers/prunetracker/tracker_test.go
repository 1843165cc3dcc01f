package prunetracker

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

// testTracker is a ready Tracker that counts its notifications.
type testTracker struct {
	*Tracker
	replanned, reportedChanges map[string]int
}

func newTestTracker(awaited ...Object) *testTracker {
	tracker := &testTracker{Tracker: New(), replanned: map[string]int{}, reportedChanges: map[string]int{}}
	tracker.OnRequestsChange(func(member string) { tracker.replanned[member]++ })
	tracker.OnReportedChange(func(prune string) { tracker.reportedChanges[prune]++ })
	tracker.ExpectStored(awaited)
	return tracker
}

// newStartedReport returns a collecting PruneReport; second is its start after the epoch.
func newStartedReport(name string, second int) *v1alpha1.PruneReport {
	at := metav1.NewTime(apitest.Epoch.Add(time.Duration(second) * time.Second))
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")},
		Status:     v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportCollecting, StartedAt: &at},
	}
}

// newStartedPrune returns a running ImagePrune; second is its start after the epoch.
func newStartedPrune(name string, second int) *v1alpha1.ImagePrune {
	at := metav1.NewTime(apitest.Epoch.Add(time.Duration(second) * time.Second))
	return &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid"), CreationTimestamp: at},
		Status:     v1alpha1.ImagePruneStatus{Phase: v1alpha1.ImagePruneRunning, StartedAt: &at},
	}
}

// startPrune requests images of one member.
func (tracker *testTracker) startPrune(prune *v1alpha1.ImagePrune, member string, images ...string) {
	tracker.SetPrune(prune, []string{member}, map[string][]v1alpha1.PlannedPrune{member: newPlannedPrunes(prune.UID, images...)})
}

func newPlannedPrunes(prune types.UID, images ...string) (list []v1alpha1.PlannedPrune) {
	for _, name := range images {
		list = append(list, v1alpha1.PlannedPrune{Namespace: "farm", Name: name, ImageUID: types.UID(name), UID: prune})
	}
	return list
}

// plannedImages lists the requests to a member: report UIDs, then "image of prune".
func (tracker *testTracker) plannedImages(t testing.TB, member string) (all []string) {
	t.Helper()
	inquiries, prunes, known := tracker.ForMember(member)
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
	tracker := newTestTracker()
	tracker.Tracker = New()
	tracker.OnRequestsChange(func(member string) { tracker.replanned[member]++ })
	tracker.SetRoot("a", &v1alpha1.ReportRoot{})
	tracker.AddReport(newStartedReport("report", 0), []string{"a"})
	tracker.startPrune(newStartedPrune("prune", 0), "a", "ubuntu")
	knows := func() bool {
		_, _, known := tracker.ForMember("a")
		return known
	}
	assert.False(t, knows(), "the stored objects are not known")
	tracker.MarkSeen(Object{KindReport, "report"}) // read before ExpectStored: it does not count

	tracker.ExpectStored([]Object{{KindReport, "report"}, {KindPrune, "prune"}, {KindPrune, "report"}})
	assert.False(t, knows())
	tracker.MarkSeen(Object{KindReport, "report"})
	tracker.MarkSeen(Object{KindPrune, "prune"})
	assert.False(t, knows(), "an ImagePrune of a report's name is another object")
	clear(tracker.replanned)
	tracker.MarkSeen(Object{KindPrune, "report"})
	assert.Equal(t, []string{"report-uid", "ubuntu of prune-uid"}, tracker.plannedImages(t, "a"))
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned, "it was not ready before")

	tracker.MarkSeen(Object{KindPrune, "report"})
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned)
}

func TestReportsAreRequestedFromTheirMembers(t *testing.T) {
	tracker := newTestTracker()
	tracker.AddReport(newStartedReport("later", 2), []string{"a", "b"})
	tracker.AddReport(newStartedReport("first", 1), []string{"a"})
	assert.Equal(t, []string{"first-uid", "later-uid"}, tracker.plannedImages(t, "a"))
	assert.Equal(t, []string{"later-uid"}, tracker.plannedImages(t, "b"))
	assert.Equal(t, []string{"first", "later"}, tracker.ActiveReports())

	clear(tracker.replanned)
	tracker.AddReport(newStartedReport("later", 2), []string{"b", "c"})
	assert.Equal(t, map[string]int{"a": 1, "c": 1}, tracker.replanned, "only members whose requests change")
	assert.Equal(t, []string{"first-uid"}, tracker.plannedImages(t, "a"))

	another := newStartedReport("later", 3)
	another.UID = "another"
	clear(tracker.replanned)
	tracker.AddReport(another, []string{"b", "c"})
	assert.Equal(t, []string{"b", "c"}, slices.Sorted(maps.Keys(tracker.replanned)), "another report of the same name")
	assert.Equal(t, []string{"another"}, tracker.plannedImages(t, "b"))

	clear(tracker.replanned)
	tracker.RemoveReport("later")
	assert.Equal(t, map[string]int{"b": 1, "c": 1}, tracker.replanned)
	assert.Empty(t, tracker.plannedImages(t, "b"))
	tracker.RemoveReport("later")
	assert.Equal(t, map[string]int{"b": 1, "c": 1}, tracker.replanned)
}

// The planner chooses which fit: those already in the plan stay.
func TestReportsBeyondPlanLimitAreReturned(t *testing.T) {
	tracker := newTestTracker()
	var want []string
	for i := range v1alpha1.MaxInquiries + 2 {
		report := newStartedReport(fmt.Sprintf("report-%02d", i), i)
		tracker.AddReport(report, []string{"a"})
		want = append(want, string(report.UID))
	}
	assert.Equal(t, want, tracker.plannedImages(t, "a"))
}

func TestImageBelongsToOnePrune(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("second", 2), "a", "ubuntu", "debian")
	tracker.startPrune(newStartedPrune("first", 1), "a", "ubuntu", "fedora")
	assert.Equal(t, []string{"debian of second-uid", "fedora of first-uid", "ubuntu of first-uid"}, tracker.plannedImages(t, "a"))
	assert.Equal(t, v1alpha1.PruneAnotherPrune, tracker.HeldReason("second-uid", "a", farmKey("ubuntu"), "ubuntu"))
	assert.Empty(t, tracker.HeldReason("second-uid", "a", farmKey("debian"), "debian"))
	assert.Empty(t, tracker.HeldReason("first-uid", "a", farmKey("ubuntu"), "ubuntu"))
	assert.Empty(t, tracker.HeldReason("unknown", "a", farmKey("ubuntu"), "ubuntu"), "an ImagePrune that does not run")
	assert.Empty(t, tracker.HeldReason("first-uid", "b", farmKey("ubuntu"), "ubuntu"))

	clear(tracker.replanned)
	clear(tracker.reportedChanges)
	tracker.RemovePrune("first")
	assert.Equal(t, []string{"debian of second-uid"}, tracker.plannedImages(t, "a"), "the second may have been undone")
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned)
	assert.Equal(t, map[string]int{"second": 1}, tracker.reportedChanges, "it is enqueued for the free place")
	tracker.startPrune(newStartedPrune("third", 3), "a", "ubuntu")
	assert.Equal(t, []string{"debian of second-uid"}, tracker.plannedImages(t, "a"), "its place is reserved")
	assert.Equal(t, v1alpha1.PruneAnotherPrune, tracker.HeldReason("third-uid", "a", farmKey("ubuntu"), "ubuntu"))
	tracker.startPrune(newStartedPrune("second", 2), "a", "ubuntu", "debian")
	assert.Equal(t, []string{"debian of second-uid", "ubuntu of second-uid"}, tracker.plannedImages(t, "a"))
	assert.Equal(t, map[string]int{"a": 2}, tracker.replanned)
	tracker.RemovePrune("first")
	assert.Equal(t, map[string]int{"a": 2}, tracker.replanned)
}

func TestUnchangedPruneIsNotReplanned(t *testing.T) {
	tracker := newTestTracker()
	assert.False(t, tracker.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"a"}), "it has no requests")
	tracker.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	clear(tracker.replanned)
	assert.True(t, tracker.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"a"}))
	assert.Empty(t, tracker.replanned)
	assert.Equal(t, []string{"ubuntu of prune-uid"}, tracker.plannedImages(t, "a"))

	assert.False(t, tracker.ConfirmUnchanged(newStartedPrune("prune", 2), []string{"a"}), "another start")
	assert.False(t, tracker.ConfirmUnchanged(newStartedPrune("prune", 1), nil), "the member is another cluster")
	assert.False(t, tracker.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"a", "b"}), "another member is its cluster again")
	assert.False(t, tracker.ConfirmUnchanged(newStartedPrune("prune", 1), []string{"b"}))
	undone := newStartedPrune("prune", 1)
	undone.Generation++
	assert.False(t, tracker.ConfirmUnchanged(undone, []string{"a"}), "undone")
	another := newStartedPrune("prune", 1)
	another.UID = "another"
	assert.False(t, tracker.ConfirmUnchanged(another, []string{"a"}), "another ImagePrune of the same name")
}

// The member may be forgotten before the next reconcile.
func TestReservedPlaceIsRequestedByNextReconcile(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("first", 1), "a", "ubuntu")
	tracker.startPrune(newStartedPrune("second", 2), "a", "ubuntu")
	tracker.RemovePrune("first")
	assert.Empty(t, tracker.plannedImages(t, "a"), "the second may have been undone")
	tracker.Forget("a")
	clear(tracker.replanned)
	assert.True(t, tracker.ConfirmUnchanged(newStartedPrune("second", 2), []string{"a"}))
	assert.Equal(t, []string{"ubuntu of second-uid"}, tracker.plannedImages(t, "a"))
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned)
}

func TestReplacedImageIsHeldByOlderPrune(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("first", 1), "a", "ubuntu")
	assert.Equal(t, v1alpha1.PruneAnotherPrune, tracker.HeldReason("first-uid", "a", farmKey("ubuntu"), "another"))
}

func TestPlanLimitHoldsBackPrunes(t *testing.T) {
	tracker := newTestTracker()
	many := func(prefix string, n int) (names []string) {
		for i := range n {
			names = append(names, prefix+strconv.Itoa(i))
		}
		return names
	}
	tracker.startPrune(newStartedPrune("first", 1), "a", many("x", v1alpha1.MaxPlannedPrunes-1)...)
	tracker.startPrune(newStartedPrune("second", 2), "a", "y0", "y1")
	assert.Len(t, tracker.plannedImages(t, "a"), v1alpha1.MaxPlannedPrunes)
	assert.Empty(t, tracker.HeldReason("second-uid", "a", farmKey("y0"), "y0"))
	assert.Equal(t, v1alpha1.ReasonPlanFull, tracker.HeldReason("second-uid", "a", farmKey("y1"), "y1"))
	clear(tracker.reportedChanges)
	tracker.RemovePrune("first")
	assert.Equal(t, map[string]int{"second": 1}, tracker.reportedChanges, "it is reconciled before more is requested")
	tracker.startPrune(newStartedPrune("second", 2), "a", "y0", "y1")
	assert.Equal(t, []string{"y0 of second-uid", "y1 of second-uid"}, tracker.plannedImages(t, "a"))
}

func TestUndoIsPlannedAtOnce(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("first", 1), "a", "ubuntu")
	undone := newPlannedPrunes("first-uid", "ubuntu")
	undone[0].Undo = true
	clear(tracker.replanned)
	tracker.SetPrune(newStartedPrune("first", 1), []string{"a"}, map[string][]v1alpha1.PlannedPrune{"a": undone})
	_, prunes, _ := tracker.ForMember("a")
	assert.Equal(t, undone, prunes)
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned)
	tracker.SetPrune(newStartedPrune("first", 1), []string{"a"}, map[string][]v1alpha1.PlannedPrune{"a": undone})
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned, "nothing has changed")
}

func TestRequestsSurviveForgottenMember(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	tracker.SetRoot("a", &v1alpha1.ReportRoot{})
	tracker.Forget("a")
	assert.Equal(t, []string{"ubuntu of prune-uid"}, tracker.plannedImages(t, "a"))
	tracker.RemovePrune("prune")
	tracker.Forget("a")
	assert.Empty(t, tracker.members)
	tracker.Forget("a")
}

// A member that is gone, and a plan that named a request when the hub was elected, are forgotten once
// nothing is requested: its plan is made first.
func TestMemberWithoutRequestsIsDropped(t *testing.T) {
	tracker := newTestTracker()
	tracker.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	tracker.Forget("a")
	require.NotEmpty(t, tracker.members)
	tracker.RemovePrune("prune")
	assert.Empty(t, tracker.members)
	tracker.AddReport(newStartedReport("report", 0), []string{"a"})
	tracker.RemoveReport("report")
	assert.Empty(t, tracker.members)

	tracker = newTestTracker(Object{KindPrune, "other"})
	tracker.startPrune(newStartedPrune("prune", 1), "a", "ubuntu")
	tracker.RemovePrune("prune")
	tracker.Forget("a")
	clear(tracker.replanned)
	tracker.MarkSeen(Object{KindPrune, "other"})
	assert.Equal(t, map[string]int{"a": 1}, tracker.replanned)
	assert.Empty(t, tracker.members)
}

// A request of a running ImagePrune stays in the plan until that one ends: an agent
// undoes what its plan no longer names.
func TestActivePruneIsNeverDisplaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := newTestTracker()
		now := apitest.Epoch
		running := map[string]*v1alpha1.ImagePrune{}
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{3}`), 1, 12, rapid.ID[string]).Draw(t, "names")
		images := numberedNames(v1alpha1.MaxPlannedPrunes + 200)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "milliseconds")) * time.Millisecond)
			_, before, _ := tracker.ForMember("a")
			name := rapid.SampledFrom(names).Draw(t, "name")
			ended, reconciled := types.UID(""), types.UID("")
			switch p := running[name]; {
			case p == nil:
				if tracker.StartDelay(now) > 0 {
					continue
				}
				p = newStartedPrune(name, 0)
				at := metav1.NewTime(now.Truncate(time.Second))
				p.Status.StartedAt = &at
				p.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "age")) * time.Second))
				running[name] = p
				from := rapid.IntRange(0, len(images)-1).Draw(t, "from")
				reconciled = p.UID
				tracker.startPrune(p, "a", images[from:min(len(images), from+v1alpha1.MaxPlannedPrunes)]...)
			case rapid.Bool().Draw(t, "ends"):
				ended = p.UID
				delete(running, name)
				tracker.RemovePrune(name)
			default: // it is reconciled again
				reconciled = p.UID
				if !tracker.ConfirmUnchanged(p, []string{"a"}) {
					t.Fatalf("%s is reported as changed", name)
				}
				for k, by := range tracker.members["a"].holders {
					if by.prune == p.UID && !slices.ContainsFunc(tracker.members["a"].allotted, func(x v1alpha1.PlannedPrune) bool { return imageKeyOf(&x) == k }) {
						t.Fatalf("%s has a reserved place and no request after its reconcile", k)
					}
				}
			}
			_, after, known := tracker.ForMember("a")
			require.True(t, known)
			require.LessOrEqual(t, len(after), v1alpha1.MaxPlannedPrunes)
			isAfter, isBefore := toSet(after), toSet(before)
			for _, p := range before {
				if p.UID != ended && !isAfter[p] {
					t.Fatalf("%s of %s was displaced", p.Name, p.UID)
				}
			}
			for _, p := range after {
				if p.UID != reconciled && !isBefore[p] {
					t.Fatalf("%s of %s is requested without a reconcile", p.Name, p.UID)
				}
			}
		}
	})
}

func numberedNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("image-%04d", i)
	}
	return all
}

func TestStartDelayKeepsPrunesApart(t *testing.T) {
	tracker := newTestTracker()
	assert.Zero(t, tracker.StartDelay(apitest.Epoch))
	tracker.startPrune(newStartedPrune("first", 0), "a", "ubuntu")
	assert.Equal(t, 600*time.Millisecond, tracker.StartDelay(apitest.Epoch.Add(400*time.Millisecond)))
	assert.Zero(t, tracker.StartDelay(apitest.Epoch.Add(time.Second)))
	assert.Equal(t, 11*time.Second, tracker.StartDelay(apitest.Epoch.Add(-10*time.Second)), "the former leader's clock was ahead")
	assert.Zero(t, tracker.StartDelay(apitest.Epoch.Add(-time.Hour)), "a start an hour ahead is ignored")
}

func TestTrackerIsSafeForConcurrentUse(t *testing.T) {
	tracker := New()
	tracker.OnRequestsChange(func(string) {})
	tracker.OnReportedChange(func(string) {})
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := range 50 {
				member, prune := strconv.Itoa(i%3), strconv.Itoa((worker+i)%4)
				p := newStartedPrune(prune, i)
				tracker.SetPrune(p, []string{member}, map[string][]v1alpha1.PlannedPrune{member: newPlannedPrunes(p.UID, "x", prune)})
				tracker.AddReport(newStartedReport(prune, i), []string{member})
				tracker.ExpectStored([]Object{{KindPrune, prune}})
				tracker.SetRoot(member, &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: int64(i)}}})
				tracker.SetPage(member, "page", int64(i), []v1alpha1.ReportedImage{newPruneReport("x", p.UID, v1alpha1.PrunePending)})
				_, _, _ = tracker.ForMember(member)
				tracker.HeldReason(p.UID, member, farmKey("x"), "x")
				tracker.Reported(member, p.UID, farmKey("x"), "x")
				tracker.MarkSeen(Object{KindPrune, prune})
				tracker.DropPage(member, "page")
				tracker.Forget(member)
				tracker.RemovePrune(prune)
				tracker.RemoveReport(prune)
			}
		})
	}
	group.Wait()
	assert.Empty(t, tracker.ActiveReports())
	assert.Empty(t, tracker.ActivePrunes())
}
