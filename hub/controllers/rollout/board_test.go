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
		"all is":                          {func(b *FleetState) { b.MarkSynced(); b.awaitPlans(map[string]planVersion{}) }, true},
		"in any order":                    {func(b *FleetState) { b.awaitPlans(map[string]planVersion{}); b.MarkSynced() }, true},
		"the caches were not shown":       {func(b *FleetState) { b.awaitPlans(map[string]planVersion{}) }, false},
		"the stored plans were not asked": {func(b *FleetState) { b.MarkSynced() }, false},
		"reports were not read": {func(b *FleetState) {
			b.ReportsLoaded = func() bool { return false }
			b.MarkSynced()
			b.awaitPlans(map[string]planVersion{})
		}, false},
		"a plan is not seen": {func(b *FleetState) {
			b.MarkSynced()
			b.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
		}, false},
		"an older state of it is": {func(b *FleetState) {
			b.MarkSynced()
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			b.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
		}, false},
		"it is seen then": {func(b *FleetState) {
			b.MarkSynced()
			b.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 3}})
		}, true},
		"it was seen before": {func(b *FleetState) {
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 2}})
			b.MarkSynced()
			b.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
		}, true},
		"it has gone since": {func(b *FleetState) {
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			b.MarkSynced()
			b.awaitPlans(map[string]planVersion{"bergen": {"plan", 2}})
			b.SetPlan("bergen", nil)
		}, true},
		"it had gone before the answer came": {func(b *FleetState) {
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			b.SetPlan("bergen", nil)
			b.MarkSynced()
			b.awaitPlans(map[string]planVersion{"bergen": {"plan", 1}})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewFleetState(func() bool { return true })
			told := 0
			b.OnImageChange(func(string) { told++ })
			b.SetMember(onlineMember("bergen"))
			b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu")))
			told = 0
			tt.fill(b)
			assert.Equal(t, tt.wantReady, b.Ready())
			assert.Equal(t, tt.wantReady, told > 0, "who waits is told")
			_, known := b.ForMember("bergen")
			assert.False(t, known, "nothing was decided yet")
		})
	}
}

// That no FleetDiskImage was shown yet does not say that there is none.
func TestEmptyFleetDesiresNothingOnceLoaded(t *testing.T) {
	b := NewFleetState(func() bool { return true })
	b.SetMember(onlineMember("bergen"))
	_, known := b.ForMember("bergen")
	assert.False(t, known)
	b.MarkSynced()
	b.awaitPlans(map[string]planVersion{})
	w, known := b.ForMember("bergen")
	assert.True(t, known)
	assert.Empty(t, formatDesired(w))
}

func TestDesiredIsKnownOnceAllImagesAreDecided(t *testing.T) {
	b := newTestState(t, "bergen")
	b.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu")))
	b.decideAll("debian")
	b.PlacedClusters("ubuntu", now) // which decides nothing
	_, known := b.ForMember("bergen")
	assert.False(t, known, "nobody knows what ubuntu asks for")
	b.decideAll("ubuntu")
	assert.Equal(t, []string{"+debian-1.0.0", "+ubuntu-1.0.0"}, b.desiredNames("bergen"))

	_, known = b.ForMember("oslo")
	assert.False(t, known, "there is no such member")
	b.SetMember(onlineMember("oslo"))
	b.decideAll("debian")
	_, known = b.ForMember("oslo")
	assert.False(t, known, "ubuntu has not been asked about the new member")
	b.decideAll("ubuntu")
	assert.Len(t, b.desiredNames("oslo"), 2)
}

