package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/trigger"
)

// maxRefusingNamespaces is in how many namespaces a request may fail before the others wait for the
// next reconcile: answers that come late would add up.
const maxRefusingNamespaces = 4

// refusals are the requests of one reconcile that failed. A webhook or quota of one namespace holds
// up no other.
type refusals struct {
	namespaces []string
	err        error
}

func (f *refusals) add(namespace string, err error) {
	f.err = errors.Join(f.err, err)
	if !slices.Contains(f.namespaces, namespace) {
		f.namespaces = append(f.namespaces, namespace)
	}
}

// skips reports whether nothing more is requested in a namespace in this reconcile.
func (f *refusals) skips(namespace string) bool {
	return len(f.namespaces) >= maxRefusingNamespaces || slices.Contains(f.namespaces, namespace)
}

// applyDecision acts on the ledger as it is stored: it deletes DataVolumes first, since
// CDI downloads a failed one again, then creates others in the order of the queue.
func (r *Reconciler) applyDecision(ctx context.Context, decision ledger.Decision, found gatheredFacts, failed *refusals) (requeueAfter time.Duration, err error) {
	if err := r.deleteUnwanted(ctx, found, failed); err != nil {
		return 0, err
	}
	requeueAfter = found.requeueAfter
	admitted := map[string]bool{}
	for _, slot := range decision.Admitted {
		admitted[ledger.DataVolumeKey(slot)] = true
	}
	for _, slot := range decision.Slots {
		key := ledger.DataVolumeKey(slot)
		img := found.images[slot.Image.UID]
		facts, wasRead := found.facts[key]
		if !admitted[key] && (!wasRead || !ledger.ShouldCreateDataVolume(slot, facts)) {
			continue
		}
		if img == nil || img.Spec.Revision() != slot.Revision {
			continue // the image has changed, and ends the attempt itself
		}
		if failed.skips(slot.Image.Namespace) {
			continue
		}
		if failure := r.attemptTimeout(slot); failure != nil {
			if err := r.failAttempt(ctx, slot, *failure); err != nil {
				failed.add(slot.Image.Namespace, err)
			}
			continue
		}
		retry, err := r.createDataVolume(ctx, img, slot)
		if err != nil {
			failed.add(slot.Image.Namespace, err)
			continue
		}
		if retry {
			requeueAfter = trigger.Earliest(requeueAfter, admissionRetryDelay)
			break // the later ones must not start before it
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
func (r *Reconciler) deleteUnwanted(ctx context.Context, found gatheredFacts, failed *refusals) error {
	if len(found.strays) > 0 {
		ledger, err := r.readLedger(ctx)
		if err != nil {
			return err
		}
		if !r.isLastVersion(ledger.ResourceVersion) {
			return nil // the event of that write requeues the ledger
		}
	}
	for _, obj := range found.toDelete {
		if failed.skips(obj.GetNamespace()) {
			continue
		}
		err := r.Delete(ctx, obj, client.Preconditions{UID: uidPointer(obj)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			failed.add(obj.GetNamespace(), fmt.Errorf("deleting %T %s/%s, which belongs to no image: %w", obj, obj.GetNamespace(), obj.GetName(), err))
		}
		if err == nil && found.strays[obj.GetUID()] {
			r.Metrics.CountStrayDataVolume()
		}
	}
	return nil
}

func uidPointer(obj client.Object) *types.UID {
	uid := obj.GetUID()
	return &uid
}
