//go:build linux

// Package rollout_test shows that FleetDiskImages roll out in waves over a real hub and
// agents: while versions, labels and placements change, members are offline and the hub is
// killed between its writes. It judges by what the members have, and by all plans and
// reports that the hub stored in order. hub/rollout decides the same cases without API
// servers.
package rollout_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// namespace of the images in the members.
const namespace = fleet.Namespace

// The members. Only island is offline: it joins so, and only the test that repairs its link
// places something there and waits for it.
const (
	bergen    = "bergen"
	edge      = "edge"
	frankfurt = "frankfurt"
	lab       = "lab"
	island    = "island"
)

// labelSite is on every MemberCluster, with its name; labelRing selects the canaries.
const (
	labelSite = "site"
	labelRing = "ring"
	canary    = "canary"
)

var (
	onlineMembers = []string{bergen, edge, frankfurt, lab}
	ringOfMember  = map[string]string{bergen: canary, edge: canary, frankfurt: "late", lab: "late", island: "late"}
)

// shared is the fleet of all tests. Tests that end its hub run one after another; the others
// run in parallel, each with images of its own, and labels of its own where it changes any.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	Members map[string]*testMember
	journal *planJournal
	// source has all images but those below /missing/.
	source *httptest.Server
}

type testMember struct{ *fleet.Member }

func TestMain(m *testing.M) {
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	var members []fleet.MemberOptions
	for _, name := range append([]string{island}, onlineMembers...) {
		pull := program.UsesPullMode(name, lab)
		members = append(members, fleet.MemberOptions{
			Name: name, Labels: map[string]string{labelSite: name, labelRing: ringOfMember[name]},
			// Long enough to see two members import at a time.
			ImportDuration: 500 * time.Millisecond,
			Proxy:          true, AgentProxy: pull, Pull: pull, Observe: true, Offline: name == island,
		})
	}
	fleet.RunTests(m, fleet.Options{
		// No image waits for a slot.
		Policy:   map[string]string{"concurrency": "12", "retryLimit": "0", "retryBackoffDuration": "1s", "preflightAllow": testenv.SourceNetwork},
		HubProxy: true, Members: members,
	}, func(_ context.Context, f *fleet.Fleet) (err error) {
		shared = &testFleet{Fleet: f, Members: map[string]*testMember{}, source: source}
		for name, m := range f.Members {
			shared.Members[name] = &testMember{m}
		}
		if shared.journal, err = keepJournal(f.WithWatch); err != nil {
			return err
		}
		f.OnStop(shared.journal.close)
		f.OnStop(source.Close)
		return nil
	})
}

// mailboxProxies returns the proxies through which a member's mailbox is written: on the hub
// and in the member.
func (f *testFleet) mailboxProxies(cluster string) (onHub, inMember *faults.Proxy) {
	if m := f.Members[cluster]; m.PullMode() {
		return m.Proxy, m.AgentProxy
	}
	return f.Proxy, f.Members[cluster].Proxy
}
