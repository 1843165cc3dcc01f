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

// newYounger has three versions and maxConcurrency 1.
func newYounger() *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage("ubuntu").Created(apitest.Epoch.Add(time.Hour)).WithMaxConcurrency("1").
		WithFormer("1.0.0", "0.9.0", "0.8.0").WithRetention(1, time.Hour)
}

// newOlder shares image names with newYounger.
func newOlder(name string) *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage(name).WithImageName("ubuntu").WithURL(olderURL).Created(apitest.Epoch)
}

// newConflictState returns a fleet in which bergen has started with newYounger, and
// succeeded where has is set.
func newConflictState(t *testing.T, has bool) *testState {
	t.Helper()
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(newYounger().WithPlacement(v1alpha1.Placement{ClusterNames: []string{"bergen"}})))
	require.Equal(t, []string{"bergen"}, f.decideAll("ubuntu"))
	f.applyPlans("bergen", "oslo")
	if has {
		f.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), newYounger()))
		f.decideAll("ubuntu")
		require.Equal(t, []string{"+ubuntu-1.0.0", "-ubuntu-0.8.0", "-ubuntu-0.9.0"}, f.desiredNames("bergen"))
	}
	return f
}

func deleting(img *v1alpha1.FleetDiskImage, policy v1alpha1.DeletionPolicy) *v1alpha1.FleetDiskImage {
	img.DeletionTimestamp, img.Spec.DeletionPolicy, img.Generation = &metav1.Time{Time: now}, policy, img.Generation+1
	return img
}

// An older FleetDiskImage that takes a name of its versions costs no image its protection.
func TestConflictKeepsImagesProtected(t *testing.T) {
	for name, tt := range map[string]struct {
		conflicts            []*apitest.FleetDiskImageBuilder
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
				f := newConflictState(t, has)
				before, _ := f.ForMember("bergen")
				for _, conflict := range tt.conflicts {
					f.SetImage(storedImage(conflict))
					f.decideAll(conflict.Obj().Name)
				}
				require.Empty(t, f.decideAll("ubuntu"))
				require.Equal(t, v1alpha1.ReasonNameConflict, f.images["ubuntu"].status.Reason)
				w, known := f.ForMember("bergen")
				require.True(t, known)
				assert.Equal(t, tt.wantBergen, formatDesired(w))
				assert.Equal(t, tt.wantOslo, f.desiredNames("oslo"), "no further cluster starts")
				for _, img := range w.Images {
					if img.Name == "ubuntu-1.0.0" {
						assert.Equal(t, tt.wantURL, img.Spec.URL)
						assert.Equal(t, tt.wantURL != olderURL, img.PlannedAt.Equal(before.Images[0].PlannedAt) && img.Spec.Equal(&before.Images[0].Spec))
					}
				}

				for _, conflict := range tt.conflicts {
					f.RemoveImage(conflict.Obj().Name)
				}
				f.decideAll("ubuntu")
				assert.Contains(t, f.desiredNames("bergen"), "+ubuntu-1.0.0")
			}
		})
	}
}

// A start in conflict is remembered whatever the plan shows, also by a hub that knows
// only the plan.
func TestStartedImageStaysInConflict(t *testing.T) {
	wantBeside := []string{"+ubuntu-0.9.0", "+ubuntu-1.0.0", "=ubuntu-0.8.0"}
	conflict := newOlder("zebra").WithVersion("0.9.0")
	f := newConflictState(t, true)
	plan := f.members["bergen"].plan
	f.SetImage(storedImage(conflict))
	f.decideAll("ubuntu", "zebra")
	f.SetPlan("bergen", nil)
	f.decideAll("ubuntu")
	assert.Equal(t, wantBeside, f.desiredNames("bergen"))

	again := newTestState(t, "bergen")
	again.SetImage(storedImage(newYounger().WithStatus(*f.images["ubuntu"].status)))
	again.SetImage(storedImage(conflict))
	again.SetPlan("bergen", plan)
	again.decideAll("ubuntu", "zebra")
	assert.Equal(t, wantBeside, again.desiredNames("bergen"))
	w, _ := again.ForMember("bergen")
	assert.True(t, w.Images[1].PlannedAt.Equal(plan.Spec.Images[0].PlannedAt), "plannedAt stays")
}

// A FleetDiskImage that is being deleted leaves shared names to the older one.
func TestDeletedImageInConflictDesiresNothing(t *testing.T) {
	for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeletionRetain, v1alpha1.DeletionDelete} {
		f := newConflictState(t, true)
		f.SetImage(storedImage(newOlder("zebra").WithVersion("0.9.0")))
		f.decideAll("ubuntu", "zebra")
		f.SetImage(deleting(f.copyStoredImage("ubuntu"), policy))
		_, held, _ := f.Decide("ubuntu", now)
		assert.False(t, held)
		assert.Equal(t, []string{"+ubuntu-0.9.0"}, f.desiredNames("bergen"))
		assert.Equal(t, 1, f.members["bergen"].pendingStarts, "the start of the older one")
	}
}

// A FleetDiskImage that is deleted with its images leaves those that others keep, and does
// not wait for them.
func TestDeletingConflictReleasesImages(t *testing.T) {
	f := newConflictState(t, true)
	f.SetImage(storedImage(newOlder("zebra").WithVersion("0.9.0").WithFormer("0.9.0", "0.1.0")))
	f.decideAll("ubuntu", "zebra")
	f.applyPlans("bergen", "oslo")
	f.SetImage(deleting(f.copyStoredImage("zebra"), v1alpha1.DeletionDelete))
	held := func() bool {
		f.decideAll("ubuntu")
		_, held, found := f.Decide("zebra", now)
		require.True(t, found)
		return held
	}
	require.True(t, held())
	assert.Equal(t, []string{"+ubuntu-1.0.0", "=ubuntu-0.8.0", "=ubuntu-0.9.0", "-ubuntu-0.1.0"}, f.desiredNames("bergen"))
	f.applyPlans("bergen", "oslo")
	f.reportImages("bergen", newReported("ubuntu-0.9.0", v1alpha1.PhaseSucceeded), newReported("ubuntu-0.1.0", v1alpha1.PhaseSucceeded))
	assert.True(t, held(), "an exclusive image still exists")
	f.reportImages("bergen", newReported("ubuntu-0.9.0", v1alpha1.PhaseSucceeded))
	assert.False(t, held())

	f.resetCalls()
	f.SetImage(deleting(f.copyStoredImage("ubuntu"), v1alpha1.DeletionRetain))
	assert.Positive(t, f.enqueued["zebra"], "no other FleetDiskImage keeps it")
	assert.True(t, held())
	assert.Equal(t, []string{"-ubuntu-0.1.0", "-ubuntu-0.9.0"}, f.desiredNames("bergen"))
}
