package rollout

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func TestNothingIsDesiredBeforeAllIsLoaded(t *testing.T) {
	for name, tt := range map[string]struct {
		fill      func(*FleetState)
		wantReady bool
	}{
		"all loaded":                   {func(f *FleetState) { f.MarkSynced(); f.awaitPlans(map[string]planVersion{}) }, true},
		"all loaded, in another order": {func(f *FleetState) { f.awaitPlans(map[string]planVersion{}); f.MarkSynced() }, true},
		"caches not synced":            {func(f *FleetState) { f.awaitPlans(map[string]planVersion{}) }, false},
		"stored plans not listed":      {func(f *FleetState) { f.MarkSynced() }, false},
		"reports not read": {func(f *FleetState) {
			f.ReportsLoaded = func() bool { return false }
			f.MarkSynced()
			f.awaitPlans(map[string]planVersion{})
		}, false},
		"a plan is not in the cache": {func(f *FleetState) {
			f.MarkSynced()
			f.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
		}, false},
		"an older version is in the cache": {func(f *FleetState) {
			f.MarkSynced()
			f.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			f.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
		}, false},
		"the plan appears later": {func(f *FleetState) {
			f.MarkSynced()
			f.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
			f.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 3}})
		}, true},
		"the plan was in the cache before": {func(f *FleetState) {
			f.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 2}})
			f.MarkSynced()
			f.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
		}, true},
		"the plan is deleted later": {func(f *FleetState) {
			f.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			f.MarkSynced()
			f.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
			f.SetPlan("bergen", nil)
		}, true},
		"the plan was deleted before the list returned": {func(f *FleetState) {
			f.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			f.SetPlan("bergen", nil)
			f.MarkSynced()
			f.awaitPlans(map[string]planVersion{"bergen": {"plan", 1}})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFleetState(func() bool { return true })
			enqueued := 0
			f.OnImageChange(func(string) { enqueued++ })
			f.SetMember(onlineMember("bergen"))
			f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu")))
			enqueued = 0
			tt.fill(f)
			assert.Equal(t, tt.wantReady, f.Ready())
			assert.Equal(t, tt.wantReady, enqueued > 0, "it enqueues once ready")
			_, known := f.ForMember("bergen")
			assert.False(t, known, "nothing is decided yet")
		})
	}
}

// Before the caches have synced, no FleetDiskImage does not mean there is none.
func TestEmptyFleetDesiresNothingOnceLoaded(t *testing.T) {
	f := NewFleetState(func() bool { return true })
	f.SetMember(onlineMember("bergen"))
	_, known := f.ForMember("bergen")
	assert.False(t, known)
	f.MarkSynced()
	f.awaitPlans(map[string]planVersion{})
	w, known := f.ForMember("bergen")
	assert.True(t, known)
	assert.Empty(t, formatDesired(w))
}

func TestDesiredIsKnownOnceAllImagesAreDecided(t *testing.T) {
	f := newTestState(t, "bergen")
	f.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu")))
	f.decideAll("debian")
	f.listPlaced("ubuntu") // which decides nothing
	_, known := f.ForMember("bergen")
	assert.False(t, known, "ubuntu is undecided")
	f.decideAll("ubuntu")
	assert.Equal(t, []string{"+debian-1.0.0", "+ubuntu-1.0.0"}, f.desiredNames("bergen"))

	_, known = f.ForMember("oslo")
	assert.False(t, known, "the member does not exist")
	f.SetMember(onlineMember("oslo"))
	f.decideAll("debian")
	_, known = f.ForMember("oslo")
	assert.False(t, known, "ubuntu is undecided for the new member")
	f.decideAll("ubuntu")
	assert.Len(t, f.desiredNames("oslo"), 2)
}

// A hub that knows only the plan desires the same again.
func TestRestartChangesNoPlan(t *testing.T) {
	one := apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(one))
	require.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	f.applyPlans("bergen", "oslo")
	planned := *f.members["bergen"].plan.Spec.Images[0].PlannedAt

	again := newTestState(t, "bergen", "oslo")
	again.SetImage(storedImage(one.WithStatus(*f.images["ubuntu"].status)))
	for _, name := range []string{"bergen", "oslo"} {
		again.SetPlan(name, f.members[name].plan)
	}
	now := now.Add(time.Hour)
	d, _, _ := again.Decide("ubuntu", now)
	assert.Empty(t, d.Start, "bergen is in progress")
	for _, name := range []string{"bergen", "oslo"} {
		assert.Equal(t, f.desiredNames(name), again.desiredNames(name))
	}
	w, _ := again.ForMember("bergen")
	assert.True(t, planned.Time.Equal(w.Images[0].PlannedAt.Time), "plannedAt stays")
}

