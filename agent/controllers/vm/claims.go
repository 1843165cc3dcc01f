package vm

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/vm"
)

// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch

// findClaimProblem returns why the claim of a disk cannot be created; empty where it exists or
// nothing is known to prevent it.
func (r *Reconciler) findClaimProblem(ctx context.Context, k diskKey, v vm.DiskView) (string, error) {
	dv := v.DataVolume
	if r.Capacity == nil || dv == nil || dv.Spec.Storage == nil || v.Claim != nil || dv.DeletionTimestamp != nil || dv.Status.Phase == cdiv1.Succeeded {
		return "", nil
	}
	request := capacity.ClaimRequest{Class: ptr.Deref(dv.Spec.Storage.StorageClassName, ""), ClassField: "storageClass of the image", SizeField: "resources.diskSize"}
	if k.disk != "" {
		request.ClassField, request.SizeField = "storageClass of the disk or its image", "its size in spec.disks"
	}
	if request.Class == "" {
		var classes storagev1.StorageClassList
		if err := r.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing StorageClasses: %w", err)
		}
		request.Class = capacity.DefaultStorageClass(classes.Items)
	}
	size, requested := dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]
	if !requested && k.pin != nil && k.pin.RestoreSize != nil {
		size, request.Exact = *k.pin.RestoreSize, true // what CDI takes for a snapshot
	}
	if request.Bytes = size.Value(); request.Bytes == 0 {
		return "", nil
	}
	blocker := capacity.FindClaimBlocker(request, r.Capacity.AvailabilityFor(ctx, k.object.Namespace, request.Class, capacity.MaxAgeWhileWaiting))
	if blocker == nil {
		return "", nil
	}
	return blocker.Message, nil
}
