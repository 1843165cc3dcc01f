//go:build linux

// Package kind_test runs harness/fleetjourneys on kind clusters (scripts/kind-up), and tests that take
// real nodes and downloads. It restores the fleet's state. `make e2e-kind` runs it; without a fleet
// it is skipped.
package kind_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
)

// fleetVariable is the environment variable with the path of the fleet's description.
const fleetVariable = "OT_FLEET_KIND"

// sharedFleet is nil without a fleet.
var sharedFleet *kindFleet

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(func() int {
		path := os.Getenv(fleetVariable)
		if path == "" {
			return m.Run()
		}
		var err error
		if sharedFleet, err = openFleet(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := resultsPage.writePage(context.Background(), sharedFleet); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// requireFleet skips the test without a fleet.
func requireFleet(t *testing.T) *kindFleet {
	t.Helper()
	if sharedFleet == nil {
		t.Skip("needs clusters of kind: make e2e-kind")
	}
	return sharedFleet
}

func TestJourneys(t *testing.T) {
	f := requireFleet(t)
	for _, j := range fleetjourneys.Journeys {
		t.Run(j.Name, func(t *testing.T) {
			runJourney(t, j.Shows, func(t *testing.T) { j.Run(t, f) })
		})
	}
}
