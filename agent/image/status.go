package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// summarizeStatus sets phase, reason, message and all conditions.
func (d *decider) summarizeStatus() {
	st := d.status
	st.ObservedGeneration = d.Image.Generation
	rev := findRevision(st.Revisions, d.targetRevision)
	if rev != nil {
		// Attempts of other revisions may lie between the revision's own and its restart.
		st.Attempts = max(0, max(rev.Attempt, rev.AttemptEnded)-rev.AttemptsBefore)
	}
	d.updateQueuePosition()
	deleting := d.describeDeletion()
	d.describeWait(deleting)
	if d.Image.DeletionTimestamp == nil {
		d.describeHeldSlots()
	}
	refusal := d.describeRefusals()
	if refusal != "" {
		d.activity.Message += refusal
		deleting.Message += refusal
		d.activity.NeedsPerson = d.activity.NeedsPerson || !d.importing && d.activity.Reason != v1alpha1.ReasonReady
	}

	phase := d.computePhase()
	shown := d.showPhase(phase, deleting, refusal)
	st.Reason, st.Message = shown.Reason, shown.Message
	if shown.Reason == v1alpha1.ReasonReady {
		st.Message += d.describeRetainedRevisions()
	}
	st.OpensAt = nil
	if st.Reason == v1alpha1.ReasonWaitingForWindow && d.Opening != nil {
		st.OpensAt = new(storedtime.Truncate(d.Opening.At))
	}
	st.Message = v1alpha1.Truncate(st.Message, maxStatusMessageBytes)

	d.setCondition(v1alpha1.ConditionReady, d.activity.Reason == v1alpha1.ReasonReady && st.Phase != v1alpha1.PhaseDeleting, shown)
	imported := UsesDataSource(&d.Image.Spec) && d.activity.Reason == v1alpha1.ReasonReady
	imported = imported || rev != nil && rev.Outcome == v1alpha1.OutcomeSucceeded && rev.Attempt <= rev.AttemptEnded
	d.setCondition(v1alpha1.ConditionImported, imported, d.activity)
	d.setCondition(v1alpha1.ConditionSnapshotReady, d.activity.Reason == v1alpha1.ReasonReady, d.activity)
	stalled := phase == v1alpha1.PhaseFailed || d.activity.NeedsPerson || d.activity.Reason.NeedsUserAction()
	d.setCondition(v1alpha1.ConditionStalled, stalled, shown)
	d.setCondition(v1alpha1.ConditionReconciling, !stalled && (phase == v1alpha1.PhaseQueued || phase == v1alpha1.PhaseSyncing || d.Image.DeletionTimestamp != nil), shown)
}

// describeDeletion says what the deletion of the image waits for.
func (d *decider) describeDeletion() statusReason {
	deleting := statusReason{Reason: v1alpha1.ReasonDeleted, Message: "no VirtualMachine references it: its storage is being deleted"}
	switch {
	case d.Image.DeletionTimestamp == nil:
	case IsReleased(d.Image):
		deleting.Message = d.releasedMessage()
	case d.status.TearDown:
		// By the API server's clock: where it is ahead, the grace begins later, and is not skipped.
		since := storedtime.Since(d.now, d.Image.DeletionTimestamp)
		attempts := slices.AppendSeq(d.attemptsWithSlots(), maps.Keys(d.ObjectsByAttempt))
		slices.Sort(attempts)
		deleting.Message += d.describeLeftovers(since.Time, slices.Compact(attempts)...)
	case d.imageMayBeCloned():
		deleting.Message = "no VirtualMachine references it: its storage is deleted once no clone can find it by its DataSource any longer"
	}
	return deleting
}

// describeWait sets the message of an activity that has none of its own.
func (d *decider) describeWait(deleting statusReason) {
	switch d.activity.Reason {
	case v1alpha1.ReasonWaitingForSlot:
		d.activity.Message = "waits for a slot"
		if position := d.status.QueuePosition; position != nil {
			d.activity.Message = queuePositionMessage(*position)
		}
	case v1alpha1.ReasonWaitingForFleet:
		d.activity.Message = "waits for the hub: the fleet-wide budget has no free slot (see kubectl describe syncledger)"
	case v1alpha1.ReasonWaitingForSource:
		d.activity.Message = "waits for its source: the fleet-wide budget grants no further import from there (see kubectl describe syncledger)"
	case v1alpha1.ReasonNamespaceShare:
		d.activity.Message = "waits for images of its own namespace, which has its share of the slots (namespaceShare of the policy); images of other namespaces go first"
	case "": // torn down
		d.activity = deleting
	}
}

