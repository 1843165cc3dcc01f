package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

type data = map[string]string

func mustParse(t require.TestingT, d data) *policy.Policy {
	p, _, errs := policy.ParsePolicy(d)
	require.Empty(t, errs)
	return p
}

func TestPolicyForMember(t *testing.T) {
	for name, tt := range map[string]struct {
		data       data
		member     string
		labels     map[string]string
		want       data // keys that differ from the default
		wantSource string
	}{
		"nothing set": {wantSource: "fleet default"},
		"fleet default": {
			data: data{"concurrency": "7"}, want: data{"concurrency": "7"}, wantSource: "fleet default",
		},
		"a selector": {
			data:   data{"concurrency": "7", "overrides": `[{selector: {matchLabels: {edge: "true"}}, concurrency: 1}]`},
			labels: data{"edge": "true"}, want: data{"concurrency": "1"}, wantSource: "override edge=true",
		},
		"a selector that does not match": {
			data:   data{"overrides": `[{selector: {matchLabels: {edge: "true"}}, concurrency: 1}]`},
			labels: data{"edge": "false"}, wantSource: "fleet default",
		},
		"an expression": {
			data:   data{"overrides": `[{selector: {matchExpressions: [{key: region, operator: In, values: [eu, us]}]}, concurrency: 1}]`},
			labels: data{"region": "eu"}, want: data{"concurrency": "1"}, wantSource: "override region in (eu,us)",
		},
		"a name": {
			data:   data{"overrides": "- cluster: frankfurt\n  concurrency: 9"},
			member: "frankfurt", want: data{"concurrency": "9"}, wantSource: "override cluster=frankfurt",
		},
		"of two selectors the later wins": {
			data: data{"overrides": "- selector: {matchLabels: {edge: 'true'}}\n  concurrency: 1\n" +
				"- selector: {matchLabels: {big: 'true'}}\n  concurrency: 5"},
			labels: data{"edge": "true", "big": "true"}, want: data{"concurrency": "5"}, wantSource: "override big=true",
		},
		"a name wins over a selector that comes later": {
			data: data{"overrides": "- cluster: frankfurt\n  concurrency: 9\n" +
				"- selector: {matchLabels: {edge: 'true'}}\n  concurrency: 1\n  retryLimit: 7"},
			member: "frankfurt", labels: data{"edge": "true"},
			want: data{"concurrency": "9", "retryLimit": "7"}, wantSource: "override edge=true, override cluster=frankfurt",
		},
		"of two overrides by name the later wins": {
			data:   data{"overrides": "- cluster: a\n  concurrency: 9\n- cluster: a\n  concurrency: 8"},
			member: "a", want: data{"concurrency": "8"}, wantSource: "override cluster=a",
		},
		"each key by itself": {
			data: data{"retryLimit": "1", "overrides": "- selector: {matchLabels: {edge: 'true'}}\n  concurrency: 1\n  attemptTimeout: 12h\n" +
				"- cluster: a\n  concurrency: 2"},
			member: "a", labels: data{"edge": "true"},
			want: data{"concurrency": "2", "attemptTimeout": "12h0m0s", "retryLimit": "1"}, wantSource: "override edge=true, override cluster=a",
		},
		"values may be of any scalar type": {
			data:   data{"overrides": "- cluster: a\n  concurrency: '4'\n  preflight: false\n  retryLimit: 0"},
			member: "a", want: data{"concurrency": "4", "preflight": "false", "retryLimit": "0"}, wantSource: "override cluster=a",
		},
		"a longer first backoff raises the longest": {
			data:   data{"overrides": "- cluster: a\n  retryBackoffDuration: 2h"},
			member: "a", want: data{"retryBackoffDuration": "2h0m0s", "maxRetryBackoff": "2h0m0s"}, wantSource: "override cluster=a",
		},
		"one document": {
			data:   data{"overrides": "# ours\n---\n- cluster: a\n  concurrency: 9\n"},
			member: "a", want: data{"concurrency": "9"}, wantSource: "override cluster=a",
		},
		"empty overrides": {data: data{"overrides": " \n"}, wantSource: "fleet default"},
	} {
		t.Run(name, func(t *testing.T) {
			want := apipolicy.Default().ToData()
			for k, v := range tt.want {
				want[k] = v
			}
			got, source, errs := mustParse(t, tt.data).ForMember(tt.member, tt.labels)
			assert.Empty(t, errs)
			assert.Equal(t, want, got)
			assert.Equal(t, tt.wantSource, source)
		})
	}
}

func TestParsePolicyErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		data data
		want []string // key: part of the message
	}{
		"of the defaults":              {data{"concurrency": "many"}, []string{`concurrency: "many" is not a whole number`}},
		"the fleet's budget":           {data{"fleetConcurrency": "100001"}, []string{`fleetConcurrency: "100001" is not a whole number from 0 to 100000`}},
		"a tolerance beyond attempts":  {data{"fleetConcurrency": "1", "attemptTimeout": "10m", "fleetExcessTolerance": "11m"}, []string{`fleetExcessTolerance: "11m" is not a duration from 1s to attemptTimeout, 10m0s`}},
		"grants that hold not at all":  {data{"fleetConcurrency": "1", "fleetGrantDuration": "1s"}, []string{`fleetGrantDuration: "1s" is not a duration in whole seconds from 15s`}},
		"a weight of nothing":          {data{"fleetWeight": "0"}, []string{`fleetWeight: "0" is not a whole number from 1 to 1000`}},
		"a weight in an override":      {data{"overrides": "- {cluster: a, fleetWeight: x}"}, []string{`overrides[0].fleetWeight: "x" is not`}},
		"a group without a budget":     {data{"fleetSources": "[{name: eu, hosts: [a]}]"}, []string{"fleetSources[0].concurrency: give a whole number"}},
		"a group of an unknown key":    {data{"fleetSources": "[{name: eu, hosts: [a], concurency: 1}]"}, []string{"fleetSources: it is not a list of groups"}},
		"a group without hosts":        {data{"fleetSources": "[{name: eu, concurrency: 1}]"}, []string{"fleetSources[0].hosts: add at least one host"}},
		"safe":                         {data{"safeConcurrency": "-1"}, []string{"safeConcurrency: -1 is too small"}},
		"not YAML":                     {data{"overrides": "- a: [1"}, []string{"overrides: it is not YAML"}},
		"a key twice":                  {data{"overrides": "- cluster: a\n  concurrency: 1\n  concurrency: 2"}, []string{"overrides: it is not YAML"}},
		"several documents":            {data{"overrides": "- cluster: a\n  concurrency: 1\n---\n- cluster: b\n  concurrency: 2"}, []string{"overrides: it is more than one YAML document"}},
		"aliases without end":          {data{"overrides": "- cluster: a\n  concurrency: &a [" + strings.Repeat("1,", 6000) + "1]\n- [" + strings.Repeat("*a,", 60) + "*a]"}, []string{"overrides: its YAML aliases (*) repeat too much"}},
		"groups of aliases":            {data{"fleetSources": "- &a [" + strings.Repeat("1,", 6000) + "1]\n- [" + strings.Repeat("*a,", 60) + "*a]"}, []string{"fleetSources: its YAML aliases (*) repeat too much"}},
		"not a list":                   {data{"overrides": "cluster: a"}, []string{"overrides: it is not a list"}},
		"no map":                       {data{"overrides": "- frankfurt\n- null"}, []string{"overrides[0]: an override is a map", "overrides[1]: an override is a map"}},
		"neither cluster nor selector": {data{"overrides": "- concurrency: 1"}, []string{"overrides[0]: name exactly one of cluster and selector"}},
		"both": {data{"overrides": "- cluster: a\n  selector: {matchLabels: {a: b}}\n  concurrency: 1"},
			[]string{"overrides[0]: name exactly one"}},
		"nothing set":            {data{"overrides": "- cluster: a"}, []string{"overrides[0]: it sets nothing"}},
		"no name":                {data{"overrides": "- {cluster: 'Not A Name', concurrency: 1}"}, []string{`overrides[0].cluster: "Not A Name" is not the name of a MemberCluster`}},
		"an empty name":          {data{"overrides": "- {cluster: '', concurrency: 1}"}, []string{`overrides[0].cluster: "" is not`}},
		"an empty selector":      {data{"overrides": "- {selector: {}, concurrency: 1}"}, []string{"overrides[0].selector: the selector is empty"}},
		"a null selector":        {data{"overrides": "- {selector: null, concurrency: 1}"}, []string{"overrides[0].selector: the selector is empty"}},
		"an unknown operator":    {data{"overrides": "- {selector: {matchExpressions: [{key: a, operator: Near}]}, concurrency: 1}"}, []string{"overrides[0].selector: it is not a valid label selector"}},
		"a label that is none":   {data{"overrides": "- {selector: {matchLabels: {a: 'b c'}}, concurrency: 1}"}, []string{"overrides[0].selector: it is not a valid label selector"}},
		"a label without quotes": {data{"overrides": "- {selector: {matchLabels: {edge: true}}, concurrency: 1}"}, []string{`overrides[0].selector: matchLabels takes text only: put the bool in quotes`}},
		"labels at the top":      {data{"overrides": "- {selector: {edge: 'true'}, concurrency: 1}"}, []string{"overrides[0].selector: it is not a label selector with matchLabels"}},
		"an unknown key":         {data{"overrides": "- {cluster: a, concurency: 1}"}, []string{"overrides[0].concurency: there is no such key"}},
		"of the fleet in an override": {data{"overrides": "- {cluster: a, fleetConcurrency: 1}"},
			[]string{"overrides[0].fleetConcurrency: it is for the whole fleet"}},
		"a value that is none": {data{"overrides": "- {cluster: a, concurrency: [1]}"}, []string{"overrides[0].concurrency: [1] is not a value"}},
		"a null":               {data{"overrides": "- {cluster: a, concurrency: }"}, []string{"overrides[0].concurrency: null is not a value"}},
		"a value out of range": {data{"overrides": "- {cluster: a, concurrency: 257}"}, []string{"overrides[0].concurrency: 257 is too large"}},
		"a fraction":           {data{"overrides": "- {cluster: a, concurrency: 1.5}"}, []string{`overrides[0].concurrency: "1.5" is not`}},
		"against the defaults": {data{"overrides": "- {cluster: a, maxRetryBackoff: 30s}"}, []string{"overrides[0].maxRetryBackoff: 30s is less than retryBackoffDuration, 1m0s"}},
		"each of them, everywhere": {data{"concurrency": "-1", "fleetConcurrency": "x", "overrides": "- {cluster: a, retryLimit: x}\n- {cluster: b, concurrency: 1}\n- {nothing: 1}"},
			[]string{"concurrency: -1 is too small", "fleetConcurrency: \"x\" is not", `overrides[0].retryLimit: "x" is not`, "overrides[2]: name exactly one", "overrides[2].nothing: there is no such key"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, errs := policy.ParsePolicy(tt.data)
			assert.Nil(t, p)
			require.Len(t, errs, len(tt.want), "%v", errs)
			for i, want := range tt.want {
				assert.Contains(t, errs[i].Error(), want)
				assert.NotContains(t, errs[i].Error(), "\n")
			}
		})
	}
}

