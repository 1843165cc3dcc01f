package image_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestDecideComesToRestAfterAnyHistory takes random actions of all participants in random
// order; simulation and decideChecked check the invariants. Then faults stop, and the
// image must come to rest (S5).
func TestDecideComesToRestAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawSimulation(t)
		everybody := w.allActions(t)
		everybody[""] = func(*rapid.T) { w.checkSlots(t) }
		t.Repeat(everybody)
		w.requireComesToRest(t)
	})
}

func drawSimulation(t *rapid.T) *simulation {
	img := apitest.Image("ns/a").WithURL(drawURL(t)).WithSnapshotClass(rapid.SampledFrom([]string{"", "snap"}).Draw(t, "snapshot class"))
	p := apitest.Policy().
		RetryLimit(rapid.Int32Range(0, 2).Draw(t, "retryLimit")).
		ResyncLimit(rapid.Int32Range(0, 2).Draw(t, "resyncLimit")).
		Backoff(time.Minute, 10*time.Minute).Timeouts(3*time.Hour, 15*time.Minute)
	if rapid.Bool().Draw(t, "no preflight") {
		p.WithoutPreflight()
	}
	w := newSimulation(t, img, p.Obj())
	w.undisturbedPolicy = w.policy
	if rapid.Bool().Draw(t, "no policy") {
		w.policy = nil
	}
	return w
}

func drawURL(t *rapid.T) string {
	return fmt.Sprintf("https://images.example.com/%d.qcow2", rapid.IntRange(0, 4).Draw(t, "url"))
}