// showPhase sets the image's phase, and returns what its status shows beside it.
func (d *decider) showPhase(phase v1alpha1.Phase, deleting statusReason, refusal string) statusReason {
	switch {
	case d.Image.DeletionTimestamp == nil && d.pendingPrune() != nil:
		d.status.Phase = v1alpha1.PhasePrunePending
		if phase == v1alpha1.PhaseFailed {
			refusal = "; it has failed: " + d.activity.Message
		}
		return statusReason{Reason: v1alpha1.ReasonUndoWindowOpen, Message: d.status.Prune.Message + refusal}
	case d.Image.DeletionTimestamp == nil:
		d.status.Phase = phase
		return d.activity
	case d.status.Phase == v1alpha1.PhaseTerminating:
		return statusReason{Reason: v1alpha1.ReasonReferenced, Message: "is to be deleted, and stays available while it is referenced by " + d.listHolders()}
	default:
		return deleting
	}
}

// describeRefusals says which requests of this decision the API server has refused before; empty for
// none.
func (d *decider) describeRefusals() (text string) {
	add := func(refusal string, asked bool) {
		if refusal != "" && asked {
			text += "; " + quote(refusal)
		}
	}
	add(d.ChildRefusal, len(d.decision.Delete) > 0 || d.decision.CreateSnapshot != nil)
	add(d.FinalizerRefusal, d.decision.AddFinalizer || d.decision.RemoveFinalizer)
	add(d.DeletionRefusal, d.decision.DeleteImage)
	return text
}

// computePhase is the phase of the current revision, without regard to deletion
// and prune.
func (d *decider) computePhase() v1alpha1.Phase {
	rev := findRevision(d.status.Revisions, d.targetRevision)
	switch {
	case d.activity.Reason == v1alpha1.ReasonReady:
		return v1alpha1.PhaseSucceeded
	case UsesDataSource(&d.Image.Spec): // it takes no slot, so it is never Queued
		return v1alpha1.PhaseSyncing
	case rev != nil && (hasFailedPermanently(rev) || hasSnapshotFailed(rev)):
		return v1alpha1.PhaseFailed
	case d.importing, rev != nil && rev.Outcome == v1alpha1.OutcomeSucceeded:
		return v1alpha1.PhaseSyncing // imports, or lacks its snapshot
	default:
		return v1alpha1.PhaseQueued
	}
}

func (d *decider) setCondition(conditionType string, isTrue bool, why statusReason) {
	meta.SetStatusCondition(&d.status.Conditions, kstatus.NewCondition(
		conditionType, isTrue, string(why.Reason), v1alpha1.Truncate(why.Message, maxStatusMessageBytes), d.Image.Generation, d.now.Time))
}

// updateQueuePosition stores the queue position when it is new or has fallen below
// a power of ten: a write per waiting image and admission would be quadratic.
func (d *decider) updateQueuePosition() {
	switch {
	case !hasQueuePosition(d.activity.Reason) || d.QueuePosition == nil:
		d.status.QueuePosition = nil
	case d.status.QueuePosition == nil || countDigits(*d.QueuePosition) < countDigits(*d.status.QueuePosition):
		position := *d.QueuePosition
		d.status.QueuePosition = &position
	}
}

func queuePositionMessage(ahead int32) string {
	switch ahead {
	case 0:
		return "waits for a slot; it is next"
	case 1:
		return "waits for a slot; one image goes first"
	default:
		return fmt.Sprintf("waits for a slot; at most %d images go first", ahead)
	}
}

func countDigits(n int32) int {
	digits := 0
	for ; n > 0; n /= 10 {
		digits++
	}
	return digits
}

