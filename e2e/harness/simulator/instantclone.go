//go:build linux

package simulator

import (
	"context"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cloneRetryDelay is how often Instant looks for the source of a clone.
const cloneRetryDelay = 50 * time.Millisecond

func (dv pendingImport) isClone() bool {
	return dv.Spec.Source != nil && (dv.Spec.Source.PVC != nil || dv.Spec.Source.Snapshot != nil)
}

// requestedSize is what the DataVolume asks for; zero where it leaves that to its source.
func (dv pendingImport) requestedSize() resource.Quantity {
	switch {
	case dv.Spec.Storage != nil:
		return dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]
	case dv.Spec.PVC != nil:
		return dv.Spec.PVC.Resources.Requests[corev1.ResourceStorage]
	default:
		return resource.Quantity{}
	}
}

// computeCloneSize is the least size of a clone; nil when its source is not there or
// not ready.
func (i *InstantImporter) computeCloneSize(ctx context.Context, dv pendingImport) (*resource.Quantity, error) {
	if from := dv.Spec.Source.PVC; from != nil {
		var claim corev1.PersistentVolumeClaim
		if err := i.client.Get(ctx, client.ObjectKey{Namespace: from.Namespace, Name: from.Name}, &claim); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		if claim.Status.Phase != corev1.ClaimBound {
			return nil, nil
		}
		return ptr.To(claim.Spec.Resources.Requests[corev1.ResourceStorage]), nil
	}
	from := dv.Spec.Source.Snapshot
	var snapshot snapshotv1.VolumeSnapshot
	err := i.client.Get(ctx, client.ObjectKey{Namespace: from.Namespace, Name: from.Name}, &snapshot)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil || snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false) {
		return nil, err
	}
	return ptr.To(ptr.Deref(snapshot.Status.RestoreSize, resource.Quantity{})), nil
}

// retryCloneLater looks at a clone again, unless it has gone meanwhile.
func (i *InstantImporter) retryCloneLater(ctx context.Context, dv pendingImport) error {
	var now cdiv1.DataVolume
	if err := i.client.Get(ctx, client.ObjectKeyFromObject(dv.DataVolume), &now); err != nil || now.UID != dv.UID {
		return client.IgnoreNotFound(err)
	}
	time.AfterFunc(cloneRetryDelay, func() { i.addImport(pendingImport{&now, dv.firstSeen}) })
	return nil
}
