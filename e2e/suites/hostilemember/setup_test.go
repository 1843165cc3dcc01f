//go:build linux

// Package hostilemember_test shows that a member's API server, which answers each request of the
// hub wrongly, harms nobody but its own member. A real hub has scripted servers as members beside
// honest ones. In every case its memory stays bounded, the honest members are served as fast as
// undisturbed, and a condition of the hostile member says what is wrong with it.
package hostilemember_test

import (
	"context"
	"testing"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
)

const (
	// honestCount is the number of honest members, which are fakes.
	honestCount = 2
	// laneCount is how many hostile members there are at a time.
	laneCount = 4
	// memberTimeout is more than a busy machine takes to answer a request.
	memberTimeout = 3 * time.Second
)

// shared is the fleet of all tests.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	// trips counts the round trips.
	trips int
	lanes []*lane
}

func TestMain(m *testing.M) {
	fleet.RunTests(m, fleet.Options{
		Policy: map[string]string{"concurrency": "2", "fleetConcurrency": "20"}, MemberTimeout: memberTimeout, Fakes: honestCount,
	}, func(ctx context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f}
		for _, m := range f.Fakes.List {
			cfg, err := m.Config(ctx)
			if err != nil {
				return err
			}
			if err := f.CreateMember(ctx, m.Name, m.Name, nil, cfg); err != nil {
				return err
			}
			if err := f.AwaitReady(ctx, m.Name); err != nil {
				return err
			}
		}
		for n := range laneCount {
			l, err := startLane(ctx, f, n)
			if err != nil {
				return err
			}
			shared.lanes = append(shared.lanes, l)
			f.OnStop(l.stop)
		}
		return nil
	})
}
