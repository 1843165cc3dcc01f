package ledger

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// slotReading is what a live read of a slot found; image and objects are nil for none.
type slotReading struct {
	facts   ledger.SlotFacts
	image   *v1alpha1.VMDiskImage
	objects *image.AttemptObjects
}

// readSlotsLive adds the facts of slots, read live, to found.
func (r *Reconciler) readSlotsLive(ctx context.Context, slots []v1alpha1.Slot, found *gatheredFacts) error {
	readings := make([]slotReading, len(slots))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentReads)
	for i := range slots {
		group.Go(func() (err error) {
			readings[i], err = r.readSlotLive(ctx, slots[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, reading := range readings {
		key := ledger.DataVolumeKey(slots[i])
		found.facts[key] = reading.facts
		if o := reading.objects; o != nil && o.DataVolume == nil && o.Claim == nil && len(o.Pods) == 0 && len(o.CDIClaims) > 0 {
			found.requeueAfter = trigger.Earliest(found.requeueAfter, r.claimRetryDelay(key)) // no event may announce its end
		} else {
			delete(r.claimsSince, key)
		}
		if reading.image != nil {
			found.images[reading.image.UID] = reading.image
		} else if reading.objects != nil {
			found.addLeftovers(reading.objects)
		}
	}
	return nil
}

// claimRetryDelay is the wait before rereading a slot whose only leftovers are claims made by CDI. It grows
// with the time passed: a finalizer, or a claim that a person has labelled, may keep them for good.
func (r *Reconciler) claimRetryDelay(key string) time.Duration {
	since, known := r.claimsSince[key]
	if !known {
		if r.claimsSince == nil {
			r.claimsSince = map[string]time.Time{}
		}
		since = time.Now()
		r.claimsSince[key] = since
	}
	return min(max(time.Since(since)/4, admissionRetryDelay), maxClaimRetryDelay)
}

// endedAges returns for how long this process has seen slots as ended.
func (r *Reconciler) endedAges(slots []v1alpha1.Slot) map[string]time.Duration {
	since, ages := map[string]time.Time{}, map[string]time.Duration{}
	for _, slot := range slots {
		if !slot.Ended {
			continue
		}
		key := ledger.DataVolumeKey(slot)
		at, known := r.endedSince[key]
		if !known {
			at = time.Now()
		}
		since[key], ages[key] = at, time.Since(at)
	}
	r.endedSince = since
	return ages
}

// addLeftovers marks what is left of an image that is gone for deletion. Its snapshots
// stay: they hold no slot, and a person has removed the image's finalizer.
func (f *gatheredFacts) addLeftovers(o *image.AttemptObjects) {
	switch {
	case o.DataVolume != nil && o.DataVolume.DeletionTimestamp == nil:
		f.toDelete = append(f.toDelete, o.DataVolume)
	case o.DataVolume == nil && o.Claim != nil && o.Claim.DeletionTimestamp == nil:
		f.toDelete = append(f.toDelete, o.Claim)
	}
}

// readSlotLive reads the facts of a slot. Invariant: the image is read before its objects,
// unless the slot has ended, which means that the outcome was stored before.
func (r *Reconciler) readSlotLive(ctx context.Context, slot v1alpha1.Slot) (slotReading, error) {
	if slot.Ended && r.Kinds.IsServed(image.DataVolumeGVK) {
		if reading, complete, err := r.readCompleteImport(ctx, slot); complete || err != nil {
			return reading, err
		}
	}
	var reading slotReading
	var err error
	if reading.image, err = r.readImageLive(ctx, slot.Image); err != nil {
		return reading, err
	}
	if reading.image == nil {
		reading.facts.ImageGone = true
	} else {
		reading.facts.Outcome, reading.facts.Started = image.OutcomeOf(reading.image, slot)
	}
	if reading.facts.Outcome == v1alpha1.OutcomeSucceeded && !slot.Ended {
		return reading, nil // the slot is marked as ended first; its objects matter after that
	}
	lists, err := r.listAttemptLive(ctx, slot)
	if err != nil {
		return reading, err
	}
	reading.objects = image.GroupByAttempt(lists)[slot.Attempt]
	if reading.objects != nil {
		reading.facts.DataVolumeExists = reading.objects.DataVolume != nil
		reading.facts.ImportComplete = reading.objects.ImportComplete()
		reading.facts.ObjectsRemain = reading.objects.CanDownload()
	}
	return reading, nil
}

// readCompleteImport reads what frees the slot of most imports: one whose image says, by the
// cache, that it has succeeded. One live read suffices where it is complete.
//
// Invariant: the DataVolume is read live, after the slot was marked as ended. An earlier state of
// it could be that of one which was deleted since, and created again by a delayed request. Its
// claim was Bound before CDI called it Succeeded, so that of the cache says nothing older.
func (r *Reconciler) readCompleteImport(ctx context.Context, slot v1alpha1.Slot) (reading slotReading, complete bool, err error) {
	img, err := r.cachedImage(ctx, slot.Image)
	if img == nil || err != nil {
		return reading, false, err
	}
	outcome, started := image.OutcomeOf(img, slot)
	if outcome != v1alpha1.OutcomeSucceeded {
		return reading, false, nil
	}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}
	claim, dv := &corev1.PersistentVolumeClaim{}, &cdiv1.DataVolume{}
	if err := r.Get(ctx, key, claim); err != nil {
		return reading, false, client.IgnoreNotFound(err)
	}
	if err := r.Live.Get(ctx, key, dv); err != nil {
		return reading, false, client.IgnoreNotFound(err)
	}
	uid := string(slot.Image.UID)
	if claim.Labels[v1alpha1.LabelImageUID] != uid || dv.Labels[v1alpha1.LabelImageUID] != uid {
		return reading, false, nil
	}
	lists := image.ObjectLists{DataVolumes: []cdiv1.DataVolume{*dv}, Claims: []corev1.PersistentVolumeClaim{*claim}}
	objects := image.GroupByAttempt(lists)[slot.Attempt]
	if !objects.ImportComplete() {
		return reading, false, nil
	}
	reading.image, reading.objects = img, objects
	reading.facts = ledger.SlotFacts{Outcome: outcome, Started: started, DataVolumeExists: true, ImportComplete: true, ObjectsRemain: true}
	return reading, true, nil
}

// listAttemptLive lists the objects of a slot's attempt.
func (r *Reconciler) listAttemptLive(ctx context.Context, slot v1alpha1.Slot) (image.ObjectLists, error) {
	match := client.MatchingLabels{v1alpha1.LabelImageUID: string(slot.Image.UID), v1alpha1.LabelAttempt: strconv.Itoa(int(slot.Attempt))}
	var (
		dvs    cdiv1.DataVolumeList
		claims corev1.PersistentVolumeClaimList
		pods   corev1.PodList
	)
	for _, list := range []client.ObjectList{&dvs, &claims, &pods} {
		if list == client.ObjectList(&dvs) && !r.Kinds.IsServed(image.DataVolumeGVK) {
			continue
		}
		if err := r.Live.List(ctx, list, client.InNamespace(slot.Image.Namespace), match); err != nil {
			return image.ObjectLists{}, fmt.Errorf("listing the objects of DataVolume %s: %w", ledger.DataVolumeKey(slot), err)
		}
	}
	lists := image.ObjectLists{DataVolumes: dvs.Items, Claims: claims.Items, Pods: pods.Items}
	if len(dvs.Items)+len(claims.Items)+len(pods.Items) > 0 {
		return lists, nil // they hold the slot
	}
	// CDI makes an importer for a claim of its own even after the others are gone, by a stale cache.
	var unlabeled corev1.PersistentVolumeClaimList
	if err := r.Live.List(ctx, &unlabeled, client.InNamespace(slot.Image.Namespace), client.MatchingLabels(image.CDIClaimLabels)); err != nil {
		return image.ObjectLists{}, fmt.Errorf("listing the claims that CDI fills for DataVolume %s: %w", ledger.DataVolumeKey(slot), err)
	}
	lists.Claims = image.FindCDIClaims(slot.Image, unlabeled.Items)
	return lists, nil
}

// readImageLive reads an image live; nil where there is none with that UID, or where it is released: nothing
// else ends its attempts.
func (r *Reconciler) readImageLive(ctx context.Context, key v1alpha1.ImageKey) (*v1alpha1.VMDiskImage, error) {
	// The annotation of a foreign DataVolume may hold anything.
	if len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
		return nil, nil
	}
	img := &v1alpha1.VMDiskImage{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img)
	if apierrors.IsNotFound(err) || (err == nil && (img.UID != key.UID || image.IsReleased(img))) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading VMDiskImage %s/%s: %w", key.Namespace, key.Name, err)
	}
	return img, nil
}
