package rollout

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// Decide decides about a FleetDiskImage and updates what it desires of the members. held:
// it is deleted with its images, and a member may still have one.
func (f *FleetState) Decide(image string, now time.Time) (d rollout.Decision, held, found bool) {
	f.decideMu.Lock()
	defer f.decideMu.Unlock()
	img := f.lookupImage(image)
	if img == nil {
		return d, false, false
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	v, nameTaken := f.gatherView(img, now)
	d = rollout.Decide(v)
	f.applyDecision(img, v, nameTaken, d)
	return d, len(v.Holders) > 0, true
}

// gatherView returns the view, and the result of CurrentNameTaken. It requires img.mu, also while
// the view is in use.
func (f *FleetState) gatherView(img *imageState, now time.Time) (v rollout.View, nameTaken bool) {
	budget, sourceLimits := f.Budget()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refreshClusters(img)
	f.refreshActivities(img, sourceLimits, now)
	v = rollout.View{Image: img.withDecidedStatus(), Clusters: img.clusters, ApprovalGuarded: f.approvalGuarded, Budget: budget, Now: now}
	if others := f.conflicts(img); len(others) > 0 {
		v.Conflict, nameTaken = rollout.FindConflict(v.Image, others), rollout.CurrentNameTaken(v.Image, others)
		v.Taken = rollout.FindTakenNames(v.Image, others)
	}
	if img.isDeletingImages() && v.Conflict == "" {
		names := f.exclusiveNames(img)
		for _, name := range f.present {
			if f.members[name].mayHoldAny(names) {
				v.Holders = append(v.Holders, name)
			}
		}
	}
	return v, nameTaken
}

// refreshActivities sets what members import and queue that do not have the image. An activity
// is at most a few heartbeats old, by the member's clock.
func (f *FleetState) refreshActivities(img *imageState, sourceLimits map[string]map[string]int32, now time.Time) {
	for i := range img.clusters {
		c := &img.clusters[i]
		c.Activity, c.ActivityAt, c.SourceLimits = nil, now, sourceLimits[c.Name]
		if c.Effective == nil || c.PlannedDigest != c.Effective.Digest || c.Report.Phase != v1alpha1.PhaseSucceeded {
			c.Activity = f.Activity(c.Name)
		}
	}
}

// conflicts returns the other FleetDiskImages that share an image name.
func (f *FleetState) conflicts(img *imageState) (others []v1alpha1.FleetDiskImage) {
	var seen []*imageState
	for _, key := range img.imageNames {
		for _, other := range f.byImageName[key] {
			if other != img && !slices.Contains(seen, other) {
				seen = append(seen, other)
				others = append(others, *other.withDecidedStatus())
			}
		}
	}
	return others
}

// exclusiveNames returns the image names that no other FleetDiskImage has, unless that
// one is being deleted too. A shared image is kept by the other one: waiting for its
// deletion would never end.
func (f *FleetState) exclusiveNames(img *imageState) (names []imageKey) {
	for _, key := range img.imageNames {
		if !slices.ContainsFunc(f.byImageName[key], func(other *imageState) bool { return other != img && other.stored.DeletionTimestamp.IsZero() }) {
			names = append(names, key)
		}
	}
	return names
}

// applyDecision requires img.mu.
func (f *FleetState) applyDecision(img *imageState, v rollout.View, nameTaken bool, d rollout.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if img.removed {
		return
	}
	if !rollout.SameVersions(d.Status.Versions, v.Image.Status.Versions) {
		img.generation++
	}
	img.status = &d.Status
	f.indexNames(img)
	f.updateDesired(img, v, nameTaken, d)
}

// freezeUndecided makes plans keep what they have of a FleetDiskImage that was not
// decided about yet.
func (f *FleetState) freezeUndecided(image string) {
	img := f.lookupImage(image)
	if img == nil {
		return
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refreshClusters(img)
	for i := range img.desired {
		if m := f.members[img.clusters[i].Name]; m != nil && !img.desired[i].known {
			f.replaceDesired(img, i, desiredState{known: true, memberUID: m.uid, freeze: true})
		}
	}
}
