//go:build linux

// Package rollout_test rolls FleetDiskImages out, from a hub to members that run
// their agents, and judges by what the members have and by the hub's plans and
// its copies of the reports, not by what a FleetDiskImage's status says alone.
package rollout_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// shared is the fleet that the tests of this package have in common. Those that
// end its hub run one after another, all others beside each other: each has
// images of its own, and labels of its own where it changes any.
var shared *fleet

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	f, err := startFleet(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if err := f.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return 1
	}
	shared = f
	code := m.Run()
	if err := f.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}