// A start is remembered until the plan shows it, and holds its slot.
func TestStartedClustersAreRememberedBeforePlansShowThem(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")))
	before, _ := f.ForMember("bergen")
	f.SetPlan("bergen", f.buildPlan("bergen", before))
	f.resetCalls()
	require.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	assert.Equal(t, []string{"+ubuntu-1.0.0"}, f.desiredNames("bergen"))
	assert.Equal(t, 1, f.replanned["oslo"], "it keeps the image")

	assert.Empty(t, f.decideAll("ubuntu"))
	f.SetPlan("bergen", f.buildPlan("bergen", rollout.DesiredImages{Kept: []v1alpha1.KeptImage{{Namespace: "images", Name: "other"}}}))
	assert.Empty(t, f.decideAll("ubuntu"), "that plan was written before the start")
	f.SetPlan("bergen", nil)
	assert.Empty(t, f.decideAll("ubuntu"), "a deleted plan is written again")
	assert.Equal(t, []string{"+ubuntu-1.0.0"}, f.desiredNames("bergen"))

	f.applyPlans("bergen")
	f.resetCalls()
	assert.Empty(t, f.decideAll("ubuntu"))
	assert.Empty(t, f.replanned, "one plan per change")
}

func TestStartedIsForgottenWithItsCause(t *testing.T) {
	newStarted := func(t *testing.T) *testState {
		f := newTestState(t, "bergen", "oslo")
		f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")))
		require.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
		return f
	}
	t.Run("the member is another", func(t *testing.T) {
		f := newStarted(t)
		f.RemoveMember("bergen")
		again := onlineMember("bergen")
		again.UID = "another"
		f.SetMember(again)
		assert.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"), "it starts again")
	})
	t.Run("the member has gone", func(t *testing.T) {
		f := newStarted(t)
		leaves := onlineMember("bergen")
		leaves.DeletionTimestamp = &metav1.Time{Time: now}
		f.SetMember(leaves)
		assert.Equal(t, []string{"oslo"}, f.decideAll("ubuntu"))
		_, known := f.ForMember("bergen")
		assert.False(t, known)
	})
	t.Run("it is no longer placed", func(t *testing.T) {
		f := newStarted(t)
		f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithMaxConcurrency("1").
			WithPlacement(v1alpha1.Placement{ClusterNames: []string{"oslo"}})))
		assert.Equal(t, []string{"oslo"}, f.decideAll("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, f.desiredNames("bergen"))
	})
	t.Run("another revision is asked for", func(t *testing.T) {
		f := newStarted(t)
		other := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithMaxConcurrency("1").WithURL("https://images.example.com/other.qcow2")
		f.SetImage(storedImage(other.Paused()))
		assert.Empty(t, f.decideAll("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, f.desiredNames("bergen"), "the first revision was never planned")
	})
	t.Run("the FleetDiskImage has gone, with no finalizer", func(t *testing.T) {
		f := newStarted(t)
		f.resetCalls()
		f.RemoveImage("ubuntu")
		assert.Equal(t, []string{"bergen", "oslo"}, sortedKeys(f.replanned))
		assert.Empty(t, f.desiredNames("bergen"))
		assert.Zero(t, f.members["bergen"].pendingStarts)
	})
	t.Run("it was created again", func(t *testing.T) {
		f := newStarted(t)
		img := storedImage(apitest.FleetDiskImage("ubuntu").Paused())
		img.UID = "another"
		f.SetImage(img)
		_, known := f.ForMember("bergen")
		assert.False(t, known)
		assert.Empty(t, f.decideAll("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, f.desiredNames("bergen"))
	})
}

func TestRelabelledMemberIsPlacedAgain(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithPlacement(v1alpha1.Placement{
		ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "oslo"}},
	})))
	assert.Equal(t, []string{"oslo"}, f.decideAll("ubuntu"))
	f.applyPlans("bergen", "oslo")
	f.resetCalls()
	renamed := onlineMember("bergen")
	renamed.Labels["name"] = "oslo"
	f.SetMember(renamed)
	assert.Equal(t, []string{"ubuntu"}, sortedKeys(f.enqueued))
	assert.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	assert.Equal(t, []string{"bergen"}, sortedKeys(f.replanned))

	f.resetCalls()
	f.SetMember(renamed.DeepCopy())
	assert.Empty(t, f.enqueued, "nothing changed")
}

