package image_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const notFound = "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found"

// queued is an image that waits for a slot.
func queued(t *testing.T, img *apitest.ImageBuilder, p *apitest.PolicyBuilder) *world {
	w := newWorld(t, img.WithFinalizer(), p.Obj())
	w.reconcile()
	return w
}

func TestDecideFollowsAnImport(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())

	require.Len(t, w.ledger().Admitted, 1)
	before := asJSON(t, w.status())
	after := w.reconcile().After
	assert.Equal(t, before, asJSON(t, w.status()), "its DataVolume is about to be created")
	require.NotZero(t, after)
	w.later(after)
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSyncing, w.status().Phase)
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
	assert.Zero(t, w.status().LastAttempt, "it is begun once its DataVolume is there")

	w.rollForward()
	w.reconcile()
	assert.EqualValues(t, 1, w.current().Attempt)
	assert.EqualValues(t, 1, w.status().LastAttempt)
	assert.Equal(t, w.dataVolume().Name, w.current().DataVolume)
	assert.Equal(t, w.slots[0].StartedAt.Time, w.current().StartedAt.UTC())
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)

	w.download("50.0%")
	w.reconcile()
	assert.Equal(t, "50.0%", w.status().Progress)
	assert.EqualValues(t, 1<<29, w.status().BytesDone)
	assert.EqualValues(t, 1<<30, w.status().BytesTotal, "spec.diskSize where the source told nothing")

	w.complete()
	d := w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonReady, w.status().Reason)
	assert.Equal(t, w.dataVolume().Name, w.status().Serving.PersistentVolumeClaim)
	assert.Equal(t, "1Gi", w.status().Serving.RestoreSize.String())
	assert.EqualValues(t, 1<<30, w.status().BytesDone)
	require.Len(t, d.Ended, 1)
	assert.Equal(t, v1alpha1.OutcomeSucceeded, d.Ended[0].Outcome)
	for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionImported, v1alpha1.ConditionSnapshotReady} {
		assert.Equal(t, metav1.ConditionTrue, w.condition(condition).Status, condition)
	}
	assert.Empty(t, d.Delete)
	w.freeSlots()
	assert.Empty(t, w.slots)
	assert.Zero(t, w.reconcile().After, "nothing is waited for")
}

func TestDecideWritesProgressSeldom(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.begun()
	writes := 0
	for percent := 1; percent <= 60; percent++ { // a percent each second
		w.later(time.Second)
		w.download(strconv.Itoa(percent) + ".0%")
		version := w.img.ResourceVersion
		d := w.reconcile()
		require.NotZero(t, d.After)
		if w.img.ResourceVersion != version {
			writes++
		}
	}
	assert.LessOrEqual(t, writes, 7)
	assert.GreaterOrEqual(t, writes, 5)

	w.later(time.Minute)
	w.download("60.1%")
	w.reconcile()
	assert.Equal(t, "60.1%", w.status().Progress, "slow progress is stored after a while")
}

func TestDecideRetriesAndGivesUp(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked()) // retryLimit 2
	key := w.current().OrderingKey
	for attempt := int32(1); attempt <= 3; attempt++ {
		w.download1(t)
		w.breakOff("Unable to process data: unexpected EOF")
		d := w.reconcile()
		require.Len(t, d.Ended, 1)
		assert.Equal(t, v1alpha1.ReasonImportFailed, d.Ended[0].Failure.Reason)
		w.ledger()
		assert.Equal(t, []string{"DataVolume " + w.dataVolume().Name}, deletes(w.reconcile()), "what failed is not left to start over")
		assert.Equal(t, attempt, w.status().Attempts)
		assert.Empty(t, w.status().Progress)
		w.settleStorage()
		require.Empty(t, w.slots)
		if attempt == 3 {
			break
		}
		assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.Contains(t, w.status().Message, "unexpected EOF")
		wait := w.last.After
		assert.LessOrEqual(t, wait, time.Minute<<(attempt-1))
		assert.Greater(t, wait, time.Minute<<(attempt-1)*3/4)
		assert.Empty(t, w.ledger().Admitted)
		w.later(wait - time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		w.later(time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Equal(t, key, w.current().OrderingKey, "a retry keeps its place")
	}
	assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonImportFailed, w.status().Reason)
	assert.Contains(t, w.status().Message, v1alpha1.AnnotationRetry)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
	w.later(1000 * time.Hour)
	assert.Zero(t, w.reconcile().After)
	assert.Empty(t, w.ledger().Admitted)
}

