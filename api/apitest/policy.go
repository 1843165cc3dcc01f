package apitest

import (
	"time"

	"github.com/pelotech/ot-fleet/api/policy"
)

// PolicyBuilder builds a Policy.
type PolicyBuilder struct{ p policy.Policy }

// Policy is the default one.
func Policy() *PolicyBuilder { return &PolicyBuilder{policy.Default()} }

// Obj returns the policy.
func (b *PolicyBuilder) Obj() policy.Policy { return b.p }

// ToData returns the policy as the data of its ConfigMap.
func (b *PolicyBuilder) ToData() map[string]string { return b.p.ToData() }

// Concurrency sets how many imports may run.
func (b *PolicyBuilder) Concurrency(n int32) *PolicyBuilder { b.p.Concurrency = n; return b }

// RetryLimit sets how often a failed import is tried again.
func (b *PolicyBuilder) RetryLimit(n int32) *PolicyBuilder { b.p.RetryLimit = n; return b }

// Backoff sets the first wait before a retry, and the longest.
func (b *PolicyBuilder) Backoff(first, most time.Duration) *PolicyBuilder {
	b.p.RetryBackoff, b.p.MaxRetryBackoff = first, most
	return b
}

// Timeouts sets how long an attempt may take, and how long it may stand still.
func (b *PolicyBuilder) Timeouts(attempt, stall time.Duration) *PolicyBuilder {
	b.p.AttemptTimeout, b.p.StallTimeout = attempt, stall
	return b
}

// ResyncLimit sets how often lost storage is synced again.
func (b *PolicyBuilder) ResyncLimit(n int32) *PolicyBuilder { b.p.ResyncLimit = n; return b }

// MaxPriority caps the priority of images.
func (b *PolicyBuilder) MaxPriority(n int32) *PolicyBuilder { b.p.MaxPriority = n; return b }

// WithoutPreflight leaves the question whether there is an image to the import.
func (b *PolicyBuilder) WithoutPreflight() *PolicyBuilder { b.p.Preflight = false; return b }