// allActions lists what each participant may do next.
func (w *simulation) allActions(t *rapid.T) map[string]func(*rapid.T) {
	alive := func(do func()) func(*rapid.T) {
		return func(*rapid.T) {
			if w.img != nil {
				do()
			}
		}
	}
	importing := func(do func()) func(*rapid.T) {
		return func(*rapid.T) {
			if dv := w.lastDataVolume(); dv != nil && dv.DeletionTimestamp == nil && dv.Status.Phase != cdiv1.Succeeded {
				do()
			}
		}
	}
	return map[string]func(*rapid.T){
		"the agent":              func(t *rapid.T) { w.reconcileCached(allWrites) },
		"the agent, synced":      func(t *rapid.T) { w.reconcile() },
		"the agent, and crashes": func(t *rapid.T) { w.reconcileCached(rapid.IntRange(0, 2).Draw(t, "writes")) },
		"cached image":           func(t *rapid.T) { w.syncImage() },
		"cached slots":           func(t *rapid.T) { w.syncSlots() },
		"cached storage":         func(t *rapid.T) { w.syncLists() },
		"cached holders":         func(t *rapid.T) { w.syncHolders() },
		"the ledger":             func(t *rapid.T) { w.stepLedger() },
		"roll forward":           func(t *rapid.T) { w.createMissingDataVolumes() },
		"ledger and DataVolume":  func(t *rapid.T) { w.stepLedger(); w.createMissingDataVolumes() },
		"the ledger is emptied":  func(t *rapid.T) { w.slots = nil },
		"CDI downloads": importing(func() {
			w.reportProgress(rapid.SampledFrom([]string{"N/A", "3.0%", "50.0%", "99.9%"}).Draw(t, "progress"))
		}),
		"CDI completes": importing(w.completeImport),
		"CDI fails": importing(func() {
			w.failImport(rapid.SampledFrom([]string{"unexpected EOF", notFoundMessage}).Draw(t, "message"))
		}),
		"eight successful rounds": func(*rapid.T) {
			for range 8 {
				w.runEverybodyOnce("", true)
			}
		},
		"eight failing rounds": func(t *rapid.T) {
			for range 8 {
				if w.runEverybodyOnce("unexpected EOF", false); w.lastDecision.RequeueAfter > 0 {
					w.advanceClock(w.lastDecision.RequeueAfter)
				}
			}
		},
		"deletions finish": func(t *rapid.T) { w.removeDeletedObjects() },
		"the snapshot is ready": func(t *rapid.T) {
			if w.lastSnapshot() != nil {
				w.markSnapshotReady()
			}
		},
		"a user deletes storage":  func(t *rapid.T) { w.loseRandomObject(t) },
		"a user edits the source": alive(func() { w.setURL(drawURL(t)) }),
		"a user edits the class": alive(func() {
			class := rapid.SampledFrom([]string{"", "snap", "other"}).Draw(t, "class")
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = class })
		}),
		"a plan starts it over":   func(t *rapid.T) { w.requestPlanRetry(rapid.StringN(0, 3, 8).Draw(t, "token")) },
		"a user requests a retry": alive(func() { w.requestRetry(rapid.StringN(0, 3, 8).Draw(t, "token")) }),
		"a user deletes the image": func(t *rapid.T) {
			if w.img != nil && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
				w.deleteImage()
			}
		},
		"a user deletes the namespace": func(t *rapid.T) {
			if w.img != nil && rapid.IntRange(0, 5).Draw(t, "really") == 0 {
				w.namespaceTerminating = true
				w.deleteImage()
			}
		},
		"another plan": func(t *rapid.T) {
			w.plan = image.PlannedState{
				Keep:        rapid.Bool().Draw(t, "stays"),
				DeleteAfter: rapid.SampledFrom([]*time.Duration{nil, ptr.To(time.Duration(0)), ptr.To(time.Hour)}).Draw(t, "retired"),
				Prune:       w.drawPrune(t),

				PruneUnconfirmed: rapid.IntRange(0, 3).Draw(t, "unconfirmed") == 0, PruneAnswersLate: rapid.Bool().Draw(t, "answers are late"),
			}
		},
		"a plan prunes the image": func(t *rapid.T) { w.plan = image.PlannedState{Prune: w.drawPrune(t)} },
		"the plan is unknown":     func(t *rapid.T) { w.plan = image.PlannedState{Keep: true, Unknown: true} },
		"cached plan":             func(*rapid.T) { w.syncPlan() },
		"a user changes the planned label": alive(func() {
			w.setPlannedLabel(rapid.SampledFrom([]string{"", "false", image.PlannedLabelValue}).Draw(t, "planned"))
		}),
		"a user edits the lifetime": alive(func() {
			after := rapid.SampledFrom([]*metav1.Duration{nil, {Duration: time.Minute}, {Duration: time.Hour}}).Draw(t, "deleteUnreferencedAfter")
			w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.DeleteUnreferencedAfter = after })
		}),
		"VMs come and go": func(t *rapid.T) {
			w.setHolders(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"ns/1", "ns/2", "ns/3"}), 0, 3, rapid.ID).Draw(t, "holders")...)
		},
		"a VM acquires": func(t *rapid.T) {
			w.acquireImage(rapid.SampledFrom([]string{"ns/1", "ns/2", "ns/3"}).Draw(t, "holder"))
		},
		"the source answers": alive(func() {
			var refused *v1alpha1.Failure
			if reason := rapid.SampledFrom([]v1alpha1.Reason{"", "", v1alpha1.ReasonNotFound, v1alpha1.ReasonForbidden}).Draw(t, "refused"); reason != "" {
				refused = &v1alpha1.Failure{Reason: reason, Message: "HEAD: no"}
			}
			w.answerProbe(image.PreflightResult{Refused: refused})
		}),
		"an object is missing": func(t *rapid.T) {
			w.blocker = rapid.SampledFrom([]*image.Blocker{
				nil, nil, {Reason: v1alpha1.ReasonSecretMissing, Message: "create it"}, {Reason: v1alpha1.ReasonSnapshotClassMissing, Message: "create it"},
				{Reason: v1alpha1.ReasonInsufficientStorage, Message: "needs 24Gi"},
			}).Draw(t, "blocker")
		},
		"the policy is changed": func(t *rapid.T) {
			paused, impatient := *w.undisturbedPolicy, *w.undisturbedPolicy
			paused.Concurrency, impatient.RetryLimit = 0, 0
			w.policy = rapid.SampledFrom([]*policy.Policy{w.undisturbedPolicy, w.undisturbedPolicy, &paused, &impatient}).Draw(t, "policy")
		},
		"time passes": func(t *rapid.T) {
			w.advanceClock(time.Duration(rapid.IntRange(1, 1200).Draw(t, "seconds")) * time.Second)
		},
		"the clock is set back": func(t *rapid.T) {
			w.advanceClock(-time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second)
		},
		"a window opens later": func(t *rapid.T) {
			w.opening = rapid.SampledFrom([]*policy.Opening{nil, {At: w.now.Add(time.Hour), Concurrency: 3, TimeZone: "Europe/Berlin"}, {At: w.now.Add(-time.Second), Concurrency: 1}}).Draw(t, "opening")
		},
		"the queue position changes": func(t *rapid.T) { w.queuePosition = ptr.To(rapid.Int32Range(0, 2000).Draw(t, "position")) },
		"the fleet budget withholds": func(t *rapid.T) {
			w.withheldReason = rapid.SampledFrom([]v1alpha1.Reason{"", v1alpha1.ReasonWaitingForFleet, v1alpha1.ReasonWaitingForSource, v1alpha1.ReasonNamespaceShare, v1alpha1.ReasonWaitingForWindow}).Draw(t, "withheld")
		},
	}
}

