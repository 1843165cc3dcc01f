package image

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const undoneMessage = "its ImagePrune was undone"

// PruneNonceLife is how long a prune may begin after a report has asked whether it is still requested.
const PruneNonceLife = 2 * time.Minute

// reconcilePrune takes an image through the undo window of an ImagePrune.
//
// A prune begins and ends with a status write: Pending, then Skipped when the image
// no longer is as it was reported, or Undone when the prune is no longer requested.
//
// Invariant (S7 of docs/architecture.md): a prune that has ended does not begin
// again, whatever an older plan says. An image is deleted only if its prune was
// stored as Pending for the whole window, by a live View, and unchanged since. It
// stays available until then; a VM that references it after the list of holders
// makes it Terminating (S2).
func (d *decider) reconcilePrune() {
	requested := d.requestedPrune()
	if p := d.status.Prune; p != nil && p.State == v1alpha1.PruneWaiting {
		switch {
		case d.Plan.Unknown: // an agent that has restarted requeues no prune that the next plan lacks
			d.requeueWithin(blockerRecheckInterval)
		case requested == nil || requested.UID != p.UID:
			d.status.Prune = nil // it never began
		}
	}
	switch {
	case IsReleased(d.Image):
		d.showReleasedPrune(requested)
		return
	case d.Image.DeletionTimestamp != nil:
		d.skipPruneWhileTerminating(requested)
		return
	}
	if p := d.pendingPrune(); p != nil && !d.Plan.Unknown && (requested == nil || requested.UID != p.UID) {
		if !d.requireLive() { // undoing is irreversible, and the cached plan may be stale
			return
		}
		d.endPrune(p.UID, v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn, "the hub no longer requests it")
	}
	pending := d.pendingPrune()
	switch {
	case requested == nil && pending == nil:
	case requested == nil: // the plan is unknown: wait, unless the image is referenced
		if reason, message := d.reasonToSkipPrune(nil); reason != "" {
			d.endPrune(pending.UID, v1alpha1.PruneSkipped, reason, message)
			return
		}
		d.requeueWithin(blockerRecheckInterval)
	case d.hasPruneEnded(requested.UID):
		d.reportEndedPrune(requested.UID)
	case requested.Undo:
		d.endPrune(requested.UID, v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, undoneMessage)
	default:
		if reason, message := d.reasonToSkipPrune(requested); reason != "" {
			d.endPrune(requested.UID, v1alpha1.PruneSkipped, reason, message)
			return
		}
		d.awaitUndoWindow(requested)
	}
}

// requestedPrune is the prune of this very image that the plan requests, nil for
// none: a later image of the same name is another one.
func (d *decider) requestedPrune() *v1alpha1.PlannedPrune {
	if p := d.Plan.Prune; p != nil && p.ImageUID == d.Image.UID && !d.Plan.Unknown {
		return p
	}
	return nil
}

// pendingPrune is the prune whose undo window is open, nil for none.
func (d *decider) pendingPrune() *v1alpha1.PruneStatus {
	if p := d.status.Prune; p != nil && p.State == v1alpha1.PrunePending {
		return p
	}
	return nil
}

// hasPruneEnded reports whether an ImagePrune has ended for this image.
func (d *decider) hasPruneEnded(uid types.UID) bool {
	p := d.status.Prune
	return slices.Contains(d.status.EndedPrunes, uid) || (p != nil && p.UID == uid && p.State.IsFinal())
}

// skipPruneWhileTerminating ends the prune of a Terminating image, which may serve
// for an unlimited time. Once unreferenced, the image keeps its prune status until
// it is gone.
func (d *decider) skipPruneWhileTerminating(requested *v1alpha1.PlannedPrune) {
	if d.status.Phase != v1alpha1.PhaseTerminating {
		return
	}
	var uid types.UID
	switch p := d.pendingPrune(); {
	case p != nil:
		uid = p.UID
	case requested != nil && !d.hasPruneEnded(requested.UID):
		uid = requested.UID
	default:
		return
	}
	d.endPrune(uid, v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, "is Terminating and stays available while it is referenced by "+d.listPruneHolders())
}

// reasonToSkipPrune says why an image must not be pruned; empty for no reason.
// requested is nil where the plan is unknown.
func (d *decider) reasonToSkipPrune(requested *v1alpha1.PlannedPrune) (reason, message string) {
	switch phase := d.computePhase(); {
	case d.Plan.Keep && !d.Plan.Unknown:
		return v1alpha1.PruneWanted, "the ClusterPlan wants the image"
	case len(d.Holders) > 0:
		return v1alpha1.PruneReferenced, "is referenced by " + d.listPruneHolders()
	case requested != nil && requested.Revision != d.targetRevision:
		return v1alpha1.PruneChanged, "its source has changed since it was reported"
	case requested != nil && !requested.Others && !IsPlanned(d.Image):
		return v1alpha1.PruneChanged, "it belongs to no plan, as label " + v1alpha1.LabelPlanned + " is missing: set spec.includeOthers of the ImagePrune to prune it"
	case requested != nil && d.status.References.UnreferencedSince.Unix() > requested.UnreferencedSince:
		return v1alpha1.PruneChanged, "a VirtualMachine has referenced it since it was reported, until " + d.status.References.UnreferencedSince.UTC().Format(time.RFC3339)
	// An image of a DataSource downloads nothing, whatever it waits for.
	case phase != v1alpha1.PhaseSucceeded && phase != v1alpha1.PhaseFailed && !UsesDataSource(&d.Image.Spec):
		return v1alpha1.PruneInTransition, fmt.Sprintf("is %s: %s", phase, d.activity.Message)
	default:
		return "", ""
	}
}

