package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/policy"
)

func TestGroupOfAHost(t *testing.T) {
	sources := policy.Sources{
		{Name: "eu", Hosts: []string{"*.eu.example.com", "images.example.com"}},
		{Name: "rest", Hosts: []string{"*.example.com", "10.0.0.7", "fd00::7"}},
	}
	for url, want := range map[string]string{
		"https://images.example.com/a.qcow2":          "eu",
		"https://IMAGES.Example.COM.:8443/a.qcow2":    "eu",
		"https://a.b.eu.example.com/x":                "eu",
		"https://eu.example.com/x":                    "rest", // *.suffix is not the suffix
		"s3://bucket.example.com/x":                   "rest",
		"docker://registry.example.com:5000/ubuntu:1": "rest",
		"http://10.0.0.7:80/x":                        "rest",
		"http://[fd00::7]:80/x":                       "rest",
		"https://example.com/x":                       "",
		"https://notimages.example.org/x":             "",
		"https://fakeeu.example.com.evil.org/":        "",
		"":                                            "",
		"::not a URL":                                 "",
	} {
		name, found := sources.GroupOfURL(url)
		assert.Equal(t, want, name, url)
		assert.Equal(t, want != "", found, url)
	}
	_, found := policy.Sources(nil).GroupOfURL("https://images.example.com/")
	assert.False(t, found)
}

func TestSourcesErrors(t *testing.T) {
	many := make(policy.Sources, 17)
	for name, tt := range map[string]struct {
		sources policy.Sources
		want    string
	}{
		"too many":    {many, "the maximum is 16"},
		"no name":     {policy.Sources{{Hosts: []string{"a"}}}, `[0].name: "" must consist of`},
		"twice":       {policy.Sources{{"a", []string{"a"}}, {"a", []string{"b"}}}, "[1].name: a is not unique"},
		"no hosts":    {policy.Sources{{Name: "a"}}, "[0].hosts: add at least one host"},
		"a port":      {policy.Sources{{"a", []string{"b", "a:80"}}}, `[0].hosts[1]: "a:80" must be a host`},
		"a URL":       {policy.Sources{{"a", []string{"https://a"}}}, "must be a host"},
		"a mere star": {policy.Sources{{"a", []string{"*"}}}, "must be a host"},
		"large":       {policy.Sources{{"a", strings.Split(strings.Repeat("a.example.com ", 1000), " ")[:1000]}}, "the maximum is 8192"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.sources.Validate()
			require.Error(t, err)
			assert.Contains(t, err.Error(), tt.want)
		})
	}
}

func TestPolicyWithGrants(t *testing.T) {
	data := map[string]string{"concurrency": "5", "safeConcurrency": "2", "fleetSources": "- name: eu\n  hosts: [images.example.com]\n  later: x\n"}
	p, unknown, errs := policy.Parse(data)
	require.Empty(t, errs)
	assert.Empty(t, unknown)
	assert.True(t, p.UsesGrants)
	assert.Equal(t, int32(2), p.SafeConcurrency)
	assert.Equal(t, policy.Sources{{Name: "eu", Hosts: []string{"images.example.com"}}}, p.Sources)
	again, _, errs := policy.Parse(p.ToData())
	require.Empty(t, errs)
	assert.Equal(t, p, again)
	assert.True(t, p.Equal(again))

	zero, _, errs := policy.Parse(map[string]string{"safeConcurrency": "0"})
	require.Empty(t, errs)
	assert.True(t, zero.UsesGrants, "that the key is there limits")
	assert.False(t, zero.Equal(policy.Default()))
	assert.Equal(t, "0", zero.ToData()["safeConcurrency"])

	_, _, errs = policy.Parse(map[string]string{"safeConcurrency": "257", "fleetSources": "- name: eu"})
	require.Len(t, errs, 2)
	assert.Equal(t, "fleetSources[0].hosts: add at least one host", errs[0].Error())
	assert.Contains(t, errs[1].Error(), "safeConcurrency: 257 is too large")
}

func TestAliasesOfSourcesAreBounded(t *testing.T) {
	groups := "- name: a\n  hosts: [a]\n  later: &a [" + strings.Repeat("1,", 6000) + "1]\n- name: b\n  hosts: [b]\n  later: [" + strings.Repeat("*a,", 60) + "*a]\n"
	_, _, errs := policy.Parse(map[string]string{"safeConcurrency": "0", "fleetSources": groups})
	require.Len(t, errs, 1)
	assert.Equal(t, "fleetSources: its YAML aliases (*) repeat too much: write the values out instead", errs[0].Error())
}

func TestPolicyWithoutGrantsOmitsHubKeys(t *testing.T) {
	data := policy.Default().ToData()
	assert.NotContains(t, data, "safeConcurrency")
	assert.NotContains(t, data, "fleetSources")
	p, _, errs := policy.Parse(map[string]string{"fleetSources": "[{name: eu, hosts: [a]}]"})
	require.Empty(t, errs)
	assert.True(t, p.Equal(policy.Default()))
}

func TestConfigMapCannotSetHubKeys(t *testing.T) {
	data := map[string]string{"concurrency": "5", "safeConcurrency": "nonsense", "fleetSources": "nonsense", "colour": "blue"}
	p, unknown, errs := policy.ParseConfigMap(data)
	assert.Empty(t, errs, "what is ignored cannot be wrong")
	assert.Equal(t, []string{"colour", "fleetSources", "safeConcurrency"}, unknown)
	assert.False(t, p.UsesGrants)
	assert.Equal(t, int32(5), p.Concurrency)
	assert.NotContains(t, policy.ConfigMapKeys(), "safeConcurrency")
}
