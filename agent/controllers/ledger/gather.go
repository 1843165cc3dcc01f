package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// gatheredFacts are what a step is carried out with.
type gatheredFacts struct {
	// images that were read live, by UID.
	images map[types.UID]*v1alpha1.VMDiskImage
	facts  map[string]ledger.SlotFacts
	// toDelete are objects that no image of ours keeps; strays counts which of
	// them were in no slot.
	toDelete []client.Object
	strays   map[types.UID]bool
	// requeueAfter is when to look again for what no event tells of; 0 for never.
	requeueAfter time.Duration
}

func (f *gatheredFacts) requeueWithin(d time.Duration) {
	if f.requeueAfter == 0 || d < f.requeueAfter {
		f.requeueAfter = d
	}
}

// gather reads what a step rests on. The ledger has been read before, live, and
// that order matters: see package queue. unfinished are the DataVolumes that the
// cache showed before.
func (r *Reconciler) gather(ctx context.Context, syncLedger *v1alpha1.SyncLedger, may stepLimits, unfinished []cdiv1.DataVolume) (ledger.View, gatheredFacts, error) {
	v := ledger.View{
		Now: time.Now(), Ledger: syncLedger.Status, Budget: may.limits.Budget, Facts: map[string]ledger.SlotFacts{},
		SourceGroupLimits: may.limits.SourceGroupLimits, SourceGroupOf: may.sourceGroupOf,
	}
	found := gatheredFacts{images: map[types.UID]*v1alpha1.VMDiskImage{}, facts: v.Facts, strays: map[types.UID]bool{}}
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		v.Budget = 0
		return v, found, nil
	}
	var slots []v1alpha1.Slot
	if syncLedger.Status != nil {
		slots = syncLedger.Status.Slots
	}
	listed := map[string]bool{}
	var due, freeable []v1alpha1.Slot
	for _, slot := range slots {
		listed[ledger.DataVolumeKey(slot)] = true
		look, err := r.needsLiveRead(ctx, slot, &found)
		if err != nil {
			return v, found, err
		}
		if look {
			due = append(due, slot)
		}
		if slot.Ended {
			freeable = append(freeable, slot) // others are marked first
		}
	}
	// The head of the queue is read beside the slots: neither rests on the other.
	group, reading := errgroup.WithContext(ctx)
	var next candidateSet
	group.Go(func() (err error) {
		next, err = r.findCandidates(reading, slots, freeable, may)
		return err
	})
	group.Go(func() error { return r.readSlotsLive(reading, due, &found) })
	if err := group.Wait(); err != nil {
		return v, found, err
	}
	v.Candidates = next.list
	maps.Copy(found.images, next.images)
	if next.requeueAfter > 0 {
		found.requeueWithin(next.requeueAfter)
	}
	if !r.isLastVersion(syncLedger.ResourceVersion) {
		// Somebody else has written the ledger, or this process has just begun:
		// slots may be missing from it that the cache cannot tell of yet.
		var err error
		if unfinished, err = r.listUnfinishedLive(ctx); err != nil {
			return v, found, err
		}
	}
	unlisted, err := r.findUnlisted(ctx, unfinished, listed, &found)
	if err != nil {
		return v, found, err
	}
	v.Unlisted = unlisted
	return v, found, err
}

// needsLiveRead tells, by the cache, whether a slot may have to be freed or rolled
// forward. Only then is it looked at live.
func (r *Reconciler) needsLiveRead(ctx context.Context, slot v1alpha1.Slot, found *gatheredFacts) (bool, error) {
	if slot.Ended {
		return true, nil
	}
	img := &v1alpha1.VMDiskImage{}
	err := r.Get(ctx, types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.Image.Name}, img)
	if apierrors.IsNotFound(err) || (err == nil && img.UID != slot.Image.UID) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if outcome, _ := image.OutcomeOf(img, slot); outcome != "" {
		return true, nil
	}
	key := ledger.DataVolumeKey(slot)
	err = r.Get(ctx, types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}, &cdiv1.DataVolume{})
	if err == nil {
		delete(r.createdAt, key)
		return false, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, err
	}
	if at, created := r.createdAt[key]; created {
		if left := cacheLagTimeout - time.Since(at); left > 0 {
			found.requeueWithin(left)
			return false, nil
		}
	}
	return true, nil
}