// download1 admits the image and has its import seen at work.
func (w *world) download1(t *testing.T) {
	t.Helper()
	require.Len(t, w.ledger().Admitted, 1)
	w.rollForward()
	w.download("1.0%")
	w.reconcile()
}

func TestDecideFailsAtOnceWhatWaitingCannotHeal(t *testing.T) {
	for name, tt := range map[string]struct {
		message    string
		want       v1alpha1.Reason
		wantAdvice string
	}{
		"not found": {notFound, v1alpha1.ReasonNotFound, "Correct spec.url"},
		"too small": {"DataVolume too small to contain image", v1alpha1.ReasonDiskTooSmall, "Enlarge spec.diskSize"},
		"checksum":  {"Unable to process data: checksum mismatch", v1alpha1.ReasonChecksumMismatch, "Correct spec.checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			w := queued(t, apitest.Image("ns/a"), unasked())
			w.failed(tt.message)
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.Equal(t, tt.want, w.status().Reason)
			assert.Contains(t, w.status().Message, tt.wantAdvice)
			assert.EqualValues(t, 1, w.status().Attempts)
		})
	}
}

func TestDecideEndsWhatTakesTooLong(t *testing.T) {
	p := unasked().Timeouts(time.Hour, 10*time.Minute)
	t.Run("timeout", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), p)
		w.begun()
		for i := range 12 {
			w.later(5 * time.Minute)
			w.download(strconv.Itoa(i) + ".5%")
			w.reconcile()
		}
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.Equal(t, v1alpha1.ReasonTimeout, w.current().Failure.Reason)
		assert.Contains(t, w.status().Message, "attemptTimeout, 1h0m0s")
	})
	t.Run("timeout by a clock that nobody puts back", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), p)
		w.begun()
		w.ages = map[string]time.Duration{w.slots[0].DataVolume: time.Hour}
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonTimeout, w.current().Failure.Reason)
	})
	t.Run("stalled", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), p)
		w.begun()
		assert.LessOrEqual(t, w.last.After, 10*time.Minute)
		w.later(10*time.Minute - time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		w.later(time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonStalled, w.current().Failure.Reason)
	})
	t.Run("stalled before it started, and why", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), p)
		w.ledger()
		w.rollForward()
		w.dataVolume().Status.Conditions = []cdiv1.DataVolumeCondition{{
			Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "ErrClaimNotValid", Message: "no accessMode defined",
		}}
		w.reconcile()
		assert.Contains(t, w.status().Message, "claimPropertySets", "told at once, not only when it is given up")
		w.later(10 * time.Minute)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonStalled, w.current().Failure.Reason)
		assert.Contains(t, w.current().Failure.Message, "claimPropertySets")
	})
	t.Run("a clock that goes backwards ends nothing", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), p)
		w.begun()
		w.later(-48 * time.Hour)
		for range 3 {
			w.later(time.Minute)
			w.reconcile()
			assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		}
		w.complete()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

