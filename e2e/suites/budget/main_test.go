//go:build linux

// Package budget_test has a fleet with a budget of its own, from a hub to members
// that run their agents, and judges by what runs in the members: DataVolumes that can
// download, as an observer of each sees them, over all members at any time.
package budget_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet that the tests of this package have in common. They run one
// after another: each has a budget of its own.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		shared, err = startFleet(ctx)
		return shared.stop, err
	})
}
