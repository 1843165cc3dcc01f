//go:build linux

// Package outage_test shows what a hub does about members that go away, hang, are slow, come
// back older than they were or as another cluster: conditions say what is wrong, nothing
// unknown counts as zero, and no other member is delayed. Only real connections that break
// and real backups of etcd show that.
package outage_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// The real members: bergen has an agent and is registered; lab has the agent's chart only.
const (
	bergen = "bergen"
	lab    = "lab"
)

// fakeCount is the number of fake members; the hub reaches the last ones over links.
const (
	fakeCount   = 8
	linkedFakes = 2
)

// shared is the fleet of all tests. A test leaves it as it found it.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	Members map[string]*testMember
	// fakeLinks lead to the fake members that have one.
	fakeLinks map[string]*faults.Link
}

type testMember struct {
	*fleet.Member
	// importer replaces the member's own after a restore; nil before.
	importer *simulator.InstantImporter
}

func TestMain(m *testing.M) {
	fleet.RunTests(m, fleet.Options{
		Policy:        map[string]string{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false"},
		MemberTimeout: 5 * time.Second,
		Members: []fleet.MemberOptions{
			{Name: bergen, Link: true},
			{Name: lab, WithoutAgent: true, Unregistered: true},
		},
		Fakes: fakeCount,
	}, func(ctx context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, Members: map[string]*testMember{}, fakeLinks: map[string]*faults.Link{}}
		for name, m := range f.Members {
			shared.Members[name] = &testMember{Member: m}
		}
		for _, m := range shared.linkedFakeMembers() {
			link, err := faults.StartLink(f.FakePlane.Config())
			if err != nil {
				return err
			}
			shared.fakeLinks[m.Name] = link
			f.OnStop(link.Close)
		}
		for _, m := range f.Fakes.List {
			if err := shared.registerFake(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// linkedFakeMembers are the fake members that the hub reaches over links.
func (f *testFleet) linkedFakeMembers() []*fakemember.Member {
	return f.Fakes.List[fakeCount-linkedFakes:]
}

// registerFake registers a fake member with the hub, over its link if it has one.
func (f *testFleet) registerFake(ctx context.Context, m *fakemember.Member) error {
	cfg, err := m.Config(ctx)
	if err != nil {
		return err
	}
	if link := f.fakeLinks[m.Name]; link != nil {
		link.Redirect(cfg)
	}
	return f.CreateMember(ctx, m.Name, m.Name, nil, cfg)
}

// stopAgent stops the member's agent, which releases its Lease.
func (m *testMember) stopAgent(t *testing.T) {
	t.Helper()
	require.NoError(t, m.Agent.Stop(testenv.Patience))
	m.Agent = nil
}

// setConcurrency sets the fleet's concurrency until the test ends.
func (f *testFleet) setConcurrency(t *testing.T, value string) {
	t.Helper()
	f.SetPolicyForTest(t, map[string]string{"concurrency": value})
}