// What a plan says is asked for again by a hub that knows nothing but the plan.
func TestRestartChangesNoPlan(t *testing.T) {
	one := apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")
	b := newTestState(t, "bergen", "oslo")
	b.SetImage(storedImage(one))
	require.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"))
	b.applyPlans("bergen", "oslo")
	planned := *b.members["bergen"].plan.Spec.Images[0].PlannedAt

	again := newTestState(t, "bergen", "oslo")
	again.SetImage(storedImage(one.WithStatus(*b.images["ubuntu"].status)))
	for _, name := range []string{"bergen", "oslo"} {
		again.SetPlan(name, b.members[name].plan)
	}
	now := now.Add(time.Hour)
	d, _, _ := again.Decide("ubuntu", now)
	assert.Empty(t, d.Start, "bergen is on its way")
	for _, name := range []string{"bergen", "oslo"} {
		assert.Equal(t, b.desiredNames(name), again.desiredNames(name))
	}
	w, _ := again.ForMember("bergen")
	assert.True(t, planned.Time.Equal(w.Images[0].PlannedAt.Time), "it was planned when it was planned")
}

// Until its plan shows what a cluster has begun with, that is not forgotten, and
// nothing takes its place.
func TestStartedClustersAreRememberedBeforePlansShowThem(t *testing.T) {
	b := newTestState(t, "bergen", "oslo")
	b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")))
	before, _ := b.ForMember("bergen")
	b.SetPlan("bergen", b.buildPlan("bergen", before))
	b.resetCalls()
	require.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"))
	assert.Equal(t, []string{"+ubuntu-1.0.0"}, b.desiredNames("bergen"))
	assert.Equal(t, 1, b.replanned["oslo"], "it keeps the image now")

	assert.Empty(t, b.decideAll("ubuntu"))
	b.SetPlan("bergen", b.buildPlan("bergen", rollout.DesiredImages{Kept: []v1alpha1.KeptImage{{Namespace: "images", Name: "other"}}}))
	assert.Empty(t, b.decideAll("ubuntu"), "that plan was written before")
	b.SetPlan("bergen", nil)
	assert.Empty(t, b.decideAll("ubuntu"), "what somebody deletes is made again")
	assert.Equal(t, []string{"+ubuntu-1.0.0"}, b.desiredNames("bergen"))

	b.applyPlans("bergen")
	b.resetCalls()
	assert.Empty(t, b.decideAll("ubuntu"))
	assert.Empty(t, b.replanned, "one plan for one step")
}

func TestStartedIsForgottenWithItsCause(t *testing.T) {
	begun := func(t *testing.T) *testState {
		b := newTestState(t, "bergen", "oslo")
		b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")))
		require.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"))
		return b
	}
	t.Run("the member is another", func(t *testing.T) {
		b := begun(t)
		b.RemoveMember("bergen")
		again := onlineMember("bergen")
		again.UID = "another"
		b.SetMember(again)
		assert.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"), "it begins anew")
	})
	t.Run("the member has gone", func(t *testing.T) {
		b := begun(t)
		leaves := onlineMember("bergen")
		leaves.DeletionTimestamp = &metav1.Time{Time: now}
		b.SetMember(leaves)
		assert.Equal(t, []string{"oslo"}, b.decideAll("ubuntu"))
		_, known := b.ForMember("bergen")
		assert.False(t, known)
	})
	t.Run("it is not placed any more", func(t *testing.T) {
		b := begun(t)
		b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithMaxConcurrency("1").
			WithPlacement(v1alpha1.Placement{ClusterNames: []string{"oslo"}})))
		assert.Equal(t, []string{"oslo"}, b.decideAll("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, b.desiredNames("bergen"))
	})
	t.Run("another revision is asked for", func(t *testing.T) {
		b := begun(t)
		other := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithMaxConcurrency("1").WithURL("https://images.example.com/other.qcow2")
		b.SetImage(storedImage(other.Paused()))
		assert.Empty(t, b.decideAll("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, b.desiredNames("bergen"), "the first one was never planned")
	})
	t.Run("the FleetDiskImage has gone, with no finalizer", func(t *testing.T) {
		b := begun(t)
		b.resetCalls()
		b.RemoveImage("ubuntu")
		assert.Equal(t, []string{"bergen", "oslo"}, sortedKeys(b.replanned))
		assert.Empty(t, b.desiredNames("bergen"))
		assert.Zero(t, b.members["bergen"].pendingStarts)
	})
	t.Run("it was made anew", func(t *testing.T) {
		b := begun(t)
		img := storedImage(apitest.FleetDiskImage("ubuntu").Paused())
		img.UID = "another"
		b.SetImage(img)
		_, known := b.ForMember("bergen")
		assert.False(t, known)
		assert.Empty(t, b.decideAll("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, b.desiredNames("bergen"))
	})
}

func TestRelabelledMemberIsPlacedAgain(t *testing.T) {
	b := newTestState(t, "bergen", "oslo")
	b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithPlacement(v1alpha1.Placement{
		ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "oslo"}},
	})))
	assert.Equal(t, []string{"oslo"}, b.decideAll("ubuntu"))
	b.applyPlans("bergen", "oslo")
	b.resetCalls()
	renamed := onlineMember("bergen")
	renamed.Labels["name"] = "oslo"
	b.SetMember(renamed)
	assert.Equal(t, []string{"ubuntu"}, sortedKeys(b.enqueued))
	assert.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"))
	assert.Equal(t, []string{"bergen"}, sortedKeys(b.replanned))

	b.resetCalls()
	b.SetMember(renamed.DeepCopy())
	assert.Empty(t, b.enqueued, "nothing has changed")
}

