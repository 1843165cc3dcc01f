package image_test

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// decideChecked calls Decide and checks the invariants of the decision.
func decideChecked(t require.TestingT, v image.View) image.Decision {
	before := asJSON(t, v.Image)
	d := image.Decide(v)
	require.Equal(t, before, asJSON(t, v.Image), "Decide must not change the cached image")
	require.Equal(t, asJSON(t, d), asJSON(t, image.Decide(v)), "equal Views have equal Decisions")
	if d.NeedsLiveRead {
		require.Equal(t, image.Decision{NeedsLiveRead: true}, d, "nothing else is decided")
		return d
	}
	checkDeletedObjects(t, v, d)
	checkDeletion(t, v, d)
	checkPrune(t, v, d)
	checkIdempotence(t, v, d)
	return d
}

// checkDeletedObjects: storage that serves stays, unless the image is torn down.
func checkDeletedObjects(t require.TestingT, v image.View, d image.Decision) {
	serving := d.Status.Serving
	for _, target := range d.Delete {
		require.NotEmpty(t, target.UID)
		if serving == nil || (d.Status.Phase == v1alpha1.PhaseDeleting && v.Live) {
			continue
		}
		// A snapshot still serves when the storage that it was taken of is lost.
		if e := revisionStatus(d.Status, serving.Revision); serving.VolumeSnapshot == "" || (e.AttemptEnded == serving.Attempt && e.Outcome == v1alpha1.OutcomeSucceeded) {
			require.NotEqual(t, serving.PersistentVolumeClaim, target.Name, "%s is served", target.Kind)
		}
		require.NotEqual(t, serving.VolumeSnapshot, target.Name, "%s is served", target.Kind)
	}
}

// checkDeletion: an image is deleted only by a live View in which it is unreferenced, for
// as long as spec, plan or prune say.
func checkDeletion(t require.TestingT, v image.View, d image.Decision) {
	if !d.DeleteImage {
		require.False(t, d.Pruned || d.ExpiredByPlan)
		return
	}
	require.True(t, v.Live)
	require.Nil(t, v.Image.DeletionTimestamp)
	require.Empty(t, v.Holders)
	require.False(t, v.Plan.Keep || v.Plan.Unknown)
	unreferenced := v.Now.Sub(d.Status.References.UnreferencedSince.Time)
	switch {
	case d.Pruned:
		stored, want := v.Image.Status.Prune, v.Plan.Prune
		require.NotNil(t, stored, "pruned before Pending was stored")
		require.Equal(t, v1alpha1.PrunePending, stored.State)
		require.False(t, v.Now.Before(stored.Until.Time), "pruned within its undo window")
		require.NotNil(t, want, "pruned without a plan")
		require.Equal(t, want.UID, stored.UID)
		require.False(t, want.Undo)
		require.Equal(t, want.ImageUID, v.Image.UID, "another image of the same name is pruned")
		require.Equal(t, want.Revision, v.Image.Spec.Revision(), "another revision is pruned")
		require.NotContains(t, v.Image.Status.EndedPrunes, want.UID)
	case d.ExpiredByPlan:
		require.Equal(t, image.PlannedLabelValue, v.Image.Labels[v1alpha1.LabelPlanned], "an unplanned image is deleted for a plan")
		require.GreaterOrEqual(t, unreferenced, *v.Plan.DeleteAfter)
	default:
		require.GreaterOrEqual(t, unreferenced, v.Image.Spec.DeleteUnreferencedAfter.Duration)
	}
}

