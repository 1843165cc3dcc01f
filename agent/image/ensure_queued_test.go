package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// policyWithoutPreflight is a policy under which no source is asked before the import.
func policyWithoutPreflight() *apitest.PolicyBuilder {
	return apitest.Policy().WithoutPreflight().RetryLimit(2).Backoff(time.Minute, time.Hour)
}

func TestNewImageIsQueued(t *testing.T) {
	w := newSimulation(t, apitest.Image("ns/a").WithGeneration(3), policyWithoutPreflight().Obj())
	w.queuePosition = ptr.To[int32](7)

	require.False(t, w.reconcile().AddFinalizer, "its place is stored first")
	assert.Equal(t, ledger.Pending, image.QueueStateOf(w.img), "it gets no slot without the finalizer")
	assert.Empty(t, w.stepLedger().Admitted)
	require.True(t, w.reconcile().AddFinalizer)

	w.reconcile()
	st := w.status()
	assert.Equal(t, v1alpha1.PhaseQueued, st.Phase)
	assert.Equal(t, v1alpha1.ReasonWaitingForSlot, st.Reason)
	assert.Equal(t, "waits for a slot; at most 7 images go first", st.Message)
	assert.EqualValues(t, 3, st.ObservedGeneration)
	assert.Equal(t, "https://images.example.com/a.qcow2", w.currentRevision().Source)
	assert.Equal(t, w.img.CreationTimestamp.Time, w.currentRevision().OrderingKey.Time.UTC(), "ordered by arrival")
	assert.Equal(t, ledger.Admissible, image.QueueStateOf(w.img))
	for condition, want := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionReady: metav1.ConditionFalse, v1alpha1.ConditionReconciling: metav1.ConditionTrue,
		v1alpha1.ConditionStalled: metav1.ConditionFalse, v1alpha1.ConditionImported: metav1.ConditionFalse,
		v1alpha1.ConditionSnapshotReady: metav1.ConditionFalse,
	} {
		assert.Equal(t, want, w.condition(condition).Status, condition)
		assert.Equal(t, w.now.Truncate(time.Second), w.condition(condition).LastTransitionTime.UTC(), condition)
	}

	key := w.currentRevision().OrderingKey
	w.advanceClock(time.Minute)
	assert.False(t, w.reconcile().AddFinalizer)
	assert.Equal(t, key, w.currentRevision().OrderingKey, "the key never changes")
}

func TestWaitingImageStatesReason(t *testing.T) {
	for name, tt := range map[string]struct {
		policy      *policy.Policy
		blocker     *image.Blocker
		want        v1alpha1.Reason
		wantStalled bool
		wantAfter   time.Duration
	}{
		"a slot":           {policy: ptr.To(policyWithoutPreflight().Obj()), want: v1alpha1.ReasonWaitingForSlot},
		"a budget":         {policy: ptr.To(policyWithoutPreflight().Concurrency(0).Obj()), want: v1alpha1.ReasonPaused},
		"any policy":       {want: v1alpha1.ReasonPolicyMissing, wantStalled: true},
		"a StorageClass":   {policy: ptr.To(policyWithoutPreflight().Obj()), blocker: &image.Blocker{Reason: v1alpha1.ReasonStorageClassMissing, Message: "create it"}, want: v1alpha1.ReasonStorageClassMissing, wantStalled: true, wantAfter: time.Minute},
		"a snapshot class": {policy: ptr.To(policyWithoutPreflight().Obj()), blocker: &image.Blocker{Reason: v1alpha1.ReasonSnapshotClassMissing, Message: "create it"}, want: v1alpha1.ReasonSnapshotClassMissing, wantStalled: true, wantAfter: time.Minute},
		"a Secret":         {policy: ptr.To(policyWithoutPreflight().Obj()), blocker: &image.Blocker{Reason: v1alpha1.ReasonSecretMissing, Message: "create it"}, want: v1alpha1.ReasonSecretMissing, wantStalled: true, wantAfter: time.Minute},
		"a ConfigMap":      {policy: ptr.To(policyWithoutPreflight().Obj()), blocker: &image.Blocker{Reason: v1alpha1.ReasonCertConfigMapMissing, Message: "create it"}, want: v1alpha1.ReasonCertConfigMapMissing, wantStalled: true, wantAfter: time.Minute},
		"CDI":              {policy: ptr.To(policyWithoutPreflight().Obj()), blocker: &image.Blocker{Reason: v1alpha1.ReasonCDIMissing, Message: "install it"}, want: v1alpha1.ReasonCDIMissing, wantStalled: true, wantAfter: time.Minute},
		"a field of CDI":   {policy: ptr.To(policyWithoutPreflight().Obj()), blocker: &image.Blocker{Reason: v1alpha1.ReasonCDITooOld, Message: "upgrade it"}, want: v1alpha1.ReasonCDITooOld, wantStalled: true, wantAfter: time.Minute},
		"an answer":        {policy: ptr.To(apitest.Policy().Obj()), want: v1alpha1.ReasonChecking},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").WithFinalizer()
			if tt.want != v1alpha1.ReasonChecking {
				img.WithSource(v1alpha1.SourceS3, "s3://bucket/a") // cannot be probed
			}
			w := newSimulation(t, img, policy.Default())
			w.policy, w.blocker = tt.policy, tt.blocker
			d := w.reconcile()
			assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
			assert.Equal(t, tt.want, w.status().Reason)
			if tt.blocker != nil {
				assert.Equal(t, tt.blocker.Message, w.status().Message)
			}
			assert.Equal(t, tt.wantStalled, w.condition(v1alpha1.ConditionStalled).Status == metav1.ConditionTrue)
			assert.Equal(t, tt.wantAfter, d.RequeueAfter)
			assert.Zero(t, w.status().LastAttempt, "waiting costs no attempt")

			w.policy, w.blocker = ptr.To(policyWithoutPreflight().Obj()), nil
			w.reconcile()
			assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason, "continues once the cause is gone")
			assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
		})
	}
}

