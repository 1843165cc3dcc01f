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

// register is one that knows what is asked, with what it has asked for.
type register struct {
	*Register
	planned, told map[string]int
}

func newRegister(awaited ...object) *register {
	r := &register{Register: NewRegister(), planned: map[string]int{}, told: map[string]int{}}
	r.OnAsks(func(member string) { r.planned[member]++ })
	r.OnTold(func(prune string) { r.told[prune]++ })
	r.await(awaited)
	return r
}

// made is a PruneReport that was begun so many seconds after the epoch.
func made(name string, second int) *v1alpha1.PruneReport {
	at := metav1.NewTime(apitest.Epoch.Add(time.Duration(second) * time.Second))
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")},
		Status:     v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportCollecting, StartedAt: &at},
	}
}

// begun is an ImagePrune that has run since so many seconds after the epoch.
func begun(name string, second int) *v1alpha1.ImagePrune {
	at := metav1.NewTime(apitest.Epoch.Add(time.Duration(second) * time.Second))
	return &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid"), CreationTimestamp: at},
		Status:     v1alpha1.ImagePruneStatus{Phase: v1alpha1.ImagePruneRunning, StartedAt: &at},
	}
}

// run has an ImagePrune ask a member for images.
func (r *register) run(prune *v1alpha1.ImagePrune, member string, images ...string) {
	r.start(prune, []string{member}, map[string][]v1alpha1.PlannedPrune{member: entries(prune.UID, images...)})
}

func entries(prune types.UID, images ...string) (list []v1alpha1.PlannedPrune) {
	for _, name := range images {
		list = append(list, v1alpha1.PlannedPrune{Namespace: "farm", Name: name, ImageUID: types.UID(name), UID: prune})
	}
	return list
}

// asked is what a member is asked: reports, then prunes as image of prune.
func (r *register) asked(t testing.TB, member string) (all []string) {
	t.Helper()
	inquiries, prunes, known := r.Of(member)
	require.True(t, known)
	for _, uid := range inquiries {
		all = append(all, string(uid))
	}
	for _, p := range prunes {
		all = append(all, p.Name+" of "+string(p.UID))
	}
	return all
}

func farm(name string) key { return key{Namespace: "farm", Name: name} }

func TestNobodyKnowsWhatIsAskedBeforeAllHasBeenLookedAt(t *testing.T) {
	r := newRegister()
	r.Register = NewRegister()
	r.OnAsks(func(member string) { r.planned[member]++ })
	r.SetRoot("a", &v1alpha1.ReportRoot{})
	r.ask(made("report", 0), []string{"a"})
	r.run(begun("prune", 0), "a", "ubuntu")
	knows := func() bool {
		_, _, known := r.Of("a")
		return known
	}
	assert.False(t, knows(), "what was stored at the start is not known")
	r.seen(object{kindReport, "report"}) // before it was asked for: an older state may have been looked at

	r.await([]object{{kindReport, "report"}, {kindPrune, "prune"}, {kindPrune, "report"}})
	assert.False(t, knows())
	r.seen(object{kindReport, "report"})
	r.seen(object{kindPrune, "prune"})
	assert.False(t, knows(), "an ImagePrune of a report's name is another object")
	clear(r.planned)
	r.seen(object{kindPrune, "report"})
	assert.Equal(t, []string{"report-uid", "ubuntu of prune-uid"}, r.asked(t, "a"))
	assert.Equal(t, map[string]int{"a": 1}, r.planned, "plans have waited for it")

	r.seen(object{kindPrune, "report"})
	assert.Equal(t, map[string]int{"a": 1}, r.planned)
}

