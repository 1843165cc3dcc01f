//go:build linux

package budget_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// fakeCount are the light members; a third of them goes dark.
const fakeCount = 9

const oneCDN = `[{"name": "cdn", "hosts": ["cdn.example.com"], "concurrency": 1}]`

// All members want more than the fleet may run, some of it from a group of sources;
// meanwhile the hub is killed and replaced, and so is an agent.
func TestFleetNeverExceedsBudget(t *testing.T) {
	since := time.Now()
	shared.setBudget(t, fleetBudget, oneCDN)
	t.Cleanup(func() { shared.setBudget(t, 0, "") })
	images, fromCDN := map[string][]*v1alpha1.VMDiskImage{}, []types.UID{}
	for _, name := range memberNames {
		s := shared.Members[name]
		grouped := s.createImages(t, "cdn", cdnHost, 2)
		images[name] = append(grouped, s.createImages(t, "other", otherHost, 3)...)
		for _, img := range grouped {
			fromCDN = append(fromCDN, img.UID)
		}
	}
	started := func(n int) func() bool {
		return func() bool { return len(shared.listSpans(t, since)) >= n }
	}
	require.True(t, testenv.Await(t, started(3)), "nothing runs")
	shared.Hub.Kill()
	require.NoError(t, shared.StartHub(context.Background()))
	require.True(t, testenv.Await(t, started(8)), "nothing more runs under the next hub")
	bravo := shared.Members["bravo"]
	bravo.Agent.Kill()
	require.NoError(t, bravo.StartAgent(context.Background()))
	for _, name := range memberNames {
		shared.Members[name].awaitImages(t, images[name], "imported", hasSucceeded)
	}
	spans := shared.listSpans(t, since)
	n, then := maxOverlap(spans)
	assert.LessOrEqual(t, n, fleetBudget, then)
	assert.Greater(t, n, 1, "the budget is used")
	n, then = maxOverlap(spans, ofImages(fromCDN...))
	assert.LessOrEqual(t, n, 1, "from the group: %s", then)
}

// A member that cannot be reached while it holds all of the budget: others get what it
// held when its grant has ended and what it ran has timed out, and never before.
func TestBudgetOfUnreachableMemberStaysReserved(t *testing.T) {
	since := time.Now()
	shared.setBudget(t, fleetBudget, "")
	t.Cleanup(func() { shared.setBudget(t, 0, "") })
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	release := alpha.holdImports(t)
	held := alpha.createImages(t, "held", otherHost, fleetBudget)
	alpha.awaitImages(t, held, "on its way", testenv.InPhase(v1alpha1.PhaseSyncing))
	alpha.Link.Cut()
	t.Cleanup(func() { require.NoError(t, alpha.Link.Repair(context.Background())) })
	cut := time.Now()
	waits := bravo.createImages(t, "waits", otherHost, 1)
	bravo.awaitImages(t, waits, "waiting for the fleet", testenv.HasReason(v1alpha1.ReasonWaitingForFleet))
	require.True(t, testenv.Await(t, func() bool { return alpha.ledger(t).Budget == 0 }), "the grant does not end")
	granted := findCondition(alpha.ledger(t), v1alpha1.ConditionGranted)
	assert.Equal(t, v1alpha1.ReasonGrantEnded, granted.Reason, granted.Message)
	bravo.awaitImages(t, waits, "imported", hasSucceeded)
	spans := shared.listSpans(t, since)
	begun := firstBegin(spans, ofImages(waits[0].UID))
	assert.Greater(t, begun.Sub(cut), attemptTimeout, "it was given what a member might have been running yet:\n%s", formatSpans(spans, cut))

	release()
	require.NoError(t, alpha.Link.Repair(t.Context()))
	alpha.awaitImages(t, held, "imported", hasSucceeded)
	n, then := maxOverlap(shared.listSpans(t, since))
	assert.LessOrEqual(t, n, fleetBudget, "%s\n%s", then, formatSpans(shared.listSpans(t, since), cut))
}

