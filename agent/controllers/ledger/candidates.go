package ledger

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// candidateSet is the head of the queue, read live.
type candidateSet struct {
	list   []ledger.Candidate
	images map[types.UID]*v1alpha1.VMDiskImage
	// requeueAfter is when an image ahead stops blocking, or finds capacity; 0 for never.
	requeueAfter time.Duration
}

// findCandidates reads as many images of the head of the queue as can be admitted if all
// freeable slots are freed. Images of a full group of sources are passed over.
func (r *Reconciler) findCandidates(ctx context.Context, slots, freeable []v1alpha1.Slot, limits stepLimits) (candidateSet, error) {
	set := candidateSet{images: map[types.UID]*v1alpha1.VMDiskImage{}}
	n := int(limits.limits.Budget) - len(slots) + len(freeable)
	if n <= 0 {
		return set, nil
	}
	head := r.peekHead(&set, n, slots, freeable, limits)
	for len(set.list) < n && len(head) > 0 {
		next := head[:min(n-len(set.list), len(head))]
		head = head[len(next):]
		images, err := r.readImagesLive(ctx, next)
		if err != nil {
			return set, err
		}
		for _, img := range images {
			if img == nil {
				continue
			}
			candidate, admissible := image.CandidateOf(img, limits.policy)
			if !admissible {
				continue
			}
			// Images that were admitted since its last reconcile have taken capacity.
			lacking, err := r.LacksCapacity(ctx, img)
			if err != nil {
				return set, err
			}
			if lacking {
				// There may be capacity again before it has left the queue.
				set.requeueAfter = trigger.Earliest(set.requeueAfter, capacity.MaxAgeWhileWaiting)
				continue
			}
			set.images[img.UID] = img
			set.list = append(set.list, candidate)
		}
	}
	return set, nil
}

// peekHead returns the first images of the queue that hold no slot, whose group of sources
// is not full, and whose namespace has its turn. It returns some more than n: not all may
// turn out to be candidates.
func (r *Reconciler) peekHead(set *candidateSet, n int, slots, freeable []v1alpha1.Slot, limits stepLimits) []ledger.QueuedImage {
	groups := ledger.View{SourceGroupLimits: limits.limits.SourceGroupLimits, SourceGroupOf: limits.sourceGroupOf}
	running, ending := groups.CountRunningByGroup(slots), groups.CountRunningByGroup(freeable)
	free := map[string]int{}
	for group, limit := range limits.limits.SourceGroupLimits {
		free[group] = max(0, int(limit-running[group]+ending[group]))
	}
	share := ledger.NewNamespaceShare(limits.namespaceShare, slots, freeable)
	head, wait := r.Queue.PeekHead(n+len(slots), r.Now(), free, share)
	set.requeueAfter = trigger.Earliest(set.requeueAfter, wait)
	return head
}

// readImagesLive reads images live, in the order of items; nil for each that is gone.
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
