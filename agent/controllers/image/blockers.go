package image

import (
	"cmp"
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/secretaccess"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// findBlocker returns what the next attempt needs and the cluster lacks; nil for nothing.
// Secret, ConfigMap and DataVolume of an image that is admissible are not checked again;
// capacity is, since images ahead of it use it up.
func (r *Reconciler) findBlocker(ctx context.Context, img *v1alpha1.VMDiskImage, attempts map[int32]*image.AttemptObjects) (*image.Blocker, error) {
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		return &image.Blocker{Reason: v1alpha1.ReasonCDIMissing, Message: "the cluster does not serve CDI's DataVolume: install CDI; the agent notices by itself"}, nil
	}
	state := image.QueueStateOf(img)
	imported := state == ledger.NotQueued
	if !imported {
		if b, err := r.findStorageClassBlocker(ctx, img.Spec.StorageClass); b != nil || err != nil {
			return b, err
		}
	}
	if b, err := r.findSnapshotClassBlocker(ctx, img, attempts); b != nil || err != nil {
		return b, err
	}
	if imported {
		return nil, nil
	}
	if problem := image.DescribeSourceProblem(&img.Spec); problem != "" {
		return &image.Blocker{Reason: v1alpha1.ReasonDataVolumeRefused, Message: problem}, nil
	}
	if state != ledger.Admissible {
		if b, err := r.findReferenceBlocker(ctx, img); b != nil || err != nil {
			return b, err
		}
	}
	if b, err := r.findCapacityBlocker(ctx, img, capacity.MaxAgeWhileWaiting); b != nil || err != nil {
		return b, err
	}
	if state != ledger.Admissible {
		return r.findAdmissionBlocker(ctx, img), nil
	}
	return nil, nil
}

// findReferenceBlocker checks the Secrets and the ConfigMap that the spec names. Of Secrets
// with headers it reads the content, which CDI would fail with.
func (r *Reconciler) findReferenceBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) (*image.Blocker, error) {
	metadata := func(kind string) client.Object {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
	}
	if name := img.Spec.SecretRef; name != "" {
		if b, err := r.findMissing(ctx, img, "Secret", name, metadata("Secret")); b != nil || err != nil {
			return b, err
		}
	}
	if name := img.Spec.CertConfigMap; name != "" {
		if b, err := r.findMissing(ctx, img, "ConfigMap", name, metadata("ConfigMap")); b != nil || err != nil {
			return b, err
		}
	}
	for _, name := range img.Spec.SecretExtraHeaders {
		secret := &corev1.Secret{}
		if b, err := r.findMissing(ctx, img, "Secret", name, secret); b != nil || err != nil {
			return b, err
		}
		if problem := image.DescribeHeaderProblem(secret); problem != "" {
			return &image.Blocker{Reason: v1alpha1.ReasonSecretInvalid, Message: problem}, nil
		}
	}
	return nil, nil
}

// findMissing reads an object that the spec names.
func (r *Reconciler) findMissing(ctx context.Context, img *v1alpha1.VMDiskImage, kind, name string, obj client.Object) (*image.Blocker, error) {
	key := types.NamespacedName{Namespace: img.Namespace, Name: name}
	err := r.Live.Get(ctx, key, obj)
	switch {
	case apierrors.IsNotFound(err):
		reason := v1alpha1.ReasonSecretMissing
		if kind == "ConfigMap" {
			reason = v1alpha1.ReasonCertConfigMapMissing
		}
		return &image.Blocker{Reason: reason, Message: fmt.Sprintf("%s %s/%s does not exist: create it, or correct the spec", kind, img.Namespace, name)}, nil
	case apierrors.IsForbidden(err) && kind == "Secret":
		return &image.Blocker{Reason: v1alpha1.ReasonSecretForbidden, Message: secretaccess.ForbiddenMessage(key, r.Namespace)}, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s %s/%s that VMDiskImage %s needs: %w", kind, img.Namespace, name, img.Name, err)
	}
	return nil, nil
}

func (r *Reconciler) findStorageClassBlocker(ctx context.Context, class string) (*image.Blocker, error) {
	if class != "" {
		err := r.Get(ctx, types.NamespacedName{Name: class}, &storagev1.StorageClass{})
		if apierrors.IsNotFound(err) {
			return &image.Blocker{Reason: v1alpha1.ReasonStorageClassMissing, Message: fmt.Sprintf("StorageClass %s does not exist: create it, or correct spec.storageClass", class)}, nil
		}
		return nil, err
	}
	if found, err := r.findDefaultStorageClass(ctx); found != "" || err != nil {
		return nil, err
	}
	return &image.Blocker{Reason: v1alpha1.ReasonStorageClassMissing, Message: "spec.storageClass is not set and no StorageClass is the default: set it, or make one the default"}, nil
}

func (r *Reconciler) findSnapshotClassBlocker(ctx context.Context, img *v1alpha1.VMDiskImage, attempts map[int32]*image.AttemptObjects) (*image.Blocker, error) {
	class := img.Spec.SnapshotClass
	if class == "" {
		return nil, nil
	}
	if !r.Kinds.IsServed(image.VolumeSnapshotGVK) {
		return &image.Blocker{Reason: v1alpha1.ReasonSnapshotClassMissing, Message: "the cluster does not serve VolumeSnapshots: install the snapshot controller and its CRDs, or remove spec.snapshotClass"}, nil
	}
	phase := img.Status.Phase
	if phase == v1alpha1.PhaseSucceeded || phase == v1alpha1.PhasePrunePending || image.QueueStateOf(img) == ledger.Admissible {
		return nil, nil
	}
	// The default class may have changed since the volume was made.
	storage := cmp.Or(img.Spec.StorageClass, image.StorageClassOfClaim(img, attempts))
	pair := classPair{storage, class}
	if r.usableClasses.isUsable(pair, time.Now()) {
		return nil, nil
	}
	found := &snapshotv1.VolumeSnapshotClass{}
	err := r.Live.Get(ctx, types.NamespacedName{Name: class}, found)
	if apierrors.IsNotFound(err) {
		return &image.Blocker{Reason: v1alpha1.ReasonSnapshotClassMissing, Message: fmt.Sprintf("VolumeSnapshotClass %s does not exist: create it, or correct spec.snapshotClass", class)}, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := r.findDriverMismatch(ctx, storage, found)
	if b == nil && err == nil {
		r.usableClasses.add(pair, time.Now())
	}
	return b, err
}

// findDriverMismatch returns why no snapshot of a volume of a StorageClass can be taken, empty for the
// default one: a driver takes snapshots of its own volumes only.
func (r *Reconciler) findDriverMismatch(ctx context.Context, name string, class *snapshotv1.VolumeSnapshotClass) (*image.Blocker, error) {
	if name == "" {
		var err error
		if name, err = r.findDefaultStorageClass(ctx); name == "" || err != nil {
			return nil, err
		}
	}
	storage := &storagev1.StorageClass{}
	if err := r.Get(ctx, types.NamespacedName{Name: name}, storage); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return capacity.FindDriverMismatch(storage, class), nil
}
