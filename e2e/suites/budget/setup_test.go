//go:build linux

// Package budget_test shows that a fleet with a budget never runs more imports than it
// allows, over a real hub and agents that are killed and cut off. Observers of the members
// judge: DataVolumes that can download, over all members at any time. The model of
// hub/budget explores the same promise for all orders of events.
package budget_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// importDuration is long enough to see imports of several members overlap.
	importDuration = 2 * time.Second
	grantDuration  = 15 * time.Second
	attemptTimeout = 10 * time.Second
	// concurrency of each member.
	concurrency = 4
	fleetBudget = 3
	cdnHost     = "cdn.example.com"
	otherHost   = "images.example.com"
)

var memberNames = []string{"alpha", "bravo", "charlie"}

// shared is the fleet of all tests of this package, which run one after another: each sets
// a budget of its own.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	Members map[string]*testMember
}

type testMember struct{ *fleet.Member }

func TestMain(m *testing.M) {
	fleet.RunTests(m, fleet.Options{
		// Attempts that are held time out again and again, for as long as a test takes.
		Policy: map[string]string{
			"concurrency": fmt.Sprint(concurrency), "retryLimit": "50", "retryBackoffDuration": "100ms", "preflight": "false",
			"attemptTimeout": attemptTimeout.String(),
		},
		Members: fleet.Each(fleet.MemberOptions{ImportDuration: importDuration, Link: true, Observe: true}, memberNames...),
		Fakes:   fakeCount,
	}, func(_ context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, Members: map[string]*testMember{}}
		for name, m := range f.Members {
			shared.Members[name] = &testMember{m}
		}
		return nil
	})
}

// setBudget sets the fleet's budget and waits until the hub grants by it and all members apply it; 0 removes
// it. Members do not tell one budget from another.
func (f *testFleet) setBudget(t *testing.T, n int, sources string) {
	t.Helper()
	change := map[string]string{"fleetConcurrency": "", "fleetGrantDuration": "", "fleetSources": sources}
	if n > 0 {
		change["fleetConcurrency"], change["fleetGrantDuration"] = fmt.Sprint(n), grantDuration.String()
	}
	f.SetPolicy(t, change)
	require.True(t, n == 0 || testenv.AwaitCondition(t, func() bool {
		text, err := f.Hub.ReadMetrics(t.Context())
		return err == nil && strings.Contains(text, fmt.Sprintf("ot_hub_fleet_transfers_limit{source=\"\"} %d\n", n))
	}), "the hub does not grant by the budget")
	for _, name := range memberNames {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			policy := f.Members[name].Ledger(t).Policy
			_, limited := policy["safeConcurrency"]
			return limited == (n > 0) && (policy["fleetSources"] != "") == (sources != "")
		}), "%s does not apply the budget", name)
	}
}

// setBudgetForTest sets the fleet's budget until the test ends.
func (f *testFleet) setBudgetForTest(t *testing.T, n int, sources string) {
	t.Helper()
	f.setBudget(t, n, sources)
	t.Cleanup(func() { f.setBudget(t, 0, "") })
}

// holdImages creates n images in the member, which sync until they are released.
func (m *testMember) holdImages(t *testing.T, prefix, host string, n int) (images []*v1alpha1.VMDiskImage, release func()) {
	t.Helper()
	release = m.HoldImports(t)
	images = m.createImages(t, prefix, host, n)
	m.awaitImages(t, images, "syncing", testenv.InPhase(v1alpha1.PhaseSyncing))
	return images, release
}

// createImages creates n images in the member from one host.
func (m *testMember) createImages(t *testing.T, prefix, host string, n int) []*v1alpha1.VMDiskImage {
	t.Helper()
	images := make([]*v1alpha1.VMDiskImage, n)
	for i := range images {
		name := fmt.Sprintf("%s-%d", prefix, i)
		images[i] = fleet.NewImage(name)
		images[i].Spec.URL = "https://" + host + "/" + name
		require.NoError(t, m.Create(t.Context(), images[i]))
	}
	return images
}

// awaitImages waits until all images meet a condition.
func (m *testMember) awaitImages(t *testing.T, images []*v1alpha1.VMDiskImage, wanted string, condition func(*v1alpha1.VMDiskImage) bool) {
	t.Helper()
	for _, img := range images {
		m.AwaitImage(t, img.Name, wanted, condition)
	}
}

func isSyncing(img *v1alpha1.VMDiskImage) bool { return img.Status.Phase == v1alpha1.PhaseSyncing }

func hasSucceeded(img *v1alpha1.VMDiskImage) bool { return img.Status.Phase == v1alpha1.PhaseSucceeded }
