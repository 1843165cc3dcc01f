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

const notFoundMessage = "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found"

// newQueuedSimulation returns a simulation whose image waits for a slot.
func newQueuedSimulation(t *testing.T, img *apitest.ImageBuilder, p *apitest.PolicyBuilder) *simulation {
	w := newSimulation(t, img.WithFinalizer(), p.Obj())
	w.reconcile()
	return w
}

func TestImportRunsToSuccess(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())

	require.Len(t, w.stepLedger().Admitted, 1)
	before := asJSON(t, w.status())
	after := w.reconcile().RequeueAfter
	assert.Equal(t, before, asJSON(t, w.status()), "its DataVolume is about to be created")
	require.NotZero(t, after)
	w.advanceClock(after)
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSyncing, w.status().Phase)
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)
	assert.Zero(t, w.status().LastAttempt, "the attempt starts once its DataVolume exists")

	w.createMissingDataVolumes()
	w.reconcile()
	assert.EqualValues(t, 1, w.currentRevision().Attempt)
	assert.EqualValues(t, 1, w.status().LastAttempt)
	assert.Equal(t, w.lastDataVolume().Name, w.currentRevision().DataVolume)
	assert.Equal(t, w.slots[0].StartedAt.Time, w.currentRevision().StartedAt.UTC())
	assert.Equal(t, "importing, attempt 1 of 3", w.status().Message)

	w.reportProgress("50.0%")
	w.reconcile()
	assert.Equal(t, "50.0%", w.status().Progress)
	assert.EqualValues(t, 1<<29, w.status().BytesDone)
	assert.EqualValues(t, 1<<30, w.status().BytesTotal, "spec.diskSize without a known size")

	w.completeImport()
	d := w.reconcile()
	assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonReady, w.status().Reason)
	assert.Equal(t, w.lastDataVolume().Name, w.status().Serving.PersistentVolumeClaim)
	assert.Equal(t, "1Gi", w.status().Serving.RestoreSize.String())
	assert.EqualValues(t, 1<<30, w.status().BytesDone)
	require.Len(t, d.EndedAttempts, 1)
	assert.Equal(t, v1alpha1.OutcomeSucceeded, d.EndedAttempts[0].Outcome)
	for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionImported, v1alpha1.ConditionSnapshotReady} {
		assert.Equal(t, metav1.ConditionTrue, w.condition(condition).Status, condition)
	}
	assert.Empty(t, d.Delete)
	w.stepLedgerTwice()
	assert.Empty(t, w.slots)
	assert.Zero(t, w.reconcile().RequeueAfter, "nothing to wait for")
}

// TestImportWithoutChecksumFails has an older CRD drop the checksum from the DataVolume of an
// agent that did not refuse that.
func TestImportWithoutChecksumFails(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a").WithChecksum("md5:00000000000000000000000000000000"), policyWithoutPreflight().RetryLimit(0))
	w.startImport()
	require.NotEmpty(t, w.lastDataVolume().Spec.Source.HTTP.Checksum)
	w.lastDataVolume().Spec.Source.HTTP.Checksum = ""
	w.completeImport()
	w.reconcile()
	assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, w.status().Reason)
	assert.Contains(t, w.status().Message, "does not know spec.source.http.checksum of DataVolumes")
	assert.Nil(t, w.status().Serving)
}

func TestProgressIsWrittenSeldom(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.startImport()
	writes := 0
	for percent := 1; percent <= 60; percent++ { // one percent per second
		w.advanceClock(time.Second)
		w.reportProgress(strconv.Itoa(percent) + ".0%")
		version := w.img.ResourceVersion
		d := w.reconcile()
		require.NotZero(t, d.RequeueAfter)
		if w.img.ResourceVersion != version {
			writes++
		}
	}
	assert.LessOrEqual(t, writes, 7)
	assert.GreaterOrEqual(t, writes, 5)

	w.advanceClock(time.Minute)
	w.reportProgress("60.1%")
	w.reconcile()
	assert.Equal(t, "60.1%", w.status().Progress, "slow progress is stored after maxProgressAge")
}