// checkPrune: a prune is pending only while the image is unreferenced, and ends for good.
func checkPrune(t require.TestingT, v image.View, d image.Decision) {
	old, next := v.Image.Status.Prune, d.Status.Prune
	pending := func(p *v1alpha1.PruneStatus) bool { return p != nil && p.State == v1alpha1.PrunePending }
	ended := v.Image.Status.EndedPrunes
	if old != nil && old.State.IsFinal() {
		ended = append([]types.UID{old.UID}, ended...)
	}
	if pending(next) {
		require.NotContains(t, ended, next.UID, "the prune begins again")
		require.NotContains(t, d.Status.EndedPrunes, next.UID)
		require.NotNil(t, next.Until)
		if pending(old) && old.UID == next.UID {
			require.True(t, old.Until.Equal(next.Until), "the undo window changes")
		}
		if v.Image.DeletionTimestamp == nil || d.Status.Phase == v1alpha1.PhaseTerminating {
			require.Empty(t, v.Holders, "pending although referenced")
		}
	}
	if pending(old) && (v.Plan.Unknown && len(v.Holders) == 0 || v.Image.DeletionTimestamp != nil && d.Status.Phase != v1alpha1.PhaseTerminating) {
		require.Equal(t, old.UID, next.UID)
		require.NotEqual(t, v1alpha1.PruneUndone, next.State, "undone without a request")
	}
	for _, uid := range v.Image.Status.EndedPrunes[:min(len(v.Image.Status.EndedPrunes), v1alpha1.MaxEndedPrunes-2)] {
		require.Contains(t, d.Status.EndedPrunes, uid, "an ended prune is forgotten")
	}
	if v.Plan.PruneUnconfirmed && pending(next) {
		require.True(t, pending(old) && old.UID == next.UID, "the prune begins unconfirmed")
	}
	require.True(t, v.Plan.PruneUnconfirmed || !d.AskPruneConfirmed)
	if next != nil && next.State == v1alpha1.PruneWaiting && !v.Plan.Unknown {
		require.NotNil(t, v.Plan.Prune, "waiting for what is not requested")
		require.Equal(t, v.Plan.Prune.UID, next.UID)
		require.True(t, v.Plan.PruneUnconfirmed || v.Image.DeletionTimestamp != nil)
		require.NotContains(t, ended, next.UID)
	}
	if want := v.Plan.Prune; want != nil && want.ImageUID == v.Image.UID && v.Image.DeletionTimestamp == nil && !v.Plan.Unknown && !d.AskPruneConfirmed {
		require.NotNil(t, next)
		require.Equal(t, want.UID, next.UID, "the status answers the requested prune")
		require.False(t, pending(next) && (want.Undo || v.Plan.Keep || want.Revision != v.Image.Spec.Revision()))
	}
}

func revisionStatus(st v1alpha1.VMDiskImageStatus, revision string) v1alpha1.RevisionStatus {
	for _, e := range st.Revisions {
		if e.Revision == revision {
			return e
		}
	}
	return v1alpha1.RevisionStatus{}
}

// checkIdempotence decides again after the decision, with all else unchanged.
func checkIdempotence(t require.TestingT, v image.View, d image.Decision) {
	if d.RemoveFinalizer || d.Status.Phase == v1alpha1.PhaseDeleting || !sameJSON(d.Status.Serving, v.Image.Status.Serving) {
		return // this needs a View that was read afterwards
	}
	again := v
	again.Image = v.Image.DeepCopy()
	if d.AddFinalizer {
		again.Image.Finalizers = append(again.Image.Finalizers, v1alpha1.FinalizerImage)
	}
	require.NoError(t, json.Unmarshal([]byte(asJSON(t, d.Status)), resetStatus(&again.Image.Status)))
	if d.Status.LastAttempt != v.Image.Status.LastAttempt {
		again.Preflight = image.PreflightResult{} // the result was for the attempt before
	}
	d2 := image.Decide(again)
	if d2.NeedsLiveRead {
		return // the live View is another one
	}
	require.Equal(t, asJSON(t, d.Status), asJSON(t, d2.Status), "a repeated decision differs")
	require.Equal(t, d.Delete, d2.Delete)
	require.Equal(t, d.CreateSnapshot, d2.CreateSnapshot)
	require.Equal(t, d.ProbeSource, d2.ProbeSource)
	require.Empty(t, d2.EndedAttempts, "an outcome is reported twice")
}

func resetStatus(st *v1alpha1.VMDiskImageStatus) *v1alpha1.VMDiskImageStatus {
	*st = v1alpha1.VMDiskImageStatus{}
	return st
}

var allReasons = append([]v1alpha1.Reason{
	v1alpha1.ReasonWaitingForSlot, v1alpha1.ReasonWaitingForFleet, v1alpha1.ReasonWaitingForSource, v1alpha1.ReasonNamespaceShare, v1alpha1.ReasonPaused, v1alpha1.ReasonWaitingForWindow, v1alpha1.ReasonPolicyMissing, v1alpha1.ReasonBackingOff,
	v1alpha1.ReasonChecking, v1alpha1.ReasonStorageClassMissing, v1alpha1.ReasonSnapshotClassMissing,
	v1alpha1.ReasonSecretMissing, v1alpha1.ReasonSecretForbidden, v1alpha1.ReasonSecretInvalid, v1alpha1.ReasonCertConfigMapMissing, v1alpha1.ReasonCDIMissing, v1alpha1.ReasonCDITooOld, v1alpha1.ReasonImporting,
	v1alpha1.ReasonSnapshotting, v1alpha1.ReasonReady, v1alpha1.ReasonSnapshotFailed, v1alpha1.ReasonStorageLost,
	v1alpha1.ReasonResyncLimit, v1alpha1.ReasonReferenced, v1alpha1.ReasonInsufficientStorage, v1alpha1.ReasonUndoWindowOpen,
	v1alpha1.ReasonSnapshotClassMismatch, v1alpha1.ReasonStorageProfileIncomplete, v1alpha1.ReasonVolumePending,
	v1alpha1.ReasonImporterUnschedulable, v1alpha1.ReasonImporterRefused, v1alpha1.ReasonImporterNotStarting, v1alpha1.ReasonCDIUnavailable,
}, v1alpha1.FailureReasons()...)

