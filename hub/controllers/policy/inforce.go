package policy

import (
	"sync"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// InForce is the fleet's policy in force. The zero InForce is ready for use.
type InForce struct {
	mu       sync.Mutex
	state    State
	onChange []func()
}

// State of the fleet's policy.
type State struct {
	// Known: the ConfigMap has been read, and what of it is valid is stored or was before. Otherwise the
	// lack of a policy means nothing.
	Known bool
	// Policy in force; nil if there was never a valid one.
	Policy *policy.Policy
	// Refused: the current ConfigMap is missing, invalid or cannot be stored.
	Refused bool
	// Errors are why the current ConfigMap is not in force.
	Errors []apipolicy.KeyError
	// Standing are the errors of the policy in force for the current members.
	Standing []apipolicy.KeyError
	// Message describes the state for people.
	Message string
}

// Current returns the state.
func (p *InForce) Current() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// OnChange registers a function that is called when the state changes. It must not block.
// Call OnChange before the controller starts.
func (p *InForce) OnChange(do func()) { p.onChange = append(p.onChange, do) }

func (p *InForce) publish(s State) {
	p.mu.Lock()
	p.state = s
	p.mu.Unlock()
	for _, do := range p.onChange {
		do()
	}
}
