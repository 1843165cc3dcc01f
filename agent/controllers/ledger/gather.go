package ledger

import (
	"context"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// cacheLagTimeout is how long the cache may take to show a DataVolume that this process
	// has created. After it, the DataVolume is looked up live.
	cacheLagTimeout = 2 * time.Second
	// maxConcurrentReads bounds the live reads of slots, and of candidates. One after
	// another they would take too long under a large budget.
	maxConcurrentReads = 8
)

// gatheredFacts is what acting on a decision needs.
type gatheredFacts struct {
	// images that were read live, by UID.
	images map[types.UID]*v1alpha1.VMDiskImage
	// facts by ledger.DataVolumeKey.
	facts map[string]ledger.SlotFacts
	// toDelete are objects that belong to no image of this ledger; strays are those of them
	// that hold no slot.
	toDelete []client.Object
	strays   map[types.UID]bool
	// requeueAfter is when facts change that no event announces; 0 for never.
	requeueAfter time.Duration
}

// gather reads what a decision rests on. Invariant: the ledger was read before, and
// unfinished, the DataVolumes that may still download, before the ledger; package
// agent/ledger says why.
func (r *Reconciler) gather(ctx context.Context, syncLedger *v1alpha1.SyncLedger, limits stepLimits, unfinished []cdiv1.DataVolume) (ledger.View, gatheredFacts, error) {
	v := ledger.View{
		Now: r.Now(), Ledger: syncLedger.Status, Budget: limits.limits.Budget, Facts: map[string]ledger.SlotFacts{},
		SourceGroupLimits: limits.limits.SourceGroupLimits, SourceGroupOf: limits.sourceGroupOf, NamespaceShare: limits.namespaceShare,
	}
	found := gatheredFacts{images: map[types.UID]*v1alpha1.VMDiskImage{}, facts: v.Facts, strays: map[types.UID]bool{}}
	var slots []v1alpha1.Slot
	if syncLedger.Status != nil {
		slots = syncLedger.Status.Slots
	}
	v.EndedAges = r.endedAges(slots)
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		v.Budget = 0
		// Where CDI was removed, images that hold a slot could not be deleted otherwise.
		return v, found, r.readSlotsLive(ctx, slots, &found)
	}
	listed := map[string]bool{}
	var toRead, freeable []v1alpha1.Slot
	for _, slot := range slots {
		listed[ledger.DataVolumeKey(slot)] = true
		needed, err := r.needsLiveRead(ctx, slot, &found)
		if err != nil {
			return v, found, err
		}
		if needed {
			toRead = append(toRead, slot)
		}
		if slot.Ended {
			freeable = append(freeable, slot) // any other is marked as ended first
		}
	}
	// Slots and candidates do not depend on each other, so they are read concurrently.
	group, groupCtx := errgroup.WithContext(ctx)
	var candidates candidateSet
	group.Go(func() (err error) {
		candidates, err = r.findCandidates(groupCtx, slots, freeable, limits)
		return err
	})
	group.Go(func() error { return r.readSlotsLive(groupCtx, toRead, &found) })
	if err := group.Wait(); err != nil {
		return v, found, err
	}
	v.Candidates = candidates.list
	maps.Copy(found.images, candidates.images)
	found.requeueAfter = trigger.Earliest(found.requeueAfter, candidates.requeueAfter)

	if !r.isLastVersion(syncLedger.ResourceVersion) {
		// Another process has written the ledger, or this one has just started: the cache
		// may not show all DataVolumes that hold no slot.
		var err error
		if unfinished, err = r.listUnfinishedLive(ctx); err != nil {
			return v, found, err
		}
	}
	var err error
	v.Unlisted, err = r.findUnlisted(ctx, unfinished, listed, &found)
	return v, found, err
}

// needsLiveRead decides by the cache whether a slot may have to be freed, or its DataVolume
// created. Other slots are not read live: of one whose outcome the cache shows, that is a fact.
//
// Invariant: an attempt has at most one outcome, so one that the cache shows is stored. It marks
// the slot as ended; that an attempt was not started only a live read may say.
func (r *Reconciler) needsLiveRead(ctx context.Context, slot v1alpha1.Slot, found *gatheredFacts) (bool, error) {
	if slot.Ended {
		return true, nil
	}
	img, err := r.cachedImage(ctx, slot.Image)
	if img == nil || err != nil {
		return true, err
	}
	key := ledger.DataVolumeKey(slot)
	if outcome, started := image.OutcomeOf(img, slot); outcome != "" {
		found.facts[key] = ledger.SlotFacts{Outcome: outcome, Started: started}
		return false, nil
	}
	if image.IsReleased(img) {
		return true, nil // counts as gone, once it is read live
	}
	err = r.Get(ctx, types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}, &cdiv1.DataVolume{})
	if err == nil {
		delete(r.createdAt, key)
		return false, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, err
	}
	if createdAt, created := r.createdAt[key]; created {
		if left := cacheLagTimeout - time.Since(createdAt); left > 0 {
			found.requeueAfter = trigger.Earliest(found.requeueAfter, left)
			return false, nil
		}
	}
	return true, nil
}

// cachedImage returns an image as the cache shows it; nil where it shows none with that UID.
func (r *Reconciler) cachedImage(ctx context.Context, key v1alpha1.ImageKey) (*v1alpha1.VMDiskImage, error) {
	img := &v1alpha1.VMDiskImage{}
	err := r.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img)
	if apierrors.IsNotFound(err) || (err == nil && img.UID != key.UID) {
		return nil, nil
	}
	return img, err
}
