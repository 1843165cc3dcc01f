package fleetpolicy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/fleetpolicy"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

type data = map[string]string

func member(name string, labels map[string]string, slots, queued int32) v1alpha1.MemberCluster {
	m := v1alpha1.MemberCluster{}
	m.Name, m.Labels = name, labels
	m.Status.SlotsUsed, m.Status.Budget = ptr.To(slots), ptr.To[int32](3)
	m.Status.Images = &v1alpha1.MemberImages{Queued: queued}
	return m
}

func members() []v1alpha1.MemberCluster {
	dark := v1alpha1.MemberCluster{}
	dark.Name = "dark"
	held := member("kiel", nil, 2, 1)
	held.Status.OwnConcurrency = ptr.To[int32](2)
	return []v1alpha1.MemberCluster{member("bergen", nil, 3, 2), member("edge-1", data{"edge": "true"}, 3, 5), held, dark}
}

func at(d time.Duration) *readapi.Estimate {
	return &readapi.Estimate{At: ptr.To(metav1.NewTime(now.Add(d)))}
}

func TestDiffScreens(t *testing.T) {
	inForce := data{"concurrency": "3", "fleetConcurrency": "20"}
	for name, tt := range map[string]struct {
		s    fleetpolicy.DiffSnapshot
		want exit.Code
	}{
		"nothing": {fleetpolicy.DiffSnapshot{InForce: inForce, Then: inForce}, exit.Yes},
		"overrides": {fleetpolicy.DiffSnapshot{InForce: inForce, Then: data{"concurrency": "3", "fleetConcurrency": "20", "nextKey": "1", "overrides": `
- {selector: {matchLabels: {edge: "true"}}, concurrency: 1, retryLimit: 5}
- {cluster: bergen, concurrency: 4}
- {selector: {matchLabels: {site: oslo}}, concurrency: 9}`}, Answer: &readapi.BlastRadius{Rows: []readapi.BlastRow{
			{Member: "edge-1", WaitNow: at(40 * time.Minute), WaitThen: at(130 * time.Minute)},
			{Member: "bergen", WaitNow: at(21 * time.Minute), WaitThen: &readapi.Estimate{Reason: "TooFewSamples"}},
		}}}, exit.No},
		"fleet": {fleetpolicy.DiffSnapshot{InForce: inForce, Then: data{"concurrency": "3", "fleetConcurrency": "12"}, ServerAnswer: "0 of 4 members would change.\nThe budget of the fleet: fleetConcurrency 20→12.",
			Unread: "From the hub's kinds alone, without its read API: no rights"}, exit.No},
		"hosts": {fleetpolicy.DiffSnapshot{InForce: data{"fleetConcurrency": "20", "fleetSources": "- {name: eu, hosts: ['*.eu.example.com'], concurrency: 1}"},
			Then: data{"fleetConcurrency": "20", "fleetSources": "- {name: eu, hosts: ['*.example.com'], concurrency: 1}"}}, exit.No},
		"windows": {fleetpolicy.DiffSnapshot{InForce: inForce, Then: data{"concurrency": "3", "fleetConcurrency": "20", "windows": `
- {cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 9, fleetConcurrency: 40}`}}, exit.No},
		"ineffective": {fleetpolicy.DiffSnapshot{InForce: data{"concurrency": "3"}, Then: data{"concurrency": "3", "allowedNamespaces": "farm", "fleetGrantDuration": "1m",
			"fleetSources": "- {name: a, hosts: [a.example.com], concurrency: 1}", "overrides": "- {cluster: bergen, safeConcurrency: 1}"}}, exit.Yes},
		"first":    {fleetpolicy.DiffSnapshot{Then: data{"concurrency": "8"}}, exit.No},
		"refused":  {fleetpolicy.DiffSnapshot{InForce: inForce, Then: data{"concurrency": "three", "overrides": "- {cluster: x}"}}, exit.Unanswered},
		"contrary": {fleetpolicy.DiffSnapshot{InForce: inForce, Then: data{"concurrency": "3", "retryBackoffDuration": "1m", "overrides": "- {cluster: bergen, maxRetryBackoff: 1s}"}}, exit.Unanswered},
	} {
		t.Run(name, func(t *testing.T) {
			tt.s.Now, tt.s.Members = now, members()
			d := fleetpolicy.NewDiff(tt.s)
			assert.Equal(t, tt.want, d.ExitCode())
			rendertest.Golden(t, "diff-"+name, now, d)
			// The dashboard makes the same text of it: ui/src/policytext.test.ts.
			rendertest.GoldenJSON(t, "diff-"+name, d)
		})
	}
}

