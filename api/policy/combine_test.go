package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCombine(t *testing.T) {
	own := apitest.Policy().Concurrency(2).RetryLimit(7).MaxPriority(1).Obj()
	planned := apitest.Policy().Concurrency(5).RetryLimit(1).Backoff(time.Second, time.Minute).WithoutPreflight().Obj()
	capped := planned
	capped.Concurrency = 2
	paused := own
	paused.Concurrency = 0
	pausedPlan := planned
	pausedPlan.Concurrency = 0
	generous := own
	generous.Concurrency = 9
	limited, limitedOwn := planned, own
	limited.UsesGrants, limited.SafeConcurrency, limited.Sources = true, 1, policy.Sources{{Name: "eu", Hosts: []string{"a"}}}
	limitedOwn.UsesGrants, limitedOwn.SafeConcurrency = true, 4
	unset := own
	unset.Concurrency, unset.ConcurrencyUnset = 3, true
	defaulted := unset
	defaulted.ConcurrencyUnset = false
	cappedLimited := limited
	cappedLimited.Concurrency = 2

	for _, tt := range []struct {
		name               string
		own, planned, want *policy.Policy
	}{
		{"none", nil, nil, nil},
		{"its own alone", &own, nil, &own},
		{"the plan alone", nil, &planned, &planned},
		{"its own concurrency is smaller", &own, &planned, &capped},
		{"the plan's concurrency is smaller", &generous, &planned, &planned},
		{"paused by its ConfigMap", &paused, &planned, &pausedPlan},
		{"paused by the plan", &own, &pausedPlan, &pausedPlan},
		{"its own sets none beside a plan", &unset, &planned, &planned},
		{"its own sets none, without a plan", &unset, nil, &defaulted},
		{"its own sets none, and the plan pauses", &unset, &pausedPlan, &pausedPlan},
		{"the plan uses grants", &own, &limited, &cappedLimited},
		{"only a plan, which uses grants", nil, &limited, &limited},
		{"a ConfigMap cannot use grants", &limitedOwn, nil, &own},
		{"a plan that does not have it go by grants", &limitedOwn, &planned, &capped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, policy.Combine(tt.own, tt.planned))
		})
	}
}

func TestCombineReturnsCopy(t *testing.T) {
	own, planned := apitest.Policy().Obj(), apitest.Policy().Obj()
	for _, p := range []*policy.Policy{policy.Combine(&own, nil), policy.Combine(nil, &planned), policy.Combine(&own, &planned)} {
		p.RetryLimit = 99
	}
	assert.Equal(t, policy.Default(), own)
	assert.Equal(t, policy.Default(), planned)
}

func generatePolicy() *rapid.Generator[policy.Policy] {
	return rapid.Custom(func(t *rapid.T) policy.Policy {
		first := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "first"))
		return policy.Policy{
			Concurrency:     rapid.Int32Range(0, v1alpha1.MaxSlots).Draw(t, "concurrency"),
			RetryLimit:      rapid.Int32Range(0, 100).Draw(t, "retryLimit"),
			RetryBackoff:    first,
			MaxRetryBackoff: first + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "more")),
			AttemptTimeout:  time.Second + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "attempt")),
			StallTimeout:    time.Second + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "stall")),
			MaxPriority:     rapid.Int32Range(0, 1000).Draw(t, "maxPriority"),
			ResyncLimit:     rapid.Int32Range(0, 100).Draw(t, "resyncLimit"),
			Preflight:       rapid.Bool().Draw(t, "preflight"),
			PreflightAllow:  generatePreflightAllow().Draw(t, "preflightAllow"),
			UsesGrants:      true,
			SafeConcurrency: rapid.Int32Range(0, v1alpha1.MaxSlots).Draw(t, "safe"),
			Sources:         policy.Sources{{Name: "eu", Hosts: []string{"*.example.com"}}},
		}
	})
}

func TestCombineProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		own, planned := generatePolicy().Draw(t, "own"), generatePolicy().Draw(t, "planned")
		got := policy.Combine(&own, &planned)
		require.NotNil(t, got)
		assert.LessOrEqual(t, got.Concurrency, own.Concurrency)
		assert.LessOrEqual(t, got.Concurrency, planned.Concurrency)
		assert.Contains(t, []int32{own.Concurrency, planned.Concurrency}, got.Concurrency)

		rest := *got
		rest.Concurrency = planned.Concurrency
		assert.Equal(t, planned, rest, "all but concurrency are the plan's")

		assert.Equal(t, got, policy.Combine(&own, got), "what holds already changes nothing")
		parsed, unknown, errs := policy.Parse(got.ToData())
		assert.Empty(t, errs)
		assert.Empty(t, unknown)
		assert.Equal(t, *got, parsed, "it can be stored and read again")
	})
}
