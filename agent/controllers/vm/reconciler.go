// Package vm carries out what package agent/vm decides for each VirtualMachine.
package vm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=virtualmachines/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes/source,verbs=create
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch

// fieldOwner is the field manager of what the agent applies.
const fieldOwner = client.FieldOwner("ot-agent")

// Reconciler looks after VirtualMachines.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live client.Reader
	// Owned holds what carries a machine's UID: root disks with their claims, and
	// KubeVirt's VirtualMachines.
	Owned   client.Reader
	Events  events.EventRecorder
	Kinds   *apidiscovery.KindTracker
	Metrics *metrics.Machines
	// ClusterUID is the UID of the cluster.
	ClusterUID func(context.Context) (types.UID, error)

	requeueEvents chan event.GenericEvent
}

// errObjectChanged: the machine is not any more as the cache showed it. The event of
// that change brings it back.
var errObjectChanged = errors.New("the machine has changed meanwhile")

// conflictRetryDelay is the wait after a write that met another one, should the event
// of that one have come before.
const conflictRetryDelay = 50 * time.Millisecond

// maxDecisionsPerReconcile is how often a machine is decided on in one visit: what is pinned is
// stored first, and looked at again.
const maxDecisionsPerReconcile = 4

// Reconcile takes one machine further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Discovered() {
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	obj := &v1alpha1.VirtualMachine{}
	if err := r.Get(ctx, req.NamespacedName, obj); err != nil {
		r.Metrics.Delete(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if obj.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // what was made for it is owned by it, and goes with it
	}
	var d vm.Decision
	var view vm.View
	for range maxDecisionsPerReconcile {
		var err error
		if view, d, err = r.decide(ctx, obj, view); err == nil {
			err = r.applyDecision(ctx, obj, &d)
		}
		var told *reportedError
		if !errors.As(err, &told) && isConflict(err) {
			return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
		}
		if err != nil {
			return ctrl.Result{}, err
		}
		if !d.StoreStatusFirst {
			return ctrl.Result{RequeueAfter: d.RequeueAfter}, nil
		}
	}
	return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
}

// decide goes by what an earlier step of the visit has read of Secrets.
func (r *Reconciler) decide(ctx context.Context, obj *v1alpha1.VirtualMachine, earlier vm.View) (vm.View, vm.Decision, error) {
	view, err := r.buildView(ctx, obj, earlier)
	if err != nil {
		return view, vm.Decision{}, err
	}
	d := vm.Decide(view)
	if !d.NeedsLive {
		return view, d, nil
	}
	if view, err = r.buildLiveView(ctx, view); err != nil {
		return view, vm.Decision{}, err
	}
	return view, vm.Decide(view), nil
}

// applyDecision carries out a decision, and stores the status last, but for a pin: that
// is stored first and alone.
func (r *Reconciler) applyDecision(ctx context.Context, obj *v1alpha1.VirtualMachine, d *vm.Decision) error {
	var failure error
	if !d.StoreStatusFirst {
		what, err := r.applyChildren(ctx, obj, d)
		reason, refused := refusalReason(what, err)
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && what != childImage:
			return nil // the machine is going too
		case refused && reason == v1alpha1.ReasonImageNamespaceMissing:
			d.SetNamespaceMissing(obj, time.Now(), reason, string(what), err)
		case refused:
			d.SetRefused(obj.Generation, time.Now(), reason, string(what), err)
		case err != nil:
			failure = fmt.Errorf("making %s of VirtualMachine %s/%s: %w", what, obj.Namespace, obj.Name, err)
			if isConflict(err) || ctx.Err() != nil {
				return failure
			}
			d.SetRequestFailed(obj.Generation, time.Now(), string(what), err)
			failure = &reportedError{failure}
		}
	}
	if err := r.updateStatus(ctx, obj, d); err != nil {
		return errors.Join(failure, err)
	}
	return failure
}

// updateStatus writes the status of a decision where it differs from what is stored.
func (r *Reconciler) updateStatus(ctx context.Context, obj *v1alpha1.VirtualMachine, d *vm.Decision) error {
	before := obj.Status.DeepCopy()
	if equality.Semantic.DeepEqual(obj.Status, d.Status) {
		r.Metrics.Set(client.ObjectKeyFromObject(obj), obj.Status.Phase, obj.Status.Reason)
		return nil
	}
	obj.Status = d.Status
	if err := r.Status().Update(ctx, obj); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("storing status of VirtualMachine %s/%s: %w", obj.Namespace, obj.Name, err))
	}
	r.Metrics.Set(client.ObjectKeyFromObject(obj), obj.Status.Phase, obj.Status.Reason)
	r.recordEvents(obj, before)
	return nil
}

// reportedError: what failed stands in the status, and is tried again at growing
// intervals.
type reportedError struct{ error }

// isConflict tells that something was not any more as it was decided on. A quota that
// was is none of the machine's objects: no event tells of it.
func isConflict(err error) bool {
	if !apierrors.IsConflict(err) {
		return errors.Is(err, errObjectChanged)
	}
	var status apierrors.APIStatus
	details := errors.As(err, &status) && status.Status().Details != nil
	return !details || status.Status().Details.Kind != "resourcequotas"
}

// refusalReason tells errors that come again until a person, or another object,
// changes something.
func refusalReason(what childObject, err error) (v1alpha1.Reason, bool) {
	var taken *nameTakenError
	switch {
	case err == nil:
		return "", false
	case errors.As(err, &taken):
		return v1alpha1.ReasonNameTaken, true
	case what == childImage && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err)):
		return v1alpha1.ReasonImageNamespaceMissing, true
	case !isRefused(err):
		return "", false
	}
	switch what {
	case childImage:
		return v1alpha1.ReasonImageRefused, true
	case childRootDisk:
		return v1alpha1.ReasonRootDiskRefused, true
	default:
		return v1alpha1.ReasonMachineRefused, true
	}
}

// isRefused tells that the API server, or a webhook, did not want a request as it
// was. Webhooks often give a code and no reason (CDI 1.65 when a clone is not
// allowed).
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusUnprocessableEntity:
		return true
	default:
		return false
	}
}

// maxEventNoteBytes is what the API server takes as the note of an Event, in bytes.
const maxEventNoteBytes = 1024

// recordEvents reports what a stored status says for the first time.
func (r *Reconciler) recordEvents(obj *v1alpha1.VirtualMachine, before *v1alpha1.VirtualMachineStatus) {
	st := &obj.Status
	if before.Phase != st.Phase || (before.Reason != st.Reason && st.Phase == v1alpha1.MachineFailed) {
		kind := corev1.EventTypeNormal
		if st.Phase == v1alpha1.MachineFailed {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(obj, nil, kind, string(st.Reason), "Reconcile", "%s", vm.Truncate(string(st.Phase)+": "+st.Message, maxEventNoteBytes))
	}
	for _, t := range []string{
		v1alpha1.ConditionSpecAdjusted, v1alpha1.ConditionImageDiffers, v1alpha1.ConditionPlainTextPassword, v1alpha1.ConditionRestartRequired,
	} {
		if c := vm.NewlyTrue(before.Conditions, st.Conditions, t); c != nil {
			r.Events.Eventf(obj, nil, corev1.EventTypeWarning, t, "Reconcile", "%s", vm.Truncate(c.Message, maxEventNoteBytes))
		}
	}
}