// TestImageStatesWithheldReason: a withheld image keeps its place and stays admissible.
func TestImageStatesWithheldReason(t *testing.T) {
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonWaitingForFleet, v1alpha1.ReasonWaitingForSource} {
		w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), policyWithoutPreflight().Obj())
		w.queuePosition, w.withheldReason = ptr.To[int32](2), reason
		w.reconcile()
		assert.Equal(t, reason, w.status().Reason)
		assert.Contains(t, w.status().Message, "the fleet-wide budget")
		assert.EqualValues(t, 2, *w.status().QueuePosition)
		assert.Equal(t, ledger.Admissible, image.QueueStateOf(w.img))
		assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
		w.policy.Concurrency = 0
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonPaused, w.status().Reason, "a reason of the cluster has precedence")
	}
}

// An image that waits for a window keeps its place and stays admissible: nothing is wrong.
func TestImageWaitsForWindow(t *testing.T) {
	opening := &policy.Opening{At: time.Date(2026, 6, 1, 20, 0, 0, 0, time.UTC), Concurrency: 4, TimeZone: "Europe/Berlin"}
	for name, tt := range map[string]struct {
		concurrency int32
		withheld    v1alpha1.Reason
		opening     *policy.Opening
		want        v1alpha1.Reason
		wantText    string
	}{
		"all do":                          {0, "", opening, v1alpha1.ReasonWaitingForWindow, "waits for a window of the policy, which opens Mon 1 Jun 22:00 in Europe/Berlin (2026-06-01T20:00:00Z); until then nothing is downloaded"},
		"it does, of those beyond":        {1, v1alpha1.ReasonWaitingForWindow, opening, v1alpha1.ReasonWaitingForWindow, "until then its concurrency is 1"},
		"others do":                       {1, "", opening, v1alpha1.ReasonWaitingForSlot, "waits for a slot"},
		"it waits for the fleet":          {1, v1alpha1.ReasonWaitingForFleet, opening, v1alpha1.ReasonWaitingForFleet, "the fleet-wide budget"},
		"no window, or none that matters": {0, "", nil, v1alpha1.ReasonPaused, "the policy's concurrency is 0"},
		"the window has opened":           {4, v1alpha1.ReasonWaitingForWindow, nil, v1alpha1.ReasonWaitingForSlot, "waits for a slot"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), policyWithoutPreflight().Concurrency(tt.concurrency).Obj())
			w.withheldReason, w.opening = tt.withheld, tt.opening
			d := w.reconcile()
			assert.Equal(t, tt.want, w.status().Reason)
			assert.Contains(t, w.status().Message, tt.wantText)
			assert.Equal(t, v1alpha1.PhaseQueued, w.status().Phase)
			assert.Equal(t, ledger.Admissible, image.QueueStateOf(w.img))
			assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReconciling).Status)
			assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionStalled).Status)
			assert.Zero(t, d.RequeueAfter, "the ledger's controller requeues it when the window opens")
			if tt.want == v1alpha1.ReasonWaitingForWindow {
				require.NotNil(t, w.status().OpensAt)
				assert.True(t, w.status().OpensAt.Equal(&metav1.Time{Time: opening.At}))
				w.opening, w.policy.Concurrency = nil, 4
				w.reconcile()
				assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
			}
			assert.Nil(t, w.status().OpensAt)
		})
	}
}