func TestShowScreens(t *testing.T) {
	policy := data{"concurrency": "3", "retryLimit": "5", "fleetConcurrency": "20", "overrides": "- {selector: {matchLabels: {edge: \"true\"}}, concurrency: 1}"}
	// The fleet's keys are shown with what is for the whole fleet: the concurrency of sources and of windows.
	grouped := data{"concurrency": "3", "fleetConcurrency": "20", "fleetGrantDuration": "5m", "fleetSources": "- name: mirror\n  hosts: ['*.example.com']\n  concurrency: 4\n", "windows": "- {cron: \"0 22 * * *\", duration: 8h, concurrency: 9, fleetConcurrency: 40}"}
	tight := data{"concurrency": "3", "safeConcurrency": "2", "fleetConcurrency": "2"} // the second member has joined since
	idle := data{"concurrency": "3", "fleetSources": "- name: mirror\n  hosts: ['*.example.com']\n  concurrency: 4\n"}
	edge := member("edge-1", data{"edge": "true"}, 1, 5)
	edge.Status.Transfers = &v1alpha1.MemberTransfers{Granted: 1, Held: 1, Wanted: 1, Message: "it has what it wants"}
	for name, tt := range map[string]struct {
		s    fleetpolicy.ShowSnapshot
		want exit.Code
	}{
		"fleet":           {fleetpolicy.ShowSnapshot{Written: policy, InForce: policy}, exit.Yes},
		"cluster":         {fleetpolicy.ShowSnapshot{Written: policy, InForce: policy, Member: &edge}, exit.Yes},
		"sources":         {fleetpolicy.ShowSnapshot{Written: grouped, InForce: grouped}, exit.Yes},
		"sources-cluster": {fleetpolicy.ShowSnapshot{Written: grouped, InForce: grouped, Member: &edge}, exit.Yes},
		"binary":          {fleetpolicy.ShowSnapshot{Written: data{}, InForce: policy, Unreadable: apipolicy.BinaryErrors(map[string][]byte{"concurrency": {0xff}})}, exit.No},
		"refused":         {fleetpolicy.ShowSnapshot{Written: data{"concurrency": "x"}, InForce: policy}, exit.No},
		"ineffective":     {fleetpolicy.ShowSnapshot{Written: idle, InForce: idle}, exit.Yes},
		"contradicted":    {fleetpolicy.ShowSnapshot{Written: tight, InForce: tight}, exit.Yes},
		"pending":         {fleetpolicy.ShowSnapshot{Written: data{"concurrency": "4"}, InForce: policy}, exit.No},
		"missing":         {fleetpolicy.ShowSnapshot{InForce: policy}, exit.No},
		"none":            {fleetpolicy.ShowSnapshot{}, exit.No},
	} {
		t.Run(name, func(t *testing.T) {
			tt.s.Now, tt.s.Name, tt.s.Members = now, "sync-operator/sync-operator-policy", members()
			show, err := fleetpolicy.NewShow(tt.s)
			require.NoError(t, err)
			assert.Equal(t, tt.want, show.ExitCode())
			rendertest.Golden(t, "show-"+name, now, show)
		})
	}
}

func TestFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want data
		err  string
	}{
		"a ConfigMap":         {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p}\ndata: {concurrency: \"4\"}", data{"concurrency": "4"}, ""},
		"its data":            {"concurrency: \"4\"\nretryLimit: 3\npreflight: true", data{"concurrency": "4", "retryLimit": "3", "preflight": "true"}, ""},
		"another kind":        {"kind: Secret", nil, "it is a Secret"},
		"a number in it":      {"kind: ConfigMap\ndata: {concurrency: 4}", nil, "no ConfigMap that the API server takes"},
		"a list":              {"- a", nil, "neither a ConfigMap nor keys"},
		"not UTF-8":           {"kind: ConfigMap\nbinaryData: {concurrency: //4wAA==}", nil, "key concurrency: its text is in binaryData"},
		"overrides as a list": {"overrides: [{cluster: a}]", nil, "overrides: |"},
		"nothing":             {"", nil, "neither a ConfigMap nor keys"},
		"no YAML":             {"a: b: c", nil, "it is not YAML"},
		"a key twice":         {"a: b\na: c", nil, "it is not YAML"},
		"too large":           {string(make([]byte, fleetpolicy.MaxFileBytes+1)), nil, "no ConfigMap"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fleetpolicy.ParseFile([]byte(tt.text))
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestSets(t *testing.T) {
	written := data{"concurrency": "3", "overrides": "- cluster: kiel\n  concurrency: 8\n"}
	for name, tt := range map[string]struct {
		sets []string
		want data
		err  string
	}{
		"a key":          {[]string{"concurrency=4", "preflightAllow=10.0.0.0/8,*.example.com"}, data{"concurrency": "4", "preflightAllow": "10.0.0.0/8,*.example.com", "overrides": written["overrides"]}, ""},
		"a key less":     {[]string{"overrides="}, data{"concurrency": "3"}, ""},
		"a cluster":      {[]string{"cluster=bergen,concurrency=4,retryLimit=1"}, data{"concurrency": "3", "overrides": "- cluster: kiel\n  concurrency: 8\n- cluster: bergen\n  concurrency: \"4\"\n  retryLimit: \"1\"\n"}, ""},
		"no value":       {[]string{"concurrency"}, nil, "must be KEY=VALUE"},
		"no key":         {[]string{"=4"}, nil, "must be KEY=VALUE"},
		"no change":      {[]string{"cluster=bergen"}, nil, "what to set there"},
		"half a change":  {[]string{"cluster=bergen,concurrency"}, nil, "is not KEY=VALUE"},
		"broken already": {[]string{"overrides=x", "cluster=bergen,concurrency=4"}, nil, "are no list"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fleetpolicy.ApplySets(written, tt.sets)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
			assert.Equal(t, "3", written["concurrency"], "the policy itself stays")
		})
	}
}