// Lowered while it is used up: nothing stops and nothing starts until it fits. Without
// it nothing but each policy's concurrency limits.
func TestLoweredAndRemovedBudget(t *testing.T) {
	// An attempt that is held here and timed out would begin again after the others.
	shared.setPolicy(t, map[string]string{"attemptTimeout": "1h"})
	shared.setBudget(t, fleetBudget, "")
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	release := alpha.holdImports(t)
	t.Cleanup(func() {
		shared.setPolicy(t, map[string]string{"attemptTimeout": attemptTimeout.String()})
		shared.setBudget(t, 0, "")
	})
	held := alpha.createImages(t, "lowered", otherHost, fleetBudget)
	alpha.awaitImages(t, held, "on its way", testenv.InPhase(v1alpha1.PhaseSyncing))
	shared.setBudget(t, 1, "")
	lowered := time.Now()
	waits := bravo.createImages(t, "after", otherHost, 2)
	release()
	alpha.awaitImages(t, held, "imported", hasSucceeded)
	bravo.awaitImages(t, waits, "imported", hasSucceeded)
	spans := shared.listSpans(t, lowered)
	n, then := maxOverlap(spans, ofImages(waits[0].UID, waits[1].UID))
	assert.Equal(t, 1, n, then)
	last := lowered
	for _, s := range spans {
		if s.site == alpha.name && s.ended.After(last) {
			last = s.ended
		}
	}
	assert.True(t, firstBegin(spans, ofImages(waits[0].UID, waits[1].UID)).After(last.Add(-watchLatency)), "it began before what ran had ended")

	since := time.Now()
	shared.setBudget(t, 0, "")
	free := map[string][]*v1alpha1.VMDiskImage{}
	for _, name := range memberNames {
		free[name] = shared.Members[name].createImages(t, "free", otherHost, concurrency)
	}
	for _, name := range memberNames {
		shared.Members[name].awaitImages(t, free[name], "imported", hasSucceeded)
	}
	n, _ = maxOverlap(shared.listSpans(t, since))
	assert.Greater(t, n, fleetBudget)
}

func findCondition(st v1alpha1.SyncLedgerStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(st.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// A third of many members goes dark while all of them import. Those that are left go
// on with what is left.
func TestDarkMembersNeverExceedBudget(t *testing.T) {
	const budget = fakeCount
	for _, m := range shared.Fakes.List {
		cfg, err := m.Config(t.Context())
		require.NoError(t, err)
		require.NoError(t, shared.join(t.Context(), m.Name, m.Name, cfg))
		t.Cleanup(func() {
			require.NoError(t, shared.Delete(context.Background(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}))
		})
	}
	shared.Fakes.PlayImports(2 * importDuration)
	shared.setBudget(t, budget, "")
	t.Cleanup(func() { shared.setBudget(t, 0, "") })
	for _, m := range shared.Fakes.List {
		require.NoError(t, m.AwaitPlan(t.Context(), func(r *v1alpha1.ReportRoot) bool { return r.Policy["safeConcurrency"] != "" }))
	}
	ctx, stop := context.WithCancel(t.Context())
	judged := make(chan int)
	look := func() (running []int) {
		for _, m := range shared.Fakes.List {
			running = append(running, m.RunningImports())
		}
		return running
	}
	go func() { // while they are looked at in turn, one may end and another begin: what is seen twice counts
		worst := 0
		for ctx.Err() == nil {
			if running := look(); slices.Equal(running, look()) {
				worst = max(worst, sumOf(running))
			}
			select {
			case <-time.After(tick):
			case <-ctx.Done():
			}
		}
		judged <- worst
	}()
	var images []*v1alpha1.FleetDiskImage
	for i := range 4 {
		images = append(images, shared.createFleetImage(t, fmt.Sprintf("dark-%d", i)))
	}
	require.True(t, testenv.Await(t, func() bool { return sumOf(look()) >= budget-2 }), "the budget is not used")
	dark := shared.Fakes.List[:fakeCount/3]
	for _, m := range dark {
		m.GoDark()
	}
	for _, img := range images {
		require.True(t, testenv.Await(t, func() bool {
			got := &v1alpha1.FleetDiskImage{}
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(img), got))
			return got.Status.Clusters.Succeeded >= int32(fakeCount-len(dark))
		}), "%s is not everywhere", img.Name)
	}
	stop()
	worst := <-judged
	assert.LessOrEqual(t, worst, budget)
	for _, m := range dark {
		require.NoError(t, m.Reconnect(t.Context()))
	}
}

func sumOf(all []int) (sum int) {
	for _, n := range all {
		sum += n
	}
	return sum
}

// createFleetImage has an image in all light members.
func (f *testFleet) createFleetImage(t *testing.T, name string) *v1alpha1.FleetDiskImage {
	t.Helper()
	var members []string
	for _, m := range f.Fakes.List {
		members = append(members, m.Name)
	}
	img := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.FleetDiskImageSpec{
			TargetNamespace: namespace, Version: "1",
			Template: v1alpha1.VMDiskImageSpec{
				Name: name, SourceType: v1alpha1.SourceHTTP, DiskSize: resource.MustParse("1Gi"), URL: "https://" + otherHost + "/" + name,
			},
			Placement: v1alpha1.Placement{ClusterNames: members},
		},
	}
	img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(fakeCount))
	require.NoError(t, f.Create(t.Context(), img))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), img))) })
	return img
}
