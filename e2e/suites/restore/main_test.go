//go:build linux

// Package restore_test does to a hub what happens to hubs: it is killed, paused,
// doubled, restored from a backup, and run in a cluster of its own fleet. Most of
// its members are light; one has an agent.
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
