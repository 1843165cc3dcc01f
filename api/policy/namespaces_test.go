package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/policy"
)

func TestAllowedNamespaces(t *testing.T) {
	for text, namespaces := range map[string]map[string]bool{
		"farm":            {"farm": true, "farm-2": false, "far": false},
		"farm, ci-*\nlab": {"farm": true, "ci-1": true, "ci-": true, "ci": false, "lab": true},
		"*":               {"farm": true},
		"*-images":        {"a-images": true, "images": false},
		"a*b*c":           {"abc": true, "a-b-c": true, "ab": false},
	} {
		p, unknown, errs := policy.ParseConfigMap(map[string]string{"allowedNamespaces": text})
		require.Empty(t, errs)
		assert.Empty(t, unknown)
		for namespace, want := range namespaces {
			assert.Equal(t, want, p.AllowedNamespaces.Allow(namespace), "%s by %q", namespace, text)
		}
		p.ConcurrencyUnset = false // it is stored with the default
		again, _, errs := policy.ParseConfigMap(p.ToData())
		require.Empty(t, errs)
		assert.True(t, p.Equal(again))
		planned, unknown, errs := policy.Parse(p.ToData())
		require.Empty(t, errs)
		assert.Equal(t, []string{"allowedNamespaces"}, unknown, "a plan cannot set it")
		assert.Empty(t, planned.AllowedNamespaces)
	}
	assert.True(t, policy.Default().AllowedNamespaces.Allow("any"))
}

func TestWrongAllowedNamespaces(t *testing.T) {
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprint("n", i))
	}
	for text, want := range map[string]string{
		",":                         "names no namespace",
		"":                          "names no namespace",
		"Farm":                      `"Farm" must be the name of a namespace`,
		"[farm]":                    "must be the name of a namespace",
		"farm,-x":                   `"-x" must be`,
		strings.Repeat("a", 64):     "must be the name of a namespace",
		strings.Join(many, ","):     "the maximum is 64",
		strings.Repeat("a,", 20000): "has 40000 bytes: the maximum is 16384",
	} {
		_, _, errs := policy.ParseConfigMap(map[string]string{"allowedNamespaces": text})
		require.Len(t, errs, 1, "%.20q", text)
		assert.Equal(t, "allowedNamespaces", errs[0].Key)
		assert.Contains(t, errs[0].Message, want)
	}
}

func TestPlanCannotOverrideAllowedNamespaces(t *testing.T) {
	own, planned := policy.Default(), policy.Default()
	own.AllowedNamespaces, planned.AllowedNamespaces = policy.Namespaces{"farm"}, policy.Namespaces{"*"}
	assert.Equal(t, own.AllowedNamespaces, policy.Combine(&own, &planned).AllowedNamespaces)
	assert.Equal(t, own.AllowedNamespaces, policy.Combine(&own, nil).AllowedNamespaces)
	assert.Empty(t, policy.Combine(nil, &planned).AllowedNamespaces)
}
