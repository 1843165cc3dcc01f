package image

import (
	"fmt"
	"slices"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxNamedFinalizers bounds how many finalizers a message names.
const maxNamedFinalizers = 3

// IsReleased reports whether an image is being deleted without the agent's finalizer. No agent does anything for
// it but to say so, whatever another finalizer keeps it for.
//
// Invariant: a released image stays so, since the API server accepts no new finalizer during a deletion.
func IsReleased(img *v1alpha1.VMDiskImage) bool {
	return img.DeletionTimestamp != nil && !slices.Contains(img.Finalizers, v1alpha1.FinalizerImage)
}

// describeReleased has the status of a released image say what it is. Otherwise it would go on to say what it
// waited for before.
func (d *decider) describeReleased() {
	d.status.Phase = v1alpha1.PhaseDeleting
	d.status.Progress, d.status.BytesDone = "", 0
	d.reconcilePrune()
	d.summarizeStatus()
}

// releasedMessage says what a released image is kept by.
func (d *decider) releasedMessage() string {
	return fmt.Sprintf("is being deleted without finalizer %s: the agent deletes its import where that holds a slot, and no other storage, and no VirtualMachine acquires it; "+
		"it is gone once its other finalizers are removed: %s", v1alpha1.FinalizerImage, v1alpha1.JoinFirst(d.Image.Finalizers, maxNamedFinalizers, len(d.Image.Finalizers)))
}

// ensureFinalizer adds the finalizer to an image that is not being deleted, once its place in
// the queue is stored (S3): any earlier write would hide when it arrived. It gets no slot
// before it has the finalizer.
func (d *decider) ensureFinalizer() {
	placed := findRevision(d.Image.Status.Revisions, d.targetRevision) != nil
	if placed && d.Image.DeletionTimestamp == nil && !slices.Contains(d.Image.Finalizers, v1alpha1.FinalizerImage) {
		d.decision.AddFinalizer = true
	}
}

// removeFinalizer removes the finalizer once no slot and no object of the image is
// left, by a live View and by the stored status.
func (d *decider) removeFinalizer() {
	if d.tearDown && d.Image.Status.TearDown && len(d.Slots) == 0 && len(d.ObjectsByAttempt) == 0 && !d.hasOwnDataSource() {
		d.decision.RemoveFinalizer = true
	}
}
