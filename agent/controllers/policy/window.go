package policy

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Window is what the windows of plan and ConfigMap say at one time.
type Window struct {
	// NextEdge is when a window opens or closes next; zero where there are no windows.
	NextEdge time.Time
	// Opening is when more imports may run; nil where that is unknown.
	Opening *policy.Opening
}

// InForceAt returns the state with the numbers of a time.
func (s State) InForceAt(now time.Time) State {
	s.Window = Window{}
	s.Policy, s.Window.NextEdge = policy.CombineAt(s.own, s.planned, now)
	if s.Window.NextEdge.IsZero() {
		return s
	}
	if opening, found := policy.NextOpening(s.own, s.planned, now); found {
		s.Window.Opening = &opening
	}
	return s
}

// ConcurrencyAt returns the concurrency at a time; 0 where there never was a valid policy.
func (s State) ConcurrencyAt(now time.Time) int32 {
	p, _ := policy.CombineAt(s.own, s.planned, now)
	if p == nil {
		return 0
	}
	return p.Concurrency
}

func (s State) inForceStatus() *v1alpha1.InForceConcurrency {
	if s.Policy == nil || s.Window.NextEdge.IsZero() {
		return nil
	}
	changesAt := metav1.NewTime(s.Window.NextEdge)
	inForce := &v1alpha1.InForceConcurrency{Concurrency: s.Policy.Concurrency, ChangesAt: &changesAt}
	if o := s.Window.Opening; o != nil {
		opensAt := metav1.NewTime(o.At)
		inForce.OpensAt = &opensAt
	}
	return inForce
}

// describe returns the end of the message of condition PolicyAccepted.
func (w Window) describe(inForce *policy.Policy) string {
	if inForce == nil || w.NextEdge.IsZero() {
		return ""
	}
	text := fmt.Sprintf("; by the windows, concurrency is %d until %s at least", inForce.Concurrency, w.NextEdge.UTC().Format(time.RFC3339))
	if w.Opening != nil {
		text += fmt.Sprintf(", and %d from %s on", w.Opening.Concurrency, w.Opening.Describe())
	}
	return text
}
