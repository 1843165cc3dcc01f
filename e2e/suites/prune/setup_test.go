//go:build linux

// Package prune_test shows that a prune deletes exactly what its reviewed report listed and
// what the agent confirms, over a real hub and agents whose writes are held, lost and
// followed by their death. It judges by the images and storage in the members, not by what
// reports and prunes say. hub/prune decides the same cases without API servers.
package prune_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	// namespace of the images in the members.
	namespace = fleet.Namespace
	// approver is the user of all requests to the hub.
	approver = "admin"
	// memberTimeout is after how long the hub gives up a silent agent.
	memberTimeout = 3 * time.Second
)

// The members. Only island is cut off or has its agent killed: a test that runs in parallel
// with others places nothing there unless it does so itself.
const (
	bergen = "bergen"
	edge   = "edge"
	island = "island"
)

// shared is the fleet of all tests. Tests that end its hub, or that compare all images of its
// members, run one after another; the others run in parallel, each with a name prefix of its
// own for images and reports.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	Members map[string]*testMember
}

type testMember struct{ *fleet.Member }

func TestMain(m *testing.M) {
	var members []fleet.MemberOptions
	for _, name := range []string{bergen, edge, island} {
		members = append(members, fleet.MemberOptions{
			Name: name, ImportDuration: 100 * time.Millisecond, Heartbeat: time.Second, Proxy: true, AgentProxy: true,
			Pull: program.UsesPullMode(name, bergen),
		})
	}
	fleet.RunTests(m, fleet.Options{
		Policy:        map[string]string{"concurrency": "12", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "false"},
		MemberTimeout: memberTimeout, HubProxy: true, Members: members,
	}, func(_ context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, Members: map[string]*testMember{}}
		for name, m := range f.Members {
			shared.Members[name] = &testMember{m}
		}
		return nil
	})
}

// startFakes starts fake members, called prefix-0 and so on, and registers them until the
// test ends. prepare sets up each before it joins.
func (f *testFleet) startFakes(t *testing.T, prefix string, n int, prepare func(int, *fakemember.Member)) []*fakemember.Member {
	t.Helper()
	all, err := fakemember.Start(t.Context(), f.Plane, prefix, n)
	require.NoError(t, err)
	t.Cleanup(all.Stop)
	for i, m := range all.List {
		prepare(i, m)
		f.JoinFake(t, m)
		f.AwaitHealthy(t, m.Name)
	}
	return all.List
}

// reconnect repairs the link of a member and waits until the hub reaches it.
func (f *testFleet) reconnect(t *testing.T, m *testMember) {
	t.Helper()
	require.NoError(t, m.Link.Repair(t.Context()))
	f.AwaitHealthy(t, m.Name())
}
