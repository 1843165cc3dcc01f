package image

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// gather collects from the cache what a decision rests on.
func (r *Reconciler) gather(ctx context.Context, img *v1alpha1.VMDiskImage) (image.View, error) {
	v := image.View{
		Now:           time.Now(),
		Image:         img,
		Policy:        r.Policy(),
		ArrivalKey:    r.arrivals.orderingKey(img),
		EndOfQueueKey: r.Queue.NewKeyAtEnd(metav1.Time{}),
		Preflight:     r.preflightAnswer(img),
	}
	if p, queued := r.Queue.Position(img.UID); queued {
		v.QueuePosition = &p
		v.WithheldReason = r.Queue.WithheldReason(img.UID)
	}
	var err error
	if v.Slots, err = r.listSlots(ctx, r.Client, img); err != nil {
		return v, err
	}
	v.SlotAges = r.slotAges(v.Slots)
	if v.ObjectsByAttempt, err = r.listChildren(ctx, r.Client, img, client.MatchingFields{image.ImageUIDIndex: string(img.UID)}); err != nil {
		return v, err
	}
	if err = r.gatherRetention(ctx, &v); err != nil {
		return v, err
	}
	v.Blocker, err = r.findBlocker(ctx, img)
	return v, err
}

func (r *Reconciler) slotAges(slots []v1alpha1.Slot) map[string]time.Duration {
	ages := make(map[string]time.Duration, len(slots))
	for _, slot := range slots {
		ages[slot.DataVolume] = r.Ages.AgeOf(ledger.DataVolumeKey(slot), slot.StartedAt.Time)
	}
	return ages
}

// gatherLive reads again, past the cache, what an irreversible decision rests
// on: that the image still is as decided on, then everything else.
func (r *Reconciler) gatherLive(ctx context.Context, v image.View) (image.View, error) {
	now := &v1alpha1.VMDiskImage{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(v.Image), now)
	if apierrors.IsNotFound(err) || (err == nil && now.ResourceVersion != v.Image.ResourceVersion) {
		return v, errImageChanged
	}
	if err != nil {
		return v, fmt.Errorf("reading VMDiskImage %s/%s: %w", v.Image.Namespace, v.Image.Name, err)
	}
	v.Live = true
	if err = r.gatherRetention(ctx, &v); err != nil {
		return v, err
	}
	if v.ObjectsByAttempt, err = r.listChildren(ctx, r.Live, v.Image, client.MatchingLabels{v1alpha1.LabelImageUID: string(v.Image.UID)}); err != nil {
		return v, err
	}
	// Last: a DataVolume is not there before its slot is, nor after it.
	if v.Slots, err = r.listSlots(ctx, r.Live, v.Image); err != nil {
		return v, err
	}
	v.SlotAges = r.slotAges(v.Slots)
	return v, nil
}

// gatherRetention looks who wants an image to be there.
func (r *Reconciler) gatherRetention(ctx context.Context, v *image.View) (err error) {
	img := v.Image
	if v.Holders, err = r.gatherHolders(ctx, img, v.Live); err != nil {
		return err
	}
	v.NamespaceTerminating, v.Plan = false, image.PlannedState{}
	held := len(v.Holders) > 0
	if img.DeletionTimestamp != nil && held {
		if v.NamespaceTerminating, err = r.isNamespaceTerminating(ctx, img); err != nil {
			return err
		}
	}
	// Also of one that is held: that, too, is the answer to a prune.
	if (img.DeletionTimestamp == nil || held) && r.Wish != nil {
		v.Plan, err = r.Wish(ctx, client.ObjectKeyFromObject(img), v.Live)
	}
	return err
}

// isNamespaceTerminating tells, live, whether the namespace of an image is being deleted.
func (r *Reconciler) isNamespaceTerminating(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error) {
	ns := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	err := r.Live.Get(ctx, types.NamespacedName{Name: img.Namespace}, ns)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the namespace of VMDiskImage %s/%s: %w", img.Namespace, img.Name, err)
	}
	return err != nil || ns.DeletionTimestamp != nil, nil
}

func (r *Reconciler) gatherHolders(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	if r.ListHolders == nil {
		return nil, nil
	}
	holders, err := r.ListHolders(ctx, img, live)
	if err != nil {
		return nil, fmt.Errorf("listing what holds VMDiskImage %s/%s: %w", img.Namespace, img.Name, err)
	}
	return holders, nil
}

