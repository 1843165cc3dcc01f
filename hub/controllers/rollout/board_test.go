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

func TestNothingIsKnownBeforeAllIs(t *testing.T) {
	for name, tt := range map[string]struct {
		fill      func(*Board)
		wantReady bool
	}{
		"all is":                          {func(b *Board) { b.Synced(); b.await(map[string]planState{}) }, true},
		"in any order":                    {func(b *Board) { b.await(map[string]planState{}); b.Synced() }, true},
		"the caches were not shown":       {func(b *Board) { b.await(map[string]planState{}) }, false},
		"the stored plans were not asked": {func(b *Board) { b.Synced() }, false},
		"reports were not read": {func(b *Board) {
			b.Filled = func() bool { return false }
			b.Synced()
			b.await(map[string]planState{})
		}, false},
		"a plan is not seen": {func(b *Board) {
			b.Synced()
			b.await(map[string]planState{"bergen": {"plan", 2}})
		}, false},
		"an older state of it is": {func(b *Board) {
			b.Synced()
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			b.await(map[string]planState{"bergen": {"plan", 2}})
		}, false},
		"it is seen then": {func(b *Board) {
			b.Synced()
			b.await(map[string]planState{"bergen": {"plan", 2}})
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 3}})
		}, true},
		"it was seen before": {func(b *Board) {
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 2}})
			b.Synced()
			b.await(map[string]planState{"bergen": {"plan", 2}})
		}, true},
		"it has gone since": {func(b *Board) {
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			b.Synced()
			b.await(map[string]planState{"bergen": {"plan", 2}})
			b.SetPlan("bergen", nil)
		}, true},
		"it had gone before the answer came": {func(b *Board) {
			b.SetPlan("bergen", &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", Generation: 1}})
			b.SetPlan("bergen", nil)
			b.Synced()
			b.await(map[string]planState{"bergen": {"plan", 1}})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBoard(func() bool { return true })
			told := 0
			b.OnImage(func(string) { told++ })
			b.SetMember(online("bergen"))
			b.SetImage(stored(apitest.FleetDiskImage("ubuntu")))
			told = 0
			tt.fill(b)
			assert.Equal(t, tt.wantReady, b.Ready())
			assert.Equal(t, tt.wantReady, told > 0, "who waits is told")
			_, known := b.Of("bergen")
			assert.False(t, known, "nothing was decided yet")
		})
	}
}

// That no FleetDiskImage was shown yet does not say that there is none.
func TestNothingIsWantedOnlyOnceAllIsKnown(t *testing.T) {
	b := NewBoard(func() bool { return true })
	b.SetMember(online("bergen"))
	_, known := b.Of("bergen")
	assert.False(t, known)
	b.Synced()
	b.await(map[string]planState{})
	w, known := b.Of("bergen")
	assert.True(t, known)
	assert.Empty(t, names(w))
}

func TestWantsAreKnownOnceAllWasDecided(t *testing.T) {
	b := newBoard(t, "bergen")
	b.SetImage(stored(apitest.FleetDiskImage("debian")))
	b.SetImage(stored(apitest.FleetDiskImage("ubuntu")))
	b.decided("debian")
	b.Placed("ubuntu", now) // which decides nothing
	_, known := b.Of("bergen")
	assert.False(t, known, "nobody knows what ubuntu asks for")
	b.decided("ubuntu")
	assert.Equal(t, []string{"+debian-1.0.0", "+ubuntu-1.0.0"}, b.wanted("bergen"))

	_, known = b.Of("oslo")
	assert.False(t, known, "there is no such member")
	b.SetMember(online("oslo"))
	b.decided("debian")
	_, known = b.Of("oslo")
	assert.False(t, known, "ubuntu has not been asked about the new member")
	b.decided("ubuntu")
	assert.Len(t, b.wanted("oslo"), 2)
}

