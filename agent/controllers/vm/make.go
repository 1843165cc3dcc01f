package vm

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// part of what is made for a machine, in words.
type part string

const (
	partImage    part = "the VMDiskImage"
	partRootDisk part = "the root disk"
	partSecret   part = "the cloud-init Secret"
	partMachine  part = "the KubeVirt VirtualMachine"
)

// takenError tells that an object of the name that is needed belongs to others.
type takenError struct{ kind, name string }

func (e *takenError) Error() string { return vm.Taken(e.kind, e.name) }

// make makes what a decision wants, and says at which part it failed.
func (r *Reconciler) make(ctx context.Context, obj *v1alpha1.VirtualMachine, d *vm.Decision) (part, error) {
	if d.CreateImage != nil {
		if err := r.Create(ctx, d.CreateImage, owner); err != nil && !apierrors.IsAlreadyExists(err) {
			return partImage, err
		}
	}
	if t := d.DeleteRootDisk; t != nil {
		dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: t.Name}}
		if err := r.Delete(ctx, dv, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return partRootDisk, err
		}
	}
	if d.CreateRootDisk != nil {
		if err := r.createRootDisk(ctx, obj, d.CreateRootDisk); err != nil {
			return partRootDisk, err
		}
	}
	if d.ApplySecret != nil {
		if err := r.applyObject(ctx, d.ApplySecret); err != nil {
			return partSecret, err
		}
	}
	if d.ApplyMachine != nil {
		if err := r.applyMachine(ctx, d.ApplyMachine); err != nil {
			return partMachine, err
		}
	}
	if d.RunStrategy != "" {
		return partMachine, r.setRunStrategy(ctx, obj, d.RunStrategy)
	}
	return "", nil
}

// createRootDisk creates it, or finds that it is there and the cache does not
// show it: because it is late, or because it is somebody else's.
func (r *Reconciler) createRootDisk(ctx context.Context, obj *v1alpha1.VirtualMachine, dv *cdiv1.DataVolume) error {
	// CDI would have the DataVolume wait for a claim of its name for ever.
	claim, err := get(ctx, r.Live, client.ObjectKeyFromObject(dv), &corev1.PersistentVolumeClaim{})
	switch {
	case err != nil:
		return err
	case claim == nil:
	case claim.Labels[v1alpha1.LabelMachineUID] == "":
		there, err := get(ctx, r.Live, client.ObjectKeyFromObject(dv), &cdiv1.DataVolume{})
		if err != nil {
			return err
		}
		if there != nil && there.Labels[v1alpha1.LabelMachineUID] == "" {
			return &takenError{"DataVolume", dv.Name} // the claim is of that
		}
		return &takenError{"PersistentVolumeClaim", dv.Name}
	default:
		return errChanged // the cache is late
	}
	err = r.Create(ctx, dv, owner)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there := &cdiv1.DataVolume{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(dv), there); err != nil {
		if apierrors.IsNotFound(err) {
			return errChanged
		}
		return err
	}
	if there.Labels[v1alpha1.LabelMachineUID] == "" {
		return &takenError{"DataVolume", dv.Name}
	}
	if there.Labels[v1alpha1.LabelMachineUID] != string(obj.UID) || there.Annotations[v1alpha1.AnnotationClonedFrom] != dv.Annotations[v1alpha1.AnnotationClonedFrom] {
		return errChanged
	}
	return nil
}

// applyMachine applies KubeVirt's machine. One that the cache does not show may
// be there and somebody else's: it would be taken over.
func (r *Reconciler) applyMachine(ctx context.Context, want *unstructured.Unstructured) error {
	if want.GetResourceVersion() == "" {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(machine.Kind)
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), there)
		switch {
		case err == nil && there.GetLabels()[v1alpha1.LabelMachineUID] == "":
			return &takenError{"KubeVirt VirtualMachine", want.GetName()}
		case err == nil:
			return errChanged // the cache is late, or it is of a former machine
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), owner, client.ForceOwnership)
}

func (r *Reconciler) applyObject(ctx context.Context, secret *corev1.Secret) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(secret)
	if err != nil {
		return err
	}
	delete(content["metadata"].(map[string]any), "creationTimestamp")
	return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content}), owner, client.ForceOwnership)
}

// setRunStrategy starts or stops a machine whose template is not to change.
func (r *Reconciler) setRunStrategy(ctx context.Context, obj *v1alpha1.VirtualMachine, run v1alpha1.RunStrategy) error {
	theirs := &unstructured.Unstructured{}
	theirs.SetGroupVersionKind(machine.Kind)
	theirs.SetNamespace(obj.Namespace)
	theirs.SetName(obj.Name)
	patch := fmt.Sprintf(`{"spec":{"runStrategy":%q}}`, run)
	return r.Patch(ctx, theirs, client.RawPatch("application/merge-patch+json", []byte(patch)), owner)
}