func TestParsePolicyUnknownKeys(t *testing.T) {
	p, unknown, errs := policy.ParsePolicy(data{"concurrency": "4", "preflightAllow": "10.0.0.0/8", "later": "x", "another": "y"})
	assert.Empty(t, errs)
	assert.Equal(t, []string{"another", "later"}, unknown)
	got, _, _ := p.ForMember("a", nil)
	want := apipolicy.Default().ToData()
	want["preflightAllow"] = "10.0.0.0/8"
	assert.Equal(t, want, withoutConcurrency(got), "no unknown key travels to a member")
}

func TestKeysWithoutEffect(t *testing.T) {
	const sources = "- {name: a, hosts: [a.example.com], concurrency: 1}"
	for name, tt := range map[string]struct {
		data data
		want []string
	}{
		"none":                  {data{"concurrency": "3"}, nil},
		"a budget with its own": {data{"fleetConcurrency": "0", "fleetSources": sources, "safeConcurrency": "0", "fleetWeight": "2", "fleetGrantDuration": "1m", "fleetExcessTolerance": "1m"}, nil},
		"no budget": {
			data{"fleetSources": sources, "fleetWeight": "2", "fleetGrantDuration": "1m", "fleetExcessTolerance": "1m", "overrides": "- {cluster: a, safeConcurrency: 1}"},
			[]string{"without fleetConcurrency, these keys have no effect: fleetExcessTolerance, fleetGrantDuration, fleetSources, fleetWeight, safeConcurrency"},
		},
		"timeouts":                     {data{"attemptTimeout": "2h", "stallTimeout": "2h", "overrides": "- {cluster: a, concurrency: 1}"}, nil},
		"an attempt that is too short": {data{"attemptTimeout": "1s"}, []string{"attemptTimeout, 1s, ends most imports before they are done"}},
		"a stall after the attempt":    {data{"attemptTimeout": "2h", "stallTimeout": "4h"}, []string{"stallTimeout, 4h, ends no import: attemptTimeout, 2h, is shorter"}},
		"timeouts of an override": {
			data{"stallTimeout": "4h", "overrides": "- {cluster: a, attemptTimeout: 30s}\n- {cluster: b, stallTimeout: 7h}"},
			[]string{"overrides[0]: attemptTimeout, 30s, ends most imports before they are done", "overrides[0]: stallTimeout, 4h, ends no import: attemptTimeout, 30s, is shorter", "overrides[1]: stallTimeout, 7h, ends no import: attemptTimeout, 6h, is shorter"},
		},
		"a cluster's own key": {data{"allowedNamespaces": "farm"}, []string{"allowedNamespaces has an effect in a cluster's own ConfigMap only"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, mustParse(t, tt.data).DescribeIneffective())
		})
	}
}

