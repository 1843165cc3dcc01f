//go:build linux

// Package restore_test shows that nothing is lost, repeated or written back to an older state
// when hubs are killed, paused, doubled, restored from a backup of etcd, or run in a cluster of
// their own fleet. Only real API servers show which of two writers wins.
package restore_test

import (
	"context"
	"testing"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
)

const (
	// hubLeaseDuration is as short as a busy machine can renew it.
	hubLeaseDuration = 15 * time.Second
	// heartbeat of the agents.
	heartbeat = time.Second

	realName = "bergen"
	// The hub reaches the first fake member through a proxy that holds writes, the second over
	// a link that can be cut.
	proxiedFake = "fake-0"
	linkedFake  = "fake-1"
	plainFake   = "fake-2"
	otherFake   = "fake-3"
	fakeCount   = 4
)

// shared is the fleet of all tests. Each test starts its hubs.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	realMember  *fleet.Member
	fakeProxy   *faults.Proxy
	fakeLink    *faults.Link
	memberNames []string
	lastBudget  int32
}

func TestMain(m *testing.M) {
	fleet.RunTests(m, fleet.Options{
		Policy: newPolicyData(3), MemberTimeout: 5 * time.Second, WithoutHub: true, HubCanImport: true,
		Members: []fleet.MemberOptions{{Name: realName, ImportDuration: 200 * time.Millisecond, Heartbeat: heartbeat}},
		// On an API server of their own, which is not restored with the hub's.
		Fakes: fakeCount, FakePlane: true,
	}, func(ctx context.Context, f *fleet.Fleet) (err error) {
		shared = &testFleet{Fleet: f, realMember: f.Members[realName], memberNames: []string{realName, proxiedFake, linkedFake, plainFake, otherFake}}
		if shared.fakeProxy, err = faults.StartProxy(f.FakePlane.Config()); err != nil {
			return err
		}
		f.OnStop(func() { _ = shared.fakeProxy.Close() })
		if shared.fakeLink, err = faults.StartLink(f.FakePlane.Config()); err != nil {
			return err
		}
		f.OnStop(shared.fakeLink.Close)
		for _, m := range f.Fakes.List {
			cfg, err := m.Config(ctx)
			if err != nil {
				return err
			}
			switch m.Name {
			case proxiedFake:
				shared.fakeProxy.Redirect(cfg)
			case linkedFake:
				shared.fakeLink.Redirect(cfg)
			}
			if err := f.CreateMember(ctx, m.Name, m.Name, nil, cfg); err != nil {
				return err
			}
		}
		return nil
	})
}
