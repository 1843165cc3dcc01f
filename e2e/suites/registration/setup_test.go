//go:build linux

// Package registration_test shows how a member's agent registers with a hub in pull mode: by
// the documented commands and by hand, killed at its writes, without its hub, revoked, and from
// push mode and back. Fake agents show what credentials and join tokens may do: only the real
// API server's authentication and RBAC say that.
package registration_test

import (
	"context"
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet of all tests: a hub, and a cluster that each test registers under a name
// of its own. Tests with fake agents run in parallel.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	// member reaches the hub over its link.
	member *fleet.Member
	// memberName is the member's name in the current test: the hub may still delete the
	// namespace of the last one.
	memberName string
	testCount  int
	// lastToken is the join token that was used last.
	lastToken string
	// chartChanged: the end of the current test installs the chart as it was.
	chartChanged bool
}

var scheme = testenv.NewScheme()

func TestMain(m *testing.M) {
	fleet.RunTests(m, fleet.Options{
		Policy: map[string]string{"concurrency": "3", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "false"},
		Members: []fleet.MemberOptions{{
			Name: "behind-nat", Pull: true, Link: true, Unregistered: true, WithoutAgent: true,
			Controllers: []string{"serviceaccount-token-controller"},
		}},
	}, func(_ context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, member: f.Members["behind-nat"]}
		return nil
	})
}
