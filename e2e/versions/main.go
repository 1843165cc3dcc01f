// Command versions runs a part of the suites with several versions of Kubernetes, CDI and KubeVirt,
// and writes what came of it into docs/reference/versions.md:
//
//	go run ./e2e/versions [-lanes oldest,newest] [-suites chart]
//
// Lanes and suites that are not run keep their rows on the page.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var pagePath = filepath.Join("docs", "reference", "versions.md")

func main() {
	onlyLanes := flag.String("lanes", "", "lanes to run, separated by commas; empty for all")
	onlySuites := flag.String("suites", "", "suites to run, separated by commas; empty for all")
	buildOnly := flag.Bool("build", false, "build the programs and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, splitList(*onlyLanes), splitList(*onlySuites), *buildOnly); err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func run(ctx context.Context, onlyLanes, onlySuites []string, buildOnly bool) error {
	text, err := os.ReadFile(pagePath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	rows := parseRows(string(text))
	at, err := describeRun(ctx)
	if err != nil {
		return err
	}
	failed := 0
	for _, l := range lanes {
		if len(onlyLanes) > 0 && !slices.Contains(onlyLanes, l.name) {
			continue
		}
		resolved, unavailable, err := l.build(ctx)
		rows = replaceUnavailable(rows, l.name, unavailable, err == nil, at)
		// Written before any error is returned, too: what cannot be had is known before the build ends.
		if err := errors.Join(err, writePage(rows)); err != nil {
			return err
		}
		if buildOnly {
			continue
		}
		for _, s := range suites {
			if len(l.suites) > 0 && !slices.Contains(l.suites, s.name) || len(onlySuites) > 0 && !slices.Contains(onlySuites, s.name) {
				continue
			}
			fmt.Printf("== lane %s, suite %s\n", l.name, s.name)
			r := resolved
			r.suite, r.at = s.name, at
			outcome, err := s.run(ctx)
			if err != nil {
				return err
			}
			r.result = outcome.describe()
			fmt.Printf("== lane %s, suite %s: %s\n", l.name, s.name, r.result)
			if outcome.hasFailed() {
				failed++
			}
			rows = slices.DeleteFunc(rows, func(old row) bool { return old.lane == r.lane && old.suite == r.suite })
			rows = append(rows, r)
			// Written after each suite: a run that is interrupted has shown something, too.
			if err := writePage(rows); err != nil {
				return err
			}
		}
	}
	if err := writePage(rows); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d suites failed, see %s", failed, pagePath)
	}
	return nil
}

func writePage(rows []row) error { return os.WriteFile(pagePath, []byte(renderPage(rows)), 0o644) }

// describeRun says of which commit and when a run is.
func describeRun(ctx context.Context) (string, error) {
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("finding the commit: %w", err)
	}
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ".", ":!"+pagePath).Output()
	if err != nil {
		return "", fmt.Errorf("finding changes since the commit: %w", err)
	}
	text := strings.TrimSpace(string(commit))
	if len(changes) > 0 {
		text += " with changes"
	}
	return text + ", " + time.Now().UTC().Format(time.DateOnly), nil
}

// programsOf has the programs of each component.
var programsOf = map[binaries.Component][]binaries.Name{
	binaries.KubernetesComponent: {binaries.APIServer, binaries.ControllerManager, binaries.Scheduler, binaries.Kubectl},
	binaries.CDIComponent:        {binaries.CDI},
	binaries.KubeVirtComponent:   {binaries.KubeVirt, binaries.VirtAPI},
}

// replaceUnavailable replaces a lane's rows about versions that cannot be built: all of them after
// a build that is complete, and those of the same version after one that is not.
func replaceUnavailable(rows []row, lane string, unavailable []row, complete bool, at string) []row {
	rows = slices.DeleteFunc(rows, func(old row) bool {
		return old.lane == lane && old.suite == noSuite &&
			(complete || slices.ContainsFunc(unavailable, func(r row) bool { return maps.Equal(r.versions, old.versions) }))
	})
	for _, r := range unavailable {
		r.at = at
		rows = append(rows, r)
	}
	return rows
}

