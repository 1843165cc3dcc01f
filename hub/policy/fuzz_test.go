package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// FuzzParsePolicy: whoever edits the fleet's policy ConfigMap can set any keys to any values,
// and labels of members are anything.
func FuzzParsePolicy(f *testing.F) {
	f.Add("overrides", "- {cluster: a, concurrency: 1}\n- {selector: {matchLabels: {edge: \"true\"}}, retryBackoffDuration: 5m}", "concurrency", "3", "edge")
	f.Add("overrides", "- selector: {matchExpressions: [{key: edge, operator: Exists}]}\n  namespaceShare: 1", "fleetConcurrency", "20", "edge")
	f.Add("fleetSources", "- {name: a, hosts: [\"*.example.com\"], concurrency: 8}", "fleetConcurrency", "4", "")
	f.Add("fleetGrantDuration", "1s", "safeConcurrency", "2", "x")
	f.Add("fleetWeight", "0", "allowedNamespaces", "*", "x")
	f.Add("overrides", "&a [*a]", "overrides ", "- {}", "x")
	// Small texts that a parser may make large.
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h"} {
		previous := string(name[0] - 1)
		bomb += name + ": &" + name + " [" + strings.Repeat("*"+previous+",", 10) + "]\n"
	}
	f.Add("overrides", bomb, "concurrency", "3", "x")
	f.Add("overrides", strings.Repeat("[", 20000), "fleetSources", strings.Repeat("{a: ", 5000), "x")
	f.Add("overrides", "- {cluster: a, concurrency: "+strings.Repeat("9", 20000)+"}", "retryLimit", strings.Repeat("x", 20000), "x")
	f.Fuzz(func(t *testing.T, key, value, another, anotherValue, label string) {
		p, _, errs := policy.ParsePolicy(map[string]string{key: value, another: anotherValue})
		require.LessOrEqual(t, len(policy.FormatErrors(errs)), 2048)
		require.Equal(t, len(errs) > 0, p == nil, "%v", errs)
		if p == nil {
			return
		}
		members := []policy.Member{{Name: "a", Labels: map[string]string{label: "true"}}, {Name: "b"}}
		for _, e := range p.ValidateMembers(members) {
			require.NotEmpty(t, e.Message)
		}
		for _, m := range members {
			data, source, errs := p.ForMember(m.Name, m.Labels)
			require.LessOrEqual(t, len(source), 512)
			if len(errs) > 0 {
				continue
			}
			_, unknown, errs := apipolicy.Parse(data)
			require.Empty(t, errs, "an agent refuses %v", data)
			assert.Empty(t, unknown)
		}
	})
}