func TestFailingImportIsRetriedThenFails(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight()) // retryLimit 2
	key := w.currentRevision().OrderingKey
	for attempt := int32(1); attempt <= 3; attempt++ {
		w.startExpectedImport(t)
		w.failImport("Unable to process data: unexpected EOF")
		d := w.reconcile()
		require.Len(t, d.EndedAttempts, 1)
		assert.Equal(t, v1alpha1.ReasonImportFailed, d.EndedAttempts[0].Failure.Reason)
		w.stepLedger()
		assert.Equal(t, []string{"DataVolume " + w.lastDataVolume().Name}, deletedNames(w.reconcile()), "a failed DataVolume is deleted before CDI restarts it")
		assert.Equal(t, attempt, w.status().Attempts)
		assert.Empty(t, w.status().Progress)
		w.finishDeletions()
		require.Empty(t, w.slots)
		if attempt == 3 {
			break
		}
		assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.Contains(t, w.status().Message, "unexpected EOF")
		wait := w.lastDecision.RequeueAfter
		assert.LessOrEqual(t, wait, time.Minute<<(attempt-1))
		assert.Greater(t, wait, time.Minute<<(attempt-1)*3/4)
		assert.Empty(t, w.stepLedger().Admitted)
		w.advanceClock(wait - time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		w.advanceClock(time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.Equal(t, key, w.currentRevision().OrderingKey, "a retry keeps its place")
	}
	assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	assert.Equal(t, v1alpha1.ReasonImportFailed, w.status().Reason)
	assert.Contains(t, w.status().Message, v1alpha1.AnnotationRetry)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionStalled).Status)
	w.advanceClock(1000 * time.Hour)
	assert.Zero(t, w.reconcile().RequeueAfter)
	assert.Empty(t, w.stepLedger().Admitted)
}

// The limit counts that is in force when an attempt starts (S4).
func TestLoweredRetryLimitCountsAtOnce(t *testing.T) {
	lower := func(w *simulation) {
		p := *w.policy
		p.RetryLimit = 0
		w.policy = &p
	}
	backOff := func(t *testing.T) *simulation {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startExpectedImport(t)
		w.failImport("Unable to process data: unexpected EOF")
		w.reconcile()
		w.stepLedger()
		w.reconcile()
		w.finishDeletions()
		require.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		return w
	}
	t.Run("while it backs off", func(t *testing.T) {
		w := backOff(t)
		lower(w)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
		assert.Equal(t, v1alpha1.ReasonImportFailed, w.status().Reason)
	})
	t.Run("when it waits for a slot, before it is reconciled", func(t *testing.T) {
		w := backOff(t)
		w.advanceClock(w.lastDecision.RequeueAfter)
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		lower(w)
		assert.Empty(t, w.stepLedger().Admitted)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	})
}

// A message names credentials only where there can be some.
func TestForbiddenSourceWithoutSecret(t *testing.T) {
	for secret, want := range map[string]string{
		"":      "name a Secret with credentials in spec.secretRef",
		"creds": "Check the credentials in the Secret of spec.secretRef",
	} {
		p := policyWithoutPreflight().RetryLimit(0)
		w := newQueuedSimulation(t, apitest.Image("ns/a").WithSecretRef(secret), p)
		w.startExpectedImport(t)
		w.failImport("Unable to connect to http data source: expected status code 200, got 403. Status: 403 Forbidden")
		w.reconcile()
		w.stepLedger()
		w.reconcile()
		require.Equal(t, v1alpha1.ReasonForbidden, w.currentRevision().Failure.Reason)
		assert.Contains(t, w.status().Message, want)
	}
}

// CDI 1.65 reads objects of Google's under a context of 60 s, and its text does not say so.
func TestAdviceForSlowDownloadsFromGCS(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a").WithSource(v1alpha1.SourceGCS, "gs://b/a"), policyWithoutPreflight().RetryLimit(0))
	w.startExpectedImport(t)
	w.failImport("Unable to process data: Unable to transfer source data to scratch space: failed to pull image: context deadline exceeded")
	w.reconcile()
	w.stepLedger()
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonImportFailed, w.status().Reason)
	assert.Contains(t, w.status().Message, "use sourceType http")
}