func TestReportsAreAskedOfTheirMembers(t *testing.T) {
	r := newRegister()
	r.ask(made("later", 2), []string{"a", "b"})
	r.ask(made("first", 1), []string{"a"})
	assert.Equal(t, []string{"first-uid", "later-uid"}, r.asked(t, "a"))
	assert.Equal(t, []string{"later-uid"}, r.asked(t, "b"))
	assert.Equal(t, []string{"first", "later"}, r.asking())

	clear(r.planned)
	r.ask(made("later", 2), []string{"b", "c"})
	assert.Equal(t, map[string]int{"a": 1, "c": 1}, r.planned, "those of which it changed")
	assert.Equal(t, []string{"first-uid"}, r.asked(t, "a"))

	another := made("later", 3)
	another.UID = "another"
	clear(r.planned)
	r.ask(another, []string{"b", "c"})
	assert.Equal(t, []string{"b", "c"}, slices.Sorted(maps.Keys(r.planned)), "it is another report of that name")
	assert.Equal(t, []string{"another"}, r.asked(t, "b"))

	clear(r.planned)
	r.answered("later")
	assert.Equal(t, map[string]int{"b": 1, "c": 1}, r.planned)
	assert.Empty(t, r.asked(t, "b"))
	r.answered("later")
	assert.Equal(t, map[string]int{"b": 1, "c": 1}, r.planned)
}

// Which of them fit into a plan depends on those that it carries already.
func TestReportsThatDoNotFitIntoAPlanAreToldToo(t *testing.T) {
	r := newRegister()
	var want []string
	for i := range v1alpha1.MaxInquiries + 2 {
		report := made(fmt.Sprintf("report-%02d", i), i)
		r.ask(report, []string{"a"})
		want = append(want, string(report.UID))
	}
	assert.Equal(t, want, r.asked(t, "a"))
}

func TestOneImageIsOfOnePrune(t *testing.T) {
	r := newRegister()
	r.run(begun("second", 2), "a", "ubuntu", "debian")
	r.run(begun("first", 1), "a", "ubuntu", "fedora")
	assert.Equal(t, []string{"debian of second-uid", "fedora of first-uid", "ubuntu of first-uid"}, r.asked(t, "a"))
	assert.Equal(t, v1alpha1.PruneAnother, r.held("second-uid", "a", farm("ubuntu"), "ubuntu"))
	assert.Empty(t, r.held("second-uid", "a", farm("debian"), "debian"))
	assert.Empty(t, r.held("first-uid", "a", farm("ubuntu"), "ubuntu"))
	assert.Empty(t, r.held("unknown", "a", farm("ubuntu"), "ubuntu"), "of one that does not run nothing is said")
	assert.Empty(t, r.held("first-uid", "b", farm("ubuntu"), "ubuntu"))

	clear(r.planned)
	clear(r.told)
	r.ended("first")
	assert.Equal(t, []string{"debian of second-uid"}, r.asked(t, "a"), "the second may have been undone meanwhile")
	assert.Equal(t, map[string]int{"a": 1}, r.planned)
	assert.Equal(t, map[string]int{"second": 1}, r.told, "its turn has come: it is looked at")
	r.run(begun("third", 3), "a", "ubuntu")
	assert.Equal(t, []string{"debian of second-uid"}, r.asked(t, "a"), "its place is kept")
	assert.Equal(t, v1alpha1.PruneAnother, r.held("third-uid", "a", farm("ubuntu"), "ubuntu"))
	r.run(begun("second", 2), "a", "ubuntu", "debian")
	assert.Equal(t, []string{"debian of second-uid", "ubuntu of second-uid"}, r.asked(t, "a"))
	assert.Equal(t, map[string]int{"a": 2}, r.planned)
	r.ended("first")
	assert.Equal(t, map[string]int{"a": 2}, r.planned)
}

func TestWhatIsAskedAgainIsNotPlannedAnew(t *testing.T) {
	r := newRegister()
	assert.False(t, r.again(begun("prune", 1), []string{"a"}), "it was not asked for")
	r.run(begun("prune", 1), "a", "ubuntu")
	clear(r.planned)
	assert.True(t, r.again(begun("prune", 1), []string{"a"}))
	assert.Empty(t, r.planned)
	assert.Equal(t, []string{"ubuntu of prune-uid"}, r.asked(t, "a"))

	assert.False(t, r.again(begun("prune", 2), []string{"a"}), "began at another time")
	assert.False(t, r.again(begun("prune", 1), nil), "the member is another cluster")
	assert.False(t, r.again(begun("prune", 1), []string{"a", "b"}), "another member is its cluster again")
	assert.False(t, r.again(begun("prune", 1), []string{"b"}))
	undone := begun("prune", 1)
	undone.Generation++
	assert.False(t, r.again(undone, []string{"a"}), "it is undone")
	another := begun("prune", 1)
	another.UID = "another"
	assert.False(t, r.again(another, []string{"a"}), "another of that name")
}

