package image

import (
	"context"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// minPositionRefreshDelay bounds positionRefreshDelay.
	minPositionRefreshDelay = 10 * time.Second
	// positionRefreshPace: a queue that moves by one in this time or less is fast.
	positionRefreshPace = 500 * time.Millisecond
)

// positionRefreshDelay returns after what time an image at a position of the queue stores it. In a
// fast queue it has passed the next power of ten by then, or has a slot: of a status for each of
// them, and a page of the report, most are saved.
func positionRefreshDelay(position int) time.Duration {
	return max(minPositionRefreshDelay, time.Duration(position)*positionRefreshPace)
}

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// imageEventHandler updates the queue of images, then requeues the image. Events come in
// the order of arrival, which is the order of the queue.
func (r *Reconciler) imageEventHandler() handler.EventHandler {
	updateQueue := func(img *v1alpha1.VMDiskImage, q requestQueue) {
		r.propagateQueueChange(q, r.Queue.Set(ledger.QueuedImage{
			Image: image.KeyOf(img), Revision: img.Spec.Revision(), Key: r.arrivals.orderingKey(img),
			Priority: img.Spec.Priority, State: image.QueueStateOf(img), Since: time.Now(), Host: img.Spec.SourceHost(),
		}))
	}
	enqueue := func(o client.Object, q requestQueue) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requestQueue) {
			if e.IsInInitialList {
				r.arrivals.orderExistingImages(ctx)
			}
			updateQueue(e.Object.(*v1alpha1.VMDiskImage), q)
			enqueue(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requestQueue) {
			before, after := e.ObjectOld.(*v1alpha1.VMDiskImage), e.ObjectNew.(*v1alpha1.VMDiskImage)
			if before.UID != after.UID {
				r.forgetImage(before, q)
			}
			updateQueue(after, q)
			if outcomesFingerprint(before) != outcomesFingerprint(after) || image.IsReleased(before) != image.IsReleased(after) {
				r.EnqueueLedger()
			}
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) {
			r.forgetImage(e.Object.(*v1alpha1.VMDiskImage), q)
		},
	}
}

func (r *Reconciler) forgetImage(img *v1alpha1.VMDiskImage, q requestQueue) {
	r.propagateQueueChange(q, r.Queue.Remove(img.UID))
	r.arrivals.forgetImage(img.UID)
	r.ownWrites.forgetImage(img.UID)
	r.publishRefusals.set(img.UID, nil)
	r.childRefusals.set(img.UID, nil)
	r.imageRefusals.forgetImage(img)
	r.capacityWaiters.setWaiting(image.KeyOf(img), false)
	r.Preflight.Forget(img.UID)
	r.EnqueueLedger()
}

// propagateQueueChange requeues the ledger if the head of the queue has changed, and the
// images that have advanced.
func (r *Reconciler) propagateQueueChange(q requestQueue, c ledger.QueueChange) {
	if c.HeadChanged {
		r.EnqueueLedger()
	}
	for _, advanced := range c.Advanced {
		q.AddAfter(requestFor(advanced.Image), positionRefreshDelay(advanced.Position))
	}
}

// outcomesFingerprint changes with the outcomes that an image's status holds.
func outcomesFingerprint(img *v1alpha1.VMDiskImage) (fingerprint string) {
	for i := range img.Status.Revisions {
		revision := &img.Status.Revisions[i]
		fingerprint += revision.Revision + ":" + strconv.Itoa(int(revision.AttemptEnded)) + string(revision.Outcome) + " "
	}
	return fingerprint
}

// slotEventHandler requeues the images whose slots have changed.
func slotEventHandler() handler.EventHandler {
	slots := func(o client.Object) []v1alpha1.Slot {
		if l := o.(*v1alpha1.SyncLedger); l.Status != nil {
			return l.Status.Slots
		}
		return nil
	}
	enqueueMissing := func(q requestQueue, from, in []v1alpha1.Slot) {
		for _, s := range from {
			if !slices.Contains(in, s) {
				q.Add(requestFor(s.Image))
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requestQueue) {
			enqueueMissing(q, slots(e.Object), nil)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requestQueue) {
			before, after := slots(e.ObjectOld), slots(e.ObjectNew)
			enqueueMissing(q, before, after)
			enqueueMissing(q, after, before)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) {
			enqueueMissing(q, slots(e.Object), nil)
		},
	}
}

// holdChangedPredicate passes the events of VirtualMachines that change which images they
// hold: a VirtualMachine's status is written many times, and each time an image would
// count all its holders.
func holdChangedPredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.VirtualMachine), e.ObjectNew.(*v1alpha1.VirtualMachine)
		return before.UID != after.UID ||
			!slices.Equal(before.NamedImages(), after.NamedImages()) ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!equality.Semantic.DeepEqual(before.Pins(), after.Pins())
	}}
}

// mapVMToImages returns the images that a VirtualMachine holds. It is called for both
// states of an update.
func mapVMToImages(_ context.Context, o client.Object) []reconcile.Request {
	machine := o.(*v1alpha1.VirtualMachine)
	held := machine.NamedImages()
	for _, p := range machine.Pins() {
		if name := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); !slices.Contains(held, name) {
			held = append(held, name)
		}
	}
	requests := make([]reconcile.Request, len(held))
	for i, name := range held {
		requests[i].NamespacedName = name
	}
	return requests
}

// mapChildToImage finds the image of an object by the UID in its label.
func (r *Reconciler) mapChildToImage(_ context.Context, o client.Object) []reconcile.Request {
	if key, ok := r.arrivals.nameForUID(types.UID(o.GetLabels()[v1alpha1.LabelImageUID])); ok {
		return []reconcile.Request{{NamespacedName: key}}
	}
	return nil
}

// diskChangedPredicate passes the events of root disks and their claims that change which image
// they hold, without those of their phases. A new one counts where no machine made it.
func diskChangedPredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return metav1.GetControllerOf(e.Object) == nil },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld, e.ObjectNew
			return before.GetUID() != after.GetUID() ||
				before.GetLabels()[v1alpha1.LabelMachineUID] != after.GetLabels()[v1alpha1.LabelMachineUID] ||
				vm.ClonedImageUID(before) != vm.ClonedImageUID(after) ||
				before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
				!equality.Semantic.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences())
		},
	}
}

// mapDiskToImage finds the image that a root disk, or its claim, was cloned from. It is called
// for both states of an update.
func (r *Reconciler) mapDiskToImage(_ context.Context, o client.Object) []reconcile.Request {
	if key, ok := r.arrivals.nameForUID(vm.ClonedImageUID(o)); ok {
		return []reconcile.Request{{NamespacedName: key}}
	}
	return nil
}

// mapToSkippedImages returns the images that something blocks.
func (r *Reconciler) mapToSkippedImages(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range r.Queue.ListKeys(ledger.Skipped) {
		requests = append(requests, requestFor(key))
	}
	return requests
}