// What a plan says is asked for again by a hub that knows nothing but the plan.
func TestRestartChangesNoPlan(t *testing.T) {
	one := apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")
	b := newBoard(t, "bergen", "oslo")
	b.SetImage(stored(one))
	require.Equal(t, []string{"bergen"}, b.decided("ubuntu"))
	b.follow("bergen", "oslo")
	planned := *b.members["bergen"].plan.Spec.Images[0].PlannedAt

	again := newBoard(t, "bergen", "oslo")
	again.SetImage(stored(one.WithStatus(*b.columns["ubuntu"].status)))
	for _, name := range []string{"bergen", "oslo"} {
		again.SetPlan(name, b.members[name].plan)
	}
	now := now.Add(time.Hour)
	d, _, _ := again.Decide("ubuntu", now)
	assert.Empty(t, d.Start, "bergen is on its way")
	for _, name := range []string{"bergen", "oslo"} {
		assert.Equal(t, b.wanted(name), again.wanted(name))
	}
	w, _ := again.Of("bergen")
	assert.True(t, planned.Time.Equal(w.Images[0].PlannedAt.Time), "it was planned when it was planned")
}

// Until its plan shows what a cluster has begun with, that is not forgotten, and
// nothing takes its place.
func TestWhatHasBegunIsRemembered(t *testing.T) {
	b := newBoard(t, "bergen", "oslo")
	b.SetImage(stored(apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")))
	before, _ := b.Of("bergen")
	b.SetPlan("bergen", b.planOf("bergen", before))
	b.forgetCalls()
	require.Equal(t, []string{"bergen"}, b.decided("ubuntu"))
	assert.Equal(t, []string{"+ubuntu-1.0.0"}, b.wanted("bergen"))
	assert.Equal(t, 1, b.planned["oslo"], "it keeps the image now")

	assert.Empty(t, b.decided("ubuntu"))
	b.SetPlan("bergen", b.planOf("bergen", rollout.Wants{Kept: []v1alpha1.KeptImage{{Namespace: "images", Name: "other"}}}))
	assert.Empty(t, b.decided("ubuntu"), "that plan was written before")
	b.SetPlan("bergen", nil)
	assert.Empty(t, b.decided("ubuntu"), "what somebody deletes is made again")
	assert.Equal(t, []string{"+ubuntu-1.0.0"}, b.wanted("bergen"))

	b.follow("bergen")
	b.forgetCalls()
	assert.Empty(t, b.decided("ubuntu"))
	assert.Empty(t, b.planned, "one plan for one step")
}

func TestBegunIsForgottenWithItsReason(t *testing.T) {
	begun := func(t *testing.T) *board {
		b := newBoard(t, "bergen", "oslo")
		b.SetImage(stored(apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1")))
		require.Equal(t, []string{"bergen"}, b.decided("ubuntu"))
		return b
	}
	t.Run("the member is another", func(t *testing.T) {
		b := begun(t)
		b.RemoveMember("bergen")
		again := online("bergen")
		again.UID = "another"
		b.SetMember(again)
		assert.Equal(t, []string{"bergen"}, b.decided("ubuntu"), "it begins anew")
	})
	t.Run("the member has gone", func(t *testing.T) {
		b := begun(t)
		leaves := online("bergen")
		leaves.DeletionTimestamp = &metav1.Time{Time: now}
		b.SetMember(leaves)
		assert.Equal(t, []string{"oslo"}, b.decided("ubuntu"))
		_, known := b.Of("bergen")
		assert.False(t, known)
	})
	t.Run("it is not placed any more", func(t *testing.T) {
		b := begun(t)
		b.SetImage(stored(apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithMaxConcurrency("1").
			WithPlacement(v1alpha1.Placement{ClusterNames: []string{"oslo"}})))
		assert.Equal(t, []string{"oslo"}, b.decided("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, b.wanted("bergen"))
	})
	t.Run("another revision is asked for", func(t *testing.T) {
		b := begun(t)
		other := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithMaxConcurrency("1").WithURL("https://images.example.com/other.qcow2")
		b.SetImage(stored(other.Paused()))
		assert.Empty(t, b.decided("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, b.wanted("bergen"), "the first one was never planned")
	})
	t.Run("the FleetDiskImage has gone, with no finalizer", func(t *testing.T) {
		b := begun(t)
		b.forgetCalls()
		b.RemoveImage("ubuntu")
		assert.Equal(t, []string{"bergen", "oslo"}, keysOf(b.planned))
		assert.Empty(t, b.wanted("bergen"))
		assert.Zero(t, b.members["bergen"].coming)
	})
	t.Run("it was made anew", func(t *testing.T) {
		b := begun(t)
		img := stored(apitest.FleetDiskImage("ubuntu").Paused())
		img.UID = "another"
		b.SetImage(img)
		_, known := b.Of("bergen")
		assert.False(t, known)
		assert.Empty(t, b.decided("ubuntu"))
		assert.Equal(t, []string{"=ubuntu-1.0.0"}, b.wanted("bergen"))
	})
}

func TestRelabelledMemberIsPlacedAnew(t *testing.T) {
	b := newBoard(t, "bergen", "oslo")
	b.SetImage(stored(apitest.FleetDiskImage("ubuntu").WithPlacement(v1alpha1.Placement{
		ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "oslo"}},
	})))
	assert.Equal(t, []string{"oslo"}, b.decided("ubuntu"))
	b.follow("bergen", "oslo")
	b.forgetCalls()
	renamed := online("bergen")
	renamed.Labels["name"] = "oslo"
	b.SetMember(renamed)
	assert.Equal(t, []string{"ubuntu"}, keysOf(b.looked))
	assert.Equal(t, []string{"bergen"}, b.decided("ubuntu"))
	assert.Equal(t, []string{"bergen"}, keysOf(b.planned))

	b.forgetCalls()
	b.SetMember(renamed.DeepCopy())
	assert.Empty(t, b.looked, "nothing has changed")
}

// The younger of two that would make one image asks for none, until the older is
// gone, and keeps what there is.
func TestOfTwoWithOneNameTheOlderHasIt(t *testing.T) {
	const theirs = "https://images.example.com/older.qcow2"
	older := apitest.FleetDiskImage("zebra").WithImageName("ubuntu").WithURL(theirs).Created(apitest.Epoch)
	younger := apitest.FleetDiskImage("ubuntu").Created(apitest.Epoch.Add(time.Hour)).WithFormer("1.0.0", "0.9.0")
	b := newBoard(t, "bergen")
	b.SetImage(stored(younger))
	b.decided("ubuntu")
	require.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, b.wanted("bergen"))
	b.forgetCalls()
	b.SetImage(stored(older))
	assert.Equal(t, []string{"ubuntu", "zebra"}, keysOf(b.looked))
	b.decided("ubuntu", "zebra")
	w, known := b.Of("bergen")
	require.True(t, known)
	require.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, names(w))
	assert.Equal(t, theirs, w.Images[0].Spec.URL)
	assert.Equal(t, v1alpha1.ReasonNameConflict, b.columns["ubuntu"].status.Reason)

	b.forgetCalls()
	b.RemoveImage("zebra")
	assert.Equal(t, 1, b.looked["ubuntu"])
	b.decided("ubuntu")
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.9.0"}, b.wanted("bergen"))
}

// What cannot be read changes no plan.
func TestPlanIsKeptWhereItCannotBeToldWhoIsPlaced(t *testing.T) {
	former := apitest.FleetDiskImage("ubuntu").WithVersion("2.0.0").WithFormer("2.0.0", "1.0.0")
	b := newBoard(t, "bergen", "oslo")
	b.SetImage(stored(former))
	b.SetImage(stored(apitest.FleetDiskImage("debian")))
	b.decided("ubuntu", "debian")
	b.follow("bergen")
	require.Equal(t, []string{"+debian-1.0.0", "+ubuntu-2.0.0", "=ubuntu-1.0.0"}, b.wanted("bergen"))

	b.forgetCalls()
	b.SetImage(stored(former.WithGeneration(2).WithPlacement(v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Like"}},
	}})))
	b.decided("ubuntu")
	assert.Equal(t, []string{"+debian-1.0.0", "+ubuntu-2.0.0", "=ubuntu-1.0.0"}, b.wanted("bergen"))
	assert.Equal(t, []string{"+debian-1.0.0"}, b.wanted("oslo"), "its plan had nothing of it")
}

func TestPlanHasRoomForSoMany(t *testing.T) {
	b := newBoard(t, "bergen", "oslo")
	images := make([]v1alpha1.PlannedImage, v1alpha1.MaxPlannedImages-1)
	for i, name := range numbered("other", len(images)) {
		images[i] = v1alpha1.PlannedImage{Namespace: "images", Name: name, Spec: apitest.FleetDiskImage(name).Obj().Spec.Template}
	}
	b.SetPlan("bergen", b.planOf("bergen", rollout.Wants{Images: images}))
	b.SetImage(stored(apitest.FleetDiskImage("debian")))
	b.SetImage(stored(apitest.FleetDiskImage("ubuntu")))
	assert.Equal(t, []string{"bergen", "oslo"}, b.decided("debian"))
	assert.Equal(t, []string{"oslo"}, b.decided("ubuntu"), "the last room is taken, though no plan shows it yet")
	assert.Equal(t, v1alpha1.ReasonPlanFull, b.columns["ubuntu"].status.Reason)
	assert.Contains(t, b.wanted("bergen"), "=ubuntu-1.0.0", "what cannot be planned is kept where it is")

	b.forgetCalls()
	b.SetPlan("bergen", b.planOf("bergen", rollout.Wants{Images: images[1:]}))
	assert.Positive(t, b.looked["ubuntu"], "there is room")
	assert.Equal(t, []string{"bergen"}, b.decided("ubuntu"))
}

func TestListsThatDoNotFitAreCut(t *testing.T) {
	b := newBoard(t, "bergen")
	m := b.members["bergen"]
	b.report("bergen", there("kept-2005", v1alpha1.PhaseSucceeded), there("retired-2007", v1alpha1.PhaseSucceeded))
	var w rollout.Wants
	for i := range 2010 {
		w.Kept = append(w.Kept, v1alpha1.KeptImage{Namespace: "images", Name: numbered("kept", 2010)[i]})
		w.Retired = append(w.Retired, v1alpha1.RetiredImage{Namespace: "images", Name: numbered("retired", 2010)[i]})
		if i == 0 {
			w.Retired = append(w.Retired, v1alpha1.RetiredImage{Namespace: "images", Name: "kept-0003"})
		}
	}
	m.settle(&w)
	assert.Len(t, w.Kept, v1alpha1.MaxKeptImages)
	assert.Len(t, w.Retired, v1alpha1.MaxRetiredImages)
	assert.Equal(t, "kept-2005", w.Kept[v1alpha1.MaxKeptImages-1].Name, "what the member has comes first")
	assert.Equal(t, "retired-2007", w.Retired[v1alpha1.MaxRetiredImages-1].Name)
	assert.NotContains(t, names(w), "-kept-0003", "what is kept is not retired")
}

// Everybody at once: nobody waits for ever, and what comes of it is what is there
// in the end.
func TestAllAtOnce(t *testing.T) {
	b := NewBoard(func() bool { return true })
	b.OnImage(func(string) {})
	b.OnWants(func(string) {})
	b.Synced()
	b.await(map[string]planState{})
	members, images := numbered("member", 8), numbered("image", 4)
	var all sync.WaitGroup
	for _, name := range members {
		all.Go(func() {
			for n := range int64(50) {
				b.SetMember(online(name))
				b.SetPage(name, "page", n, []v1alpha1.ReportedImage{there(images[n%4]+"-1.0.0", v1alpha1.PhaseSyncing)})
				b.SetRoot(name, root(v1alpha1.PageRef{Name: "page", Sequence: n}))
				if w, known := b.Of(name); known {
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
				b.SetImage(stored(apitest.FleetDiskImage(name)))
				b.Decide(name, now)
				b.Placed(name, now)
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
		w, known := b.Of(name)
		require.True(t, known)
		assert.Len(t, w.Images, 4)
	}
}

func TestDeclaredAreTheVersionsOfFleetDiskImages(t *testing.T) {
	b := newBoard(t, "a")
	b.SetImage(stored(apitest.FleetDiskImage("ubuntu").WithTargetNamespace("images").WithFormer("1").WithVersion("2")))
	b.SetImage(stored(apitest.FleetDiskImage("debian").WithTargetNamespace("images").WithImageName("ubuntu").WithVersion("2")))
	assert.Equal(t, "ubuntu", b.Declares("images", "ubuntu-1"))
	assert.Equal(t, "debian", b.Declares("images", "ubuntu-2"), "the first by name of two that want it")
	assert.Empty(t, b.Declares("elsewhere", "ubuntu-2"))
	b.RemoveImage("debian")
	assert.Equal(t, "ubuntu", b.Declares("images", "ubuntu-2"))
	b.RemoveImage("ubuntu")
	assert.Empty(t, b.Declares("images", "ubuntu-2"))
}