// Its agent may be off for long meanwhile.
func TestPlaceThatIsKeptIsAskedForByTheNextLook(t *testing.T) {
	r := newRegister()
	r.run(begun("first", 1), "a", "ubuntu")
	r.run(begun("second", 2), "a", "ubuntu")
	r.ended("first")
	assert.Empty(t, r.asked(t, "a"), "the second may have been undone meanwhile")
	r.Forget("a")
	clear(r.planned)
	assert.True(t, r.again(begun("second", 2), []string{"a"}))
	assert.Equal(t, []string{"ubuntu of second-uid"}, r.asked(t, "a"))
	assert.Equal(t, map[string]int{"a": 1}, r.planned)
}

func TestImageThatIsAnotherNowIsHeldByTheFormer(t *testing.T) {
	r := newRegister()
	r.run(begun("first", 1), "a", "ubuntu")
	assert.Equal(t, v1alpha1.PruneAnother, r.held("first-uid", "a", farm("ubuntu"), "another"))
}

func TestPlanHasRoomForSoMany(t *testing.T) {
	r := newRegister()
	many := func(prefix string, n int) (names []string) {
		for i := range n {
			names = append(names, prefix+strconv.Itoa(i))
		}
		return names
	}
	r.run(begun("first", 1), "a", many("x", v1alpha1.MaxPlannedPrunes-1)...)
	r.run(begun("second", 2), "a", "y0", "y1")
	assert.Len(t, r.asked(t, "a"), v1alpha1.MaxPlannedPrunes)
	assert.Empty(t, r.held("second-uid", "a", farm("y0"), "y0"))
	assert.Equal(t, v1alpha1.ReasonPlanFull, r.held("second-uid", "a", farm("y1"), "y1"))
	clear(r.told)
	r.ended("first")
	assert.Equal(t, map[string]int{"second": 1}, r.told, "it is looked at before more of it is asked")
	r.run(begun("second", 2), "a", "y0", "y1")
	assert.Equal(t, []string{"y0 of second-uid", "y1 of second-uid"}, r.asked(t, "a"))
}

func TestUndoIsPlannedAtOnce(t *testing.T) {
	r := newRegister()
	r.run(begun("first", 1), "a", "ubuntu")
	undone := entries("first-uid", "ubuntu")
	undone[0].Undo = true
	clear(r.planned)
	r.start(begun("first", 1), []string{"a"}, map[string][]v1alpha1.PlannedPrune{"a": undone})
	_, prunes, _ := r.Of("a")
	assert.Equal(t, undone, prunes)
	assert.Equal(t, map[string]int{"a": 1}, r.planned)
	r.start(begun("first", 1), []string{"a"}, map[string][]v1alpha1.PlannedPrune{"a": undone})
	assert.Equal(t, map[string]int{"a": 1}, r.planned, "nothing has changed")
}

func TestWhatIsAskedStaysWhileAMemberIsForgotten(t *testing.T) {
	r := newRegister()
	r.run(begun("prune", 1), "a", "ubuntu")
	r.SetRoot("a", &v1alpha1.ReportRoot{})
	r.Forget("a")
	assert.Equal(t, []string{"ubuntu of prune-uid"}, r.asked(t, "a"))
	r.ended("prune")
	r.Forget("a")
	assert.Empty(t, r.members)
	r.Forget("a")
}

