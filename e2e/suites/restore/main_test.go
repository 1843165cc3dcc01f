//go:build linux

// Package restore_test kills, pauses and doubles a hub, restores it from a backup, and runs
// it in a cluster of its own fleet. Only it shows that no plan or report goes back to an
// older one meanwhile. Most members are fake (package fakemember); one has an agent.
package restore_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet that the tests of this package have in common. A hub is
// started by each of them.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		if shared, err = startFleet(ctx); err != nil {
			return nil, err
		}
		return shared.stopAll, nil
	})
}
