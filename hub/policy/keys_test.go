package policy_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/hub/policy"
)

func TestKeysAreAllThatTheParserKnows(t *testing.T) {
	var names []string
	for _, k := range policy.Keys() {
		names = append(names, k.Name)
	}
	assert.ElementsMatch(t, policy.KnownKeys(), names)
}

// acceptsKey reports whether a policy with this value, and else with room for it, is read.
func acceptsKey(key, value string) bool {
	data := map[string]string{"fleetConcurrency": "100000", "attemptTimeout": "720h", "retryBackoffDuration": "0s", key: value}
	_, _, errs := policy.ParsePolicy(data)
	return len(errs) == 0
}

func TestBoundsOfKeysAreTheParsers(t *testing.T) {
	for _, k := range policy.Keys() {
		t.Run(k.Name, func(t *testing.T) {
			var below, above string
			switch k.Kind {
			case readapi.PolicyNumber:
				least, err := strconv.Atoi(k.Least)
				require.NoError(t, err)
				most, err := strconv.Atoi(k.Most)
				require.NoError(t, err)
				below, above = strconv.Itoa(least-1), strconv.Itoa(most+1)
			case readapi.PolicyDuration:
				least, err := time.ParseDuration(k.Least)
				require.NoError(t, err)
				most, err := time.ParseDuration(k.Most)
				require.NoError(t, err)
				below, above = (least - time.Second).String(), (most + time.Second).String()
			default:
				assert.Empty(t, k.Least+k.Most)
				assert.True(t, k.Default == "" || acceptsKey(k.Name, k.Default))
				return
			}
			assert.True(t, acceptsKey(k.Name, k.Least), k.Least)
			assert.True(t, acceptsKey(k.Name, k.Most), k.Most)
			assert.False(t, acceptsKey(k.Name, below), below)
			assert.False(t, acceptsKey(k.Name, above), above)
		})
	}
}

// The page and the chart say the same of each key.
func TestKeysAreThoseOfPageAndChart(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	require.NoError(t, err)
	template, err := os.ReadFile("../../charts/ot-hub/templates/_policykeys.tpl")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(template), `{{- define "ot-hub.policyKeys" -}}`)
	require.True(t, found)
	text, _, _ = strings.Cut(text, "{{- end }}")
	var chart map[string]struct {
		Kind        string `json:"kind"`
		Least, Most any
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &chart))
	kinds := map[readapi.PolicyKind]string{readapi.PolicyNumber: "number", readapi.PolicyDuration: "duration", readapi.PolicyBoolean: "boolean", readapi.PolicyHosts: "sources"}
	for _, k := range policy.Keys() {
		value := " "
		if k.Default != "" {
			value = " `" + k.Default + "` "
		}
		assert.Contains(t, string(page), fmt.Sprintf("| `%s` |%s| %s |", k.Name, value, k.Meaning), "docs/policy.md")
		is, known := chart[k.Name]
		if kinds[k.Kind] == "" {
			assert.False(t, known, "%s: the hub alone reads it", k.Name)
			continue
		}
		require.True(t, known, k.Name)
		assert.Equal(t, kinds[k.Kind], is.Kind, k.Name)
		if k.Least != "" {
			assert.Equal(t, []string{k.Least, k.Most}, []string{fmt.Sprint(is.Least), fmt.Sprint(is.Most)}, k.Name)
		}
		delete(chart, k.Name)
	}
	assert.Empty(t, chart)
}

func TestOverrideUses(t *testing.T) {
	p, _, errs := policy.ParsePolicy(map[string]string{"overrides": `
- {cluster: bergen, concurrency: 4}
- {selector: {matchLabels: {edge: "true"}}, concurrency: 1, retryLimit: 5}
- {selector: {matchLabels: {site: oslo}}, concurrency: 2}
- {cluster: bergen, concurrency: 8}`})
	require.Empty(t, errs)
	edge := map[string]string{"edge": "true"}
	uses := p.OverrideUses([]policy.Member{{Name: "bergen", Labels: edge}, {Name: "edge-1", Labels: edge}, {Name: "kiel"}})
	key := func(name, value string, members int) readapi.PolicyOverrideKey {
		return readapi.PolicyOverrideKey{Name: name, Value: value, Members: members}
	}
	assert.Equal(t, []readapi.PolicyOverride{
		{Source: "override cluster=bergen", Members: 1, Keys: []readapi.PolicyOverrideKey{key("concurrency", "4", 0)}},
		{Source: "override edge=true", Members: 2, Keys: []readapi.PolicyOverrideKey{key("concurrency", "1", 1), key("retryLimit", "5", 2)}},
		{Source: "override site=oslo", Keys: []readapi.PolicyOverrideKey{key("concurrency", "2", 0)}},
		{Source: "override cluster=bergen", Members: 1, Keys: []readapi.PolicyOverrideKey{key("concurrency", "8", 1)}},
	}, uses)
	// Where an override decides, the members' policies say so.
	data, _, errs := p.ForMember("bergen", edge)
	require.Empty(t, errs)
	assert.Equal(t, "8", data["concurrency"])
}

// An override by name that sets the concurrency drops the windows of those by selector.
func TestOverrideUsesOfWindows(t *testing.T) {
	p, _, errs := policy.ParsePolicy(map[string]string{"overrides": `
- {selector: {matchLabels: {edge: "true"}}, windows: [{cron: "0 22 * * *", duration: 8h, concurrency: 16}]}
- {cluster: bergen, concurrency: 0}`})
	require.Empty(t, errs)
	edge := map[string]string{"edge": "true"}
	uses := p.OverrideUses([]policy.Member{{Name: "bergen", Labels: edge}, {Name: "oslo", Labels: edge}})
	require.Len(t, uses[0].Keys, 1)
	assert.Equal(t, 2, uses[0].Members)
	assert.Equal(t, 1, uses[0].Keys[0].Members)
}
