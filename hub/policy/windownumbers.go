package policy

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
)

// maxNumberEdges bounds how many openings and closings are looked at for the next one that
// changes a number: each costs a search in every window.
const maxNumberEdges = 64

// WindowNumbers returns the numbers that the windows of the whole fleet put into force at a
// time, and the next other ones; nil without such windows.
func (p *Policy) WindowNumbers(now time.Time) *readapi.PolicyWindowNumbers {
	if len(p.windows) == 0 {
		return nil
	}
	defaults, _, errs := apipolicy.Parse(p.defaults)
	if len(errs) > 0 {
		return nil
	}
	plain := apipolicy.Numbers{Concurrency: defaults.Concurrency}
	if p.budget != nil {
		plain.FleetConcurrency = p.budget.Concurrency
	}
	inForce, edge := p.windows.At(now, plain)
	numbers := &readapi.PolicyWindowNumbers{Now: p.shownNumbers(inForce)}
	for range maxNumberEdges {
		if edge.IsZero() {
			break
		}
		at := metav1.NewTime(edge)
		var next apipolicy.Numbers
		if next, edge = p.windows.At(edge, plain); next != inForce {
			then := p.shownNumbers(next)
			numbers.ChangesAt, numbers.Then = &at, &then
			break
		}
	}
	return numbers
}

func (p *Policy) shownNumbers(n apipolicy.Numbers) readapi.PolicyNumbers {
	shown := readapi.PolicyNumbers{Concurrency: n.Concurrency}
	if p.budget != nil {
		shown.FleetConcurrency = &n.FleetConcurrency
	}
	return shown
}
