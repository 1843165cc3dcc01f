//go:build linux

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json`, see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// packageRun collects the output of one package until its tests have ended.
type packageRun struct {
	lines []line
	// ended has the last action of each test that has ended.
	ended map[string]string
}

type line struct{ test, text string }

// packageResult is how the tests of a package ended: go test's own closing line.
type packageResult struct {
	name, line string
	failed     bool
	elapsed    time.Duration
}

// printer prints events as go test does without -json: of a package that passes its
// closing line, of one that fails all output of the tests that did not pass.
type printer struct {
	out     io.Writer
	verbose bool
	running map[string]*packageRun
	results []packageResult
}

func newPrinter(out io.Writer, verbose bool) *printer {
	return &printer{out: out, verbose: verbose, running: map[string]*packageRun{}}
}

func (p *printer) printEvents(events io.Reader) error {
	reader := bufio.NewReader(events)
	for {
		text, err := reader.ReadBytes('\n')
		if len(text) > 0 {
			var e event
			if json.Unmarshal(text, &e) != nil {
				fmt.Fprintf(p.out, "%s", text)
			} else {
				p.printEvent(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the events of go test: %w", err)
		}
	}
}

func (p *printer) printEvent(e event) {
	if e.Package == "" { // of the build
		fmt.Fprint(p.out, e.Output)
		return
	}
	run := p.running[e.Package]
	if run == nil {
		run = &packageRun{ended: map[string]string{}}
		p.running[e.Package] = run
	}
	switch e.Action {
	case "output":
		run.lines = append(run.lines, line{e.Test, e.Output})
		if p.verbose {
			fmt.Fprint(p.out, e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test != "" {
			run.ended[e.Test] = e.Action
			return
		}
		p.endPackage(e, run)
		delete(p.running, e.Package)
	}
}

func (p *printer) endPackage(e event, run *packageRun) {
	result := packageResult{name: e.Package, failed: e.Action == "fail", elapsed: time.Duration(e.Elapsed * float64(time.Second))}
	for _, l := range run.lines {
		closing := l.test == "" && isClosingLine(l.text)
		if closing {
			result.line = strings.TrimRight(l.text, "\n")
		}
		if !p.verbose && (closing || result.failed && isFailureOutput(run, l)) {
			fmt.Fprint(p.out, l.text)
		}
	}
	p.results = append(p.results, result)
}

// isClosingLine recognizes go test's own line about a package.
func isClosingLine(text string) bool {
	return strings.HasPrefix(text, "ok  \t") || strings.HasPrefix(text, "FAIL\t") || strings.HasPrefix(text, "?   \t")
}

// isFailureOutput reports whether a line explains why a package failed: it is of no test,
// or of one that failed or never ended.
func isFailureOutput(run *packageRun, l line) bool {
	if strings.HasPrefix(l.text, "=== ") {
		return false
	}
	action := run.ended[l.test]
	return action != "pass" && action != "skip"
}

// printSlowest prints the closing lines of the packages that took the most CPU time, then
// of those that failed. Like all of go test's lines, they begin with ok or FAIL.
func (p *printer) printSlowest(cpu map[string]time.Duration, count int, elapsed time.Duration) {
	var total time.Duration
	for _, d := range cpu {
		total += d
	}
	slowest := slices.DeleteFunc(slices.Clone(p.results), func(r packageResult) bool { return cpu[r.name] == 0 })
	slices.SortFunc(slowest, func(a, b packageResult) int { return cmp.Compare(cpu[b.name], cpu[a.name]) })
	fmt.Fprintf(p.out, "\n%s and %.0f CPU seconds of tests; the packages that took the most:\n", elapsed.Round(time.Second), total.Seconds())
	for _, r := range slowest[:min(count, len(slowest))] {
		fmt.Fprintf(p.out, "%s\t%.0f CPU s\n", r.line, cpu[r.name].Seconds())
	}
	for _, r := range p.results {
		if r.failed {
			fmt.Fprintln(p.out, cmp.Or(r.line, "FAIL\t"+r.name))
		}
	}
}
