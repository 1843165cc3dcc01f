package policy

import (
	"slices"
	"sync/atomic"

	"github.com/pelotech/ot-fleet/api/policy"
)

// InForce is the policy in force, for the controllers that only follow it. It is safe for
// concurrent use.
type InForce struct {
	current atomic.Pointer[policy.Policy]
	opening atomic.Pointer[policy.Opening]
	known   atomic.Bool
}

// Known is true once the policy has been read. A new leader must not judge an attempt
// before: by the defaults the backoff and the number of retries may be others.
func (p *InForce) Known() bool { return p.known.Load() }

// Current returns the policy in force; nil where there never was a valid one.
func (p *InForce) Current() *policy.Policy { return p.current.Load() }

// Opening returns when a window lets more imports run than Current; nil for never, or where
// that is unknown.
func (p *InForce) Opening() *policy.Opening { return p.opening.Load() }

// PreflightAllow returns the internal sources that the preflight asks.
func (p *InForce) PreflightAllow() policy.PreflightAllow {
	if current := p.Current(); current != nil {
		return current.PreflightAllow
	}
	return nil
}

// SetInitial puts the policy that is read first in force at once. A later one is in force
// only once the SyncLedger is written under it.
func (p *InForce) SetInitial(first *policy.Policy, opening *policy.Opening) {
	if !p.known.Load() {
		p.opening.Store(opening)
		p.current.Store(first)
		p.known.Store(true)
	}
}

// PolicyChange is what a change of the policy matters to.
type PolicyChange struct {
	// WaitingImages may have to be reconciled.
	WaitingImages bool
	// AllowedNamespaces have changed.
	AllowedNamespaces bool
}

// Replace puts a policy in force.
func (p *InForce) Replace(next *policy.Policy, opening *policy.Opening) (c PolicyChange) {
	openingBefore := p.opening.Swap(opening)
	before := p.current.Swap(next)
	namespacesOf := func(p *policy.Policy) policy.Namespaces {
		if p == nil {
			return nil
		}
		return p.AllowedNamespaces
	}
	c.AllowedNamespaces = !slices.Equal(namespacesOf(before), namespacesOf(next))
	isPaused := func(p *policy.Policy) bool { return p == nil || p.Concurrency == 0 }
	sameOpening := openingBefore == opening || openingBefore != nil && opening != nil && *openingBefore == *opening
	c.WaitingImages = !sameOpening || isPaused(before) != isPaused(next) || (before == nil) != (next == nil) ||
		(before != nil && next != nil && (before.StallTimeout != next.StallTimeout || before.AttemptTimeout != next.AttemptTimeout || before.Preflight != next.Preflight ||
			before.RetryLimit != next.RetryLimit))
	return c
}
