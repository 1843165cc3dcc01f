package image

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// gather reads from the cache what a decision rests on.
func (r *Reconciler) gather(ctx context.Context, img *v1alpha1.VMDiskImage) (image.View, error) {
	v := image.View{
		Now:           time.Now(),
		Image:         img,
		Policy:        r.Policy(),
		Opening:       r.Opening(),
		ArrivalKey:    r.arrivals.orderingKey(img),
		EndOfQueueKey: r.Queue.NewKeyAtEnd(),
		Preflight:     r.preflightResult(img),
		ClockAhead:    r.serverClock.aheadBy(time.Now()),

		CreationProblem:  r.CreationProblem,
		ChildRefusal:     r.childRefusals.get(img.UID),
		FinalizerRefusal: r.imageRefusals.finalizer.get(img.UID),
		DeletionRefusal:  r.imageRefusals.deletion.get(img.UID),
	}
	if p, queued := r.Queue.Position(img.UID); queued {
		v.QueuePosition = &p
		v.WithheldReason = r.Queue.WithheldReason(img.UID)
	}
	if image.IsReleased(img) { // what else there is changes nothing
		return v, r.gatherRetention(ctx, &v)
	}
	var err error
	if v.Slots, err = r.listSlots(ctx, r.Client, img); err != nil {
		return v, err
	}
	v.SlotAges = r.slotAges(v.Slots)
	if v.ObjectsByAttempt, err = r.listChildren(ctx, r.Client, img, v.Slots, client.MatchingFields{image.ImageUIDIndex: string(img.UID)}); err != nil {
		return v, err
	}
	if err = r.gatherRetention(ctx, &v); err != nil {
		return v, err
	}
	if err = r.gatherDataSource(ctx, &v); err != nil || image.UsesDataSource(&img.Spec) {
		return v, err
	}
	v.Blocker, err = r.findBlocker(ctx, img, v.ObjectsByAttempt)
	return v, err
}

// updateCapacityWaiter ends the wait of an image that capacity does not hold up, or no longer. It
// never begins one: findCapacityBlocker does at the read, so that no later change is missed.
func (r *Reconciler) updateCapacityWaiter(v *image.View) {
	waits := []v1alpha1.Reason{v1alpha1.ReasonInsufficientStorage, v1alpha1.ReasonStorageProfileIncomplete}
	if v.Blocker == nil || !slices.Contains(waits, v.Blocker.Reason) {
		r.capacityWaiters.setWaiting(image.KeyOf(v.Image), false)
	}
}

// gatherLive reads live what an irreversible decision rests on. It returns errImageChanged
// unless the image still is the one that was decided on.
//
// Invariant: slots are read last, since a DataVolume exists only while its slot does.
func (r *Reconciler) gatherLive(ctx context.Context, v image.View) (image.View, error) {
	live := &v1alpha1.VMDiskImage{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(v.Image), live)
	if apierrors.IsNotFound(err) || (err == nil && live.ResourceVersion != v.Image.ResourceVersion) {
		return v, errImageChanged
	}
	if err != nil {
		return v, fmt.Errorf("reading %s: %w", describeImage(v.Image), err)
	}
	v.Live = true
	if err = r.gatherRetention(ctx, &v); err != nil {
		return v, err
	}
	if v.ObjectsByAttempt, err = r.listChildren(ctx, r.Live, v.Image, v.Slots, client.MatchingLabels{v1alpha1.LabelImageUID: string(v.Image.UID)}); err != nil {
		return v, err
	}
	if v.Slots, err = r.listSlots(ctx, r.Live, v.Image); err != nil {
		return v, err
	}
	v.SlotAges = r.slotAges(v.Slots)
	return v, nil
}

// gatherRetention reads what keeps an image: its holders and the plan.
func (r *Reconciler) gatherRetention(ctx context.Context, v *image.View) (err error) {
	img := v.Image
	if err = r.gatherPublishing(ctx, v); err != nil {
		return err
	}
	if v.Holders, err = r.gatherHolders(ctx, v); err != nil {
		return err
	}
	v.NamespaceTerminating, v.Plan = false, image.PlannedState{}
	held := len(v.Holders) > 0
	if img.DeletionTimestamp != nil && held {
		if v.NamespaceTerminating, err = r.isNamespaceTerminating(ctx, img); err != nil {
			return err
		}
	}
	// The plan is asked about a held image too: that it is held is the answer to a prune.
	if (img.DeletionTimestamp == nil || held || image.IsReleased(img)) && r.PlannedState != nil {
		v.Plan, err = r.PlannedState(ctx, client.ObjectKeyFromObject(img), v.Live)
	}
	return err
}

