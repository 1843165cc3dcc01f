package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
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
	kubernetes := func(version string) map[binaries.Component]string {
		return map[binaries.Component]string{binaries.KubernetesComponent: version}
	}
	rows := []row{
		{lane: "oldest", versions: kubernetes("v1.34.2"), suite: "journeys", result: "4 passed"},
		{lane: "oldest", versions: kubernetes("v1.34.2"), suite: "chart", result: "4 passed"},
		{lane: "newest", versions: kubernetes("v1.37.2"), suite: "journeys", result: "**1 failed** (TestA), 3 passed"},
		{lane: "newest", versions: kubernetes("v1.37.2"), suite: "chart", result: "9 passed"},
		{lane: "without-policies", versions: kubernetes("v1.36.3"), suite: "chart", result: "9 passed, 1 skipped"},
		{lane: "without-policies", versions: kubernetes("v1.36.4"), suite: "attempts", result: "0 passed, 3 skipped"},
		{lane: "newest", versions: map[binaries.Component]string{binaries.CDIComponent: "v1.66.0"}, suite: noSuite, result: "not run, v1.65.0 takes its place: no module"},
	}
	for i, s := range suites {
		version := map[binaries.Component]string{binaries.CDIComponent: "v1.65.0", binaries.KubeVirtComponent: []string{"v1.8.0", "v1.8.1"}[i%2]}
		rows = append(rows, row{lane: "pinned", versions: version, suite: s.name, result: "1 passed"})
	}
	for _, test := range []struct {
		component binaries.Component
		minor     string
		want      string
	}{
		{binaries.KubernetesComponent, "v1.34", "v1.34.2 runs in part: journeys, chart"},
		{binaries.KubernetesComponent, "v1.35", "not run: no lane has run it"},
		{binaries.KubernetesComponent, "v1.3", "not run: no lane has run it"},
		{binaries.KubernetesComponent, "v1.36", "v1.36.3 passes but for skipped tests in without-policies/chart; v1.36.4 not shown: all tests were skipped"},
		{binaries.KubernetesComponent, "v1.37", "v1.37.2 runs in part: chart, fails in newest/journeys"},
		{binaries.CDIComponent, "v1.65", "v1.65.0 runs"},
		{binaries.CDIComponent, "v1.66", "v1.66.0 not run, v1.65.0 takes its place: no module"},
		{binaries.KubeVirtComponent, "v1.8", "v1.8.0 runs in part: journeys, workspaces, chart; v1.8.1 runs in part: attempts, faults"},
	} {
		assert.Equal(t, test.want, describeClaim(rows, test.component, test.minor), "%s %s", test.component, test.minor)
	}
}

// TestUnavailableVersionIsOnThePage wants the version that was wanted, what takes its place, and
// which module it lacks, without what the machine's proxy says.
func TestUnavailableVersionIsOnThePage(t *testing.T) {
	for answer, want := range map[string]string{
		"example.com/b@v0.2.0: reading https://proxy.example/b: 403 | Forbidden": "example.com/b@v0.2.0",
		"dial tcp 192.0.2.1:443: i/o timeout":                                    "m@v1.66.0",
	} {
		rows := lane{name: "newest"}.describeUnavailable(binaries.CDIComponent, "v1.65.0", []*binaries.UnavailableError{{Module: "m", Version: "v1.66.0", Answer: answer}})
		page := renderPage(rows)
		assert.Contains(t, page, "| CDI | 1.66 | v1.66.0 not run, v1.65.0 takes its place: module "+want+" cannot be downloaded |\n")
		assert.Contains(t, page, "| CDI | 1.65 | not run: no lane has run it |\n", "taking a place is no run")
		assert.ElementsMatch(t, rows, parseRows(page))
	}
}

// TestUnavailableVersionsAreReplaced wants a build that was interrupted to replace what it has found
// out, and a complete one to forget the versions that can be built by now.
func TestUnavailableVersionsAreReplaced(t *testing.T) {
	refused := func(lane, cdi, at string) row {
		return row{lane: lane, versions: map[binaries.Component]string{binaries.CDIComponent: cdi}, suite: noSuite, at: at}
	}
	before := []row{{lane: "newest", suite: "chart"}, refused("oldest", "v1.66.0", "old"), refused("newest", "v1.66.0", "old"), refused("newest", "v1.67.0", "old")}
	found := []row{refused("newest", "v1.66.0", "")}
	for complete, want := range map[bool][]row{
		false: {before[0], before[1], before[3], refused("newest", "v1.66.0", "new")},
		true:  {before[0], before[1], refused("newest", "v1.66.0", "new")},
	} {
		assert.Equal(t, want, replaceUnavailable(slices.Clone(before), "newest", found, complete, "new"), "complete: %v", complete)
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

// TestSuitesNameExistingTests finds a test that was renamed or removed before a lane is built for it.
func TestSuitesNameExistingTests(t *testing.T) {
	for _, s := range suites {
		var text strings.Builder
		for _, pkg := range s.packages {
			files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
			require.NoError(t, err)
			for _, file := range files {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				text.Write(content)
			}
		}
		for _, name := range s.tests {
			assert.Contains(t, text.String(), "\nfunc "+name+"(", "suite %s names %s, which %s lack", s.name, name, s.packages)
		}
	}
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
