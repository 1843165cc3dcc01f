//go:build linux

package testenv

import (
	"flag"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// SweepVariable selects the share of every sweep by number.
	SweepVariable = "OT_FLEET_SWEEP"
	// LongVariable has every sweep take all of its points.
	LongVariable = "OT_FLEET_LONG"
	// sweepShares is the number of runs that see all points of a sweep.
	sweepShares = 10
	// turns is the number of runs that see all tests, pages and cases which take turns.
	turns = 5
)

// IsLong reports whether sweeps take all of their points.
func IsLong() bool { return os.Getenv(LongVariable) != "" }

// SweepShare returns the points of a sweep that this run takes: every tenth one, so that
// ten consecutive commits see all of them, and at least one.
func SweepShare[T any](points []T) []T { return shareOf(points, sweepShares) }

// TurnShare returns a fifth of the points, of a sweep that is cheaper or matters more.
func TurnShare[T any](points []T) []T { return shareOf(points, turns) }

// shareOf returns the points that this run takes: of so many consecutive runs, each takes
// other ones, and at least one, and together they take all.
func shareOf[T any](points []T, runs int) []T {
	if IsLong() || len(points) == 0 {
		return points
	}
	runs = min(runs, len(points))
	var share []T
	for i := sweepNumber() % runs; i < len(points); i += runs {
		share = append(share, points[i])
	}
	return share
}

// sweepNumber is the number of this run: by the environment, or the number of commits, or
// the day where there is no repository.
func sweepNumber() int {
	if n, err := strconv.Atoi(os.Getenv(SweepVariable)); err == nil && n >= 0 {
		return n
	}
	out, err := exec.Command("git", "rev-list", "--count", "HEAD").Output()
	if err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(out))); err == nil {
			return n
		}
	}
	return time.Now().YearDay()
}

// RunInTurn skips the test unless it is its turn, or it was asked for by -run: of tests that
// show one promise in different circumstances, each run takes a fifth. index is the test's
// place among those of its package. A test that takes a share of its points runs each time:
// shares of turns would leave points out.
func RunInTurn(t *testing.T, index int) {
	t.Helper()
	if IsLong() || flag.Lookup("test.run").Value.String() != "" {
		return
	}
	if sweepNumber()%turns != index%turns {
		t.Skipf("not in this run's share; set %s=%d or %s=1", SweepVariable, index%turns, LongVariable)
	}
}
