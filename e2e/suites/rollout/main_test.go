//go:build linux

// Package rollout_test rolls FleetDiskImages out, from a hub to members that run
// their agents, and judges by what the members have and by the hub's plans and
// its copies of the reports, not by what a FleetDiskImage's status says alone.
package rollout_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet that the tests of this package have in common. Those that
// end its hub run one after another, all others beside each other: each has
// images of its own, and labels of its own where it changes any.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		shared, err = startFleet(ctx)
		return shared.stop, err
	})
}
