package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

// noSuite is the suite of rows about versions that cannot be built.
const noSuite = "none"

// row is a row of the page: a suite in a lane.
type row struct {
	lane     string
	versions map[binaries.Component]string
	// policies is the version of MutatingAdmissionPolicy that the lane switches on.
	policies      string
	suite, result string
	// at is the commit and the day of the run.
	at string
}

const rowsHead = "| Lane | Kubernetes | CDI | KubeVirt | MutatingAdmissionPolicy | Suite | Result | Commit |\n"

func (r row) cells() []string {
	cells := []string{r.lane}
	for _, component := range binaries.Components() {
		cells = append(cells, r.versions[component])
	}
	return append(cells, r.policies, r.suite, r.result, r.at)
}

// parseRows reads the rows of a page.
func parseRows(page string) []row {
	_, table, found := strings.Cut(page, rowsHead)
	if !found {
		return nil
	}
	var rows []row
	for i, line := range strings.Split(table, "\n") {
		if i == 0 { // the dashes
			continue
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != strings.Count(rowsHead, "|")-1 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		r := row{lane: cells[0], versions: map[binaries.Component]string{}, policies: cells[4], suite: cells[5], result: cells[6], at: cells[7]}
		for i, component := range binaries.Components() {
			if cells[i+1] != "" {
				r.versions[component] = cells[i+1]
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// renderPage returns the page with the rows in the order of lanes and suites.
func renderPage(rows []row) string {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b row) int { return a.place() - b.place() })
	var b strings.Builder
	b.WriteString("# Versions\n\nWritten by `make test-versions`, by the run itself: what was run with which versions. A version without a run is not claimed to work, nor is a combination.\n\n")
	b.WriteString("## Claims\n\n| | Version | Claim |\n| --- | --- | --- |\n")
	for _, wanted := range wantedVersions {
		for _, minor := range wanted.minors {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", titles[wanted.component], minor, describeClaim(rows, wanted.component, "v"+minor))
		}
	}
	b.WriteString("\n## Runs\n\n" + rowsHead + strings.Repeat("| --- ", strings.Count(rowsHead, "|")-1) + "|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r.cells(), " | "))
	}
	b.WriteString("\n## Suites\n\n| Suite | Shows | Tests |\n| --- | --- | --- |\n")
	for _, s := range suites {
		count := "all"
		if len(s.tests) > 0 {
			count = fmt.Sprint(len(s.tests))
		}
		fmt.Fprintf(&b, "| %s | %s | %s of `%s` |\n", s.name, s.shows, count, strings.Join(s.packages, "`, `"))
	}
	b.WriteString("\nKubernetes serves MutatingAdmissionPolicy by default from 1.36 on. Where it is switched on, lanes use a feature gate and `--runtime-config`. A test that needs what is not served is skipped.\n\n")
	b.WriteString("Other combinations: `OT_KUBERNETES_VERSION`, `OT_CDI_VERSION`, `OT_KUBEVIRT_VERSION` and `OT_MUTATING_ADMISSION` before any `go test ./e2e/suites/…`.\n")
	return b.String()
}

// place orders rows by lane, then suite.
func (r row) place() int {
	l := slices.IndexFunc(lanes, func(l lane) bool { return l.name == r.lane })
	s := slices.IndexFunc(suites, func(s suite) bool { return s.name == r.suite })
	return l*(len(suites)+1) + s
}

// describeClaim says what the rows show of a minor version, of each patch version apart.
func describeClaim(rows []row, component binaries.Component, minor string) string {
	var versions []string
	for _, r := range rows {
		if version := r.versions[component]; strings.HasPrefix(version, minor+".") && !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}
	if len(versions) == 0 {
		return "not run: no lane has run it"
	}
	var claims []string
	for _, version := range versions {
		claims = append(claims, describeVersion(slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.versions[component] != version }), version))
	}
	return strings.Join(claims, "; ")
}

// describeVersion says what the rows of a version show.
func describeVersion(rows []row, version string) string {
	var passed, skipping, failed []string
	missing := ""
	for _, r := range rows {
		switch {
		case r.suite == noSuite:
			missing = r.result
		case strings.Contains(r.result, "failed"):
			failed = append(failed, r.lane+"/"+r.suite)
		case strings.HasPrefix(r.result, "0 passed"):
		case strings.Contains(r.result, "skipped"):
			skipping = append(skipping, r.lane+"/"+r.suite)
		default:
			passed = appendNew(passed, r.suite)
		}
	}
	var parts []string
	switch {
	case len(passed) == len(suites):
		parts = append(parts, "runs")
	case len(passed) > 0:
		parts = append(parts, "runs in part: "+strings.Join(passed, ", "))
	}
	if len(skipping) > 0 {
		parts = append(parts, "passes but for skipped tests in "+strings.Join(skipping, ", "))
	}
	if len(failed) > 0 {
		parts = append(parts, "fails in "+strings.Join(failed, ", "))
	}
	if len(parts) == 0 {
		parts = append(parts, cmp.Or(missing, "not shown: all tests were skipped"))
	}
	return version + " " + strings.Join(parts, ", ")
}

func appendNew(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}
