//go:build linux

// Package outage_test makes members unreachable, hangs them, restores them from older
// backups and rebuilds them under the same name. Only it shows that the conditions of such
// a member say so, and that the hub serves all other members undisturbed.
package outage_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet that the tests of this package have in common. A test
// leaves it as it found it.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		shared, err = startFleet(ctx)
		return shared.stop, err
	})
}