// startExpectedImport is startImport for an image that must be admitted.
func (w *simulation) startExpectedImport(t *testing.T) {
	t.Helper()
	require.Len(t, w.stepLedger().Admitted, 1)
	w.createMissingDataVolumes()
	w.reportProgress("1.0%")
	w.reconcile()
}

func TestPermanentFailureIsNotRetried(t *testing.T) {
	for name, tt := range map[string]struct {
		message    string
		want       v1alpha1.Reason
		wantAdvice string
	}{
		"not found": {notFoundMessage, v1alpha1.ReasonNotFound, "Correct spec.url"},
		"too small": {"DataVolume too small to contain image", v1alpha1.ReasonDiskTooSmall, "Enlarge spec.diskSize"},
		"checksum":  {"Unable to process data: checksum mismatch", v1alpha1.ReasonChecksumMismatch, "Correct spec.checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.runFailingAttempt(tt.message)
			assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.Equal(t, tt.want, w.status().Reason)
			assert.Contains(t, w.status().Message, tt.wantAdvice)
			assert.EqualValues(t, 1, w.status().Attempts)
		})
	}
}

func TestSlowOrStalledAttemptIsEnded(t *testing.T) {
	p := policyWithoutPreflight().Timeouts(time.Hour, 10*time.Minute)
	t.Run("timeout", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.startImport()
		for i := range 12 {
			w.advanceClock(5 * time.Minute)
			w.reportProgress(strconv.Itoa(i) + ".5%")
			w.reconcile()
		}
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.Equal(t, v1alpha1.ReasonTimeout, w.currentRevision().Failure.Reason)
		assert.Contains(t, w.status().Message, "attemptTimeout, 1h0m0s")
	})
	t.Run("timeout although the wall clock was set back", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.startImport()
		w.slotAges = map[string]time.Duration{w.slots[0].DataVolume: time.Hour}
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonTimeout, w.currentRevision().Failure.Reason)
	})
	t.Run("stalled", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.startImport()
		assert.LessOrEqual(t, w.lastDecision.RequeueAfter, 10*time.Minute)
		w.advanceClock(10*time.Minute - time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		w.advanceClock(time.Second)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonStalled, w.currentRevision().Failure.Reason)
	})
	t.Run("stalled before it started, with the cause", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.stepLedger()
		w.createMissingDataVolumes()
		w.lastDataVolume().Status.Conditions = []cdiv1.DataVolumeCondition{{
			Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "ErrClaimNotValid", Message: "no accessMode defined",
		}}
		w.reconcile()
		assert.Contains(t, w.status().Message, "claimPropertySets", "shown at once, not only after stallTimeout")
		w.advanceClock(10 * time.Minute)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonStalled, w.currentRevision().Failure.Reason)
		assert.Contains(t, w.currentRevision().Failure.Message, "claimPropertySets")
	})
	t.Run("a clock set back ends no attempt", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), p)
		w.startImport()
		w.advanceClock(-48 * time.Hour)
		for range 3 {
			w.advanceClock(time.Minute)
			w.reconcile()
			assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		}
		w.completeImport()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