// cacheLagTimeout is how long the cache may take to show a DataVolume that was
// created. After it, what the cache does not show is looked for live.
const cacheLagTimeout = 2 * time.Second

// maxConcurrentReads is how many slots, or candidates, are read at a time: one after another,
// a large budget would wait for the API server most of its time.
const maxConcurrentReads = 8

// readSlotsLive reads the facts of slots live.
func (r *Reconciler) readSlotsLive(ctx context.Context, slots []v1alpha1.Slot, found *gatheredFacts) error {
	seen := make([]slotReading, len(slots))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentReads)
	for i := range slots {
		group.Go(func() (err error) {
			seen[i], err = r.readSlotLive(ctx, slots[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, s := range seen {
		found.facts[ledger.DataVolumeKey(slots[i])] = s.facts
		if s.image != nil {
			found.images[s.image.UID] = s.image
		} else if s.objects != nil {
			found.addLeftovers(s.objects)
		}
	}
	return nil
}

// slotReading is what a live look at a slot showed; image and objects are nil where
// there are none.
type slotReading struct {
	facts   ledger.SlotFacts
	image   *v1alpha1.VMDiskImage
	objects *image.AttemptObjects
}

// readSlotLive reads the facts of a slot live, the image before its storage.
func (r *Reconciler) readSlotLive(ctx context.Context, slot v1alpha1.Slot) (slotReading, error) {
	var s slotReading
	var imported *image.AttemptObjects
	group, reading := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s.image, err = r.readImageLive(reading, slot.Image)
		return err
	})
	if slot.Ended { // its outcome was stored before: no order is left to be kept
		group.Go(func() (err error) {
			imported, err = r.readImportLive(reading, slot)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return s, err
	}
	if s.image == nil {
		s.facts.ImageGone = true
	} else {
		s.facts.Outcome, s.facts.Started = image.OutcomeOf(s.image, slot)
	}
	if s.facts.Outcome == v1alpha1.OutcomeSucceeded && !slot.Ended {
		return s, nil // it is marked first: what is there matters after that
	}
	if s.facts.Outcome == v1alpha1.OutcomeSucceeded {
		s.objects = imported
	}
	if !s.objects.ImportComplete() {
		lists, err := r.listAttemptLive(ctx, slot)
		if err != nil {
			return s, err
		}
		s.objects = image.GroupByAttempt(lists)[slot.Attempt]
	}
	if s.objects != nil {
		s.facts.DataVolumeExists = s.objects.DataVolume != nil
		s.facts.ImportComplete = s.objects.ImportComplete()
		s.facts.ObjectsRemain = s.objects.CanDownload()
	}
	return s, nil
}

// readImportLive reads live what a successful attempt has left, by the names that
// are given once: two reads beside each other, where lists of all that can be
// there would each wait until the API server's cache has caught up. What else
// there is does not matter to a success that is complete.
func (r *Reconciler) readImportLive(ctx context.Context, slot v1alpha1.Slot) (*image.AttemptObjects, error) {
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}
	dv, claim := &cdiv1.DataVolume{}, &corev1.PersistentVolumeClaim{}
	group, ctx := errgroup.WithContext(ctx)
	for _, obj := range []client.Object{dv, claim} {
		group.Go(func() error {
			if err := r.Live.Get(ctx, key, obj); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("reading %T %s: %w", obj, key, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var lists image.ObjectLists
	if dv.Labels[v1alpha1.LabelImageUID] == string(slot.Image.UID) {
		lists.DataVolumes = []cdiv1.DataVolume{*dv}
	}
	if claim.Labels[v1alpha1.LabelImageUID] == string(slot.Image.UID) {
		lists.Claims = []corev1.PersistentVolumeClaim{*claim}
	}
	return image.GroupByAttempt(lists)[slot.Attempt], nil
}

// addLeftovers has what is left of an image that is gone removed. Its snapshots
// are not touched: they hold no slot, and somebody forced the image away.
func (f *gatheredFacts) addLeftovers(o *image.AttemptObjects) {
	switch {
	case o.DataVolume != nil && o.DataVolume.DeletionTimestamp == nil:
		f.toDelete = append(f.toDelete, o.DataVolume)
	case o.DataVolume == nil && o.Claim != nil && o.Claim.DeletionTimestamp == nil:
		f.toDelete = append(f.toDelete, o.Claim)
	}
}

// readImageLive reads an image live; nil where it, by its UID, is gone.
func (r *Reconciler) readImageLive(ctx context.Context, key v1alpha1.ImageKey) (*v1alpha1.VMDiskImage, error) {
	// A DataVolume that is none of ours may name anything, or nothing.
	if len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
		return nil, nil
	}
	img := &v1alpha1.VMDiskImage{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img)
	if apierrors.IsNotFound(err) || (err == nil && img.UID != key.UID) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading VMDiskImage %s/%s: %w", key.Namespace, key.Name, err)
	}
	return img, nil
}

// listAttemptLive reads live what exists of a slot's attempt.
func (r *Reconciler) listAttemptLive(ctx context.Context, slot v1alpha1.Slot) (image.ObjectLists, error) {
	match := client.MatchingLabels{v1alpha1.LabelImageUID: string(slot.Image.UID), v1alpha1.LabelAttempt: strconv.Itoa(int(slot.Attempt))}
	var (
		dvs    cdiv1.DataVolumeList
		claims corev1.PersistentVolumeClaimList
		pods   corev1.PodList
	)
	for _, list := range []client.ObjectList{&dvs, &claims, &pods} {
		if err := r.Live.List(ctx, list, client.InNamespace(slot.Image.Namespace), match); err != nil {
			return image.ObjectLists{}, fmt.Errorf("listing what exists of DataVolume %s: %w", ledger.DataVolumeKey(slot), err)
		}
	}
	return image.ObjectLists{DataVolumes: dvs.Items, Claims: claims.Items, Pods: pods.Items}, nil
}

// listUnfinishedCached lists the DataVolumes of ours that may still download, as the
// cache shows them. It is read before the ledger: a slot is written before its
// DataVolume is created, so the ledger that is read then lists them all.
func (r *Reconciler) listUnfinishedCached(ctx context.Context) ([]cdiv1.DataVolume, error) {
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		return nil, nil
	}
	var dvs cdiv1.DataVolumeList
	if err := r.List(ctx, &dvs, client.MatchingFields{image.UnfinishedIndex: image.UnfinishedIndexValue}); err != nil {
		return nil, fmt.Errorf("listing unfinished DataVolumes: %w", err)
	}
	return dvs.Items, nil
}

// listUnfinishedLive lists the same, live.
func (r *Reconciler) listUnfinishedLive(ctx context.Context) ([]cdiv1.DataVolume, error) {
	var dvs cdiv1.DataVolumeList
	if err := r.Live.List(ctx, &dvs, client.HasLabels{v1alpha1.LabelImageUID}); err != nil {
		return nil, fmt.Errorf("listing DataVolumes: %w", err)
	}
	return slices.DeleteFunc(dvs.Items, func(dv cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded }), nil
}

// findUnlisted finds which of the unfinished DataVolumes stand in no slot. What
// was seen of them may be old, so it is checked live.
func (r *Reconciler) findUnlisted(ctx context.Context, dvs []cdiv1.DataVolume, listed map[string]bool, found *gatheredFacts) ([]ledger.UnlistedDataVolume, error) {
	var unlisted []ledger.UnlistedDataVolume
	for i := range dvs {
		dv := &dvs[i]
		if listed[dv.Namespace+"/"+dv.Name] {
			continue
		}
		u, there, err := r.checkUnlisted(ctx, dv, found)
		if err != nil {
			return nil, err
		}
		if there {
			unlisted = append(unlisted, u)
		}
	}
	return unlisted, nil
}

func (r *Reconciler) checkUnlisted(ctx context.Context, seen *cdiv1.DataVolume, found *gatheredFacts) (ledger.UnlistedDataVolume, bool, error) {
	attempt, _ := strconv.ParseInt(seen.Labels[v1alpha1.LabelAttempt], 10, 32)
	u := ledger.UnlistedDataVolume{Slot: v1alpha1.Slot{
		Image: v1alpha1.ImageKey{
			Namespace: seen.Namespace, Name: seen.Annotations[v1alpha1.AnnotationImageName],
			UID: types.UID(seen.Labels[v1alpha1.LabelImageUID]),
		},
		Revision: seen.Labels[v1alpha1.LabelRevision], Attempt: int32(attempt),
		DataVolume: seen.Name, StartedAt: seen.CreationTimestamp, Host: image.DataVolumeHost(seen),
	}}
	img, err := r.readImageLive(ctx, u.Slot.Image)
	if err != nil {
		return u, false, err
	}
	if img != nil {
		found.images[img.UID] = img
		u.Adoptable = attempt > 0 && seen.Name == ledger.DataVolumeName(u.Slot.Image, u.Slot.Attempt) && image.IsAdoptable(img, u.Slot)
	}
	dv := &cdiv1.DataVolume{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(seen), dv)
	switch {
	case apierrors.IsNotFound(err), err == nil && (dv.UID != seen.UID || dv.Status.Phase == cdiv1.Succeeded):
		return u, false, nil
	case err != nil:
		return u, false, fmt.Errorf("reading DataVolume %s/%s: %w", seen.Namespace, seen.Name, err)
	}
	if dv.DeletionTimestamp == nil && !u.Adoptable {
		found.toDelete = append(found.toDelete, dv)
		found.strays[dv.UID] = true
	}
	return u, true, nil
}

// candidateSet are the head of the queue, read live; wait is how long one whose
// standing is open can hold up those behind it.
type candidateSet struct {
	list         []ledger.Candidate
	images       map[types.UID]*v1alpha1.VMDiskImage
	requeueAfter time.Duration
}

func (c *candidateSet) requeueWithin(d time.Duration) {
	if c.requeueAfter == 0 || d < c.requeueAfter {
		c.requeueAfter = d
	}
}

// findCandidates reads the head of the queue live: as many as can be admitted at the
// most, should all slots that are freeable be freed. Those of a group of sources that
// has no room are passed.
func (r *Reconciler) findCandidates(ctx context.Context, slots, freeable []v1alpha1.Slot, may stepLimits) (candidateSet, error) {
	c := candidateSet{images: map[types.UID]*v1alpha1.VMDiskImage{}}
	n := int(may.limits.Budget) - len(slots) + len(freeable)
	if n <= 0 {
		return c, nil
	}
	held := slotHolders(slots)
	taken := ledger.View{SourceGroupLimits: may.limits.SourceGroupLimits, SourceGroupOf: may.sourceGroupOf}
	running, ending := taken.CountRunningByGroup(slots), taken.CountRunningByGroup(freeable)
	left, most := map[string]int{}, map[string]int{}
	for group, room := range may.limits.SourceGroupLimits {
		left[group] = max(0, int(room-running[group]+ending[group]))
		most[group] = left[group] + int(running[group]) // some of which may have slots already
	}
	head, wait := r.Queue.PeekHead(n+len(held), time.Now(), most)
	c.requeueAfter = wait
	head = slices.DeleteFunc(head, func(item ledger.QueuedImage) bool {
		room, limited := left[item.SourceGroup]
		if held[item.Image.UID] || limited && room == 0 {
			return true
		}
		left[item.SourceGroup]--
		return false
	})
	for len(c.list) < n && len(head) > 0 {
		next := head[:min(n-len(c.list), len(head))]
		head = head[len(next):]
		images, err := r.readImagesLive(ctx, next)
		if err != nil {
			return c, err
		}
		for _, img := range images {
			if img == nil {
				continue
			}
			if candidate, may := image.CandidateOf(img); may {
				// Those that got a slot since it was looked at have taken room.
				if lacks, err := r.LacksCapacity(ctx, img); err != nil {
					return c, err
				} else if lacks {
					c.requeueWithin(capacity.MaxAgeWhileWaiting) // it may find room again before it has left
					continue
				}
				c.images[img.UID] = img
				c.list = append(c.list, candidate)
			}
		}
	}
	return c, nil
}

// readImagesLive reads images live, in their order; nil for each that is gone.
func (r *Reconciler) readImagesLive(ctx context.Context, items []ledger.QueuedImage) ([]*v1alpha1.VMDiskImage, error) {
	images := make([]*v1alpha1.VMDiskImage, len(items))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentReads)
	for i := range items {
		group.Go(func() (err error) {
			images[i], err = r.readImageLive(ctx, items[i].Image)
			return err
		})
	}
	return images, group.Wait()
}
