// Package vm carries out what package agent/vm decides for each VirtualMachine.
package vm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/podevents"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=virtualmachines/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes/source,verbs=create
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// To change owners of an object, admission plugin OwnerReferencesPermissionEnforcement requires
// the right to delete it. Policy ot-agent-deletions refuses the deletion itself.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create;update;delete
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch;delete

const fieldOwner = client.FieldOwner("ot-agent")

// Reconciler reconciles VirtualMachines.
type Reconciler struct {
	client.Client
	// Live reads from the API server.
	Live client.Reader
	// Owned is a cache of the objects with the label of a machine's UID: disks, their
	// claims, KubeVirt VirtualMachines, and the Pods of both.
	Owned   client.Reader
	Events  events.EventRecorder
	Kinds   *apidiscovery.KindTracker
	Metrics *metrics.Machines
	// Capacity of the cluster's storage; nil where it is not checked.
	Capacity *capacity.Reader
	// PodEvents of Pods that do not start; nil where they are not read.
	PodEvents *podevents.Reader
	// DataSourceNamespaces are those that machines may be cloned from although the agent has made
	// nothing there.
	DataSourceNamespaces []string
	// Namespace is the agent's.
	Namespace string
	// ClusterUID returns the UID of the cluster.
	ClusterUID func(context.Context) (types.UID, error)

	// started sets startedAt on the first visit, which is after this process was elected.
	started    sync.Once
	startedAt  time.Time
	requests   trigger.Source[reconcile.Request]
	memory     memory
	conflicts  trigger.ConflictTracker
	imageReads sharedReads
}

// maxDecisionsPerReconcile bounds how often a reconcile decides again after it has stored
// a pin.
const maxDecisionsPerReconcile = 4

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Discovered() {
		return ctrl.Result{RequeueAfter: trigger.ConflictRetryDelay}, nil
	}
	obj := &v1alpha1.VirtualMachine{}
	if err := r.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.memory.forget(req.NamespacedName)
			r.conflicts.Forget(req)
		}
		r.Metrics.Delete(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if obj.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // its children are garbage-collected with it
	}
	v := &visit{obj: obj}
	result, err := r.reconcile(ctx, v)
	delay := r.conflicts.Record(req, err, errors.Is(err, errObjectChanged))
	var reported *reportedError
	switch {
	case !errors.As(err, &reported) && isConflict(err) && delay > 0:
		return ctrl.Result{RequeueAfter: delay}, nil
	case err == nil && v.refusal != nil:
		return ctrl.Result{}, &trigger.Refusal{Err: v.refusal, RetryAfter: result.RequeueAfter}
	}
	return result, err
}

// reconcile decides and applies the decision until no status is to be stored first.
func (r *Reconciler) reconcile(ctx context.Context, v *visit) (ctrl.Result, error) {
	for range maxDecisionsPerReconcile {
		before := v.obj.Status.DeepCopy()
		d, err := r.decide(ctx, v)
		if err == nil {
			err = r.applyDecision(ctx, v, &d)
		}
		if err != nil {
			return ctrl.Result{}, err
		}
		if !d.StoreStatusFirst {
			return ctrl.Result{RequeueAfter: d.RequeueAfter}, nil
		}
		v.view.LiveImages = v.view.LiveImages && vm.HaveSamePins(before, &v.obj.Status)
	}
	return ctrl.Result{RequeueAfter: trigger.ConflictRetryDelay}, nil
}

// visit is what one reconcile has read and stored of a machine.
type visit struct {
	obj *v1alpha1.VirtualMachine
	// view is the last one. Invariant: it has LiveImages only while the machine has the pins that
	// it had when the images were read.
	view vm.View
	// claims that were read live, beside the images; nil for one that does not exist.
	claims map[types.NamespacedName]*corev1.PersistentVolumeClaim
	// stored: obj is the answer to a write of this visit, so the cache it came from was not stale.
	stored bool
	// refusal is that of a request, which the status reports; nil for none. furtherRefusals are of
	// other objects in the same decision.
	refusal         error
	furtherRefusals []vm.Refusal
	// retried is what failed beside a refusal and is retried before it, as it may pass by itself; nil for none.
	retried error
}

// decide returns a decision and leaves the View that it is based on in v.
func (r *Reconciler) decide(ctx context.Context, v *visit) (d vm.Decision, err error) {
	if v.view, err = r.buildView(ctx, v.obj, v.view); err != nil {
		return d, err
	}
	d = vm.Decide(v.view)
	if d.NeedsLiveImages {
		if err = r.readLive(ctx, v, false); err != nil {
			return d, err
		}
		d = vm.Decide(v.view)
	}
	if d.NeedsLive {
		if err = r.readLive(ctx, v, true); err != nil {
			return d, err
		}
		d = vm.Decide(v.view)
	}
	return d, nil
}