func TestDecideOnALostDataVolume(t *testing.T) {
	t.Run("begun", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.lose(image.DataVolume, w.dataVolume().Name)
		d := w.reconcile()
		assert.True(t, w.live, "a cache may just be late")
		assert.Equal(t, v1alpha1.ReasonDataVolumeLost, w.current().Failure.Reason)
		require.Len(t, d.Ended, 1)
		w.rollForward()
		assert.Empty(t, w.lists.DataVolumes, "an attempt that was begun is not begun again")
		w.settleStorage()
		assert.Empty(t, w.slots)
	})
	t.Run("the cache was late", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.sync()
		w.begun()
		w.cache.lists = image.Lists{}
		w.reconcileCached(allWrites)
		assert.True(t, w.live)
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
	})
	t.Run("not begun", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.ledger()
		w.rollForward()
		w.lose(image.DataVolume, w.dataVolume().Name)
		w.reconcile()
		assert.Zero(t, w.current().AttemptEnded)
		w.rollForward()
		assert.Len(t, w.lists.DataVolumes, 1, "rolled forward")
	})
	t.Run("collected by CDI when it was done", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.complete()
		w.lists.Claims[0].OwnerReferences = nil
		w.lose(image.DataVolume, w.dataVolume().Name)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

func TestDecideOnALostSlot(t *testing.T) {
	t.Run("nothing of the import is left", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.slots = nil
		w.lose(image.DataVolume, w.dataVolume().Name)
		w.reconcile()
		assert.True(t, w.live)
		assert.Equal(t, v1alpha1.ReasonDataVolumeLost, w.current().Failure.Reason)
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
	})
	t.Run("the import is done", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.slots = nil
		w.complete()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("the import runs on", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.slots = nil
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		assert.Len(t, w.ledger().Adopted, 1)
		w.complete()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

// The ledger takes up unfinished DataVolumes only. What else an attempt without
// a slot may have left must not wait for it for ever.
func TestDecideEndsAnAttemptThatTheLedgerWillNotTakeUp(t *testing.T) {
	t.Run("its claim was lost when it was done", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.complete()
		w.lose(image.PersistentVolumeClaim, w.dataVolume().Name)
		w.slots = nil
		w.reconcile()
		require.NotZero(t, w.last.After)
		w.later(w.last.After)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.NotNil(t, w.dataVolume().DeletionTimestamp)
	})
	t.Run("its claim was left when its DataVolume was deleted", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.begun()
		w.lists.Claims[0].OwnerReferences = nil
		w.lose(image.DataVolume, w.dataVolume().Name)
		w.slots = nil
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.Len(t, deletes(w.last), 1, "CDI would start over from the claim alone")
	})
}

func TestDecideCountsTheBytesOfTheAttemptThatRuns(t *testing.T) {
	t.Run("of another source", func(t *testing.T) {
		w := newWorld(t, apitest.Image("ns/a").WithFinalizer(), apitest.Policy().Obj())
		w.reconcile()
		w.answer(image.Preflight{Size: 4711})
		w.reconcile()
		w.imported()
		require.EqualValues(t, 4711, w.status().BytesDone)

		w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.SourceType, s.URL = v1alpha1.SourceS3, "s3://b/a" })
		w.reconcile()
		w.begun()
		w.download("50.0%")
		w.reconcile()
		assert.EqualValues(t, 1<<30, w.status().BytesTotal, "the size of the old one says nothing of it")
		assert.EqualValues(t, 1<<29, w.status().BytesDone)
	})
	t.Run("of storage that was lost", func(t *testing.T) {
		w := queued(t, apitest.Image("ns/a"), unasked())
		w.imported()
		w.lose(image.DataVolume, w.dataVolume().Name)
		w.reconcile()
		w.ledger()
		w.rollForward()
		w.reconcile()
		w.breakOff("unexpected EOF")
		d := w.reconcile()
		require.Len(t, d.Ended, 1)
		assert.Zero(t, d.Ended[0].Bytes, "what an earlier attempt downloaded is not counted again")
	})
}

// A status that was restored from a backup knows nothing of an attempt whose
// slot is marked: its DataVolume is refused from there on, so it cannot run.
func TestDecideEndsAnAttemptWhoseOutcomeWasTakenBack(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	backup := w.img.Status.DeepCopy()
	w.begun()
	w.breakOff("unexpected EOF")
	w.reconcile()
	w.ledger()
	require.True(t, w.slots[0].Ended)
	w.reconcile()
	w.collect()
	w.img.Status = *backup
	w.touch()
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
	w.settleStorage()
	assert.Empty(t, w.slots)
}

// The DataVolume can be seen before its slot is, by caches of their own.
func TestDecideLeavesADataVolumeThatItDoesNotKnowOf(t *testing.T) {
	w := queued(t, apitest.Image("ns/a"), unasked())
	w.sync()
	w.ledger()
	w.rollForward()
	w.syncLists()
	w.reconcileCached(allWrites)
	assert.Empty(t, w.last.Delete)
}
