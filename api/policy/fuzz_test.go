package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// FuzzParseConfigMap: whoever edits a cluster's policy ConfigMap can set any keys to any
// values.
func FuzzParseConfigMap(f *testing.F) {
	for key, value := range map[string]string{
		"concurrency": "3", "retryBackoffDuration": "1h30m", "maxRetryBackoff": "1s", "preflight": "maybe", "allowedNamespaces": "farm, ci-*\nlab",
		"namespaceShare": "-1", "preflightAllow": "10.0.0.0/8 *.example.com", "attemptTimeout": "9999999h",
	} {
		f.Add(key, value, "concurrency", "4")
	}
	f.Fuzz(func(t *testing.T, key, value, another, anotherValue string) {
		data := map[string]string{key: value, another: anotherValue}
		p, unknown, errs := policy.ParseConfigMap(data)
		requireBoundedErrors(t, errs)
		assert.LessOrEqual(t, len(unknown)+len(errs), 2*len(data))
		if len(errs) > 0 {
			assert.True(t, p.Equal(policy.Policy{}))
			return
		}
		requireUsable(t, p)
		_, set := data[policy.KeyConcurrency]
		assert.Equal(t, !set, p.ConcurrencyUnset)
		p.ConcurrencyUnset = false // it is stored with the default
		again, ignored, errs := policy.ParseConfigMap(p.ToData())
		require.Empty(t, errs)
		assert.Empty(t, ignored)
		assert.True(t, p.Equal(again), "%+v is stored as %+v", p, again)
	})
}

// FuzzParsePlan: what a hub, or who pretends to be one, writes into a plan.
func FuzzParsePlan(f *testing.F) {
	f.Add("safeConcurrency", "1", "fleetSources", `[{"name":"a","hosts":["*.example.com"]}]`)
	f.Add("concurrency", "2", "fleetSources", "- {name: a, hosts: [a.example.com]}\n- {name: a}")
	f.Add("allowedNamespaces", "*", "safeConcurrency", "x")
	f.Add("safeConcurrency", "1", "fleetSources", strings.Repeat("[", 16000))
	f.Add("safeConcurrency", strings.Repeat("1", 16000), "fleetSources", strings.Repeat("- {name: a, hosts: [b]}\n", 600))
	f.Fuzz(func(t *testing.T, key, value, another, anotherValue string) {
		p, _, errs := policy.Parse(map[string]string{key: value, another: anotherValue})
		requireBoundedErrors(t, errs)
		if len(errs) > 0 {
			return
		}
		requireUsable(t, p)
		assert.Empty(t, p.AllowedNamespaces)
		again, ignored, errs := policy.Parse(p.ToData())
		require.Empty(t, errs)
		assert.Empty(t, ignored)
		assert.True(t, p.Equal(again), "%+v is stored as %+v", p, again)
		_, _ = p.Sources.GroupOfURL(value)
	})
}

func requireBoundedErrors(t *testing.T, errs []policy.KeyError) {
	t.Helper()
	for _, err := range errs {
		require.LessOrEqual(t, len(err.Message), 512)
		require.NotEmpty(t, err.Message)
	}
}

// requireUsable checks what the agent relies on.
func requireUsable(t *testing.T, p policy.Policy) {
	t.Helper()
	for _, slots := range []int32{p.Concurrency, p.SafeConcurrency, p.NamespaceShare} {
		require.True(t, slots >= 0 && slots <= v1alpha1.MaxSlots, "%+v", p)
	}
	require.True(t, p.RetryBackoff >= 0 && p.MaxRetryBackoff >= p.RetryBackoff, "%+v", p)
	require.True(t, p.AttemptTimeout > 0 && p.StallTimeout > 0, "%+v", p)
	size := 0
	for key, value := range p.ToData() {
		size += len(key) + len(value)
	}
	require.Less(t, size, 64<<10, "it has to fit into plan, ledger and report")
}
