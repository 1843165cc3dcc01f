package eta

import (
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// MinSamples is how many imports from a group of sources must have ended before its
	// rates are believed.
	MinSamples = 3
	// MaxAge is how old an activity may be. A member writes it every 20 s while anything is
	// imported or waits.
	MaxAge = 5 * time.Minute
	// maxSeconds bounds what hostile sizes and rates lead to.
	maxSeconds = 365 * 24 * 3600
)

// Unknown is the reason why no time is given, from a closed set.
type Unknown string

// Reasons why no time is given.
const (
	// UnknownTooFewSamples: fewer than MinSamples imports from its group of sources, or from
	// that of an image ahead of it, have ended.
	UnknownTooFewSamples Unknown = "TooFewSamples"
	// UnknownSize: neither the download's size nor the disk's is known, of it or of an image
	// ahead of it.
	UnknownSize Unknown = "SizeUnknown"
	// UnknownWaitsForPerson: it waits until a person acts, or the member imports nothing until
	// then.
	UnknownWaitsForPerson Unknown = "WaitsForPerson"
	// UnknownNothingGranted: the fleet-wide budget grants the member, or its group of sources
	// there, no slot, or none by the time the import would begin.
	UnknownNothingGranted Unknown = "NothingGranted"
	// UnknownNotListed: the member lists only the head of its queue, and it is behind that.
	UnknownNotListed Unknown = "NotListed"
	// UnknownNotReported: the member's activity is absent or older than MaxAge.
	UnknownNotReported Unknown = "NotReported"
)

// Unknowns lists the closed set.
func Unknowns() []Unknown {
	return []Unknown{UnknownTooFewSamples, UnknownSize, UnknownWaitsForPerson, UnknownNothingGranted, UnknownNotListed, UnknownNotReported}
}

// Message explains a reason in half a sentence; empty for none.
func (u Unknown) Message() string {
	switch u {
	case UnknownTooFewSamples:
		return "fewer than 3 imports from its source, or from that of an image ahead of it, have ended"
	case UnknownSize:
		return "the size of its download, or of one ahead of it, is unknown"
	case UnknownWaitsForPerson:
		return "a person has to act first"
	case UnknownNothingGranted:
		return "the fleet-wide budget grants no slot, now or when it would begin"
	case UnknownNotListed:
		return "it is behind the listed head of the queue"
	case UnknownNotReported:
		return "the cluster has not reported what it imports"
	default:
		return ""
	}
}

// Snapshot is what a member imports and queues.
type Snapshot struct {
	// Activity of the member; nil for none.
	Activity *v1alpha1.ReportedActivity
	// SourceLimits are how many imports from a group of sources may run, where the fleet-wide
	// budget limits it.
	SourceLimits map[string]int32
	// ObservedAt is when the activity was observed, by the clock of Now. Zero: as the activity
	// says.
	ObservedAt time.Time
	Now        time.Time
}

// Estimate is when an image is expected to be imported.
type Estimate struct {
	// Position in the queue, from 1; 0 for an import that runs, or that is not listed.
	Position int
	// At is when it is expected; 9 of 10 end between Low and High. Zero with Why.
	At, Low, High time.Time
	// Begin is when it is expected to get its slot: what lies before, others wait for at the same
	// time. Zero with Why, and for an import that runs.
	Begin time.Time
	// AtMost: a size is unknown, and that of the disk counts; it may be done before Low.
	AtMost bool
	// Why no time is given; empty where one is.
	Why Unknown
}

// ForImage estimates one image. found: the activity lists it.
func (s Snapshot) ForImage(namespace, name string) (estimate Estimate, found bool) {
	if s.Activity == nil {
		return Estimate{Why: UnknownNotReported}, false
	}
	for i := range s.Activity.Active {
		if s.Activity.Active[i].Namespace == namespace && s.Activity.Active[i].Name == name {
			return s.Active(i), true
		}
	}
	for i := range s.Activity.Head {
		if s.Activity.Head[i].Namespace == namespace && s.Activity.Head[i].Name == name {
			return s.Queued(i), true
		}
	}
	if s.isOld() {
		return Estimate{Why: UnknownNotReported}, false
	}
	return Estimate{Why: UnknownNotListed}, false
}

// Active estimates the import at an index of Activity.Active.
func (s Snapshot) Active(i int) Estimate {
	if s.isOld() {
		return Estimate{Why: UnknownNotReported}
	}
	return s.toEstimate(0, s.remainingImport(&s.Activity.Active[i]))
}

