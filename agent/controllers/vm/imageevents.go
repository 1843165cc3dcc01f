package vm

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageEventHandler enqueues the machines that a change of an image affects.
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
				enqueue(ctx, after, q, awaitsDisk)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q, all)
		},
	}
}

// awaitsDisk: the status of such a machine shows the progress of its images.
func awaitsDisk(obj *v1alpha1.VirtualMachine) bool {
	isReady := func(volume *v1alpha1.DiskVolume) bool { return volume != nil && volume.Ready }
	return !isReady(obj.Status.RootDisk) || slices.ContainsFunc(obj.Status.Disks, func(disk v1alpha1.DataDisk) bool {
		return !disk.Removed && !isReady(disk.Volume)
	})
}

// affectedMachines are those holders of an image that a change of it affects.
type affectedMachines int

const (
	noMachines affectedMachines = iota
	waitingMachines
	allMachines
)

// machinesAffectedBy ignores what an image records of its holders: each change of a machine
// would otherwise enqueue all machines that hold the same image.
func machinesAffectedBy(before, after *v1alpha1.VMDiskImage) affectedMachines {
	if before.UID != after.UID || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || image.IsReleased(before) != image.IsReleased(after) ||
		!equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return allMachines
	}
	if !equality.Semantic.DeepEqual(relevantStatus(before), relevantStatus(after)) {
		return allMachines
	}
	if before.Status.Progress != after.Status.Progress || !equality.Semantic.DeepEqual(before.Status.QueuePosition, after.Status.QueuePosition) ||
		before.Status.Message != after.Status.Message {
		return waitingMachines
	}
	return noMachines
}

// relevantStatus returns the part of the status that affects machines with a root disk too.
func relevantStatus(img *v1alpha1.VMDiskImage) v1alpha1.VMDiskImageStatus {
	st := v1alpha1.VMDiskImageStatus{
		Phase: img.Status.Phase, Reason: img.Status.Reason, Serving: img.Status.Serving, TearDown: img.Status.TearDown,
	}
	if stalled := meta.FindStatusCondition(img.Status.Conditions, v1alpha1.ConditionStalled); stalled != nil {
		st.Conditions = []metav1.Condition{{Status: stalled.Status, ObservedGeneration: stalled.ObservedGeneration}}
	}
	for i := range img.Status.Revisions { // possible sources of root disks
		e := &img.Status.Revisions[i]
		st.Revisions = append(st.Revisions, v1alpha1.RevisionStatus{
			Revision: e.Revision, Attempt: e.Attempt, AttemptEnded: e.AttemptEnded, Outcome: e.Outcome, DataVolume: e.DataVolume, VolumeSnapshot: e.VolumeSnapshot,
		})
	}
	return st
}
