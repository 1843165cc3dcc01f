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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// fakeCount is the number of fake members; a third of them goes dark.
const fakeCount = 9

const oneCDN = `[{"name": "cdn", "hosts": ["cdn.example.com"], "concurrency": 1}]`

// All members queue more than the fleet may run, some of it from a source group. Meanwhile
// the hub and an agent are killed and replaced.
func TestFleetNeverExceedsBudget(t *testing.T) {
	since := time.Now()
	shared.judgeExcess(t)
	shared.setBudgetForTest(t, fleetBudget, oneCDN)
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
	require.True(t, testenv.AwaitCondition(t, started(3)), "no import starts")
	shared.Hub.Kill()
	require.NoError(t, shared.StartHub(context.Background()))
	require.True(t, testenv.AwaitCondition(t, started(8)), "no import starts under the next hub")
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
	assert.LessOrEqual(t, n, 1, "from the source group: %s", then)
}

// Images of a group of sources that another member uses up come first in a queue. Others pass
// them, as far as the fleet's budget reaches.
func TestImagesPassFullSource(t *testing.T) {
	testenv.RunInTurn(t, 3)
	shared.liftAttemptTimeout(t)
	shared.setBudgetForTest(t, fleetBudget, oneCDN)
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	_, release := bravo.holdImages(t, "holds-cdn", cdnHost, 1)
	first := alpha.createImages(t, "behind-cdn", cdnHost, concurrency+1)
	alpha.awaitImages(t, first, "waiting for their source", testenv.HasReason(v1alpha1.ReasonWaitingForSource))
	passing := alpha.createImages(t, "passes-cdn", otherHost, 2)
	alpha.awaitImages(t, passing, "imported", hasSucceeded)
	alpha.awaitImages(t, first, "waiting for their source", testenv.HasReason(v1alpha1.ReasonWaitingForSource))
	release()
	alpha.awaitImages(t, first, "imported", hasSucceeded)
}

// A member becomes unreachable while it holds the whole budget. Other members get its share
// after its grant has ended and its attempts have timed out, never before.
func TestBudgetOfUnreachableMemberStaysReserved(t *testing.T) {
	testenv.RunInTurn(t, 1)
	since := time.Now()
	shared.judgeExcess(t)
	shared.setBudgetForTest(t, fleetBudget, "")
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	held, release := alpha.holdImages(t, "held", otherHost, fleetBudget)
	waits := bravo.createImages(t, "waits", otherHost, 1)
	bravo.awaitImages(t, waits, "waiting for the fleet", testenv.HasReason(v1alpha1.ReasonWaitingForFleet))
	cut := time.Now()
	alpha.Link.Cut()
	t.Cleanup(func() { require.NoError(t, alpha.Link.Repair(context.Background())) })
	require.True(t, testenv.AwaitCondition(t, func() bool { return alpha.Ledger(t).Budget == 0 }), "the grant does not expire")
	granted := findCondition(alpha.Ledger(t), v1alpha1.ConditionGranted)
	assert.Equal(t, v1alpha1.ReasonGrantEnded, granted.Reason, granted.Message)
	bravo.awaitImages(t, waits, "imported", hasSucceeded)
	spans := shared.listSpans(t, since)
	begun := firstBegin(spans, ofImages(waits[0].UID))
	assert.Greater(t, begun.Sub(cut), attemptTimeout, "the budget was given away while the member could still use it:\n%s", formatSpans(spans, cut))

	release()
	require.NoError(t, alpha.Link.Repair(t.Context()))
	alpha.awaitImages(t, held, "imported", hasSucceeded)
	n, then := maxOverlap(shared.listSpans(t, since))
	assert.LessOrEqual(t, n, fleetBudget, "%s\n%s", then, formatSpans(shared.listSpans(t, since), cut))
}

