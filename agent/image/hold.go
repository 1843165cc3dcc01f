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

// hold counts who needs the image.
func (s *step) hold() {
	refs := v1alpha1.References{Count: int32(len(s.Holders)), UnreferencedSince: s.st.References.UnreferencedSince}
	for _, holder := range s.Holders[:min(shownHolders, len(s.Holders))] {
		refs.Holders = append(refs.Holders, holder.Name)
	}
	if refs.Count > 0 {
		refs.UnreferencedSince = nil
	} else if refs.UnreferencedSince == nil {
		refs.UnreferencedSince = &s.now
	}
	s.st.References = refs
}

const shownHolders = 5

// pins are what VirtualMachines are built from of an attempt.
func (s *step) pins(attempt int32) []*v1alpha1.PinnedImage {
	var pins []*v1alpha1.PinnedImage
	for i := range s.Holders {
		if pin := s.Holders[i].Pin; pin != nil && pin.UID == s.Image.UID && pin.Attempt == attempt {
			pins = append(pins, pin)
		}
	}
	return pins
}

// leave takes an image that is to be deleted through Terminating and Deleting.
//
// The mark is stored before the holders are listed live. Whoever acquires the
// image reads the mark live, or is seen by that list (DESIGN, S2). That there was
// none is stored before anything is deleted, against the resourceVersion of the
// mark: a leader that was paused since it listed finds that another one has taken
// the mark back for a holder that came later.
func (s *step) leave() {
	if s.Image.DeletionTimestamp == nil {
		return
	}
	marked := s.Image.Status.Phase == v1alpha1.PhaseDeleting
	switch {
	case s.Image.Status.TearDown:
		s.st.Phase = v1alpha1.PhaseDeleting
		s.tearDown = s.Live
		s.d.NeedsLive = !s.Live
	case len(s.Holders) > 0 && !s.NamespaceGoing:
		if marked && !s.Live {
			s.d.NeedsLive = true
		}
		s.st.Phase = v1alpha1.PhaseTerminating
		s.within(namespaceInterval)
	case !marked:
		s.st.Phase = v1alpha1.PhaseDeleting
	case !s.Live:
		s.d.NeedsLive = true
	default:
		s.st.TearDown = true
		s.tearDown = true
	}
}

// namespaceInterval is how often the namespace of an image is looked at that is
// to be deleted and is held: no event tells that it goes.
const namespaceInterval = 30 * time.Second

// Wish is what the plan in force says about the stay of an image.
type Wish struct {
	// Stays: the plan wants it or keeps it, or nobody knows whether it does.
	Stays bool
	// Retired: the plan has it deleted once nobody has held it for so long; nil
	// where it does not.
	Retired *time.Duration
	// Prune is what the plan asks for of an image of that name; nil for nothing.
	Prune *v1alpha1.PlannedPrune
	// Unknown: nobody knows what the plan in force says. Then Stays is set, and no
	// prune begins, is undone or comes to its end.
	Unknown bool
}

// Expires tells whether an image can come to be deleted because nobody holds it,
// so that it matters what the plan says.
func Expires(img *v1alpha1.VMDiskImage) bool {
	return img.DeletionTimestamp == nil && (img.Spec.DeleteUnreferencedAfter != nil || OfPlan(img))
}

// Planned is the value of v1alpha1.LabelPlanned.
const Planned = "true"

// OfPlan tells that an image was made because a plan asked for it, or that people
// have handed it over to the plans.
func OfPlan(img *v1alpha1.VMDiskImage) bool {
	return img.Labels[v1alpha1.LabelPlanned] == Planned
}

// expire has an image deleted that nobody has held for as long as its spec or the
// plan says, whatever its phase. What a plan wants or keeps is never deleted so,
// and what people have made never because a plan says so.
//
// That nobody holds it is told by a list that is read live, and the image is
// deleted only as it was before that list. Who comes to name it after the list is
// seen by the one after the mark: it is Terminating then, and serves on.
func (s *step) expire() {
	since := s.st.References.UnreferencedSince
	if since == nil || !Expires(s.Image) {
		return
	}
	after, retired, ends := s.lifetime()
	if !ends {
		return
	}
	switch left := after - s.Now.Sub(since.Time); {
	case left > 0:
		s.within(left)
	case s.Plan.Stays:
		s.within(blockerInterval)
	case !s.Live:
		s.d.NeedsLive = true
	default:
		s.d.DeleteImage, s.d.Retired = true, retired
	}
}

// lifetime is how long nobody may hold the image before it goes: the shorter of
// what its spec and the plan say. retired: it is the plan's.
func (s *step) lifetime() (after time.Duration, retired, ends bool) {
	if spec := s.Image.Spec.DeleteUnreferencedAfter; spec != nil {
		after, ends = spec.Duration, true
	}
	if plan := s.Plan.Retired; plan != nil && OfPlan(s.Image) && (!ends || *plan < after) {
		after, retired, ends = *plan, true, true
	}
	return after, retired, ends
}