// The younger of two with one image name desires no image until the older is gone, and
// keeps what exists.
func TestOlderImageKeepsSharedName(t *testing.T) {
	const theirs = "https://images.example.com/older.qcow2"
	older := apitest.FleetDiskImage("zebra").WithImageName("ubuntu").WithURL(theirs).Created(apitest.Epoch)
	younger := apitest.FleetDiskImage("ubuntu").Created(apitest.Epoch.Add(time.Hour)).WithFormer("1.0.0", "0.9.0")
	f := newTestState(t, "bergen")
	f.SetImage(storedImage(younger))
	f.decideAll("ubuntu")
	require.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, f.desiredNames("bergen"))
	f.resetCalls()
	f.SetImage(storedImage(older))
	assert.Equal(t, []string{"ubuntu", "zebra"}, sortedKeys(f.enqueued))
	f.decideAll("ubuntu", "zebra")
	w, known := f.ForMember("bergen")
	require.True(t, known)
	require.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, formatDesired(w))
	assert.Equal(t, theirs, w.Images[0].Spec.URL)
	assert.Equal(t, v1alpha1.ReasonNameConflict, f.images["ubuntu"].status.Reason)

	f.resetCalls()
	f.RemoveImage("zebra")
	assert.Equal(t, 1, f.enqueued["ubuntu"])
	f.decideAll("ubuntu")
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, f.desiredNames("bergen"))
}

// An invalid placement changes no plan.
func TestPlanIsFrozenWhilePlacementIsInvalid(t *testing.T) {
	former := apitest.FleetDiskImage("ubuntu").WithVersion("2.0.0").WithFormer("2.0.0", "1.0.0")
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(former))
	f.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	f.decideAll("ubuntu", "debian")
	f.applyPlans("bergen")
	require.Equal(t, []string{"+debian-1.0.0", "+ubuntu-2.0.0", "=ubuntu-1.0.0"}, f.desiredNames("bergen"))

	f.resetCalls()
	f.SetImage(storedImage(former.WithGeneration(2).WithPlacement(v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Like"}},
	}})))
	f.decideAll("ubuntu")
	assert.Equal(t, []string{"+debian-1.0.0", "+ubuntu-2.0.0", "=ubuntu-1.0.0"}, f.desiredNames("bergen"))
	assert.Equal(t, []string{"+debian-1.0.0"}, f.desiredNames("oslo"), "its plan had no item of it")
}

func TestFullPlanStartsNoImage(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	images := make([]v1alpha1.PlannedImage, v1alpha1.MaxPlannedImages-1)
	for i, name := range numberedNames("other", len(images)) {
		images[i] = v1alpha1.PlannedImage{Namespace: "images", Name: name, Spec: apitest.FleetDiskImage(name).Obj().Spec.Template}
	}
	f.SetPlan("bergen", f.buildPlan("bergen", rollout.DesiredImages{Images: images}))
	f.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu")))
	assert.Equal(t, []string{"bergen", "oslo"}, f.decideAll("debian"))
	assert.Equal(t, []string{"oslo"}, f.decideAll("ubuntu"), "the last room is taken before a plan shows it")
	assert.Equal(t, v1alpha1.ReasonPlanFull, f.images["ubuntu"].status.Reason)
	assert.Contains(t, f.desiredNames("bergen"), "=ubuntu-1.0.0", "an image that cannot be planned is kept")

	f.resetCalls()
	f.SetPlan("bergen", f.buildPlan("bergen", rollout.DesiredImages{Images: images[1:]}))
	assert.Positive(t, f.enqueued["ubuntu"], "the plan has room again")
	assert.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
}

