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

const olderURL = "https://images.example.com/older.qcow2"

// newYounger has had three versions, and begins with one cluster at a time.
func newYounger() *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage("ubuntu").Created(apitest.Epoch.Add(time.Hour)).WithMaxConcurrency("1").
		WithFormer("1.0.0", "0.9.0", "0.8.0").WithRetention(1, time.Hour)
}

// newOlder makes images of the names that ours makes.
func newOlder(name string) *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage(name).WithImageName("ubuntu").WithURL(olderURL).Created(apitest.Epoch)
}

// newConflictState is a fleet of which bergen has begun with ours, and has it where has is set.
func newConflictState(t *testing.T, has bool) *testState {
	t.Helper()
	b := newTestState(t, "bergen", "oslo")
	b.SetImage(storedImage(newYounger().WithPlacement(v1alpha1.Placement{ClusterNames: []string{"bergen"}})))
	require.Equal(t, []string{"bergen"}, b.decideAll("ubuntu"))
	b.applyPlans("bergen", "oslo")
	if has {
		b.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), newYounger()))
		b.decideAll("ubuntu")
		require.Equal(t, []string{"+ubuntu-1.0.0", "-ubuntu-0.8.0", "-ubuntu-0.9.0"}, b.desiredNames("bergen"))
	}
	return b
}

func deleting(img *v1alpha1.FleetDiskImage, policy v1alpha1.DeletionPolicy) *v1alpha1.FleetDiskImage {
	img.DeletionTimestamp, img.Spec.DeletionPolicy, img.Generation = &metav1.Time{Time: now}, policy, img.Generation+1
	return img
}

// That an older one takes a name of its versions costs no image its protection, and
// leaves what was begun under another name as it is.
func TestConflictKeepsImagesProtected(t *testing.T) {
	for name, tt := range map[string]struct {
		rivals               []*apitest.FleetDiskImageBuilder
		wantBergen, wantOslo []string
		wantURL              string // of ubuntu-1.0.0 in bergen
	}{
		"of a former name": {[]*apitest.FleetDiskImageBuilder{newOlder("zebra").WithVersion("0.9.0")},
			[]string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}, []string{"+ubuntu-0.9.0", "=ubuntu-0.8.0", "=ubuntu-1.0.0"}, newYounger().Obj().Spec.Template.URL},
		"of the current name": {[]*apitest.FleetDiskImageBuilder{newOlder("zebra")},
			[]string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0"}, []string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0"}, olderURL},
		"one of a former, another of the current name": {[]*apitest.FleetDiskImageBuilder{newOlder("zebra").WithVersion("0.9.0"), newOlder("zoo").Created(apitest.Epoch.Add(time.Minute))},
			[]string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}, []string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}, olderURL},
		"which retires that name": {[]*apitest.FleetDiskImageBuilder{
			newOlder("zebra").WithVersion("7").WithFormer("7", "0.9.0").WithRetention(1, time.Hour).WithPlacement(v1alpha1.Placement{ClusterNames: []string{"nowhere"}})},
			[]string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0", "=ubuntu-7"}, []string{"=ubuntu-0.8.0", "=ubuntu-0.9.0", "=ubuntu-1.0.0", "=ubuntu-7"}, newYounger().Obj().Spec.Template.URL},
	} {
		t.Run(name, func(t *testing.T) {
			for _, has := range []bool{true, false} {
				b := newConflictState(t, has)
				before, _ := b.ForMember("bergen")
				for _, rival := range tt.rivals {
					b.SetImage(storedImage(rival))
					b.decideAll(rival.Obj().Name)
				}
				require.Empty(t, b.decideAll("ubuntu"))
				require.Equal(t, v1alpha1.ReasonNameConflict, b.images["ubuntu"].status.Reason)
				w, known := b.ForMember("bergen")
				require.True(t, known)
				assert.Equal(t, tt.wantBergen, formatDesired(w))
				assert.Equal(t, tt.wantOslo, b.desiredNames("oslo"), "where it has not begun, it does not")
				for _, img := range w.Images {
					if img.Name == "ubuntu-1.0.0" {
						assert.Equal(t, tt.wantURL, img.Spec.URL)
						assert.Equal(t, tt.wantURL != olderURL, img.PlannedAt.Equal(before.Images[0].PlannedAt) && img.Spec == before.Images[0].Spec)
					}
				}

				for _, rival := range tt.rivals {
					b.RemoveImage(rival.Obj().Name)
				}
				b.decideAll("ubuntu")
				assert.Contains(t, b.desiredNames("bergen"), "+ubuntu-1.0.0")
			}
		})
	}
}

