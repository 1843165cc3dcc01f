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
	admitted := map[string]bool{}
	for _, slot := range decision.Admitted {
		admitted[ledger.DataVolumeKey(slot)] = true
	}
	failing := r.failingImages(decision.Slots)
	for _, slot := range trigger.InTurn(&r.creations, decision.Slots, func(s v1alpha1.Slot) (namespace, name string) { return s.Image.Namespace, s.DataVolume }) {
		key := ledger.DataVolumeKey(slot)
		img := found.images[slot.Image.UID]
		facts, wasRead := found.facts[key]
		if !admitted[key] && (!wasRead || !ledger.ShouldCreateDataVolume(slot, facts)) || !r.Kinds.IsServed(image.DataVolumeGVK) {
			continue
		}
		if img == nil || img.Spec.Revision() != slot.Revision {
			continue // the image has changed, and ends the attempt itself
		}
		if r.creations.Skips(slot.Image.Namespace, time.Now()) {
			r.recordWait(slot, failing[slot.Image.Namespace])
			continue
		}
		began := time.Now()
		retryAfter, err := r.createDataVolume(ctx, img, slot)
		if retryAfter > 0 {
			requeueAfter = trigger.Earliest(requeueAfter, retryAfter)
			break // the later ones must not start before it
		}
		r.creations.Record(slot.Image.Namespace, slot.DataVolume, err, began, time.Now())
		if r.creationProblem(slot) != nil && failing[slot.Image.Namespace] == "" {
			failing[slot.Image.Namespace] = slot.Image.Name
		}
	}
	if len(decision.Adopted) > 0 {
		requeueAfter = trigger.Earliest(requeueAfter, conflictRetryDelay) // the next step lowers the budget
	}
	return requeueAfter, nil
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
