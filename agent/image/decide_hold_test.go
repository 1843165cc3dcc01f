package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestDecideStoresThatNobodyHeldItBeforeAnythingGoes(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)

	v := w.view(true) // a leader lists, and is paused
	d := decideChecked(t, v)
	require.True(t, d.Status.TearDown)
	require.NotEmpty(t, d.Delete)

	w.come("ns/vm") // another one sees a machine that came
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)

	w.carryOut(v, d, allWrites)
	assert.False(t, w.status().TearDown, "its write is refused")
	assert.Nil(t, w.dataVolume().DeletionTimestamp, "and nothing is deleted")
}

func TestDecideHasNoWayBackFromTearingDown(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	w.deleteImage()
	w.reconcile()
	w.reconcile()
	require.True(t, w.status().TearDown)
	w.come("ns/vm")
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	assert.EqualValues(t, 1, w.status().References.Count, "it is told of all the same")
	assert.Equal(t, queue.Out, image.StandingOf(w.img))
	w.collect()
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestDecideLetsGoOnlyByWhatIsStored(t *testing.T) {
	w := newWorld(t, apitest.Image("ns/a").WithFinalizer(), apitest.Policy().Obj())
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
	w.reconcile()
	require.NotNil(t, w.img, "there is nothing to delete, and it is stored first all the same")
	assert.True(t, w.status().TearDown)
	w.reconcile()
	assert.Nil(t, w.img)
}

func TestDecideGoesWithItsNamespace(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.imported()
	w.come("other/vm")
	w.acquire("other/vm")
	w.deleteImage()
	w.reconcile()
	require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
	assert.LessOrEqual(t, w.last.After, 30*time.Second, "nothing tells of a namespace")
	assert.NotZero(t, w.last.After)

	w.going = true
	w.holders[0].Pin = nil // for checkPinned: this is outside of S2
	for range 3 {
		w.reconcile()
		w.collect()
	}
	w.reconcile()
	assert.Nil(t, w.img)
}

// revised is an image that serves its second revision, while a machine is built
// from its first.
func revised(t *testing.T, img *apitest.ImageBuilder) (w *world, pin v1alpha1.PinnedImage) {
	w = queued(t, img, unasked())
	ready := func() {
		w.imported()
		if w.snapshot() != nil {
			w.readySnapshot()
		}
		w.reconcile()
		require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	}
	ready()
	w.come("ns/vm")
	w.acquire("ns/vm")
	pin = *w.holders[0].Pin
	w.later(time.Minute)
	w.setURL(urlB)
	w.reconcile()
	ready()
	w.settleStorage()
	return w, pin
}

func TestDecideKeepsWhatIsPinned(t *testing.T) {
	for name, img := range map[string]*apitest.ImageBuilder{"claims": apitest.Image("ns/a"), "snapshots": snapshotted()} {
		t.Run(name, func(t *testing.T) {
			w, pin := revised(t, img)
			old := image.ByAttempt(w.lists)[pin.Attempt]
			require.NotNil(t, old)
			assert.Nil(t, old.DataVolume.DeletionTimestamp)
			assert.Nil(t, old.Claim.DeletionTimestamp)
			if pin.VolumeSnapshot != "" {
				require.Len(t, old.Snapshots, 1)
				assert.Nil(t, old.Snapshots[0].DeletionTimestamp)
			}
			require.Len(t, w.status().Revisions, 2)
			assert.Equal(t, v1alpha1.OutcomeSucceeded, w.status().Revisions[1].Outcome)
			assert.Contains(t, w.status().Message, "kept for those built from it: ns/vm")
			assert.False(t, w.live, "nothing is asked live while the cache shows the pin")

			w.sync()
			w.come() // the cache does not show it yet
			w.reconcileCached(allWrites)
			assert.False(t, w.live)
			w.reconcile()
			assert.True(t, w.live)
			assert.Equal(t, v1alpha1.OutcomeFailed, w.status().Revisions[1].Outcome)
			assert.Equal(t, v1alpha1.ReasonSuperseded, w.status().Revisions[1].Failure.Reason)
			assert.NotEmpty(t, w.last.Delete)
			w.settleStorage()
			assert.Len(t, w.lists.DataVolumes, 1)
			assert.Len(t, w.status().Revisions, 1)
			assert.NotContains(t, w.status().Message, "kept")
		})
	}
}

func TestDecideSeesAPinThatItsCacheDoesNotShow(t *testing.T) {
	w, _ := revised(t, apitest.Image("ns/a"))
	w.sync()
	w.cache.holders = nil
	before := w.img.DeepCopy()
	w.reconcileCached(allWrites)
	assert.True(t, w.live)
	assert.Empty(t, w.last.Delete)
	assert.Equal(t, before.Status.Revisions, w.status().Revisions)
}

// A retired revision is imported anew, whatever is still there of it: somebody
// may be about to delete that.
func TestDecideImportsARetiredRevisionAnew(t *testing.T) {
	w, pin := revised(t, apitest.Image("ns/a"))
	url := apitest.Image("ns/a").Obj().Spec.URL
	t.Run("one that is pinned serves again", func(t *testing.T) {
		w.setURL(url)
		w.reconcile()
		assert.Equal(t, pin.Attempt, w.status().Serving.Attempt)
		w.setURL(urlB)
		w.reconcile()
		assert.EqualValues(t, 2, w.status().Serving.Attempt, "of the other, which nobody has pinned, nothing is gone yet")
	})
	w.come()
	w.reconcile()
	w.setURL(url)
	w.reconcile()
	assert.EqualValues(t, 2, w.status().Serving.Attempt)
	assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
	w.collect()
	w.reconcile()
	w.imported()
	assert.EqualValues(t, 3, w.status().Serving.Attempt)
}

func TestDecideKeepsWhatIsPinnedBeyondTheList(t *testing.T) {
	w, pin := revised(t, apitest.Image("ns/a"))
	for _, url := range []string{"c", "d", "e", "f", "g"} {
		w.come("ns/"+url, "ns/vm")
		w.acquire("ns/" + url) // what serves now
		w.come(append([]string{"ns/" + url}, names(w)...)...)
		w.later(time.Minute)
		w.setURL("https://images.example.com/" + url)
		w.reconcile()
		w.imported()
		w.settleStorage()
		require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
		require.LessOrEqual(t, len(w.status().Revisions), v1alpha1.MaxRevisions)
	}
	there := image.ByAttempt(w.lists)
	assert.NotNil(t, there[pin.Attempt], "the oldest, which has lost its place in the list")
	w.come()
	for range 10 {
		w.settleStorage()
	}
	assert.Len(t, image.ByAttempt(w.lists), 1, "all but what serves is gone")
}

func names(w *world) (names []string) {
	for _, h := range w.holders {
		names = append(names, h.Name)
	}
	return names
}

// CDI makes a lost claim again for its DataVolume and downloads into it, in no
// slot. A snapshot that was made of it is not lost with it.
func TestDecideDoesNotDownloadALostRevisionAgain(t *testing.T) {
	for name, beyondTheList := range map[string]bool{"listed": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			w, pin := revised(t, snapshotted())
			if beyondTheList {
				w.img.Status.Revisions = w.img.Status.Revisions[:1]
				w.touch()
			}
			w.claim(pin.PersistentVolumeClaim).Status.Phase = corev1.ClaimLost
			w.reconcile()
			assert.True(t, w.live)
			assert.Equal(t, []string{"DataVolume " + pin.PersistentVolumeClaim}, deletes(w.last))
			w.settleStorage()
			left := image.ByAttempt(w.lists)[pin.Attempt]
			require.NotNil(t, left)
			assert.Nil(t, left.Claim)
			require.Len(t, left.Snapshots, 1)
			assert.Equal(t, pin.VolumeSnapshot, left.Snapshots[0].Name)
			assert.Nil(t, left.Snapshots[0].DeletionTimestamp)
			assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			w.come()
			w.settleStorage()
			assert.Len(t, image.ByAttempt(w.lists), 1)
		})
	}
}

