package image

import (
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// namespaceRecheckInterval is how often the namespace of a referenced image that
// is to be deleted is read: no event shows its deletion.
const namespaceRecheckInterval = 30 * time.Second

// reconcileDelete takes an image that is to be deleted through Terminating and
// Deleting.
//
// Invariant (S2 of docs/architecture.md): phase Deleting is stored before the
// holders are listed live. A VM that acquires the image reads the phase live, or
// that list shows it. status.tearDown is stored before anything is deleted, with
// the resourceVersion of phase Deleting: a leader that was paused after its list
// gets a conflict if another one has returned the image to Terminating. The DataSource that the
// image was published as is removed before that list, and the end of the publication is stored:
// a clone that found it is in the list, too.
func (d *decider) reconcileDelete() {
	if d.Image.DeletionTimestamp == nil {
		return
	}
	deleting := d.Image.Status.Phase == v1alpha1.PhaseDeleting
	switch {
	case d.Image.Status.TearDown:
		d.status.Phase = v1alpha1.PhaseDeleting
		d.tearDown = d.requireLive()
	case len(d.Holders) > 0 && !d.NamespaceTerminating:
		if deleting {
			d.requireLive()
		}
		d.status.Phase = v1alpha1.PhaseTerminating
		d.requeueWithin(namespaceRecheckInterval)
	case !deleting:
		d.status.Phase = v1alpha1.PhaseDeleting
	case d.requireLive() && !d.imageMayBeCloned():
		d.status.TearDown = true
		d.tearDown = true
	}
}
