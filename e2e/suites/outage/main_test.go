//go:build linux

// Package outage_test has members of a hub go, hang, come back older than they
// were or as somebody else, and wants people to be told and nobody else to be
// disturbed.
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
