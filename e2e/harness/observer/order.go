package observer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// StartOrder lists the images in the order of their first DataVolumes.
func (h History) StartOrder() []types.UID {
	var order []types.UID
	for _, s := range h.Creations() {
		if !slices.Contains(order, s.Image) {
			order = append(order, s.Image)
		}
	}
	return order
}

// ArrivalOrder lists the images that were created during the observation, in order.
func (h History) ArrivalOrder() []types.UID {
	var order []types.UID
	seen := map[types.UID]bool{}
	initial := make([]event, 0, len(h.events))
	for _, e := range h.events {
		if e.resource == images && !seen[e.object.GetUID()] {
			seen[e.object.GetUID()] = true
			if !e.preexisting {
				initial = append(initial, e)
			}
		}
	}
	slices.SortStableFunc(initial, func(a, b event) int { return cmp.Compare(a.version, b.version) })
	for _, e := range initial {
		order = append(order, e.object.GetUID())
	}
	return order
}

// queuedImage is what decides when an image is first to start.
type queuedImage struct {
	name      string
	createdAt time.Time
	// queued and started are the versions of its first status by which it waits for a slot, with the
	// finalizer, and of its first DataVolume; 0 for never. The DataVolume was created at startedAt.
	queued, started uint64
	startedAt       time.Time
}

// OrderViolations lists images that started before one that had arrived earlier (S3). One whose
// first status is not stored blocks those behind it for PendingGracePeriod only.
func (h History) OrderViolations() []string {
	byUID := map[types.UID]*queuedImage{}
	var arrived []*queuedImage
	for _, uid := range h.ArrivalOrder() {
		byUID[uid] = &queuedImage{}
		arrived = append(arrived, byUID[uid])
	}
	for _, e := range h.events {
		switch e.resource {
		case images:
			if img := byUID[e.object.GetUID()]; img != nil {
				img.name, img.createdAt = e.object.GetName(), e.object.GetCreationTimestamp().Time
				if img.queued == 0 && waitsForSlot(e.object) && slices.Contains(e.object.GetFinalizers(), v1alpha1.FinalizerImage) {
					img.queued = e.version
				}
			}
		case dataVolumes:
			if img := byUID[types.UID(e.object.GetLabels()[v1alpha1.LabelImageUID])]; img != nil && img.started == 0 {
				img.started, img.startedAt = e.version, e.object.GetCreationTimestamp().Time
			}
		}
	}
	var violations []string
	for i, later := range arrived {
		for _, earlier := range arrived[:i] {
			if later.started == 0 || earlier.started != 0 && earlier.started < later.started {
				continue
			}
			wasPending := earlier.queued == 0 || earlier.queued > later.queued
			if !wasPending || later.startedAt.Sub(earlier.createdAt) < ledger.PendingGracePeriod {
				violations = append(violations, fmt.Sprintf("%s started before %s, which had arrived before it", later.name, earlier.name))
			}
		}
	}
	return violations
}

// waitsForSlot reports whether an image lacks nothing of its own, as its status says.
func waitsForSlot(o *unstructured.Unstructured) bool {
	reason, _, _ := unstructured.NestedString(o.Object, "status", "reason")
	return phaseOf(o) == string(v1alpha1.PhaseQueued) && reason != string(v1alpha1.ReasonChecking)
}