// Queued estimates the image at an index of Activity.Head.
func (s Snapshot) Queued(i int) Estimate {
	if s.isOld() {
		return Estimate{Position: i + 1, Why: UnknownNotReported}
	}
	return s.toEstimate(i+1, s.playQueue(i))
}

// ForNew estimates an image that joins the end of the queue now.
func (s Snapshot) ForNew(q v1alpha1.QueuedImport) Estimate {
	// An idle member does not tell that its budget has changed.
	if s.Activity == nil || s.isOld() || s.Activity.Budget <= 0 && s.isIdle() && q.OpensAt == nil {
		return Estimate{Why: UnknownNotReported}
	}
	head := s.Activity.Head
	if int(s.Activity.Queued) > len(head) {
		return Estimate{Why: UnknownNotListed}
	}
	behind := *s.Activity
	notBefore := metav1.NewTime(behind.ObservedAt.Add(s.Now.Sub(s.observedAt())))
	q.NotBefore = &notBefore
	if q.OpensAt != nil {
		behind.Budget = 0 // nothing starts before: an idle member does not tell that either
	}
	behind.Head = slices.Concat(head, []v1alpha1.QueuedImport{q})
	s.Activity = &behind
	return s.toEstimate(len(head)+1, s.playQueue(len(head)))
}

// NextFreeSlot is when a slot is free: now, or when the first import ends. ok is false where
// that is unknown.
func (s Snapshot) NextFreeSlot() (at time.Time, ok bool) {
	if s.Activity == nil || s.isOld() || s.Activity.Budget <= 0 {
		return at, false
	}
	if s.Activity.Slots < s.Activity.Budget {
		return s.Now, true
	}
	for i := range s.Activity.Active {
		if e := s.Active(i); e.Why == "" && (!ok || e.At.Before(at)) {
			at, ok = e.At, true
		}
	}
	return at, ok
}

// IsSlow reports whether an import has less than half the rate of the slowest fifth from its
// source.
func IsSlow(a *v1alpha1.ReportedActivity, i *v1alpha1.ActiveImport) bool {
	at := slices.IndexFunc(a.Rates, func(rate v1alpha1.SourceRate) bool { return rate.Name == i.Source })
	return at >= 0 && a.Rates[at].Samples >= MinSamples && i.BytesPerSecond > 0 && i.BytesPerSecond < a.Rates[at].P20/2
}

func (s Snapshot) observedAt() time.Time {
	if s.ObservedAt.IsZero() {
		return s.Activity.ObservedAt.Time
	}
	return s.ObservedAt
}

// isOld is false for the last activity before a member became idle, however long ago.
func (s Snapshot) isOld() bool {
	return s.Activity == nil || s.Now.Sub(s.observedAt()) > MaxAge && !s.isIdle()
}

func (s Snapshot) isIdle() bool {
	a := s.Activity
	return len(a.Active) == 0 && len(a.Head) == 0 && a.Queued <= 0 && a.Slots <= 0
}

const (
	// rangeWidth is how many standard deviations contain 9 of 10 values.
	rangeWidth = 1.645
	// sharedDeviation is how far all imports of a member are slower or faster together, as their
	// network is. Unlike the deviation of each, it does not even out.
	sharedDeviation = 0.15
)

// toEstimate turns the time left since the observation into times. The range is symmetric in
// the logarithm, as rates are, so that Low is never before the observation.
func (s Snapshot) toEstimate(position int, left work) Estimate {
	e := Estimate{Position: position, Why: left.why}
	if left.why != "" {
		return e
	}
	deviation := 0.0
	if left.seconds > 0 {
		deviation = math.Hypot(math.Sqrt(left.variance)/left.seconds, sharedDeviation)
	}
	factor := math.Exp(rangeWidth * deviation)
	e.AtMost = left.atMost
	if position > 0 {
		e.Begin = s.timeAfter(left.begin)
	}
	e.At, e.Low, e.High = s.timeAfter(left.seconds), s.timeAfter(left.seconds/factor), s.timeAfter(left.seconds*factor)
	return e
}

// timeAfter is never before Now: what should have ended has not.
func (s Snapshot) timeAfter(seconds float64) time.Time {
	at := s.observedAt().Add(time.Duration(min(seconds, maxSeconds) * float64(time.Second)))
	if at.Before(s.Now) {
		return s.Now
	}
	return at
}