// awaitUndoWindow opens the undo window, waits for its end, and then deletes.
//
// Invariant: a prune begins only while a plan confirms that it was requested after the agent asked. The
// plan may be from before its end: no hub has run since, or one that has not read the requests.
func (d *decider) awaitUndoWindow(requested *v1alpha1.PlannedPrune) {
	if p := d.pendingPrune(); p == nil || p.Until == nil {
		if d.Plan.PruneUnconfirmed {
			d.decision.AskPruneConfirmed = true
			d.requeueWithin(blockerRecheckInterval) // no event says that the nonce has lapsed
			if d.Plan.PruneAnswersLate {
				d.showUnconfirmedPrune(requested.UID)
			}
			return
		}
		d.openUndoWindow(requested)
	}
	until := d.status.Prune.Until
	stored := d.Image.Status.Prune
	switch {
	case !d.awaitDeletionTime(until.Time):
	case stored == nil || stored.UID != requested.UID || stored.State != v1alpha1.PrunePending || !stored.Until.Equal(until):
		d.requeueWithin(0) // Pending is stored, and visible, before the deletion
	case !d.requireLive():
	case !d.decision.DeleteImage: // otherwise the image expires without the prune
		d.decision.DeleteImage, d.decision.Pruned, d.decision.DeleteNotBefore, d.decision.AwaitsServerClock = true, true, until.Time, false
	}
}

// showUnconfirmedPrune says what a prune waits for that does not begin. The message does not change while it
// waits, so that it costs one write.
func (d *decider) showUnconfirmedPrune(uid types.UID) {
	d.showWaitingPrune(uid, fmt.Sprintf("waits for the hub to confirm, within %s of a report of the agent, that the ImagePrune is requested: "+
		"check that a hub runs, and how fast it copies plans", PruneNonceLife))
}

// showReleasedPrune says what the prune of a released image waits for. Once the image is gone, it counts as pruned.
// One whose window was open at the deletion waits, too, unless it is withdrawn; the event of that status has an undo
// end it, and another prune wait.
//
// Invariant: a prune that may have deleted the image stays Pending, whatever is requested: an undo is too late.
func (d *decider) showReleasedPrune(requested *v1alpha1.PlannedPrune) {
	const message = "is being deleted without the agent's finalizer: waits for others to remove theirs, which the image's message names"
	pending := d.pendingPrune()
	switch {
	case pending != nil && pending.Until != nil && !d.Image.DeletionTimestamp.Before(pending.Until):
	case pending != nil && (d.Plan.Unknown || requested != nil && requested.UID == pending.UID):
		d.showWaitingPrune(pending.UID, message)
	case pending != nil:
		if d.requireLive() { // the cached plan may be stale
			d.endPrune(pending.UID, v1alpha1.PruneSkipped, v1alpha1.PruneInTransition, "is being deleted without the agent's finalizer, and the hub no longer requests the prune")
		}
	case requested == nil || d.hasPruneEnded(requested.UID):
	case requested.Undo:
		d.endPrune(requested.UID, v1alpha1.PruneUndone, v1alpha1.PruneUndoAsked, undoneMessage)
	default:
		d.showWaitingPrune(requested.UID, message)
	}
}

// showWaitingPrune stores a message that is no longer than what the hub quotes of it behind a sentence of its
// own: 160 bytes.
func (d *decider) showWaitingPrune(uid types.UID, message string) {
	d.rememberReplacedPrune(uid)
	d.status.Prune = &v1alpha1.PruneStatus{UID: uid, State: v1alpha1.PruneWaiting, Message: message}
}

// openUndoWindow opens the undo window. Its end is rounded up to the full seconds
// that the status stores.
func (d *decider) openUndoWindow(requested *v1alpha1.PlannedPrune) {
	until := d.now
	if window := requested.UndoWindow.Duration; window > 0 {
		until = storedtime.Truncate(d.plausibleNow().Add(window + time.Second - 1))
	}
	d.rememberReplacedPrune(requested.UID)
	d.status.Prune = &v1alpha1.PruneStatus{
		UID: requested.UID, State: v1alpha1.PrunePending, Until: &until,
		Message: v1alpha1.Truncate(fmt.Sprintf("is deleted after %s, for the hub's ImagePrune with UID %s, and stays available until then. To keep it, set spec.undo of that ImagePrune, or reference it from a VirtualMachine",
			until.UTC().Format(time.RFC3339), requested.UID), maxPruneMessageBytes),
	}
}

// endPrune ends a prune for good.
func (d *decider) endPrune(uid types.UID, state v1alpha1.PruneState, reason, message string) {
	d.rememberReplacedPrune(uid)
	d.status.Prune = &v1alpha1.PruneStatus{UID: uid, State: state, Reason: reason, Message: v1alpha1.Truncate(message, maxPruneMessageBytes)}
	d.rememberPrune(uid)
}

// reportEndedPrune answers a plan that requests a prune again which ended before
// another prune of the image: its own outcome is no longer stored.
func (d *decider) reportEndedPrune(uid types.UID) {
	if d.status.Prune == nil || d.status.Prune.UID != uid {
		d.endPrune(uid, v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn, "it ended before another prune of the image")
	}
}

// rememberReplacedPrune remembers the stored prune where another one replaces it.
func (d *decider) rememberReplacedPrune(next types.UID) {
	if p := d.status.Prune; p != nil && p.UID != next {
		d.rememberPrune(p.UID)
	}
}

func (d *decider) rememberPrune(uid types.UID) {
	if slices.Contains(d.status.EndedPrunes, uid) {
		return
	}
	d.status.EndedPrunes = slices.Insert(d.status.EndedPrunes, 0, uid)
	d.status.EndedPrunes = d.status.EndedPrunes[:min(len(d.status.EndedPrunes), v1alpha1.MaxEndedPrunes)]
}