// build builds the programs of a lane, those first that build fastest. It returns a row with the
// versions that the lane has, and one for each version that cannot be built, also beside an error.
func (l lane) build(ctx context.Context) (resolved row, unavailable []row, err error) {
	resolved = row{lane: l.name, policies: cmp.Or(l.mutatingAdmission, "as by default"), versions: map[binaries.Component]string{}}
	for _, component := range slices.Backward(binaries.Components()) {
		var refused []*binaries.UnavailableError
		for _, candidate := range append(slices.Clone(l.versions[component]), "") {
			if err := os.Setenv(component.Variable(), candidate); err != nil {
				return row{}, unavailable, err
			}
			_, err := binaries.Ensure(ctx, programsOf[component]...)
			if missing := (*binaries.UnavailableError)(nil); errors.As(err, &missing) && candidate != "" {
				fmt.Printf("== lane %s: %v\n", l.name, err)
				refused = append(refused, missing)
				continue
			} else if err != nil {
				return row{}, unavailable, err
			}
			break
		}
		taken, err := binaries.Version(component)
		if err != nil {
			return row{}, unavailable, err
		}
		resolved.versions[component] = taken
		unavailable = append(unavailable, l.describeUnavailable(component, taken, refused)...)
	}
	return resolved, unavailable, os.Setenv(controlplane.MutatingAdmissionVariable, l.mutatingAdmission)
}

// describeUnavailable returns the rows of versions that the lane wants and that cannot be built.
func (l lane) describeUnavailable(component binaries.Component, taken string, refused []*binaries.UnavailableError) []row {
	var rows []row
	for _, e := range refused {
		rows = append(rows, row{
			lane: l.name, suite: noSuite, versions: map[binaries.Component]string{component: e.Version},
			result: "not run, " + taken + " takes its place: module " + missingModule(e) + " cannot be downloaded",
		})
	}
	return rows
}

// namedModule matches the module that the go command names first in an error.
var namedModule = regexp.MustCompile(`^([\w./-]+@v[\w.+-]+):`)

// missingModule returns which module a version lacks. The rest of what the go command says is about
// the machine and its proxy.
func missingModule(e *binaries.UnavailableError) string {
	if found := namedModule.FindStringSubmatch(e.Answer); found != nil {
		return found[1]
	}
	return e.Module + "@" + e.Version
}

// outcome is what came of a suite.
type outcome struct {
	passed, skipped int
	// failed has the tests that failed, and those that were to run and did not.
	failed []string
}

func (o outcome) hasFailed() bool { return len(o.failed) > 0 }

// describe returns a table cell.
func (o outcome) describe() string {
	const mostNames = 5
	text := fmt.Sprintf("%d passed", o.passed)
	if o.skipped > 0 {
		text += fmt.Sprintf(", %d skipped", o.skipped)
	}
	if !o.hasFailed() {
		return text
	}
	names := o.failed
	if len(names) > mostNames {
		names = append(slices.Clone(names[:mostNames]), "…")
	}
	return fmt.Sprintf("**%d failed** (%s), %s", len(o.failed), strings.Join(names, ", "), text)
}

// run runs a suite with the versions that the environment requests.
func (s suite) run(ctx context.Context) (outcome, error) {
	args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout=60m"}, s.packages...)
	if len(s.tests) > 0 {
		args = append(args, "-run=^("+strings.Join(s.tests, "|")+")$")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	if len(s.tests) > 0 { // all cases of a test that is named, and not the commit's share of them
		cmd.Env = append(os.Environ(), testenv.LongVariable+"=1")
	}
	var stderr bytes.Buffer
	cmd.Stderr = io.MultiWriter(os.Stderr, &stderr)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return outcome{}, err
	}
	if err := cmd.Start(); err != nil {
		return outcome{}, err
	}
	o := s.readOutcome(events, os.Stdout)
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return outcome{}, errors.Join(err, ctx.Err())
	}
	if err != nil && !o.hasFailed() {
		o.failed = append(o.failed, "the package")
	}
	return o, nil
}

// readOutcome reads the events of `go test -json` and prints the output of tests that failed.
func (s suite) readOutcome(events io.Reader, out io.Writer) outcome {
	var o outcome
	ended, output := map[string]bool{}, map[string][]string{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		top, _, isSub := strings.Cut(event.Test, "/")
		switch event.Action {
		case "output":
			output[top] = append(output[top], event.Output)
		case "pass", "fail", "skip":
			if event.Action == "fail" && !isSub {
				_, _ = io.WriteString(out, strings.Join(output[top], ""))
			}
			if event.Test == "" || isSub {
				continue
			}
			ended[top] = true
			delete(output, top)
			switch event.Action {
			case "pass":
				o.passed++
			case "skip":
				o.skipped++
			case "fail":
				o.failed = append(o.failed, top)
			}
		}
	}
	for _, name := range s.tests {
		if !ended[name] {
			o.failed = append(o.failed, name+" did not run")
		}
	}
	return o
}