// drawPrune draws from few prunes, so that they recur.
func (w *simulation) drawPrune(t *rapid.T) *v1alpha1.PlannedPrune {
	if w.img == nil || rapid.IntRange(0, 3).Draw(t, "prunes nothing") == 0 {
		return nil
	}
	want := &v1alpha1.PlannedPrune{
		Namespace: w.img.Namespace, Name: w.img.Name, ImageUID: w.img.UID, Revision: w.img.Spec.Revision(),
		UID:        rapid.SampledFrom([]types.UID{"prune-1", "prune-2", "prune-3"}).Draw(t, "prune"),
		UndoWindow: metav1.Duration{Duration: rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Minute, time.Hour}).Draw(t, "undoWindow")},
		Undo:       rapid.IntRange(0, 3).Draw(t, "undo") == 0,
		Others:     rapid.IntRange(0, 3).Draw(t, "others") > 0,

		UnreferencedSince: w.now.Add(time.Duration(rapid.IntRange(-600, 600).Draw(t, "unreferencedSince")) * time.Second).Unix(),
	}
	switch rapid.IntRange(0, 9).Draw(t, "of another") {
	case 0:
		want.ImageUID = "another"
	case 1:
		want.Revision = "another"
	}
	return want
}

// loseRandomObject deletes an object, as a person may.
func (w *simulation) loseRandomObject(t *rapid.T) {
	var targets []image.DeleteTarget
	for i := range w.lists.DataVolumes {
		targets = append(targets, image.DeleteTarget{Kind: image.KindDataVolume, Name: w.lists.DataVolumes[i].Name})
	}
	for i := range w.lists.Claims {
		targets = append(targets, image.DeleteTarget{Kind: image.KindPersistentVolumeClaim, Name: w.lists.Claims[i].Name})
	}
	for i := range w.lists.Snapshots {
		targets = append(targets, image.DeleteTarget{Kind: image.KindVolumeSnapshot, Name: w.lists.Snapshots[i].Name})
	}
	if len(targets) == 0 {
		return
	}
	target := rapid.SampledFrom(targets).Draw(t, "target")
	switch claim := w.findClaim(target.Name); rapid.SampledFrom([]string{"", "leaving its claim", "losing its volume"}).Draw(t, "how") {
	case "leaving its claim":
		if claim != nil {
			claim.OwnerReferences = nil
		}
	case "losing its volume":
		if claim != nil {
			claim.Status.Phase = corev1.ClaimLost
			w.excuses++
			return
		}
	}
	w.loseObject(target.Kind, target.Name)
}

// checkSlots: an image imports once at a time, and each attempt has a
// DataVolume of its own.
func (w *simulation) checkSlots(t require.TestingT) {
	require.LessOrEqual(t, len(w.slots), int(v1alpha1.MaxRevisions))
	names := map[string]bool{}
	for i := range w.lists.DataVolumes {
		require.False(t, names[w.lists.DataVolumes[i].Name])
		names[w.lists.DataVolumes[i].Name] = true
	}
}