// Any number of overrides may have such a timeout, and what is said of them is stored and sent as a whole.
func TestKeysWithoutEffectAreBounded(t *testing.T) {
	var overrides strings.Builder
	for i := range 30 {
		fmt.Fprintf(&overrides, "- {cluster: c-%d, attemptTimeout: 1s}\n", i)
	}
	notes := mustParse(t, data{"overrides": overrides.String()}).DescribeIneffective()
	require.Len(t, notes, 21)
	assert.Equal(t, []string{"overrides[19]: attemptTimeout, 1s, ends most imports before they are done", "and 10 more"}, notes[19:])
}

func withoutConcurrency(data map[string]string) map[string]string {
	data["concurrency"] = apipolicy.Default().ToData()["concurrency"]
	return data
}

// The hub's own cluster may be a member, and both read the same ConfigMap.
func TestMembersOwnKeysDoNotTravel(t *testing.T) {
	p, unknown, errs := policy.ParsePolicy(data{"allowedNamespaces": "farm", "namespaceShare": "2"})
	assert.Empty(t, errs)
	assert.Empty(t, unknown)
	got, _, _ := p.ForMember("a", nil)
	assert.NotContains(t, got, "allowedNamespaces")
	assert.Equal(t, "2", got["namespaceShare"])
	_, _, errs = policy.ParsePolicy(data{"overrides": "- {cluster: a, allowedNamespaces: farm}"})
	require.Len(t, errs, 1)
	assert.Contains(t, errs[0].Error(), "overrides[0].allowedNamespaces: there is no such key")
}

// The overrides contradict each other only for a member that both apply to.
const contradictingOverrides = "- {selector: {matchLabels: {patient: 'yes'}}, retryBackoffDuration: 50m}\n" +
	"- {cluster: frankfurt, maxRetryBackoff: 40m}"