// The younger of two that would make one image asks for none, until the older is
// gone, and keeps what there is.
func TestOlderImageKeepsSharedName(t *testing.T) {
	const theirs = "https://images.example.com/older.qcow2"
	older := apitest.FleetDiskImage("zebra").WithImageName("ubuntu").WithURL(theirs).Created(apitest.Epoch)
	younger := apitest.FleetDiskImage("ubuntu").Created(apitest.Epoch.Add(time.Hour)).WithFormer("1.0.0", "0.9.0")
	b := newTestState(t, "bergen")
	b.SetImage(storedImage(younger))
	b.decideAll("ubuntu")
	require.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, b.desiredNames("bergen"))
	b.resetCalls()
	b.SetImage(storedImage(older))
	assert.Equal(t, []string{"ubuntu", "zebra"}, sortedKeys(b.enqueued))
	b.decideAll("ubuntu", "zebra")
	w, known := b.ForMember("bergen")
	require.True(t, known)
	require.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, formatDesired(w))
	assert.Equal(t, theirs, w.Images[0].Spec.URL)
	assert.Equal(t, v1alpha1.ReasonNameConflict, b.images["ubuntu"].status.Reason)

	b.resetCalls()
	b.RemoveImage("zebra")
	assert.Equal(t, 1, b.enqueued["ubuntu"])
	b.decideAll("ubuntu")
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, b.desiredNames("bergen"))
}

// What cannot be read changes no plan.
func TestPlanIsFrozenWhilePlacementIsInvalid(t *testing.T) {
	former := apitest.FleetDiskImage("ubuntu").WithVersion("2.0.0").WithFormer("2.0.0", "1.0.0")
	b := newTestState(t, "bergen", "oslo")
	b.SetImage(storedImage(former))
	b.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	b.decideAll("ubuntu", "debian")
	b.applyPlans("bergen")
	require.Equal(t, []string{"+debian-1.0.0", "+ubuntu-2.0.0", "=ubuntu-1.0.0"}, b.desiredNames("bergen"))

	b.resetCalls()
	b.SetImage(storedImage(former.WithGeneration(2).WithPlacement(v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Like"}},
	}})))
	b.decideAll("ubuntu")
	assert.Equal(t, []string{"+debian-1.0.0", "+ubuntu-2.0.0", "=ubuntu-1.0.0"}, b.desiredNames("bergen"))
	assert.Equal(t, []string{"+debian-1.0.0"}, b.desiredNames("oslo"), "its plan had nothing of it")
}

