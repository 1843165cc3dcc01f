package rollout

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const theirs = "https://images.example.com/older.qcow2"

// ours has had three versions, and begins with one cluster at a time.
func ours() *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage("ubuntu").Created(apitest.Epoch.Add(time.Hour)).WithMaxConcurrency("1").
		WithFormer("1.0.0", "0.9.0", "0.8.0").WithRetention(1, time.Hour)
}

// older makes images of the names that ours makes.
func older(name string) *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage(name).WithImageName("ubuntu").WithURL(theirs).Created(apitest.Epoch)
}

// begun is a fleet of which bergen has begun with ours, and has it where has is set.
func begun(t *testing.T, has bool) *board {
	t.Helper()
	b := newBoard(t, "bergen", "oslo")
	b.SetImage(stored(ours().WithPlacement(v1alpha1.Placement{ClusterNames: []string{"bergen"}})))
	require.Equal(t, []string{"bergen"}, b.decided("ubuntu"))
	b.follow("bergen", "oslo")
	if has {
		b.report("bergen", revisionOf(there("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ours()))
		b.decided("ubuntu")
		require.Equal(t, []string{"+ubuntu-1.0.0", "-ubuntu-0.8.0", "-ubuntu-0.9.0"}, b.wanted("bergen"))
	}
	return b
}

func leaves(img *v1alpha1.FleetDiskImage, policy v1alpha1.DeletionPolicy) *v1alpha1.FleetDiskImage {
	img.DeletionTimestamp, img.Spec.DeletionPolicy, img.Generation = &metav1.Time{Time: now}, policy, img.Generation+1
	return img
}

// That an older one takes a name of its versions costs no image its protection, and
// leaves what was begun under another name as it is.
func TestRivalCostsNoImageItsProtection(t *testing.T) {
	for name, tt := range map[string]struct {
		rivals               []*apitest.FleetDiskImageBuilder
		wantBergen, wantOslo []string
		wantURL              string // of ubuntu-1.0.0 in bergen
	}{
		"of a former name": {[]*apitest.FleetDiskImageBuilder{older("zebra").WithVersion("0.9.0")},
			[]string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}, []string{"+ubuntu-0.9.0", "=ubuntu-0.8.0", "=ubuntu-1.0.0"}, ours().Obj().Spec.Template.URL},
		"of the current name": {[]*apitest.FleetDiskImageBuilder{older("zebra")},
			[]string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0"}, []string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0"}, theirs},
		"one of a former, another of the current name": {[]*apitest.FleetDiskImageBuilder{older("zebra").WithVersion("0.9.0"), older("zoo").Created(apitest.Epoch.Add(time.Minute))},
			[]string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}, []string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}, theirs},
		"which retires that name": {[]*apitest.FleetDiskImageBuilder{
			older("zebra").WithVersion("7").WithFormer("7", "0.9.0").WithRetention(1, time.Hour).WithPlacement(v1alpha1.Placement{ClusterNames: []string{"nowhere"}})},
			[]string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0", "=ubuntu-7"}, []string{"=ubuntu-0.8.0", "=ubuntu-0.9.0", "=ubuntu-1.0.0", "=ubuntu-7"}, ours().Obj().Spec.Template.URL},
	} {
		t.Run(name, func(t *testing.T) {
			for _, has := range []bool{true, false} {
				b := begun(t, has)
				before, _ := b.Of("bergen")
				for _, rival := range tt.rivals {
					b.SetImage(stored(rival))
					b.decided(rival.Obj().Name)
				}
				require.Empty(t, b.decided("ubuntu"))
				require.Equal(t, v1alpha1.ReasonNameConflict, b.columns["ubuntu"].status.Reason)
				w, known := b.Of("bergen")
				require.True(t, known)
				assert.Equal(t, tt.wantBergen, names(w))
				assert.Equal(t, tt.wantOslo, b.wanted("oslo"), "where it has not begun, it does not")
				for _, img := range w.Images {
					if img.Name == "ubuntu-1.0.0" {
						assert.Equal(t, tt.wantURL, img.Spec.URL)
						assert.Equal(t, tt.wantURL != theirs, img.PlannedAt.Equal(before.Images[0].PlannedAt) && img.Spec == before.Images[0].Spec)
					}
				}

				for _, rival := range tt.rivals {
					b.RemoveImage(rival.Obj().Name)
				}
				b.decided("ubuntu")
				assert.Contains(t, b.wanted("bergen"), "+ubuntu-1.0.0")
			}
		})
	}
}