func (r *Reconciler) listSlots(ctx context.Context, from client.Reader, img *v1alpha1.VMDiskImage) ([]v1alpha1.Slot, error) {
	ledger := &v1alpha1.SyncLedger{}
	err := from.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.LedgerName}, ledger)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if ledger.Status == nil {
		return nil, nil
	}
	var slots []v1alpha1.Slot
	for _, slot := range ledger.Status.Slots {
		if slot.Image.UID == img.UID {
			slots = append(slots, slot)
		}
	}
	return slots, nil
}

// listChildren lists what exists of an image. Kinds that the cluster does not serve
// have no objects.
func (r *Reconciler) listChildren(ctx context.Context, from client.Reader, img *v1alpha1.VMDiskImage, match client.ListOption) (map[int32]*image.AttemptObjects, error) {
	var (
		dvs       cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		pods      corev1.PodList
		snapshots snapshotv1.VolumeSnapshotList
	)
	for _, l := range []struct {
		list client.ObjectList
		kind *schema.GroupVersionKind
	}{{&dvs, &image.DataVolumeGVK}, {&claims, nil}, {&pods, nil}, {&snapshots, &image.VolumeSnapshotGVK}} {
		if l.kind != nil && !r.Kinds.IsServed(*l.kind) {
			continue
		}
		if err := from.List(ctx, l.list, client.InNamespace(img.Namespace), match); err != nil {
			return nil, fmt.Errorf("listing what exists of VMDiskImage %s/%s: %w", img.Namespace, img.Name, err)
		}
	}
	return image.GroupByAttempt(image.ObjectLists{DataVolumes: dvs.Items, Claims: claims.Items, Pods: pods.Items, Snapshots: snapshots.Items}), nil
}

func (r *Reconciler) preflightAnswer(img *v1alpha1.VMDiskImage) image.PreflightResult {
	url, askable := image.PreflightURL(img.Spec)
	if !askable {
		return image.PreflightResult{Known: true}
	}
	return r.Preflight.CachedResult(img.UID, url, img.Status.LastAttempt+1)
}

// findBlocker looks for what the next attempt of an image needs and the cluster
// lacks. An image that is ready for a slot has been looked at already, but for
// room: those before it take that.
func (r *Reconciler) findBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) (*image.Blocker, error) {
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		return &image.Blocker{Reason: v1alpha1.ReasonCDIMissing, Message: "the cluster does not serve CDI's DataVolume: install CDI; the agent takes it up by itself"}, nil
	}
	standing := image.QueueStateOf(img)
	imported := standing == ledger.NotQueued
	if !imported {
		if b, err := r.findStorageClassBlocker(ctx, img.Spec.StorageClass); b != nil || err != nil {
			return b, err
		}
	}
	if b, err := r.findSnapshotClassBlocker(ctx, img); b != nil || err != nil {
		return b, err
	}
	if imported {
		return nil, nil
	}
	if standing != ledger.Admissible {
		if b, err := r.findReferenceBlocker(ctx, img); b != nil || err != nil {
			return b, err
		}
	}
	return r.findCapacityBlocker(ctx, img, capacity.MaxAgeWhileWaiting)
}

// findReferenceBlocker looks for what the spec of an image names in its namespace.
func (r *Reconciler) findReferenceBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) (*image.Blocker, error) {
	for _, need := range []struct {
		kind, name string
		reason     v1alpha1.Reason
	}{
		{"Secret", img.Spec.SecretRef, v1alpha1.ReasonSecretMissing},
		{"ConfigMap", img.Spec.CertConfigMap, v1alpha1.ReasonCertConfigMapMissing},
	} {
		if need.name == "" {
			continue
		}
		obj := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: need.kind}}
		err := r.Live.Get(ctx, types.NamespacedName{Namespace: img.Namespace, Name: need.name}, obj)
		if apierrors.IsNotFound(err) {
			return &image.Blocker{Reason: need.reason, Message: fmt.Sprintf("%s %s/%s does not exist: create it, or correct the spec", need.kind, img.Namespace, need.name)}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s %s/%s that VMDiskImage %s needs: %w", need.kind, img.Namespace, need.name, img.Name, err)
		}
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
	return &image.Blocker{Reason: v1alpha1.ReasonStorageClassMissing, Message: "spec.storageClass is not set and no StorageClass is the default"}, nil
}

func (r *Reconciler) findSnapshotClassBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) (*image.Blocker, error) {
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
	err := r.Live.Get(ctx, types.NamespacedName{Name: class}, &snapshotv1.VolumeSnapshotClass{})
	if apierrors.IsNotFound(err) {
		return &image.Blocker{Reason: v1alpha1.ReasonSnapshotClassMissing, Message: fmt.Sprintf("VolumeSnapshotClass %s does not exist: create it, or correct spec.snapshotClass", class)}, nil
	}
	return nil, err
}