// What a plan has of an ImagePrune that runs is not taken out of it before that has
// ended, whatever begins and ends beside it: it would be undone.
func TestNothingThatRunsIsTakenBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRegister()
		now := apitest.Epoch
		running := map[string]*v1alpha1.ImagePrune{}
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{3}`), 1, 12, rapid.ID[string]).Draw(t, "names")
		images := numbered(v1alpha1.MaxPlannedPrunes + 200)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "milliseconds")) * time.Millisecond)
			_, before, _ := r.Of("a")
			name := rapid.SampledFrom(names).Draw(t, "name")
			ended, looked := types.UID(""), types.UID("")
			switch p := running[name]; {
			case p == nil:
				if r.turn(now) > 0 {
					continue
				}
				p = begun(name, 0)
				at := metav1.NewTime(now.Truncate(time.Second))
				p.Status.StartedAt = &at
				p.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "age")) * time.Second))
				running[name] = p
				from := rapid.IntRange(0, len(images)-1).Draw(t, "from")
				looked = p.UID
				r.run(p, "a", images[from:min(len(images), from+v1alpha1.MaxPlannedPrunes)]...)
			case rapid.Bool().Draw(t, "ends"):
				ended = p.UID
				delete(running, name)
				r.ended(name)
			default: // it is looked at again
				looked = p.UID
				if !r.again(p, []string{"a"}) {
					t.Fatalf("%s is not as it was", name)
				}
				for k, by := range r.members["a"].holders {
					if by.prune == p.UID && !slices.ContainsFunc(r.members["a"].allotted, func(x v1alpha1.PlannedPrune) bool { return keyOf(&x) == k }) {
						t.Fatalf("%s has its place kept, and is not asked for", k)
					}
				}
			}
			_, after, known := r.Of("a")
			require.True(t, known)
			require.LessOrEqual(t, len(after), v1alpha1.MaxPlannedPrunes)
			stays, was := setOf(after), setOf(before)
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

func setOf(list []v1alpha1.PlannedPrune) map[v1alpha1.PlannedPrune]bool {
	set := make(map[v1alpha1.PlannedPrune]bool, len(list))
	for _, p := range list {
		set[p] = true
	}
	return set
}

func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("image-%04d", i)
	}
	return all
}

func TestNoneBeginsInTheSecondOfAnother(t *testing.T) {
	r := newRegister()
	assert.Zero(t, r.turn(apitest.Epoch))
	r.run(begun("first", 0), "a", "ubuntu")
	assert.Equal(t, 600*time.Millisecond, r.turn(apitest.Epoch.Add(400*time.Millisecond)))
	assert.Zero(t, r.turn(apitest.Epoch.Add(time.Second)))
	assert.Equal(t, 11*time.Second, r.turn(apitest.Epoch.Add(-10*time.Second)), "the clock of a hub before was ahead")
	assert.Zero(t, r.turn(apitest.Epoch.Add(-time.Hour)), "that one was wrong")
}

func TestRegisterIsSafeForConcurrentUse(t *testing.T) {
	r := NewRegister()
	r.OnAsks(func(string) {})
	r.OnTold(func(string) {})
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := range 50 {
				member, prune := strconv.Itoa(i%3), strconv.Itoa((worker+i)%4)
				p := begun(prune, i)
				r.start(p, []string{member}, map[string][]v1alpha1.PlannedPrune{member: entries(p.UID, "x", prune)})
				r.ask(made(prune, i), []string{member})
				r.await([]object{{kindPrune, prune}})
				r.SetRoot(member, &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: int64(i)}}})
				r.SetPage(member, "page", int64(i), []v1alpha1.ReportedImage{tells("x", p.UID, v1alpha1.PrunePending)})
				_, _, _ = r.Of(member)
				r.held(p.UID, member, farm("x"), "x")
				r.Reported(member, p.UID, farm("x"), "x")
				r.seen(object{kindPrune, prune})
				r.DropPage(member, "page")
				r.Forget(member)
				r.ended(prune)
				r.answered(prune)
			}
		})
	}
	group.Wait()
	assert.Empty(t, r.asking())
	assert.Empty(t, r.allRunning())
}