// describeRetainedRevisions names the VMs for which storage is kept beside the
// storage that serves.
func (d *decider) describeRetainedRevisions() string {
	var names []string
	users := "VirtualMachines"
	for i := range d.Holders {
		if slices.ContainsFunc(d.Holders[i].Pins, d.isEarlierStorage) {
			names = append(names, d.Holders[i].Name)
			if strings.HasSuffix(d.Holders[i].Name, cloneHolder) {
				users = "VirtualMachines and clones"
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; earlier storage is kept for the " + users + " built from it: " + v1alpha1.JoinFirst(names, maxShownHolders, len(names))
}

// isEarlierStorage reports whether a pin is of this image and not of what serves.
func (d *decider) isEarlierStorage(pin *v1alpha1.PinnedImage) bool {
	serving := d.status.Serving
	return pin.UID == d.Image.UID && pin.SourceNamespace == "" && (pin.Attempt != serving.Attempt || (pin.VolumeSnapshot != "" && pin.VolumeSnapshot != serving.VolumeSnapshot))
}

const (
	// deletionGrace is how long storage may take to go before the image says what is left of it.
	deletionGrace    = time.Minute
	maxNamedLeftover = 3
)

// describeHeldSlots names the objects of failed attempts that hold slots which nobody else gets. An
// image that waits needs a person then.
func (d *decider) describeHeldSlots() {
	for i := range d.Slots {
		s := &d.Slots[i]
		rev := findRevision(d.status.Revisions, s.Revision)
		if !s.Ended || rev == nil || rev.AttemptEnded != s.Attempt || rev.Outcome != v1alpha1.OutcomeFailed {
			continue
		}
		since := s.StartedAt.Time
		if rev.Failure != nil {
			since = rev.Failure.Time.Time
		}
		if leftovers := d.describeLeftovers(since, s.Attempt); leftovers != "" {
			d.activity.Message += fmt.Sprintf("; attempt %d keeps a slot until its objects are gone%s", s.Attempt, leftovers)
			d.activity.NeedsPerson = d.activity.NeedsPerson || !d.importing && d.activity.Reason != v1alpha1.ReasonReady
		}
	}
}

func (d *decider) attemptsWithSlots() (attempts []int32) {
	for i := range d.Slots {
		attempts = append(attempts, d.Slots[i].Attempt)
	}
	return attempts
}

// describeLeftovers names the objects of attempts that a deletion still waits for, with their
// finalizers; empty within deletionGrace, or where nothing is left.
func (d *decider) describeLeftovers(since time.Time, attempts ...int32) string {
	if left := storedtime.Remaining(d.Now, since, deletionGrace); left > 0 {
		d.requeueWithin(left)
		return ""
	}
	var names []string // sorted: a cache lists in any order, and each status write is an event
	add := func(kind string, o metav1.Object) {
		name := kind + " " + o.GetName()
		switch finalizers := o.GetFinalizers(); {
		case o.GetDeletionTimestamp() == nil:
		case slices.Contains(finalizers, "kubernetes.io/pvc-protection"):
			name += " (a Pod uses it)"
		case len(finalizers) > 0:
			name += " (finalizer " + strings.Join(finalizers, ", ") + ")"
		}
		names = append(names, name)
	}
	for _, attempt := range attempts {
		o := d.ObjectsByAttempt[attempt]
		if o == nil {
			continue
		}
		if o.DataVolume != nil {
			add("DataVolume", o.DataVolume)
		}
		claims := o.allClaims()
		for i := range claims {
			add("PersistentVolumeClaim", &claims[i])
		}
		for i := range o.Pods {
			add("Pod", &o.Pods[i])
		}
		for i := range o.Snapshots {
			add("VolumeSnapshot", &o.Snapshots[i])
		}
	}
	for i := range d.Slots { // what the ledger waits for may have lost the image's labels
		if s := &d.Slots[i]; s.Ended && !d.ObjectsByAttempt[s.Attempt].CanDownload() && slices.Contains(attempts, s.Attempt) {
			names = append(names, "the slot of DataVolume "+s.DataVolume)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return "; still there: " + v1alpha1.JoinFirst(names, maxNamedLeftover, len(names))
}
