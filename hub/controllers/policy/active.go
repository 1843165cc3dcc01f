package policy

import (
	"sync"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// ActivePolicy is the fleet's policy that is in force, for those who plan by it.
type ActivePolicy struct {
	mu       sync.Mutex
	state    State
	onChange []func()
}

// State of the fleet's policy.
type State struct {
	// Known tells that the ConfigMap has been asked for. Before, that there is no
	// policy says nothing.
	Known bool
	// Policy in force; nil where there was never a valid one.
	Policy *policy.Policy
	// Errors say why the ConfigMap, as it is, is not in force.
	Errors []apipolicy.KeyError
	// Message says so for people.
	Message string
}

// Current state of the policy.
func (p *ActivePolicy) Current() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// OnChange has something done, without blocking, whenever the state has changed.
// Call it before the controller starts.
func (p *ActivePolicy) OnChange(do func()) { p.onChange = append(p.onChange, do) }

func (p *ActivePolicy) publish(s State) {
	p.mu.Lock()
	p.state = s
	p.mu.Unlock()
	for _, do := range p.onChange {
		do()
	}
}