func (r *Reconciler) gatherHolders(ctx context.Context, v *image.View) ([]image.Holder, error) {
	holders, err := r.listClones(ctx, v)
	if err != nil {
		return nil, err
	}
	if r.ListHolders == nil {
		return holders, nil
	}
	machines, err := r.ListHolders(ctx, v.Image, v.Live)
	if err != nil {
		return nil, fmt.Errorf("listing the holders of %s: %w", describeImage(v.Image), err)
	}
	return vm.SortHolders(append(holders, machines...)), nil
}

// isNamespaceTerminating reads the namespace live. One that is gone counts as terminating.
func (r *Reconciler) isNamespaceTerminating(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error) {
	ns := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	err := r.Live.Get(ctx, types.NamespacedName{Name: img.Namespace}, ns)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the namespace of %s: %w", describeImage(img), err)
	}
	return err != nil || ns.DeletionTimestamp != nil, nil
}

// listSlots returns the slots of an image.
func (r *Reconciler) listSlots(ctx context.Context, reader client.Reader, img *v1alpha1.VMDiskImage) ([]v1alpha1.Slot, error) {
	syncLedger := &v1alpha1.SyncLedger{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.LedgerName}, syncLedger)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if syncLedger.Status == nil {
		return nil, nil
	}
	var slots []v1alpha1.Slot
	for _, slot := range syncLedger.Status.Slots {
		if slot.Image.UID == img.UID {
			slots = append(slots, slot)
		}
	}
	return slots, nil
}

func (r *Reconciler) slotAges(slots []v1alpha1.Slot) map[string]time.Duration {
	ages := make(map[string]time.Duration, len(slots))
	for _, slot := range slots {
		ages[slot.DataVolume] = r.Ages.AgeOf(ledger.DataVolumeKey(slot), slot.StartedAt.Time)
	}
	return ages
}

// listChildren lists the objects of an image. A kind that is not served has none. slots may be older.
func (r *Reconciler) listChildren(ctx context.Context, reader client.Reader, img *v1alpha1.VMDiskImage, slots []v1alpha1.Slot, match client.ListOption) (map[int32]*image.AttemptObjects, error) {
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
		if err := reader.List(ctx, l.list, client.InNamespace(img.Namespace), match); err != nil {
			return nil, fmt.Errorf("listing the objects of %s: %w", describeImage(img), err)
		}
	}
	r.PodEvents.AddTo(ctx, pods.Items)
	r.PodEvents.AddToClaims(ctx, claims.Items)
	lists := image.ObjectLists{DataVolumes: dvs.Items, Claims: claims.Items, Pods: pods.Items, Snapshots: snapshots.Items}
	attempts := image.GroupByAttempt(lists)
	if !image.LacksCDIClaims(attempts) && !image.LacksHolders(slots, attempts) {
		return attempts, nil
	}
	// The cache has only what carries an image's UID.
	var unlabeled corev1.PersistentVolumeClaimList
	if err := r.Live.List(ctx, &unlabeled, client.InNamespace(img.Namespace), client.MatchingLabels(image.CDIClaimLabels)); err != nil {
		return nil, fmt.Errorf("listing the claims that CDI fills for %s: %w", describeImage(img), err)
	}
	lists.Claims = append(lists.Claims, image.FindCDIClaims(image.KeyOf(img), unlabeled.Items)...)
	return image.GroupByAttempt(lists), nil
}

// preflightResult is what is known about the source before the next attempt.
func (r *Reconciler) preflightResult(img *v1alpha1.VMDiskImage) image.PreflightResult {
	url, canProbe := image.PreflightURL(img.Spec)
	if !canProbe {
		return image.PreflightResult{Known: true}
	}
	return r.Preflight.CachedResult(preflightSource(img, url, image.NextAttempt(img.Status.LastAttempt)))
}

func preflightSource(img *v1alpha1.VMDiskImage, url string, attempt int32) preflight.Source {
	return preflight.Source{
		UID: img.UID, Namespace: img.Namespace, URL: url, Attempt: attempt,
		Headers: strings.Join(img.Spec.ExtraHeaders, "\n"), HeaderSecrets: strings.Join(img.Spec.SecretExtraHeaders, "\n"),
	}
}