// runEverybodyOnce makes each participant do its work once. Imports fail with a message,
// or succeed without one.
func (w *simulation) runEverybodyOnce(fails string, snapshots bool) {
	if w.reconcile(); w.img == nil {
		return
	}
	if w.lastDecision.ProbeSource {
		w.answerProbe(image.PreflightResult{})
	}
	w.stepLedger()
	w.createMissingDataVolumes()
	if dv := w.lastDataVolume(); dv != nil && dv.DeletionTimestamp == nil && dv.Status.Phase != cdiv1.Succeeded {
		if fails == "" {
			w.completeImport()
		} else {
			w.failImport(fails)
		}
	}
	if snapshots && w.lastSnapshot() != nil {
		w.markSnapshotReady()
	}
	w.removeDeletedObjects()
}

// requireComesToRest stops all faults and makes everybody do their work.
func (w *simulation) requireComesToRest(t *rapid.T) {
	fails := rapid.SampledFrom([]string{"", "unexpected EOF", notFoundMessage}).Draw(t, "in the end the source says")
	snapshots := rapid.Bool().Draw(t, "in the end snapshots become ready")
	w.blocker, w.policy = nil, w.undisturbedPolicy
	if w.plan.Unknown {
		w.plan = image.PlannedState{}
	}
	looksAgain := 0
	for range 400 {
		before := asJSON(t, []any{w.img, w.slots, w.lists})
		w.runEverybodyOnce(fails, snapshots)
		if w.img == nil {
			require.Empty(t, w.lists.DataVolumes)
			require.Empty(t, w.slots)
			return
		}
		if w.lastDecision.ProbeSource || asJSON(t, []any{w.img, w.slots, w.lists}) != before {
			looksAgain = 0
			continue
		}
		// A referenced image rechecks its namespace, and a kept one its plan, without end.
		looks := w.status().Phase == v1alpha1.PhaseTerminating || w.plan.Keep
		if looksAgain++; w.lastDecision.RequeueAfter == 0 || (looks && looksAgain > 100) {
			w.checkAtRest(t)
			return
		}
		w.advanceClock(w.lastDecision.RequeueAfter)
	}
	require.Fail(t, "does not come to rest", "%s %s: %s", w.status().Phase, w.status().Reason, w.status().Message)
}

func (w *simulation) checkAtRest(t require.TestingT) {
	st := w.status()
	switch st.Phase {
	case v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed:
	case v1alpha1.PhaseTerminating:
		require.NotEmpty(t, w.holders)
	default:
		require.Fail(t, "at rest but unfinished", "%s %s: %s", st.Phase, st.Reason, st.Message)
	}
	require.False(t, st.Prune != nil && !st.Prune.State.IsFinal(), "the prune does not end")
	if want := w.plan.Prune; want != nil && want.ImageUID == w.img.UID {
		require.True(t, st.Prune != nil && st.Prune.State.IsFinal(), "the prune has no outcome")
		require.True(t, st.Prune.UID == want.UID || st.Phase == v1alpha1.PhaseTerminating)
	}
	require.Empty(t, w.slots, "an unneeded slot")
	if st.Phase == v1alpha1.PhaseSucceeded {
		stay, snapshots := map[int32]bool{st.Serving.Attempt: true}, map[string]bool{st.Serving.VolumeSnapshot: true}
		for _, pin := range w.listPins() {
			stay[pin.Attempt], snapshots[pin.VolumeSnapshot] = true, true
		}
		left := image.GroupByAttempt(w.lists)
		require.NotNil(t, left[st.Serving.Attempt].Claim)
		for attempt, o := range left {
			if attempt > st.LastAttempt {
				continue // finished without a slot after the ledger was emptied, before a decision
			}
			require.True(t, stay[attempt], "attempt %d is left, neither served nor pinned", attempt)
			for _, snap := range o.Snapshots {
				if e := revisionStatus(*st, snap.Labels[v1alpha1.LabelRevision]); e.VolumeSnapshot != snap.Name {
					require.True(t, snapshots[snap.Name], "VolumeSnapshot %s is left, neither served nor pinned", snap.Name)
				}
			}
		}
		require.LessOrEqual(t, len(st.Revisions), len(stay))
	}
}
