package vm

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageEventHandler has those machines looked at that an event of an image concerns. Many
// hold one image, and what it writes of them would go back to each of them.
func (r *Reconciler) imageEventHandler() handler.EventHandler {
	enqueue := func(ctx context.Context, o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request], wanted func(*v1alpha1.VirtualMachine) bool) {
		for _, key := range vm.ImageIndexKeys(o.(*v1alpha1.VMDiskImage)) {
			for _, req := range r.requestsWhere(ctx, client.MatchingFields{vm.ImageIndex: key}, wanted) {
				q.Add(req)
			}
		}
	}
	all := func(*v1alpha1.VirtualMachine) bool { return true }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q, all)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, after := e.ObjectOld.(*v1alpha1.VMDiskImage), e.ObjectNew.(*v1alpha1.VMDiskImage)
			if before.UID != after.UID {
				enqueue(ctx, before, q, all)
			}
			switch machinesAffectedBy(before, after) {
			case allMachines:
				enqueue(ctx, after, q, all)
			case waitingMachines:
				enqueue(ctx, after, q, awaitsRootDisk)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q, all)
		},
	}
}

// awaitsRootDisk tells that a machine has no root disk yet: it shows how far its image is.
func awaitsRootDisk(obj *v1alpha1.VirtualMachine) bool {
	return obj.Status.RootDisk == nil || !obj.Status.RootDisk.Ready
}

// affectedMachines are the machines that hold an image to which a change of it matters.
type affectedMachines int

const (
	noMachines affectedMachines = iota
	waitingMachines
	allMachines
)

// machinesAffectedBy leaves out what no machine looks at: an image counts its machines, and
// tells while it is held up by which, at each change of one of them.
func machinesAffectedBy(before, after *v1alpha1.VMDiskImage) affectedMachines {
	if before.UID != after.UID || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return allMachines
	}
	was, is := relevantStatus(before), relevantStatus(after)
	if !equality.Semantic.DeepEqual(was, is) {
		return allMachines
	}
	if before.Status.Progress != after.Status.Progress || !equality.Semantic.DeepEqual(before.Status.QueuePosition, after.Status.QueuePosition) ||
		before.Status.Message != after.Status.Message {
		return waitingMachines
	}
	return noMachines
}

// relevantStatus is what a machine looks at of the status of an image whether it waits
// for it or not.
func relevantStatus(img *v1alpha1.VMDiskImage) v1alpha1.VMDiskImageStatus {
	st := v1alpha1.VMDiskImageStatus{
		Phase: img.Status.Phase, Reason: img.Status.Reason, Serving: img.Status.Serving, TearDown: img.Status.TearDown,
	}
	for i := range img.Status.Revisions { // what a root disk can have been cloned from
		e := &img.Status.Revisions[i]
		st.Revisions = append(st.Revisions, v1alpha1.RevisionStatus{
			Revision: e.Revision, Attempt: e.Attempt, AttemptEnded: e.AttemptEnded, Outcome: e.Outcome, DataVolume: e.DataVolume, VolumeSnapshot: e.VolumeSnapshot,
		})
	}
	return st
}