func TestOversizedListsAreCut(t *testing.T) {
	f := newTestState(t, "bergen")
	m := f.members["bergen"]
	f.reportImages("bergen", newReported("kept-2005", v1alpha1.PhaseSucceeded), newReported("retired-2007", v1alpha1.PhaseSucceeded))
	var w rollout.DesiredImages
	for i := range 2010 {
		w.Kept = append(w.Kept, v1alpha1.KeptImage{Namespace: "images", Name: numberedNames("kept", 2010)[i]})
		w.Retired = append(w.Retired, v1alpha1.RetiredImage{Namespace: "images", Name: numberedNames("retired", 2010)[i]})
		if i == 0 {
			w.Retired = append(w.Retired, v1alpha1.RetiredImage{Namespace: "images", Name: "kept-0003"})
		}
	}
	m.normalize(&w)
	assert.Len(t, w.Kept, v1alpha1.MaxKeptImages)
	assert.Len(t, w.Retired, v1alpha1.MaxRetiredImages)
	assert.Equal(t, "kept-2005", w.Kept[v1alpha1.MaxKeptImages-1].Name, "reported images are preferred")
	assert.Equal(t, "retired-2007", w.Retired[v1alpha1.MaxRetiredImages-1].Name)
	assert.NotContains(t, formatDesired(w), "-kept-0003", "a kept image is not retired")
}

// Concurrent calls do not deadlock, and the last state wins.
func TestConcurrentUse(t *testing.T) {
	f := NewFleetState(func() bool { return true })
	f.OnImageChange(func(string) {})
	f.OnDesiredChange(func(string) {})
	f.MarkSynced()
	f.awaitPlans(map[string]planVersion{})
	members, images := numberedNames("member", 8), numberedNames("image", 4)
	var all sync.WaitGroup
	for _, name := range members {
		all.Go(func() {
			for n := range int64(50) {
				f.SetMember(onlineMember(name))
				f.SetPage(name, "page", n, []v1alpha1.ReportedImage{newReported(images[n%4]+"-1.0.0", v1alpha1.PhaseSyncing)})
				f.SetRoot(name, newRoot(v1alpha1.PageRef{Name: "page", Sequence: n}))
				if w, known := f.ForMember(name); known {
					f.SetPlan(name, &v1alpha1.ClusterPlan{Spec: v1alpha1.ClusterPlanSpec{Images: w.Images, Kept: w.Kept}})
				}
				if n%7 == 6 {
					f.RemoveMember(name)
					f.SetPlan(name, nil)
				}
			}
		})
	}
	for _, name := range images {
		all.Go(func() {
			for range 50 {
				f.SetImage(storedImage(apitest.FleetDiskImage(name)))
				f.Decide(name, now)
				f.View(name, now)
			}
		})
	}
	all.Wait()
	for _, name := range images {
		d, _, found := f.Decide(name, now)
		require.True(t, found)
		assert.Equal(t, int32(8), d.Status.Clusters.Total)
	}
	for _, name := range members {
		w, known := f.ForMember(name)
		require.True(t, known)
		assert.Len(t, w.Images, 4)
	}
}

func TestDeclaredByCoversAllVersions(t *testing.T) {
	f := newTestState(t, "a")
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithTargetNamespace("images").WithFormer("1").WithVersion("2")))
	f.SetImage(storedImage(apitest.FleetDiskImage("debian").WithTargetNamespace("images").WithImageName("ubuntu").WithVersion("2")))
	assert.Equal(t, "ubuntu", f.DeclaredBy("images", "ubuntu-1"))
	assert.Equal(t, "debian", f.DeclaredBy("images", "ubuntu-2"), "the first by name")
	assert.Empty(t, f.DeclaredBy("elsewhere", "ubuntu-2"))
	f.RemoveImage("debian")
	assert.Equal(t, "ubuntu", f.DeclaredBy("images", "ubuntu-2"))
	f.RemoveImage("ubuntu")
	assert.Empty(t, f.DeclaredBy("images", "ubuntu-2"))
}

// What members import says when a rollout is done; a member that has the image is not asked.
func TestActivitiesGiveTheExpectedTime(t *testing.T) {
	f := newTestState(t, "bergen", "oslo")
	asked := map[string]int{}
	f.Activity = func(member string) *v1alpha1.ReportedActivity {
		asked[member]++
		return &v1alpha1.ReportedActivity{Budget: 1, Slots: 1, Active: []v1alpha1.ActiveImport{{
			Namespace: "images", Name: "ubuntu-1.0.0", BytesTotal: 3600 << 20, BytesPerSecond: 1 << 20,
		}}}
	}
	img := apitest.FleetDiskImage("ubuntu")
	f.SetImage(storedImage(img))
	f.decideAll("ubuntu")
	f.applyPlans("bergen", "oslo")
	f.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), img))
	clear(asked)
	f.decideAll("ubuntu")
	assert.Equal(t, map[string]int{"oslo": 1}, asked)
	assert.Equal(t, now.Add(time.Hour), f.images["ubuntu"].status.ExpectedAt.UTC())
}
