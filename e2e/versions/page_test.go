package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

func TestPageKeepsRowsOfOtherRuns(t *testing.T) {
	rows := []row{
		{lane: "newest", versions: map[binaries.Component]string{binaries.CDIComponent: "v1.66.0"}, suite: noSuite, result: "not run: no module", at: "abc, 2026-01-01"},
		{lane: "oldest", versions: map[binaries.Component]string{
			binaries.KubernetesComponent: "v1.34.2", binaries.CDIComponent: "v1.64.0", binaries.KubeVirtComponent: "v1.8.0",
		}, policies: "v1beta1", suite: "chart", result: "**1 failed** (TestA), 3 passed", at: "abc, 2026-01-01"},
		{lane: "oldest", versions: map[binaries.Component]string{
			binaries.KubernetesComponent: "v1.34.2", binaries.CDIComponent: "v1.64.0", binaries.KubeVirtComponent: "v1.8.0",
		}, policies: "v1beta1", suite: "journeys", result: "4 passed, 1 skipped", at: "abc, 2026-01-01"},
	}
	page := renderPage(rows)
	assert.ElementsMatch(t, rows, parseRows(page))
	assert.Equal(t, page, renderPage(parseRows(page)))
	assert.Less(t, strings.Index(page, "| oldest |"), strings.Index(page, "| newest |"), "in the order of the lanes")
	assert.Less(t, strings.Index(page, "| journeys | 4"), strings.Index(page, "| chart | **1"), "in the order of the suites")
}

func TestClaimsNeedARun(t *testing.T) {
	rows := []row{
		{lane: "oldest", versions: map[binaries.Component]string{binaries.KubernetesComponent: "v1.34.2", binaries.CDIComponent: "v1.64.0"}, suite: "journeys", result: "4 passed"},
		{lane: "oldest", versions: map[binaries.Component]string{binaries.KubernetesComponent: "v1.34.2", binaries.CDIComponent: "v1.64.0"}, suite: "chart", result: "4 passed"},
		{lane: "newest", versions: map[binaries.Component]string{binaries.KubernetesComponent: "v1.37.2", binaries.CDIComponent: "v1.65.0"}, suite: "journeys", result: "**1 failed** (TestA), 3 passed"},
		{lane: "newest", versions: map[binaries.Component]string{binaries.KubernetesComponent: "v1.37.2", binaries.CDIComponent: "v1.65.0"}, suite: "chart", result: "9 passed"},
		{lane: "newest", versions: map[binaries.Component]string{binaries.CDIComponent: "v1.66.0"}, suite: noSuite, result: "not run: no module"},
	}
	for i, s := range suites {
		rows = append(rows, row{lane: "pinned", versions: map[binaries.Component]string{binaries.KubeVirtComponent: []string{"v1.8.0", "v1.8.1"}[i%2]}, suite: s.name, result: "1 passed"})
	}
	for _, test := range []struct {
		component binaries.Component
		minor     string
		want      string
	}{
		{binaries.KubernetesComponent, "v1.34", "runs in part: v1.34.2 with journeys, chart"},
		{binaries.KubeVirtComponent, "v1.8", "runs: v1.8.0, v1.8.1"},
		{binaries.KubernetesComponent, "v1.35", "not run: no lane has run it"},
		{binaries.KubernetesComponent, "v1.3", "not run: no lane has run it"},
		{binaries.KubernetesComponent, "v1.37", "fails in newest/journeys"},
		{binaries.CDIComponent, "v1.66", "v1.66.0 not run: no module"},
	} {
		assert.Equal(t, test.want, describeClaim(rows, test.component, test.minor), "%s %s", test.component, test.minor)
	}
}

func TestOutcomeOfSuite(t *testing.T) {
	s := suite{tests: []string{"TestGood", "TestBad", "TestMissing", "TestSkipped"}}
	var out strings.Builder
	o := s.readOutcome(strings.NewReader(`{"Action":"output","Test":"TestGood","Output":"good\n"}
{"Action":"pass","Test":"TestGood/sub"}
{"Action":"pass","Test":"TestGood"}
not json
{"Action":"output","Test":"TestBad/sub","Output":"bad\n"}
{"Action":"fail","Test":"TestBad/sub"}
{"Action":"fail","Test":"TestBad"}
{"Action":"skip","Test":"TestSkipped"}
{"Action":"output","Output":"FAIL\n"}
{"Action":"fail"}
`), &out)
	assert.Equal(t, outcome{passed: 1, skipped: 1, failed: []string{"TestBad", "TestMissing did not run"}}, o)
	assert.Equal(t, "**2 failed** (TestBad, TestMissing did not run), 1 passed, 1 skipped", o.describe())
	assert.Equal(t, "bad\nFAIL\n", out.String())
	require.True(t, o.hasFailed())
	require.False(t, suite{}.readOutcome(strings.NewReader(`{"Action":"pass","Test":"TestGood"}`), io.Discard).hasFailed())
}

func TestLanesRunKnownSuites(t *testing.T) {
	known := map[string]bool{}
	for _, s := range suites {
		known[s.name] = true
	}
	for _, l := range lanes {
		for _, name := range l.suites {
			assert.True(t, known[name], "lane %s: suite %s", l.name, name)
		}
	}
}
