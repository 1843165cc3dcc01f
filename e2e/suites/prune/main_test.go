//go:build linux

// Package prune_test reports what can go in members that run their agents, and has
// it go. It judges by the images and the storage that the members have, not by what
// reports and prunes say alone.
package prune_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet that the tests of this package have in common. Those that
// end its hub, or look at everything there is in its members, run one after
// another, all others beside each other: each has images whose names begin as no
// other's do, and reports on those.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		shared, err = startFleet(ctx)
		return shared.stop, err
	})
}
