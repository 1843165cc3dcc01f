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

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// childObject of what is made for a machine, in words.
type childObject string

const (
	childImage      childObject = "the VMDiskImage"
	childRootDisk   childObject = "the root disk"
	childSecret     childObject = "the cloud-init Secret"
	childKubeVirtVM childObject = "the KubeVirt VirtualMachine"
)

// nameTakenError tells that an object of the name that is needed belongs to others.
type nameTakenError struct{ kind, name string }

func (e *nameTakenError) Error() string { return vm.NameTakenMessage(e.kind, e.name) }

// applyChildren makes what a decision wants, and says at which part it failed.
func (r *Reconciler) applyChildren(ctx context.Context, obj *v1alpha1.VirtualMachine, d *vm.Decision) (childObject, error) {
	if d.CreateImage != nil {
		if err := r.Create(ctx, d.CreateImage, fieldOwner); err != nil && !apierrors.IsAlreadyExists(err) {
			return childImage, err
		}
	}
	if t := d.DeleteRootDisk; t != nil {
		dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: t.Name}}
		if err := r.Delete(ctx, dv, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return childRootDisk, err
		}
	}
	if d.CreateRootDisk != nil {
		if err := r.createRootDisk(ctx, obj, d.CreateRootDisk); err != nil {
			return childRootDisk, err
		}
	}
	if d.ApplySecret != nil {
		if err := r.applySecret(ctx, d.ApplySecret); err != nil {
			return childSecret, err
		}
	}
	if d.ApplyKubeVirtVM != nil {
		if err := r.applyKubeVirtVM(ctx, d.ApplyKubeVirtVM); err != nil {
			return childKubeVirtVM, err
		}
	}
	if d.RunStrategy != "" {
		return childKubeVirtVM, r.setRunStrategy(ctx, obj, d.RunStrategy)
	}
	return "", nil
}

// createRootDisk creates it, or finds that it is there and the cache does not
// show it: because it is late, or because it is somebody else's.
func (r *Reconciler) createRootDisk(ctx context.Context, obj *v1alpha1.VirtualMachine, dv *cdiv1.DataVolume) error {
	// CDI would have the DataVolume wait for a claim of its name for ever.
	claim, err := getOptional(ctx, r.Live, client.ObjectKeyFromObject(dv), &corev1.PersistentVolumeClaim{})
	switch {
	case err != nil:
		return err
	case claim == nil:
	case claim.Labels[v1alpha1.LabelMachineUID] == "":
		there, err := getOptional(ctx, r.Live, client.ObjectKeyFromObject(dv), &cdiv1.DataVolume{})
		if err != nil {
			return err
		}
		if there != nil && there.Labels[v1alpha1.LabelMachineUID] == "" {
			return &nameTakenError{"DataVolume", dv.Name} // the claim is of that
		}
		return &nameTakenError{"PersistentVolumeClaim", dv.Name}
	default:
		return errObjectChanged // the cache is late
	}
	err = r.Create(ctx, dv, fieldOwner)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there := &cdiv1.DataVolume{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(dv), there); err != nil {
		if apierrors.IsNotFound(err) {
			return errObjectChanged
		}
		return err
	}
	if there.Labels[v1alpha1.LabelMachineUID] == "" {
		return &nameTakenError{"DataVolume", dv.Name}
	}
	if there.Labels[v1alpha1.LabelMachineUID] != string(obj.UID) || there.Annotations[v1alpha1.AnnotationClonedFrom] != dv.Annotations[v1alpha1.AnnotationClonedFrom] {
		return errObjectChanged
	}
	return nil
}

// applyKubeVirtVM applies KubeVirt's machine. One that the cache does not show may
// be there and somebody else's: it would be taken over.
func (r *Reconciler) applyKubeVirtVM(ctx context.Context, want *unstructured.Unstructured) error {
	if want.GetResourceVersion() == "" {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(kubevirt.VirtualMachineKind)
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), there)
		switch {
		case err == nil && there.GetLabels()[v1alpha1.LabelMachineUID] == "":
			return &nameTakenError{"KubeVirt VirtualMachine", want.GetName()}
		case err == nil:
			return errObjectChanged // the cache is late, or it is of a former machine
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), fieldOwner, client.ForceOwnership)
}

func (r *Reconciler) applySecret(ctx context.Context, secret *corev1.Secret) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(secret)
	if err != nil {
		return err
	}
	delete(content["metadata"].(map[string]any), "creationTimestamp")
	return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content}), fieldOwner, client.ForceOwnership)
}

// setRunStrategy starts or stops a machine whose template is not to change.
func (r *Reconciler) setRunStrategy(ctx context.Context, obj *v1alpha1.VirtualMachine, run v1alpha1.RunStrategy) error {
	theirs := &unstructured.Unstructured{}
	theirs.SetGroupVersionKind(kubevirt.VirtualMachineKind)
	theirs.SetNamespace(obj.Namespace)
	theirs.SetName(obj.Name)
	patch := fmt.Sprintf(`{"spec":{"runStrategy":%q}}`, run)
	return r.Patch(ctx, theirs, client.RawPatch("application/merge-patch+json", []byte(patch)), fieldOwner)
}