// checkStored checks a stored status against the one before.
func checkStored(t require.TestingT, img *v1alpha1.VMDiskImage, next *v1alpha1.VMDiskImageStatus) {
	old := &img.Status
	require.Equal(t, img.Generation, next.ObservedGeneration)
	require.Contains(t, allReasons, next.Reason)
	require.NotEmpty(t, strings.TrimSpace(next.Message))
	require.Equal(t, next.Reason == v1alpha1.ReasonWaitingForWindow, next.OpensAt != nil)
	require.GreaterOrEqual(t, next.Attempts, int32(0))
	require.LessOrEqual(t, next.BytesDone, max(next.BytesTotal, 0))

	require.LessOrEqual(t, old.LastAttempt, next.LastAttempt, "attempts never decrease")
	require.LessOrEqual(t, len(next.EndedPrunes), v1alpha1.MaxEndedPrunes)
	require.LessOrEqual(t, len(next.Revisions), v1alpha1.MaxRevisions)
	require.NotEmpty(t, next.Revisions)
	require.Equal(t, next.Revision, next.Revisions[0].Revision, "the current revision comes first")
	seen := map[string]bool{}
	for _, e := range next.Revisions {
		require.False(t, seen[e.Revision], "revision %s is listed twice", e.Revision)
		seen[e.Revision] = true
		require.LessOrEqual(t, e.AttemptEnded, e.Attempt)
		require.LessOrEqual(t, e.Attempt, next.LastAttempt)
		if i := slices.IndexFunc(old.Revisions, func(o v1alpha1.RevisionStatus) bool { return o.Revision == e.Revision }); i >= 0 {
			require.LessOrEqual(t, old.Revisions[i].Attempt, e.Attempt)
			require.LessOrEqual(t, old.Revisions[i].AttemptEnded, e.AttemptEnded)
		}
	}
	if serving := next.Serving; serving != nil {
		require.True(t, seen[serving.Revision], "the serving revision is listed")
	}
	checkConditions(t, img, next)
}

// checkConditions: every condition exists from the first decision, with a reason and a
// message.
func checkConditions(t require.TestingT, img *v1alpha1.VMDiskImage, st *v1alpha1.VMDiskImageStatus) {
	status := map[string]metav1.ConditionStatus{}
	for _, c := range st.Conditions {
		status[c.Type] = c.Status
		require.Equal(t, img.Generation, c.ObservedGeneration, c.Type)
		require.Contains(t, allReasons, v1alpha1.Reason(c.Reason), c.Type)
		require.NotEmpty(t, c.Message, c.Type)
		require.False(t, c.LastTransitionTime.IsZero(), c.Type)
	}
	require.Len(t, status, 5)
	for _, want := range []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled,
		v1alpha1.ConditionImported, v1alpha1.ConditionSnapshotReady,
	} {
		require.Contains(t, status, want)
	}
	require.False(t, status[v1alpha1.ConditionStalled] == metav1.ConditionTrue && status[v1alpha1.ConditionReconciling] == metav1.ConditionTrue,
		"kstatus: Stalled and Reconciling exclude each other")
	if img.DeletionTimestamp == nil {
		statuscheck.RequireOneTrue(t, st.Conditions)
		pending := st.Prune != nil && st.Prune.State == v1alpha1.PrunePending
		require.Equal(t, pending, st.Phase == v1alpha1.PhasePrunePending)
		require.Equal(t, pending, st.Reason == v1alpha1.ReasonUndoWindowOpen)
		ready := st.Phase == v1alpha1.PhaseSucceeded || (pending && status[v1alpha1.ConditionSnapshotReady] == metav1.ConditionTrue)
		require.Equal(t, ready, status[v1alpha1.ConditionReady] == metav1.ConditionTrue, "an image with a pending prune serves")
		require.Equal(t, st.Phase == v1alpha1.PhaseSucceeded, st.Reason == v1alpha1.ReasonReady)
	}
	if st.Phase == v1alpha1.PhaseSucceeded {
		require.NotNil(t, st.Serving)
		require.Equal(t, st.Revision, st.Serving.Revision)
		require.Equal(t, metav1.ConditionTrue, status[v1alpha1.ConditionImported])
	}
}

func asJSON(t require.TestingT, v any) string {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

func sameJSON(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}