func TestDecideKeepsAnOlderSnapshotThatIsPinned(t *testing.T) {
	w := queued(t, snapshotted(), unasked())
	w.imported()
	w.readySnapshot()
	w.reconcile()
	w.come("ns/vm")
	w.acquire("ns/vm")
	first := w.snapshot().Name
	w.later(time.Minute)
	w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = "other" })
	w.reconcile()
	w.readySnapshot()
	w.settleStorage()
	require.NotEqual(t, first, w.status().Serving.VolumeSnapshot)
	require.Len(t, w.lists.Snapshots, 2)
	assert.Nil(t, w.lists.Snapshots[0].DeletionTimestamp)
	w.come()
	w.reconcile()
	assert.Equal(t, []string{"VolumeSnapshot " + first}, deletes(w.last))
}

func TestDecideDeletesWhatNobodyReferences(t *testing.T) {
	reach := map[string]func(*world){
		"queued": func(*world) {}, "importing": (*world).begun, "ready": (*world).imported,
		"failed": func(w *world) { w.failed(notFound) },
	}
	for name, do := range reach {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a"), unasked())
			w.come("ns/vm")
			w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
			do(w)
			w.later(2 * time.Hour)
			w.reconcile()
			require.False(t, w.last.DeleteImage, "it is referenced")

			w.come()
			w.reconcile()
			require.False(t, w.last.DeleteImage)
			assert.LessOrEqual(t, w.last.After, time.Hour)
			assert.NotZero(t, w.last.After)
			w.later(59 * time.Minute)
			w.reconcile()
			require.False(t, w.last.DeleteImage)
			assert.LessOrEqual(t, w.last.After, time.Minute)

			w.later(time.Minute)
			w.plan.Stays = true
			w.reconcile()
			require.False(t, w.last.DeleteImage, "a plan wants it")
			assert.NotZero(t, w.last.After, "and may let go of it")
			assert.LessOrEqual(t, w.last.After, time.Minute)

			w.plan.Stays = false
			w.sync()
			w.come("ns/vm") // the cache does not show it
			w.reconcileCached(allWrites)
			assert.True(t, w.live)
			require.False(t, w.last.DeleteImage)

			w.come()
			w.reconcile()
			require.False(t, w.last.DeleteImage, "its time begins anew")
			w.later(time.Hour)
			w.reconcile()
			assert.True(t, w.live)
			assert.True(t, w.last.DeleteImage)
			w.deleteImage()
			w.reconcile()
			assert.False(t, w.last.DeleteImage)
			assert.Equal(t, v1alpha1.PhaseDeleting, w.status().Phase)
		})
	}
	t.Run("retired by the plan", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.hand(image.Planned)
		w.imported()
		w.come("ns/vm")
		w.plan.Retired = ptr.To(time.Hour)
		w.later(2 * time.Hour)
		w.reconcile()
		require.False(t, w.last.DeleteImage, "it is referenced")

		w.come()
		w.reconcile()
		require.False(t, w.last.DeleteImage, "its time begins when nobody references it")
		assert.LessOrEqual(t, w.last.After, time.Hour)
		w.later(time.Hour)
		w.plan.Stays = true
		w.seen.Stays = false
		w.reconcileCached(allWrites)
		assert.True(t, w.live)
		require.False(t, w.last.DeleteImage, "a newer plan, that the cache does not show, wants it")

		w.plan.Stays = false
		w.reconcile()
		assert.True(t, w.live)
		assert.True(t, w.last.DeleteImage)
		assert.True(t, w.last.Retired)
	})
	t.Run("retired by the plan at once", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.hand(image.Planned)
		w.imported()
		w.plan.Retired = ptr.To(time.Duration(0))
		w.sync()
		w.come("ns/vm") // the cache does not show it
		w.reconcileCached(allWrites)
		assert.True(t, w.live)
		require.False(t, w.last.DeleteImage)
		w.come()
		w.reconcile()
		assert.True(t, w.last.DeleteImage)
	})
	t.Run("retired by the plan, and not the plan's", func(t *testing.T) {
		for _, label := range []string{"", "false"} {
			w := queued(t, apitest.Image("ns/a"), unasked())
			w.hand(label)
			w.imported()
			w.plan.Retired = ptr.To(time.Duration(0))
			w.later(1000 * time.Hour)
			w.reconcile()
			assert.False(t, w.last.DeleteImage)
			assert.Zero(t, w.last.After)
		}
	})
	for name, tt := range map[string]struct {
		plan        time.Duration
		wantRetired bool
	}{
		"the plan's time is the shorter": {time.Minute, true},
		"the spec's time is the shorter": {3 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a"), unasked())
			w.hand(image.Planned)
			w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour} })
			w.imported()
			w.plan.Retired = &tt.plan
			w.later(2 * time.Hour)
			w.reconcile()
			assert.True(t, w.last.DeleteImage)
			assert.Equal(t, tt.wantRetired, w.last.Retired)
		})
	}
	t.Run("not unless the spec says so", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.imported()
		w.later(1000 * time.Hour)
		w.reconcile()
		assert.False(t, w.last.DeleteImage)
		assert.Zero(t, w.last.After)
	})
}