// What it has begun is remembered beside a rival, too, whatever plan shows, and by a
// hub that knows nothing but the plan.
func TestStartedImageStaysInConflict(t *testing.T) {
	wantBeside := []string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}
	rival := newOlder("zebra").WithVersion("0.9.0")
	b := newConflictState(t, true)
	plan := b.members["bergen"].plan
	b.SetImage(storedImage(rival))
	b.decideAll("ubuntu", "zebra")
	b.SetPlan("bergen", nil)
	b.decideAll("ubuntu")
	assert.Equal(t, wantBeside, b.desiredNames("bergen"))

	again := newTestState(t, "bergen")
	again.SetImage(storedImage(newYounger().WithStatus(*b.images["ubuntu"].status)))
	again.SetImage(storedImage(rival))
	again.SetPlan("bergen", plan)
	again.decideAll("ubuntu", "zebra")
	assert.Equal(t, wantBeside, again.desiredNames("bergen"))
	w, _ := again.ForMember("bergen")
	assert.True(t, w.Images[1].PlannedAt.Equal(plan.Spec.Images[0].PlannedAt), "it was planned when it was planned")
}

// One that is being deleted has nothing to say of names that an older one has.
func TestDeletedImageInConflictDesiresNothing(t *testing.T) {
	for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeletionRetain, v1alpha1.DeletionDelete} {
		b := newConflictState(t, true)
		b.SetImage(storedImage(newOlder("zebra").WithVersion("0.9.0")))
		b.decideAll("ubuntu", "zebra")
		b.SetImage(deleting(b.copyStoredImage("ubuntu"), policy))
		_, held, _ := b.Decide("ubuntu", now)
		assert.False(t, held)
		assert.Equal(t, []string{"+ubuntu-0.9.0"}, b.desiredNames("bergen"))
		assert.Equal(t, 1, b.members["bergen"].pendingStarts, "that of the older one")
	}
}

// A rival that takes its images with it leaves those that are kept for others, and
// does not wait for them.
func TestDeletingConflictReleasesImages(t *testing.T) {
	b := newConflictState(t, true)
	b.SetImage(storedImage(newOlder("zebra").WithVersion("0.9.0").WithFormer("0.9.0", "0.1.0")))
	b.decideAll("ubuntu", "zebra")
	b.applyPlans("bergen", "oslo")
	b.SetImage(deleting(b.copyStoredImage("zebra"), v1alpha1.DeletionDelete))
	held := func() bool {
		b.decideAll("ubuntu")
		_, held, found := b.Decide("zebra", now)
		require.True(t, found)
		return held
	}
	require.True(t, held())
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0", "-ubuntu-0.1.0"}, b.desiredNames("bergen"))
	b.applyPlans("bergen", "oslo")
	b.reportImages("bergen", newReported("ubuntu-0.9.0", v1alpha1.PhaseSucceeded), newReported("ubuntu-0.1.0", v1alpha1.PhaseSucceeded))
	assert.True(t, held(), "one that it has alone is there yet")
	b.reportImages("bergen", newReported("ubuntu-0.9.0", v1alpha1.PhaseSucceeded))
	assert.False(t, held())

	b.resetCalls()
	b.SetImage(deleting(b.copyStoredImage("ubuntu"), v1alpha1.DeletionRetain))
	assert.Positive(t, b.enqueued["zebra"], "nobody keeps it any more")
	assert.True(t, held())
	assert.Equal(t, []string{"-ubuntu-0.1.0", "-ubuntu-0.9.0"}, b.desiredNames("bergen"))
}