func TestFullPlanStartsNoImage(t *testing.T) {
	b := newTestState(t, "bergen", "oslo")
	images := make([]v1alpha1.PlannedImage, v1alpha1.MaxPlannedImages-1)
	for i, name := range numberedNames("other", len(images)) {
		images[i] = v1alpha1.PlannedImage{Namespace: "images", Name: name, Spec: apitest.FleetDiskImage(name).Obj().Spec.Template}
	}
	b.SetPlan("bergen", b.buildPlan("bergen", rollout.DesiredImages{Images: images}))
	b.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu")))
	assert.Equal(t, []string{"bergen", "oslo"}, b.decideAll("debian"))
	assert.Equal(t, []string{"oslo"}, b.decideAll("ubuntu"), "the last room is taken, though no plan shows it yet")
	assert.Equal(t, v1alpha1.ReasonPlanFull, b.images["ubuntu"].status.Reason)
	assert.Contains(t, b.desiredNames("bergen"), "=ubuntu-1.0.0", "what cannot be planned is kept where it is")

	b.resetCalls()
	b.SetPlan("bergen", b.buildPlan("bergen", rollout.DesiredImages{Images: images[1:]}))
	assert.Positive(t, b.enqueued["ubuntu"], "there is room")
	assert.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"))
}

func TestOversizedListsAreCut(t *testing.T) {
	b := newTestState(t, "bergen")
	m := b.members["bergen"]
	b.reportImages("bergen", newReported("kept-2005", v1alpha1.PhaseSucceeded), newReported("retired-2007", v1alpha1.PhaseSucceeded))
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
	assert.Equal(t, "kept-2005", w.Kept[v1alpha1.MaxKeptImages-1].Name, "what the member has comes first")
	assert.Equal(t, "retired-2007", w.Retired[v1alpha1.MaxRetiredImages-1].Name)
	assert.NotContains(t, formatDesired(w), "-kept-0003", "what is kept is not retired")
}

// Everybody at once: nobody waits for ever, and what comes of it is what is there
// in the end.
func TestConcurrentUse(t *testing.T) {
	b := NewFleetState(func() bool { return true })
	b.OnImageChange(func(string) {})
	b.OnDesiredChange(func(string) {})
	b.MarkSynced()
	b.awaitPlans(map[string]planVersion{})
	members, images := numberedNames("member", 8), numberedNames("image", 4)
	var all sync.WaitGroup
	for _, name := range members {
		all.Go(func() {
			for n := range int64(50) {
				b.SetMember(onlineMember(name))
				b.SetPage(name, "page", n, []v1alpha1.ReportedImage{newReported(images[n%4]+"-1.0.0", v1alpha1.PhaseSyncing)})
				b.SetRoot(name, newRoot(v1alpha1.PageRef{Name: "page", Sequence: n}))
				if w, known := b.ForMember(name); known {
					b.SetPlan(name, &v1alpha1.ClusterPlan{Spec: v1alpha1.ClusterPlanSpec{Images: w.Images, Kept: w.Kept}})
				}
				if n%7 == 6 {
					b.RemoveMember(name)
					b.SetPlan(name, nil)
				}
			}
		})
	}
	for _, name := range images {
		all.Go(func() {
			for range 50 {
				b.SetImage(storedImage(apitest.FleetDiskImage(name)))
				b.Decide(name, now)
				b.PlacedClusters(name, now)
			}
		})
	}
	all.Wait()
	for _, name := range images {
		d, _, found := b.Decide(name, now)
		require.True(t, found)
		assert.Equal(t, int32(8), d.Status.Clusters.Total)
	}
	for _, name := range members {
		w, known := b.ForMember(name)
		require.True(t, known)
		assert.Len(t, w.Images, 4)
	}
}

func TestDeclaredByCoversAllVersions(t *testing.T) {
	b := newTestState(t, "a")
	b.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithTargetNamespace("images").WithFormer("1").WithVersion("2")))
	b.SetImage(storedImage(apitest.FleetDiskImage("debian").WithTargetNamespace("images").WithImageName("ubuntu").WithVersion("2")))
	assert.Equal(t, "ubuntu", b.DeclaredBy("images", "ubuntu-1"))
	assert.Equal(t, "debian", b.DeclaredBy("images", "ubuntu-2"), "the first by name of two that want it")
	assert.Empty(t, b.DeclaredBy("elsewhere", "ubuntu-2"))
	b.RemoveImage("debian")
	assert.Equal(t, "ubuntu", b.DeclaredBy("images", "ubuntu-2"))
	b.RemoveImage("ubuntu")
	assert.Empty(t, b.DeclaredBy("images", "ubuntu-2"))
}