// When the budget is lowered while it is used up, nothing stops and nothing starts until the
// running imports fit. Without a budget only each member's concurrency limits.
func TestLoweredAndRemovedBudget(t *testing.T) {
	shared.judgeExcess(t)
	shared.liftAttemptTimeout(t)
	shared.setBudgetForTest(t, fleetBudget, "")
	alpha, bravo := shared.Members["alpha"], shared.Members["bravo"]
	held, release := alpha.holdImages(t, "lowered", otherHost, fleetBudget)
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
		if s.member == alpha.Name() && s.ended.After(last) {
			last = s.ended
		}
	}
	assert.True(t, firstBegin(spans, ofImages(waits[0].UID, waits[1].UID)).After(last.Add(-watchLatency)), "it began before the running imports had ended")

	since := time.Now()
	shared.setBudget(t, 0, "")
	free := map[string][]*v1alpha1.VMDiskImage{}
	var releases []func()
	for _, name := range memberNames {
		releases = append(releases, shared.Members[name].HoldImports(t))
		free[name] = shared.Members[name].createImages(t, "free", otherHost, concurrency)
	}
	for _, name := range memberNames {
		shared.Members[name].awaitImages(t, free[name], "being imported", isSyncing)
	}
	for _, release := range releases {
		release()
	}
	for _, name := range memberNames {
		shared.Members[name].awaitImages(t, free[name], "imported", hasSucceeded)
	}
	n, _ = maxOverlap(shared.listSpans(t, since))
	assert.Greater(t, n, fleetBudget)
}

// liftAttemptTimeout has held imports outlast the test: one that timed out would give up its place,
// and start again after the others.
func (f *testFleet) liftAttemptTimeout(t *testing.T) {
	t.Helper()
	f.SetPolicy(t, map[string]string{"attemptTimeout": "1h"})
	t.Cleanup(func() { f.SetPolicy(t, map[string]string{"attemptTimeout": attemptTimeout.String()}) })
}

func findCondition(st v1alpha1.SyncLedgerStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(st.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// A third of many members goes dark while all of them import. The others continue with the
// rest of the budget.
func TestDarkMembersNeverExceedBudget(t *testing.T) {
	const budget = fakeCount
	for _, m := range shared.Fakes.List {
		shared.JoinFake(t, m)
	}
	shared.Fakes.PlayImports(2 * importDuration)
	shared.setBudgetForTest(t, budget, "")
	for _, m := range shared.Fakes.List {
		require.NoError(t, m.AwaitPlan(t.Context(), func(r *v1alpha1.ReportRoot) bool { return r.Policy["safeConcurrency"] != "" }))
	}
	ctx, stop := context.WithCancel(t.Context())
	maxRunning := make(chan int)
	countRunning := func() (running []int) {
		for _, m := range shared.Fakes.List {
			running = append(running, m.RunningImports())
		}
		return running
	}
	go func() {
		most := 0
		for ctx.Err() == nil {
			// The members are read one after another: only a count that is read twice is one
			// that held at a time.
			if running := countRunning(); slices.Equal(running, countRunning()) {
				most = max(most, sumOf(running))
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		maxRunning <- most
	}()
	var images []*v1alpha1.FleetDiskImage
	for i := range 4 {
		images = append(images, shared.createFleetImage(t, fmt.Sprintf("dark-%d", i)))
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return sumOf(countRunning()) >= budget-2 }), "the budget is not used")
	dark := shared.Fakes.List[:fakeCount/3]
	for _, m := range dark {
		m.Disconnect()
	}
	for _, img := range images {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			got := &v1alpha1.FleetDiskImage{}
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(img), got))
			return got.Status.Clusters.Succeeded >= int32(fakeCount-len(dark))
		}), "%s is not in all reachable members", img.Name)
	}
	stop()
	most := <-maxRunning
	assert.Positive(t, most, "no two counts were alike: nothing was judged")
	assert.LessOrEqual(t, most, budget)
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

// createFleetImage places an image in all fake members.
func (f *testFleet) createFleetImage(t *testing.T, name string) *v1alpha1.FleetDiskImage {
	t.Helper()
	var members []string
	for _, m := range f.Fakes.List {
		members = append(members, m.Name)
	}
	img := newFleetImage(name, members...)
	img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(fakeCount))
	f.CreateForTest(t, img)
	return img
}

// newFleetImage is version 1 of a FleetDiskImage in members by name.
func newFleetImage(name string, members ...string) *v1alpha1.FleetDiskImage {
	img := fleet.NewFleetImage(name, members...)
	img.Spec.Version, img.Spec.Template.URL = "1", "https://"+otherHost+"/"+name
	return img
}