func TestLostDataVolumeFailsTheAttempt(t *testing.T) {
	t.Run("started", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		d := w.reconcile()
		assert.True(t, w.lastViewLive, "the cache may be stale")
		assert.Equal(t, v1alpha1.ReasonDataVolumeLost, w.currentRevision().Failure.Reason)
		require.Len(t, d.EndedAttempts, 1)
		w.createMissingDataVolumes()
		assert.Empty(t, w.lists.DataVolumes, "a started attempt is not started again")
		w.finishDeletions()
		assert.Empty(t, w.slots)
	})
	t.Run("the cache was stale", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.syncCaches()
		w.startImport()
		w.cache.lists = image.ObjectLists{}
		w.reconcileCached(allWrites)
		assert.True(t, w.lastViewLive)
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
	})
	t.Run("not started", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.stepLedger()
		w.createMissingDataVolumes()
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.reconcile()
		assert.Zero(t, w.currentRevision().AttemptEnded)
		w.createMissingDataVolumes()
		assert.Len(t, w.lists.DataVolumes, 1, "rolled forward")
	})
	t.Run("garbage-collected by CDI after success", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.completeImport()
		w.lists.Claims[0].OwnerReferences = nil
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

func TestStartedAttemptWithoutSlotIsSynced(t *testing.T) {
	t.Run("nothing of the import is left", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.slots = nil
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.reconcile()
		assert.True(t, w.lastViewLive)
		assert.Equal(t, v1alpha1.ReasonDataVolumeLost, w.currentRevision().Failure.Reason)
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
	})
	t.Run("the import is done", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.slots = nil
		w.completeImport()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
	t.Run("the import runs on", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.slots = nil
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonImporting, w.status().Reason)
		assert.Len(t, w.stepLedger().Adopted, 1)
		w.completeImport()
		w.reconcile()
		assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
	})
}

// The ledger adopts unfinished DataVolumes only. Other objects of an attempt without a
// slot must not wait for it.
func TestAttemptThatLedgerCannotAdoptIsEnded(t *testing.T) {
	t.Run("its claim was lost after success", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.completeImport()
		w.loseObject(image.KindPersistentVolumeClaim, w.lastDataVolume().Name)
		w.slots = nil
		w.reconcile()
		require.NotZero(t, w.lastDecision.RequeueAfter)
		w.advanceClock(w.lastDecision.RequeueAfter)
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.NotNil(t, w.lastDataVolume().DeletionTimestamp)
	})
	t.Run("its claim outlives its DataVolume", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.startImport()
		w.lists.Claims[0].OwnerReferences = nil
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.slots = nil
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
		assert.Len(t, deletedNames(w.lastDecision), 1, "CDI would restart from the claim alone")
	})
}

func TestBytesAreThoseOfRunningAttempt(t *testing.T) {
	t.Run("of another source", func(t *testing.T) {
		w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), apitest.Policy().Obj())
		w.reconcile()
		w.answerProbe(image.PreflightResult{Size: 4711})
		w.reconcile()
		w.runImport()
		require.EqualValues(t, 4711, w.status().BytesDone)

		w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SourceType, s.URL = v1alpha1.SourceS3, "s3://b/a" })
		w.reconcile()
		w.startImport()
		w.reportProgress("50.0%")
		w.reconcile()
		assert.EqualValues(t, 1<<30, w.status().BytesTotal, "the size of the former source does not count")
		assert.EqualValues(t, 1<<29, w.status().BytesDone)
	})
	t.Run("of lost storage", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runImport()
		w.loseObject(image.KindDataVolume, w.lastDataVolume().Name)
		w.reconcile()
		w.stepLedger()
		w.createMissingDataVolumes()
		w.reconcile()
		w.failImport("unexpected EOF")
		d := w.reconcile()
		require.Len(t, d.EndedAttempts, 1)
		assert.Zero(t, d.EndedAttempts[0].DownloadedBytes, "the bytes of an earlier attempt are not counted again")
	})
}

// A restored status lacks an attempt whose slot is marked as ended: its DataVolume is
// refused from then on, so the attempt cannot run.
func TestAttemptWithRevertedOutcomeIsEnded(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	backup := w.img.Status.DeepCopy()
	w.startImport()
	w.failImport("unexpected EOF")
	w.reconcile()
	w.stepLedger()
	require.True(t, w.slots[0].Ended)
	w.reconcile()
	w.removeDeletedObjects()
	w.img.Status = *backup
	w.bumpResourceVersion()
	w.reconcile()
	assert.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
	w.finishDeletions()
	assert.Empty(t, w.slots)
}

// The caches are independent: the DataVolume may be visible before its slot.
func TestUnknownDataVolumeIsLeftAlone(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	w.syncCaches()
	w.stepLedger()
	w.createMissingDataVolumes()
	w.syncLists()
	w.reconcileCached(allWrites)
	assert.Empty(t, w.lastDecision.Delete)
}
