package image_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestDecideHandlesCorruptStatus gives Decide statuses that no agent writes, as after a
// manual edit, a restore or a downgrade. It must not panic: the agent would crash in a
// loop.
func TestDecideHandlesCorruptStatus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawSimulation(t)
		t.Repeat(w.selectActions(t, "the agent, synced", "ledger and DataVolume", "CDI completes", "CDI fails", "the snapshot is ready",
			"a user edits the source", "VMs come and go", "time passes"))
		if w.img == nil {
			t.Skip("the image is gone")
		}
		w.img.Status = drawStatus(t, w)
		if rapid.Bool().Draw(t, "deleted") {
			w.img.DeletionTimestamp = ptr.To(metav1.NewTime(w.now))
		}
		if rapid.Bool().Draw(t, "other slots") {
			w.slots = append(w.slots, apitest.Slot(w.img, drawRevision(t, w), rapid.Int32().Draw(t, "slot")).Obj())
		}
		w.syncCaches()
		for _, live := range []bool{false, true} {
			v := w.buildView(live)
			before := asJSON(t, v.Image)
			d := image.Decide(v)
			require.Equal(t, before, asJSON(t, v.Image))
			if !d.NeedsLiveRead {
				require.NotEmpty(t, d.Status.Reason)
				require.NotEmpty(t, d.Status.Message)
				require.LessOrEqual(t, v.Image.Status.LastAttempt, d.Status.LastAttempt)
			}
		}
		if d := image.Decide(w.buildView(true)); !d.RemoveFinalizer {
			stored := w.img.DeepCopy()
			stored.Status = d.Status
			if image.QueueStateOf(stored) == ledger.Admissible {
				_, admissible := image.CandidateOf(stored, w.policy)
				require.True(t, admissible, "what is first in the queue and gets no slot keeps all others from theirs")
			}
		}
		if candidate, _ := image.CandidateOf(w.img, w.policy); candidate != (ledger.Candidate{}) {
			require.Positive(t, candidate.Attempt, "a ledger with it could not be stored, and so no slot of others")
		}
		for _, slot := range w.slots {
			image.OutcomeOf(w.img, slot)
			image.IsAdoptable(w.img, slot)
			image.RecordRefusal(w.img.DeepCopy(), slot, v1alpha1.Failure{}, nil, metav1.Now())
		}
	})
}

func (w *simulation) selectActions(t *rapid.T, names ...string) map[string]func(*rapid.T) {
	all, some := w.allActions(t), map[string]func(*rapid.T){}
	for _, name := range names {
		require.Contains(t, all, name)
		some[name] = all[name]
	}
	return some
}

func drawRevision(t *rapid.T, w *simulation) string {
	return rapid.SampledFrom([]string{w.img.Spec.Revision(), "x", "y", ""}).Draw(t, "revision")
}

func drawStatus(t *rapid.T, w *simulation) v1alpha1.VMDiskImageStatus {
	number := rapid.OneOf(rapid.Int32Range(0, 4), rapid.Int32())
	at := func(name string) *metav1.Time {
		if rapid.Bool().Draw(t, name+" is set") {
			return ptr.To(metav1.NewTime(w.now.Add(time.Duration(rapid.Int64Range(-1e6, 1e6).Draw(t, name)) * time.Second)))
		}
		return nil
	}
	reasons := rapid.SampledFrom(append([]v1alpha1.Reason{"", "Other"}, allReasons...))
	st := w.img.Status
	st.LastAttempt = number.Draw(t, "lastAttempt")
	st.Phase = rapid.SampledFrom([]v1alpha1.Phase{"", v1alpha1.PhaseQueued, v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed, v1alpha1.PhaseDeleting, v1alpha1.PhaseTerminating, v1alpha1.PhasePrunePending}).Draw(t, "phase")
	st.Revision = drawRevision(t, w)
	st.QueuePosition = rapid.SampledFrom([]*int32{nil, ptr.To[int32](-5), ptr.To[int32](5)}).Draw(t, "position")
	st.Progress = rapid.SampledFrom([]string{"", "N/A", "NaN%", "1e400%", "-3%"}).Draw(t, "progress")
	if rapid.Bool().Draw(t, "serves") {
		st.Serving = &v1alpha1.Serving{Revision: drawRevision(t, w), Attempt: number.Draw(t, "serving"), VolumeSnapshot: rapid.SampledFrom([]string{"", "s"}).Draw(t, "snapshot")}
	}
	st.Revisions = nil
	for range rapid.IntRange(0, v1alpha1.MaxRevisions).Draw(t, "revisions") {
		e := v1alpha1.RevisionStatus{
			Revision: drawRevision(t, w), Attempt: number.Draw(t, "attempt"), AttemptEnded: number.Draw(t, "ended"),
			AttemptsBefore: number.Draw(t, "before"), SnapshotAttempt: number.Draw(t, "snapshots"), Resyncs: number.Draw(t, "resyncs"),
			Outcome:   rapid.SampledFrom([]v1alpha1.Outcome{"", v1alpha1.OutcomeFailed, v1alpha1.OutcomeSucceeded}).Draw(t, "outcome"),
			NotBefore: at("notBefore"), StartedAt: at("startedAt"), ProgressedAt: at("progressedAt"),
			SnapshotSince: at("snapshotSince"), ResyncsSince: at("resyncsSince"),
			VolumeSnapshot: rapid.SampledFrom([]string{"", "s"}).Draw(t, "volumeSnapshot"),
		}
		if rapid.Bool().Draw(t, "has failed") {
			e.Failure = &v1alpha1.Failure{Reason: reasons.Draw(t, "failure")}
		}
		st.Revisions = append(st.Revisions, e)
	}
	if rapid.Bool().Draw(t, "no conditions") {
		st.Conditions = nil
	}
	for i := range st.Conditions {
		st.Conditions[i].Reason = string(reasons.Draw(t, "reason"))
	}
	return st
}

// An image that is first in the queue and gets no slot keeps all others from theirs.
func TestImageWithoutAttemptLeftLeavesTheQueue(t *testing.T) {
	w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	require.Equal(t, ledger.Admissible, image.QueueStateOf(w.img))
	w.img.Status.LastAttempt = math.MaxInt32
	w.syncCaches()
	w.reconcile()
	assert.Equal(t, ledger.NotQueued, image.QueueStateOf(w.img))
	assert.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
	assert.Contains(t, w.status().Message, "delete the image and create it again")
}
