package image

import (
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PlannedState is what the plan in force says about an image.
type PlannedState struct {
	// Keep: the plan wants or keeps the image, or that is not known.
	Keep bool
	// Wanted: the plan asks for the image.
	Wanted bool
	// DeleteAfter is how long the image must be unreferenced before the plan deletes
	// it; nil where the plan does not.
	DeleteAfter *time.Duration
	// Prune of an image of this name that the plan requests; nil for none.
	Prune *v1alpha1.PlannedPrune
	// PruneUnconfirmed: Prune may have ended when a report of this process asked for it, or longer ago
	// than PruneNonceLife, so it does not begin.
	PruneUnconfirmed bool
	// PruneAnswersLate: the hub has confirmed prunes later than that, or not at all, more than once in a row.
	PruneAnswersLate bool
	// Retry of the plan's item: a new token starts a failed image over, once.
	Retry string
	// Unknown: what the plan in force says is not known. Then Keep is set, and no
	// prune begins, is undone or ends in a deletion.
	Unknown bool
}

// PlannedLabelValue is the value of v1alpha1.LabelPlanned.
const PlannedLabelValue = "true"

// IsPlanned reports whether an image was created for a plan, or handed over to the
// plans by a person.
func IsPlanned(img *v1alpha1.VMDiskImage) bool {
	return img.Labels[v1alpha1.LabelPlanned] == PlannedLabelValue
}

// canExpire reports whether an image can be deleted for being unreferenced, so
// that its PlannedState matters.
func canExpire(img *v1alpha1.VMDiskImage) bool {
	return img.DeletionTimestamp == nil && (img.Spec.DeleteUnreferencedAfter != nil || IsPlanned(img))
}

// expireUnreferenced deletes an image, in any phase, that was unreferenced for as
// long as its spec or the plan says.
//
// Invariant: an image that the plan keeps does not expire, and a plan expires only
// planned images. The holders are listed live, and the image is deleted only if
// unchanged since; a VM that references it after that list makes it Terminating.
func (d *decider) expireUnreferenced() {
	since := d.status.References.UnreferencedSince
	if since == nil || !canExpire(d.Image) {
		return
	}
	lifetime, byPlan, expires := d.unreferencedLifetime()
	if !expires {
		return
	}
	notBefore := since.Add(lifetime)
	switch {
	case d.Plan.Keep:
		d.requeueWithin(max(notBefore.Sub(d.Now), blockerRecheckInterval))
	case !d.awaitDeletionTime(notBefore):
	case d.requireLive():
		d.decision.DeleteImage, d.decision.ExpiredByPlan, d.decision.DeleteNotBefore = true, byPlan, notBefore
	}
}

// ClockRecheckInterval is how long a measurement of the API server's clock counts.
const ClockRecheckInterval = 10 * time.Minute

// maxDeletionWait is how long a decision may wait for a time to come: a clock that is set forward ends
// no timer.
const maxDeletionWait = time.Hour

// awaitDeletionTime reports whether the time of a deletion has come, by the API server's clock too
// as far as that is known to be behind.
func (d *decider) awaitDeletionTime(notBefore time.Time) (due bool) {
	left := notBefore.Sub(d.Now)
	switch {
	case left > 0:
		d.requeueWithin(min(left, maxDeletionWait)) // the clock may be corrected before
	case left+d.ClockAhead > 0:
		if !d.decision.DeleteImage { // otherwise it is deleted for another reason
			d.decision.AwaitsServerClock, d.decision.DeleteNotBefore = true, notBefore
		}
		d.requeueWithin(min(left+d.ClockAhead, ClockRecheckInterval)) // it may be corrected before
	default:
		return true
	}
	return false
}

// unreferencedLifetime is how long the image may be unreferenced: the shorter of
// what its spec and the plan say.
func (d *decider) unreferencedLifetime() (lifetime time.Duration, byPlan, expires bool) {
	if bySpec := d.Image.Spec.DeleteUnreferencedAfter; bySpec != nil {
		lifetime, expires = bySpec.Duration, true
	}
	if after := d.Plan.DeleteAfter; after != nil && IsPlanned(d.Image) && (!expires || *after < lifetime) {
		lifetime, byPlan, expires = *after, true, true
	}
	return lifetime, byPlan, expires
}