// applyDecision applies the children and then stores the status. A pin is stored alone.
func (r *Reconciler) applyDecision(ctx context.Context, v *visit, d *vm.Decision) error {
	obj := v.obj
	var failure error
	onTheWay := !d.StoreStatusFirst
	if !d.StoreStatusFirst {
		child, err := r.applyChildren(ctx, v, d)
		reason, refused := refusalReason(child, err)
		onTheWay = err == nil
		if refused {
			v.refusal = err
		}
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && child != childImage:
			return nil // the machine is being deleted too
		case refused && reason == v1alpha1.ReasonImageNamespaceMissing:
			d.SetNamespaceMissing(obj, time.Now(), reason, child.title, err, v.furtherRefusals...)
		case refused:
			d.SetRefused(obj.Generation, time.Now(), reason, child.title, err, v.furtherRefusals...)
		case err != nil:
			failure = fmt.Errorf("applying %s of VirtualMachine %s/%s: %w", child.title, obj.Namespace, obj.Name, err)
			if ctx.Err() != nil || r.isPassingConflict(obj, err) {
				return failure
			}
			d.SetRequestFailed(obj.Generation, time.Now(), child.title, err)
			failure = &reportedError{failure}
		}
		if refused && v.retried != nil { // a refusal is retried too late for it
			failure = &reportedError{fmt.Errorf("VirtualMachine %s/%s: %w", obj.Namespace, obj.Name, v.retried)}
		}
	}
	stored, err := r.updateStatus(ctx, obj, d, onTheWay)
	v.stored = v.stored || stored
	return errors.Join(failure, err)
}

// isLastingConflict reports whether the API server has answered so many requests for a machine in a
// row with a conflict that no other read of an object solves it.
func (r *Reconciler) isLastingConflict(obj *v1alpha1.VirtualMachine, err error) bool {
	return apierrors.IsConflict(err) && r.conflicts.IsExhausted(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
}

// updateStatus writes the status if it differs from the stored one. A status on the way may wait;
// then it is decided again.
func (r *Reconciler) updateStatus(ctx context.Context, obj *v1alpha1.VirtualMachine, d *vm.Decision, onTheWay bool) (stored bool, err error) {
	name, before := client.ObjectKeyFromObject(obj), obj.Status.DeepCopy()
	r.Metrics.Set(name, d.Status.Phase, d.Status.Reason)
	if equality.Semantic.DeepEqual(obj.Status, d.Status) {
		return false, nil
	}
	if onTheWay {
		if delay := vm.StatusDelay(before, &d.Status, time.Since(r.memory.get(name).statusStoredAt)); delay > 0 {
			d.RequeueAfter = trigger.Earliest(d.RequeueAfter, delay)
			return false, nil
		}
	}
	obj.Status = d.Status
	if err := r.Status().Update(ctx, obj); apierrors.IsNotFound(err) {
		return false, errObjectChanged
	} else if err != nil {
		return false, fmt.Errorf("updating status of VirtualMachine %s/%s: %w", obj.Namespace, obj.Name, err)
	}
	r.memory.setStatusStored(name, time.Now(), vm.MessageChanged(before.Conditions, obj.Status.Conditions))
	r.recordEvents(obj, before)
	return true, nil
}

// recordEvents records what is new in a stored status and what its conditions no longer tell
// later: a failure and its end, and that a machine was ready. Each Event is a request.
func (r *Reconciler) recordEvents(obj *v1alpha1.VirtualMachine, before *v1alpha1.VirtualMachineStatus) {
	st := &obj.Status
	failed, hadFailed := st.Phase == v1alpha1.MachineFailed, before.Phase == v1alpha1.MachineFailed
	switch {
	case failed && (!hadFailed || before.Reason != st.Reason):
		r.recordPhase(obj, corev1.EventTypeWarning)
	case !failed && hadFailed, before.Phase == v1alpha1.MachineReady && st.Phase != v1alpha1.MachineReady:
		r.recordPhase(obj, corev1.EventTypeNormal)
	}
	for _, t := range []string{
		v1alpha1.ConditionSpecAdjusted, v1alpha1.ConditionImageDiffers, v1alpha1.ConditionPlainTextPassword, v1alpha1.ConditionRestartRequired,
	} {
		if c := vm.NewlyTrue(before.Conditions, st.Conditions, t); c != nil {
			r.Events.Eventf(obj, nil, corev1.EventTypeWarning, t, "Reconcile", "%s", c.Message)
		}
	}
}

func (r *Reconciler) recordPhase(obj *v1alpha1.VirtualMachine, eventType string) {
	st := &obj.Status
	r.Events.Eventf(obj, nil, eventType, string(st.Reason), "Reconcile", "%s", string(st.Phase)+": "+st.Message)
}
