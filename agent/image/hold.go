package image

import (
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Holder is a VirtualMachine that needs an image.
type Holder struct {
	Name string // namespace/name
	// Pin is what of this image it is built from; nil where it has pinned nothing
	// of it.
	Pin *v1alpha1.PinnedImage
}

// countReferences counts who needs the image.
func (s *step) countReferences() {
	refs := v1alpha1.References{Count: int32(len(s.Holders)), UnreferencedSince: s.status.References.UnreferencedSince}
	for _, holder := range s.Holders[:min(maxShownHolders, len(s.Holders))] {
		refs.Holders = append(refs.Holders, holder.Name)
	}
	if refs.Count > 0 {
		refs.UnreferencedSince = nil
	} else if refs.UnreferencedSince == nil {
		refs.UnreferencedSince = &s.now
	}
	s.status.References = refs
}

const maxShownHolders = 5

// pinsForAttempt are what VirtualMachines are built from of an attempt.
func (s *step) pinsForAttempt(attempt int32) []*v1alpha1.PinnedImage {
	var pins []*v1alpha1.PinnedImage
	for i := range s.Holders {
		if pin := s.Holders[i].Pin; pin != nil && pin.UID == s.Image.UID && pin.Attempt == attempt {
			pins = append(pins, pin)
		}
	}
	return pins
}

// reconcileDelete takes an image that is to be deleted through Terminating and Deleting.
//
// The mark is stored before the holders are listed live. Whoever acquires the
// image reads the mark live, or is seen by that list (DESIGN, S2). That there was
// none is stored before anything is deleted, against the resourceVersion of the
// mark: a leader that was paused since it listed finds that another one has taken
// the mark back for a holder that came later.
func (s *step) reconcileDelete() {
	if s.Image.DeletionTimestamp == nil {
		return
	}
	marked := s.Image.Status.Phase == v1alpha1.PhaseDeleting
	switch {
	case s.Image.Status.TearDown:
		s.status.Phase = v1alpha1.PhaseDeleting
		s.tearDown = s.Live
		s.decision.NeedsLiveRead = !s.Live
	case len(s.Holders) > 0 && !s.NamespaceTerminating:
		if marked && !s.Live {
			s.decision.NeedsLiveRead = true
		}
		s.status.Phase = v1alpha1.PhaseTerminating
		s.requeueWithin(namespaceRecheckInterval)
	case !marked:
		s.status.Phase = v1alpha1.PhaseDeleting
	case !s.Live:
		s.decision.NeedsLiveRead = true
	default:
		s.status.TearDown = true
		s.tearDown = true
	}
}

// namespaceRecheckInterval is how often the namespace of an image is looked at that is
// to be deleted and is held: no event tells that it goes.
const namespaceRecheckInterval = 30 * time.Second

// PlannedState is what the plan in force says about the stay of an image.
type PlannedState struct {
	// Stays: the plan wants it or keeps it, or nobody knows whether it does.
	Keep bool
	// Retired: the plan has it deleted once nobody has held it for so long; nil
	// where it does not.
	DeleteAfter *time.Duration
	// Prune is what the plan asks for of an image of that name; nil for nothing.
	Prune *v1alpha1.PlannedPrune
	// Unknown: nobody knows what the plan in force says. Then Stays is set, and no
	// prune begins, is undone or comes to its end.
	Unknown bool
}

// CanExpire tells whether an image can come to be deleted because nobody holds it,
// so that it matters what the plan says.
func CanExpire(img *v1alpha1.VMDiskImage) bool {
	return img.DeletionTimestamp == nil && (img.Spec.DeleteUnreferencedAfter != nil || IsPlanned(img))
}

// PlannedLabelValue is the value of v1alpha1.LabelPlanned.
const PlannedLabelValue = "true"

// IsPlanned tells that an image was made because a plan asked for it, or that people
// have handed it over to the plans.
func IsPlanned(img *v1alpha1.VMDiskImage) bool {
	return img.Labels[v1alpha1.LabelPlanned] == PlannedLabelValue
}

// expireUnreferenced has an image deleted that nobody has held for as long as its spec or the
// plan says, whatever its phase. What a plan wants or keeps is never deleted so,
// and what people have made never because a plan says so.
//
// That nobody holds it is told by a list that is read live, and the image is
// deleted only as it was before that list. Who comes to name it after the list is
// seen by the one after the mark: it is Terminating then, and serves on.
func (s *step) expireUnreferenced() {
	since := s.status.References.UnreferencedSince
	if since == nil || !CanExpire(s.Image) {
		return
	}
	after, retired, ends := s.unreferencedLifetime()
	if !ends {
		return
	}
	switch left := after - s.Now.Sub(since.Time); {
	case left > 0:
		s.requeueWithin(left)
	case s.Plan.Keep:
		s.requeueWithin(blockerRecheckInterval)
	case !s.Live:
		s.decision.NeedsLiveRead = true
	default:
		s.decision.DeleteImage, s.decision.ExpiredByPlan = true, retired
	}
}

// unreferencedLifetime is how long nobody may hold the image before it goes: the shorter of
// what its spec and the plan say. retired: it is the plan's.
func (s *step) unreferencedLifetime() (after time.Duration, retired, ends bool) {
	if spec := s.Image.Spec.DeleteUnreferencedAfter; spec != nil {
		after, ends = spec.Duration, true
	}
	if plan := s.Plan.DeleteAfter; plan != nil && IsPlanned(s.Image) && (!ends || *plan < after) {
		after, retired, ends = *plan, true, true
	}
	return after, retired, ends
}