func TestSourceIsProbedBeforeAdmission(t *testing.T) {
	asked := func(t *testing.T) *simulation {
		w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), apitest.Policy().Obj())
		d := w.reconcile()
		require.True(t, d.ProbeSource)
		require.Equal(t, ledger.Pending, image.QueueStateOf(w.img), "it blocks those behind it meanwhile")
		return w
	}
	t.Run("the source has the image", func(t *testing.T) {
		w := asked(t)
		w.answerProbe(image.PreflightResult{Size: 4711})
		assert.False(t, w.reconcile().ProbeSource)
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
		assert.EqualValues(t, 4711, w.status().BytesTotal)

		w.probeAnswers = map[string]image.PreflightResult{} // the agent was restarted
		assert.False(t, w.reconcile().ProbeSource, "an admissible image is not probed again")
		w.startImport()
		w.reportProgress("50.0%")
		w.advanceClock(time.Minute)
		w.reconcile()
		assert.EqualValues(t, 2355, w.status().BytesDone, "progress is computed from the size of the source")
	})
	t.Run("the source lacks the image", func(t *testing.T) {
		w := asked(t)
		w.answerProbe(image.PreflightResult{Refused: &v1alpha1.Failure{Reason: v1alpha1.ReasonNotFound, Message: "HEAD: 404 Not Found"}})
		d := w.reconcile()
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
		assert.Equal(t, v1alpha1.ReasonNotFound, w.status().Reason)
		assert.Contains(t, w.status().Message, "Correct spec.url")
		assert.EqualValues(t, 1, w.status().LastAttempt, "it counts as an attempt")
		require.Len(t, d.EndedAttempts, 1)
		assert.Zero(t, d.EndedAttempts[0].DownloadedBytes)
		assert.Empty(t, w.stepLedger().Admitted, "it takes no slot")

		w.setURL("https://images.example.com/b.qcow2")
		assert.True(t, w.reconcile().ProbeSource)
		w.answerProbe(image.PreflightResult{})
		w.reconcile()
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason)
	})
	t.Run("the source refuses access", func(t *testing.T) {
		w := asked(t)
		for attempt := range int32(4) {
			w.answerProbe(image.PreflightResult{Refused: &v1alpha1.Failure{Reason: v1alpha1.ReasonForbidden, Message: "HEAD: 403 Forbidden"}})
			w.reconcile()
			assert.Equal(t, attempt+1, w.status().Attempts)
			if attempt < 3 {
				require.Equal(t, v1alpha1.ReasonBackingOff, w.status().Reason)
				w.advanceClock(time.Hour)
				require.True(t, w.reconcile().ProbeSource, "each attempt is probed")
			}
		}
		assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase, "after retryLimit + 1")
		assert.Contains(t, w.status().Message, "spec.secretRef")
	})
	t.Run("the source cannot be probed", func(t *testing.T) {
		for name, img := range map[string]*apitest.ImageBuilder{
			"s3":            apitest.Image("ns/a").WithSource(v1alpha1.SourceS3, "s3://b/a"),
			"with a Secret": apitest.Image("ns/a").WithSecretRef("s"),
			"blank":         apitest.Image("ns/a").WithSource(v1alpha1.SourceBlank, ""),
		} {
			w := newSimulation(t, img.WithFinalizer(), apitest.Policy().Obj())
			assert.False(t, w.reconcile().ProbeSource, name)
			assert.Equal(t, v1alpha1.ReasonWaitingForSlot, w.status().Reason, name)
		}
	})
}

func TestQueuePositionIsStoredPerPowerOfTen(t *testing.T) {
	w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), policyWithoutPreflight().Obj())
	for _, tt := range []struct{ position, want int32 }{
		{5000, 5000}, {4999, 5000}, {1000, 5000}, {999, 999}, {998, 999}, {1500, 999}, {100, 999}, {42, 42}, {10, 42}, {9, 9}, {1, 9}, {0, 0},
	} {
		w.queuePosition = ptr.To(tt.position)
		w.reconcile()
		require.NotNil(t, w.status().QueuePosition)
		assert.Equal(t, tt.want, *w.status().QueuePosition, "at %d", tt.position)
	}
	w.startImport()
	assert.Nil(t, w.status().QueuePosition, "it has left the queue")

	w.failImport("unexpected EOF")
	w.queuePosition = ptr.To[int32](3000)
	w.reconcile()
	assert.Nil(t, w.status().QueuePosition, "a backoff has no position")
	w.finishDeletions()
	w.advanceClock(time.Hour)
	w.reconcile()
	assert.EqualValues(t, 3000, *w.status().QueuePosition, "it is stored anew on return to the queue")
}

func TestReferencesAreCounted(t *testing.T) {
	w := newSimulation(t, apitest.Image("ns/a").WithFinalizer(), policyWithoutPreflight().Obj())
	w.reconcile()
	since := w.status().References.UnreferencedSince
	require.NotNil(t, since)
	w.advanceClock(time.Minute)
	w.reconcile()
	assert.Equal(t, since, w.status().References.UnreferencedSince, "since the first decision")

	w.holders = holdersNamed("ns/1", "ns/2", "ns/3", "ns/4", "ns/5", "ns/6", "ns/7")
	w.reconcile()
	assert.EqualValues(t, 7, w.status().References.Count)
	assert.Len(t, w.status().References.Holders, 5)
	assert.Nil(t, w.status().References.UnreferencedSince)
}