func TestContradictingOverridesAreRefused(t *testing.T) {
	p := mustParse(t, data{"overrides": contradictingOverrides})
	patient := map[string]string{"patient": "yes"}
	got, source, errs := p.ForMember("frankfurt", patient)
	assert.Nil(t, got)
	assert.Equal(t, "override patient=yes, override cluster=frankfurt", source)
	assert.Len(t, errs, 1)

	bad := p.ValidateMembers([]policy.Member{{Name: "paris", Labels: patient}, {Name: "frankfurt", Labels: patient}, {Name: "frankfurt"}})
	require.Len(t, bad, 1)
	assert.Equal(t, "member frankfurt: maxRetryBackoff: 40m0s is less than retryBackoffDuration, 50m0s (override patient=yes, override cluster=frankfurt)", bad[0].Error())
	assert.Empty(t, p.ValidateMembers([]policy.Member{{Name: "paris", Labels: patient}, {Name: "frankfurt"}}))
}

func TestPolicySourceIsBounded(t *testing.T) {
	var overrides strings.Builder
	labels := map[string]string{}
	for i, key := range slices.Sorted(maps.Keys(apipolicy.Default().ToData())) {
		label := fmt.Sprintf("label-%d-%s", i, strings.Repeat("x", 50))
		labels[label] = strings.Repeat("y", 60)
		fmt.Fprintf(&overrides, "- {selector: {matchLabels: {%s: %s}}, %s: '%s'}\n", label, labels[label], key, apipolicy.Default().ToData()[key])
	}
	_, source, errs := mustParse(t, data{"overrides": overrides.String()}).ForMember("a", labels)
	assert.Empty(t, errs)
	assert.LessOrEqual(t, len(source), 512)
	assert.Regexp(t, `^override label-0-.* and \d more$`, source)
}

func TestFormatErrors(t *testing.T) {
	var errs []apipolicy.KeyError
	for i := range 8 {
		errs = append(errs, apipolicy.KeyError{Key: fmt.Sprintf("k%d", i), Message: strings.Repeat("ö", 300)})
	}
	text := policy.FormatErrors(errs)
	assert.Less(t, len(text), 1100)
	assert.True(t, strings.HasSuffix(text, "…; and 3 more"), text)
	assert.Equal(t, "k: m", policy.FormatErrors([]apipolicy.KeyError{{Key: "k", Message: "m"}}))
}

// For any list of overrides, the last one by name that sets a key wins, else the last one
// by selector, else the default.
func TestLastMatchingOverrideWins(t *testing.T) {
	keys := []string{"concurrency", "retryLimit", "maxPriority"}
	rapid.Check(t, func(t *rapid.T) {
		type over struct {
			named bool
			who   string
			data  data
		}
		var overs []over
		var text strings.Builder
		text.WriteString("[")
		for range rapid.IntRange(0, 6).Draw(t, "overrides") {
			o := over{named: rapid.Bool().Draw(t, "named"), who: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "who"), data: data{}}
			for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID[string]).Draw(t, "keys") {
				o.data[k] = fmt.Sprint(rapid.IntRange(0, 100).Draw(t, k))
			}
			overs = append(overs, o)
			if o.named {
				fmt.Fprintf(&text, "{cluster: %s", o.who)
			} else {
				fmt.Fprintf(&text, "{selector: {matchLabels: {l: %s}}", o.who)
			}
			for k, v := range o.data {
				fmt.Fprintf(&text, ", %s: %s", k, v)
			}
			text.WriteString("}, ")
		}
		text.WriteString("]")
		p := mustParse(t, data{"concurrency": "42", "overrides": text.String()})

		name, label := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "member"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "label")
		got, source, errs := p.ForMember(name, map[string]string{"l": label})
		assert.Empty(t, errs)
		overridden := false
		for _, key := range keys {
			want := apipolicy.Default().ToData()[key]
			if key == "concurrency" {
				want = "42"
			}
			for _, named := range []bool{false, true} {
				for _, o := range overs {
					applies := o.named == named && (named && o.who == name || !named && o.who == label)
					if v, set := o.data[key]; applies && set {
						want, overridden = v, true
					}
				}
			}
			assert.Equal(t, want, got[key], key)
		}
		assert.Equal(t, overridden, source != policy.SourceDefault)
	})
}