// What it has begun is remembered beside a rival, too, whatever plan shows, and by a
// hub that knows nothing but the plan.
func TestBegunStaysBesideARival(t *testing.T) {
	wantBeside := []string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}
	rival := older("zebra").WithVersion("0.9.0")
	b := begun(t, true)
	plan := b.members["bergen"].plan
	b.SetImage(stored(rival))
	b.decided("ubuntu", "zebra")
	b.SetPlan("bergen", nil)
	b.decided("ubuntu")
	assert.Equal(t, wantBeside, b.wanted("bergen"))

	again := newBoard(t, "bergen")
	again.SetImage(stored(ours().WithStatus(*b.columns["ubuntu"].status)))
	again.SetImage(stored(rival))
	again.SetPlan("bergen", plan)
	again.decided("ubuntu", "zebra")
	assert.Equal(t, wantBeside, again.wanted("bergen"))
	w, _ := again.Of("bergen")
	assert.True(t, w.Images[1].PlannedAt.Equal(plan.Spec.Images[0].PlannedAt), "it was planned when it was planned")
}

// One that is being deleted has nothing to say of names that an older one has.
func TestWhatLeavesBesideARivalAsksForNothing(t *testing.T) {
	for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeletionRetain, v1alpha1.DeletionDelete} {
		b := begun(t, true)
		b.SetImage(stored(older("zebra").WithVersion("0.9.0")))
		b.decided("ubuntu", "zebra")
		b.SetImage(leaves(b.image("ubuntu"), policy))
		_, held, _ := b.Decide("ubuntu", now)
		assert.False(t, held)
		assert.Equal(t, []string{"+ubuntu-0.9.0"}, b.wanted("bergen"))
		assert.Equal(t, 1, b.members["bergen"].coming, "that of the older one")
	}
}

// A rival that takes its images with it leaves those that are kept for others, and
// does not wait for them.
func TestRivalThatLeavesWithItsImages(t *testing.T) {
	b := begun(t, true)
	b.SetImage(stored(older("zebra").WithVersion("0.9.0").WithFormer("0.9.0", "0.1.0")))
	b.decided("ubuntu", "zebra")
	b.follow("bergen", "oslo")
	b.SetImage(leaves(b.image("zebra"), v1alpha1.DeletionDelete))
	held := func() bool {
		b.decided("ubuntu")
		_, held, found := b.Decide("zebra", now)
		require.True(t, found)
		return held
	}
	require.True(t, held())
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0", "-ubuntu-0.1.0"}, b.wanted("bergen"))
	b.follow("bergen", "oslo")
	b.report("bergen", there("ubuntu-0.9.0", v1alpha1.PhaseSucceeded), there("ubuntu-0.1.0", v1alpha1.PhaseSucceeded))
	assert.True(t, held(), "one that it has alone is there yet")
	b.report("bergen", there("ubuntu-0.9.0", v1alpha1.PhaseSucceeded))
	assert.False(t, held())

	b.forgetCalls()
	b.SetImage(leaves(b.image("ubuntu"), v1alpha1.DeletionRetain))
	assert.Positive(t, b.looked["zebra"], "nobody keeps it any more")
	assert.True(t, held())
	assert.Equal(t, []string{"-ubuntu-0.1.0", "-ubuntu-0.9.0"}, b.wanted("bergen"))
}
