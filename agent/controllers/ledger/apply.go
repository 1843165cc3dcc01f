package ledger

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// applyDecision acts on the ledger as it is stored: it deletes DataVolumes first, since
// CDI downloads a failed one again, then creates others in the order of the queue,
// but for namespaces that hold requests up.
func (r *Reconciler) applyDecision(ctx context.Context, decision ledger.Decision, found gatheredFacts) (requeueAfter time.Duration, err error) {
	if err := r.deleteUnwanted(ctx, found); err != nil {
		return 0, err
	}
	requeueAfter = found.requeueAfter
	missing := r.missingDataVolumes(decision, found)
	var waiting []v1alpha1.Slot
	inTurn := trigger.InTurn(&r.creations, missing, func(s v1alpha1.Slot) (namespace, name string) { return s.Image.Namespace, s.DataVolume })
	for i, slot := range inTurn {
		if r.creations.Skips(slot.Image.Namespace, time.Now()) {
			waiting = append(waiting, slot)
			continue
		}
		began := time.Now()
		retryAfter, err := r.createDataVolume(ctx, found.images[slot.Image.UID], slot)
		if retryAfter > 0 {
			requeueAfter = trigger.Earliest(requeueAfter, retryAfter)
			r.recordWait(slot, "")
			waiting = append(waiting, inTurn[i+1:]...)
			break // the later ones must not start before it
		}
		r.creations.Record(slot.Image.Namespace, slot.DataVolume, err, began, time.Now())
	}
	failing := r.failingImages(missing)
	for _, slot := range waiting {
		r.recordWait(slot, failing[slot.Image.Namespace])
	}
	if len(decision.Adopted) > 0 {
		requeueAfter = trigger.Earliest(requeueAfter, conflictRetryDelay) // the next step lowers the budget
	}
	return requeueAfter, nil
}

// missingDataVolumes returns the slots whose DataVolumes are to be created.
//
// Invariant: no other slot has a creation problem. A DataVolume may exist though its creation seemed to fail, and
// none is created for an image that has changed, which ends the attempt itself: the others of the namespace would
// name what they do not wait for.
func (r *Reconciler) missingDataVolumes(decision ledger.Decision, found gatheredFacts) (missing []v1alpha1.Slot) {
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		return nil
	}
	admitted := map[string]bool{}
	for _, slot := range decision.Admitted {
		admitted[ledger.DataVolumeKey(slot)] = true
	}
	for _, slot := range decision.Slots {
		key := ledger.DataVolumeKey(slot)
		img := found.images[slot.Image.UID]
		facts, wasRead := found.facts[key]
		if !admitted[key] && (!wasRead || !ledger.ShouldCreateDataVolume(slot, facts)) || img == nil || img.Spec.Revision() != slot.Revision {
			r.setCreationProblem(slot, nil)
			continue
		}
		missing = append(missing, slot)
	}
	return missing
}

// deleteUnwanted deletes the DataVolumes of images that are gone, and strays: those that
// hold no slot and cannot be adopted. The ledger is read again before strays are deleted:
// another leader may have given them a slot.
func (r *Reconciler) deleteUnwanted(ctx context.Context, found gatheredFacts) error {
	if len(found.strays) > 0 {
		ledger, err := r.readLedger(ctx)
		if err != nil {
			return err
		}
		if !r.isLastVersion(ledger.ResourceVersion) {
			return nil // the event of that write requeues the ledger
		}
	}
	for _, obj := range trigger.InTurn(&r.deletions, found.toDelete, func(o client.Object) (namespace, name string) { return o.GetNamespace(), o.GetName() }) {
		if r.deletions.Skips(obj.GetNamespace(), time.Now()) {
			continue
		}
		began := time.Now()
		err := r.Delete(ctx, obj, client.Preconditions{UID: uidPointer(obj)})
		if err == nil && found.strays[obj.GetUID()] {
			r.Metrics.CountStrayDataVolume()
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("deleting %T %s/%s, which belongs to no image that the agent has: %w", obj, obj.GetNamespace(), obj.GetName(), err)
		}
		r.deletions.Record(obj.GetNamespace(), obj.GetName(), err, began, time.Now())
	}
	return nil
}

func uidPointer(obj client.Object) *types.UID {
	uid := obj.GetUID()
	return &uid
}
