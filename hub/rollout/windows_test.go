package rollout_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// waitForWindow has started clusters wait for a window, as their agents report it.
func waitForWindow(v rollout.View, opensAt time.Time, names ...string) rollout.View {
	for _, name := range names {
		for i := range v.Clusters {
			if c := &v.Clusters[i]; c.Name == name {
				c.PlannedAt = v.Now.Add(-10 * deadline)
				c.Report.Phase, c.Report.Reason, c.Report.OpensAt = v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForWindow, opensAt
			}
		}
	}
	return v
}

// A wait for a window uses up no deadline and no maxConcurrency, fails nothing, and holds the
// next wave.
func TestClustersThatWaitForWindow(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	v := waitForWindow(newView(newUbuntu().WithMaxConcurrency("1"), "canary=PP.. eu=."), opens, "canary-0", "canary-1")
	d := decideAndCheck(t, v)
	assert.Equal(t, "canary=PPP. eu=.", formatStates(d))
	assert.Equal(t, []string{"canary-2"}, d.Start, "one that does not wait")
	assert.Equal(t, v1alpha1.ReasonRolloutWaitingForWindow, d.Placed[0].Reason)
	assert.Contains(t, d.Placed[0].Message, "2026-03-01T20:00:00Z")
	assert.Contains(t, d.Status.Message, "2 clusters wait for a window of the policy (canary-0, canary-1); the first one opens at 2026-03-01T20:00:00Z")
	assert.Equal(t, v1alpha1.ReasonMaxConcurrency, d.Status.Reason)
	assert.Zero(t, d.Status.Clusters.TimedOut)
	assert.Empty(t, d.Status.Blocked)
}

// A report that says no time, or one that has passed, holds up nobody: an agent may hang, or lie.
func TestWindowThatHasOpenedIsNoWait(t *testing.T) {
	for name, tt := range map[string]struct {
		opensAt    time.Time
		fromHub    bool
		wantStates string
		reason     v1alpha1.Reason
	}{
		"it opens":                                    {now.Add(time.Hour), false, "canary=PP eu=.", v1alpha1.ReasonWaitingForWindow},
		"it has just opened":                          {now, false, "canary=P. eu=.", v1alpha1.ReasonWaitingForWindow},
		"less than a deadline ago":                    {now.Add(time.Second - deadline), false, "canary=P. eu=.", v1alpha1.ReasonWaitingForWindow},
		"a deadline ago":                              {now.Add(-deadline - time.Second), false, "canary=T. eu=.", v1alpha1.ReasonWaitingForWindow},
		"by the hub, less than that ago":              {now.Add(time.Second - deadline), true, "canary=P. eu=.", v1alpha1.ReasonWaitingForWindow},
		"by the hub, a deadline ago":                  {now.Add(-deadline - time.Second), true, "canary=T. eu=.", v1alpha1.ReasonWaitingForWindow},
		"no time":                                     {time.Time{}, false, "canary=T. eu=.", v1alpha1.ReasonWaitingForWindow},
		"it has just opened, and it waits for others": {now, false, "canary=T. eu=.", v1alpha1.ReasonWaitingForSlot},
	} {
		t.Run(name, func(t *testing.T) {
			v := waitForWindow(newView(newUbuntu().WithMaxConcurrency("1"), "canary=P. eu=."), tt.opensAt, "canary-0")
			v.Clusters[0].Report.Reason = tt.reason
			if tt.fromHub {
				v.Clusters[0].Report.OpensAt, v.Clusters[0].WindowOpensAt = time.Time{}, tt.opensAt
			}
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.wantStates, formatStates(d))
			if !tt.opensAt.After(now) {
				assert.NotContains(t, d.Placed[0].Message, "opens at")
			}
		})
	}
}

// A member that names a later window in each report, or says again and again that one has opened,
// holds up its wave for a month.
func TestWindowsAreWaitedForAMonth(t *testing.T) {
	for name, change := range map[string]func(c *rollout.Cluster){
		"opens tomorrow, by its report":         func(c *rollout.Cluster) { c.Report.OpensAt = now.Add(24 * time.Hour) },
		"opens tomorrow, by its status":         func(c *rollout.Cluster) { c.Report.OpensAt, c.WindowOpensAt = time.Time{}, now.Add(24*time.Hour) },
		"has just opened, by its report":        func(c *rollout.Cluster) { c.Report.OpensAt = now },
		"has just opened, as its status stores": func(c *rollout.Cluster) { c.Report.OpensAt, c.WindowOpenedAt = time.Time{}, now },
	} {
		t.Run(name, func(t *testing.T) {
			for days, want := range map[time.Duration]string{30: "P", 33: "T"} {
				v := waitForWindow(newView(newUbuntu().WithMaxConcurrency("1"), "canary=P eu=."), now, "canary-0")
				change(&v.Clusters[0])
				v.Clusters[0].PlannedAt = now.Add(-days * 24 * time.Hour)
				v.Clusters[0].OnlineSince = v.Clusters[0].PlannedAt
				d := decideAndCheck(t, v)
				assert.Contains(t, formatStates(d), "canary="+want, days)
				if want == "P" {
					assert.LessOrEqual(t, d.RequeueAfter, 24*time.Hour+time.Second, "nothing else may bring it")
				}
			}
		})
	}
}

// A cluster that was away for longer than that waits for its window again.
func TestClusterThatReturnsWaitsForItsWindow(t *testing.T) {
	v := waitForWindow(newView(newUbuntu().WithMaxConcurrency("1"), "canary=P eu=."), now.Add(8*time.Hour), "canary-0")
	c := &v.Clusters[0]
	c.PlannedAt, c.OnlineSince, c.WindowOpensAt = now.Add(-40*24*time.Hour), now.Add(-2*deadline), now.Add(8*time.Hour)
	assert.Contains(t, formatStates(decideAndCheck(t, v)), "canary=P")
}

// When a window opens for all, no more clusters import together than maxConcurrency allows.
func TestMaxConcurrencyHoldsWhenWindowOpens(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	v := waitForWindow(newView(newUbuntu().WithMaxConcurrency("1"), "canary=P... eu=."), opens, "canary-0")
	for i := range v.Clusters {
		v.Clusters[i].WindowOpensAt = opens
	}
	d := decideAndCheck(t, v)
	assert.Empty(t, d.Start, "their window opens with that of the first one")
	assert.Equal(t, v1alpha1.RolloutWaiting, d.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonRolloutWaitingForWindow, d.Status.Reason)
	assert.True(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionProgressing))
	assert.Contains(t, d.Status.Message, "1 cluster waits for a window of the policy (canary-0)")
	assert.Contains(t, d.Status.Message, "maxConcurrency allows 1; 3 wait to start")

	v.Clusters[2].WindowOpensAt = time.Time{}
	assert.Equal(t, []string{"canary-2"}, decideAndCheck(t, v).Start, "its window is open")

	// It has opened: the report is from before.
	for i := range v.Clusters {
		v.Clusters[i].WindowOpensAt, v.Clusters[i].WindowOpenedAt = time.Time{}, opens
	}
	v.Now = opens
	assert.Empty(t, decideAndCheck(t, v).Start)
}

func TestOnlyWindowsRemain(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	v := waitForWindow(newView(newUbuntu(), "canary=PPS eu=."), opens, "canary-0")
	v = waitForWindow(v, opens.Add(-time.Hour), "canary-1")
	d := decideAndCheck(t, v)
	assert.Equal(t, "canary=PPS eu=.", formatStates(d), "the wave is not done")
	assert.Equal(t, v1alpha1.RolloutWaiting, d.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonRolloutWaitingForWindow, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "2 clusters wait for a window of the policy (canary-0, canary-1); the first one opens at 2026-03-01T19:00:00Z")
	assert.True(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionProgressing))
	assert.False(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled))
	assert.LessOrEqual(t, d.RequeueAfter, 7*time.Hour)

	// One that waits for a person beside them is still named.
	v.Clusters[0].Report.Reason = v1alpha1.ReasonSecretMissing
	v.Clusters[0].PlannedAt = now
	d = decideAndCheck(t, advanceView(v, decideAndCheck(t, v), 2*time.Minute))
	assert.Equal(t, v1alpha1.ReasonRolloutWaitingForWindow, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "In 1 cluster a person has to act: canary-0")
	assert.False(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled))
}

// The deadline counts from the opening, which the MemberCluster stores.
func TestDeadlineCountsFromOpening(t *testing.T) {
	for name, tt := range map[string]struct {
		openedAgo time.Duration
		want      string
	}{
		"never closed":  {0, "canary=T"},
		"just opened":   {time.Minute, "canary=P"},
		"open for long": {deadline + time.Minute, "canary=T"},
	} {
		v := newView(newUbuntu(), "canary=T")
		if tt.openedAgo > 0 {
			v.Clusters[0].WindowOpenedAt = now.Add(-tt.openedAgo)
		}
		d := decideAndCheck(t, v)
		assert.Equal(t, tt.want, formatStates(d), name)
		if tt.want == "canary=P" {
			assert.LessOrEqual(t, d.RequeueAfter, deadline, name)
		}
	}
}

// What runs when a window closes runs on, and its deadline with it.
func TestImportOutlastsItsWindow(t *testing.T) {
	v := newView(newUbuntu(), "canary=T")
	c := &v.Clusters[0]
	c.Report.Reason = v1alpha1.ReasonImporting
	c.WindowOpensAt, c.WindowOpenedAt = now.Add(16*time.Hour), now.Add(-time.Minute)
	assert.Equal(t, "canary=P", formatStates(decideAndCheck(t, v)))
	c.WindowOpenedAt = now.Add(-deadline - time.Minute)
	assert.Equal(t, "canary=T", formatStates(decideAndCheck(t, v)))
}

// An agent that knows no windows calls a closed one a pause, and a closed budget of the fleet
// is the hub's alone.
func TestHubKnowsTheWindow(t *testing.T) {
	for reason, wantWaits := range map[v1alpha1.Reason]bool{
		v1alpha1.ReasonPaused: true, v1alpha1.ReasonWaitingForFleet: true, v1alpha1.ReasonWaitingForSource: true,
		v1alpha1.ReasonImporting: false, v1alpha1.ReasonSecretMissing: false,
	} {
		v := newView(newUbuntu(), "canary=T")
		v.Clusters[0].Report.Reason, v.Clusters[0].WindowOpensAt = reason, now.Add(time.Hour)
		d := decideAndCheck(t, v)
		assert.Equal(t, wantWaits, d.Status.Reason == v1alpha1.ReasonRolloutWaitingForWindow, reason)
		assert.Equal(t, !wantWaits, d.Status.Clusters.TimedOut > 0, reason)
		v.Clusters[0].WindowOpensAt = time.Time{}
		assert.Equal(t, int32(1), decideAndCheck(t, v).Status.Clusters.TimedOut, "%s without a window", reason)
	}
}

// What waits for a window is expected after it opens.
func TestExpectedAfterOpening(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	v := waitForWindow(newView(newUbuntu(), "canary=P"), opens, "canary-0")
	a := newActivity()
	a.Active, a.Slots, a.Budget = nil, 0, 0
	stored := *toStoredTime(opens)
	a.Head = []v1alpha1.QueuedImport{{Namespace: "vm-images", Name: "ubuntu-1.0.0", Source: a.Rates[0].Name, Bytes: 1 << 30, QueuedAt: a.ObservedAt, Reason: v1alpha1.ReasonWaitingForWindow, OpensAt: &stored}}
	name := rollout.CurrentImage(v.Image)
	a.Head[0].Namespace, a.Head[0].Name = name.Namespace, name.Name
	a.Queued = 1
	v = withActivity(v, "canary-0", a)
	d := decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
	assert.True(t, d.Status.ExpectedAt.After(opens), d.Status.ExpectedAt)
	assert.Less(t, d.Status.ExpectedAt.Sub(opens), 2*time.Hour)

	// A cluster that has not started is expected after the opening that the hub knows.
	idle := newActivity()
	idle.Active, idle.Head, idle.Queued, idle.Slots, idle.Budget = nil, nil, 0, 0, 0
	v = newView(newUbuntu().WithMaxConcurrency("1"), "canary=..")
	for i := range v.Clusters {
		v.Clusters[i].WindowOpensAt = opens
		v = withActivity(v, v.Clusters[i].Name, idle)
	}
	d = decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
	assert.True(t, d.Status.ExpectedAt.After(opens), d.Status.ExpectedAt)
}

// idleBehindWindows is a rollout of clusters that import nothing now, and would take an hour each.
func idleBehindWindows(img *builder, fleet string, opens ...time.Time) rollout.View {
	v := newView(img, fleet)
	for i := range v.Clusters {
		idle := newActivity()
		v.Clusters[i].WindowOpensAt = opens[i%len(opens)]
		if v.Clusters[i].WindowOpensAt.After(now) {
			idle.Budget = 0
		}
		idle.Head = nil
		v = withActivity(v, v.Clusters[i].Name, idle)
	}
	return v
}

// n clusters behind one window are done after its opening and n imports, not after n openings: also
// those that have started, and those of which nothing is known.
func TestWindowIsWaitedForOnce(t *testing.T) {
	alone := decideAndCheck(t, idleBehindWindows(newUbuntu(), "canary=.", now.Add(8*time.Hour)))
	imported := alone.Status.ExpectedAt.Sub(now.Add(8 * time.Hour))
	require.Positive(t, imported)
	rapid.Check(t, func(t *rapid.T) {
		n, limit := rapid.IntRange(1, 10).Draw(t, "clusters"), rapid.IntRange(1, 4).Draw(t, "maxConcurrency")
		opens := now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "opens")) * time.Minute)
		states := make([]byte, n)
		for i := range states {
			states[i] = '.'
			if i < limit {
				states[i] = rapid.SampledFrom([]byte(".P")).Draw(t, "state")
			}
		}
		v := idleBehindWindows(newUbuntu().WithMaxConcurrency(strconv.Itoa(limit)), "canary="+string(states), opens)
		for i := range v.Clusters {
			if 2*i > n && rapid.Bool().Draw(t, "unknown") {
				v.Clusters[i].Activity = nil
			}
		}
		d := decideAndCheck(t, v)
		require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
		rounds := (n + limit - 1) / limit
		require.InDelta(t, (time.Duration(rounds) * imported).Minutes(), d.Status.ExpectedAt.Sub(opens).Minutes(), float64(1+rounds), "%d rounds", rounds)
	})
}

// A cluster whose window opens later holds up none whose window is open, as it does not in decideNextWave.
func TestExpectedPastClosedWindows(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	v := idleBehindWindows(newUbuntu().WithMaxConcurrency("1"), "canary=...", opens, time.Time{}, time.Time{})
	d := decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
	assert.Less(t, d.Status.ExpectedAt.Sub(opens), 2*time.Hour, "the first begins when its window opens")

	// One that has started has its place: it begins when its window opens, whatever began before.
	soon := now.Add(10 * time.Minute)
	v = waitForWindow(idleBehindWindows(newUbuntu().WithMaxConcurrency("1"), "canary=P....", soon, time.Time{}, time.Time{}, time.Time{}, time.Time{}), soon, "canary-0")
	require.Equal(t, []string{"canary-1"}, decideAndCheck(t, v).Start)
	d = decideAndCheck(t, v)
	require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
	imported := time.Duration(v.Image.Spec.Template.DiskSize.Value()/perSecond) * time.Second
	assert.InDelta(t, (10*time.Minute + 4*imported).Minutes(), d.Status.ExpectedAt.Sub(now).Minutes(), 3)
}

// A cluster is waited for as long as windows are, whatever time it reports, and its rollout's status is not
// written each minute.
func TestExpectedPastAWindowThatNeverOpens(t *testing.T) {
	never := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		fleet   string
		planned time.Duration // how long ago its plan is of
		want    time.Duration
	}{
		"it has not started":                  {"canary=.. eu=.", 0, 31 * 24 * time.Hour},
		"it has started":                      {"canary=.P eu=.", 10 * 24 * time.Hour, 21 * 24 * time.Hour},
		"it has waited for long":              {"canary=.P eu=.", 40 * 24 * time.Hour, 0},
		"it has waited with a version before": {"canary=.. eu=.", 40 * 24 * time.Hour, 31 * 24 * time.Hour},
	} {
		for activity, change := range map[string]func(*rollout.Cluster){
			"of which nothing is known": func(c *rollout.Cluster) { c.Activity = nil },
			"idle":                      func(*rollout.Cluster) {},
			"with a queue": func(c *rollout.Cluster) {
				c.Activity.Queued, c.Activity.Head = 1, []v1alpha1.QueuedImport{{
					Namespace: "images", Name: "ubuntu-1.0.0", Source: v1alpha1.SourceOther, Bytes: 3600 * perSecond, Reason: v1alpha1.ReasonWaitingForWindow, OpensAt: ptr.To(metav1.NewTime(never)),
				}}
			},
		} {
			t.Run(name+", "+activity, func(t *testing.T) {
				v := idleBehindWindows(newUbuntu(), tt.fleet, time.Time{}, never, time.Time{})
				v.Image.Spec.Rollout.ProgressDeadline = nil
				c := &v.Clusters[1]
				change(c)
				c.PlannedAt, c.OnlineSince = now.Add(-tt.planned), now.Add(-tt.planned)
				d := decideAndCheck(t, v)
				require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
				assert.InDelta(t, tt.want.Hours(), d.Status.ExpectedAt.Sub(now).Hours(), 24)
				next := decideAndCheck(t, advanceView(v, d, time.Minute))
				assert.Equal(t, d.Status.ExpectedAt, next.Status.ExpectedAt)
				reach, _ := rollout.EstimateReach(v, "canary", 3600*perSecond)
				assert.LessOrEqual(t, reach.Takes, 32*24*time.Hour)
			})
		}
	}
}

// Once the fleet opens, as many import at a time as its window lets.
func TestExpectedWhenTheFleetOpens(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	p, _, errs := policy.ParsePolicy(map[string]string{
		"fleetConcurrency": "0", "windows": fmt.Sprintf(`[{cron: "0 %d * * *", duration: 6h, fleetConcurrency: 4}]`, opens.Hour()),
	})
	require.Empty(t, errs)
	v := idleBehindWindows(newUbuntu(), "canary=S eu=........", opens)
	v.Image.Spec.Rollout.Waves[1].RequireApproval, v.Budget = true, p.Budget(v.Now)
	require.True(t, v.Budget.IsClosed())
	require.Equal(t, opens, v.Budget.RisesAt)
	reach, _ := rollout.EstimateReach(v, "eu", 3600*perSecond)
	assert.Empty(t, reach.Why)
	assert.InDelta(t, 10*60, reach.Takes.Minutes(), 5, "two by two times four")
	assert.LessOrEqual(t, reach.Low, reach.Takes)
	assert.LessOrEqual(t, reach.Takes, reach.High)
	// A group that gets no slot then either has no time.
	p, _, errs = policy.ParsePolicy(map[string]string{
		"fleetConcurrency": "0", "windows": fmt.Sprintf(`[{cron: "0 %d * * *", duration: 6h, fleetConcurrency: 4}]`, opens.Hour()),
		"fleetSources": `[{name: bucket, hosts: ["images.example.com"], concurrency: 0}]`,
	})
	require.Empty(t, errs)
	v.Budget = p.Budget(v.Now)
	for i := range v.Clusters {
		v.Clusters[i].Activity.Rates[0].Name = "bucket"
	}
	reach, _ = rollout.EstimateReach(v, "eu", 3600*perSecond)
	assert.Equal(t, eta.UnknownNothingGranted, reach.Why)
}

// A budget that a later window raises is not counted. Once it may be lower, its lowest number is, or no time
// is given where that is 0.
func TestExpectedWithinTheLowerBudget(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	window := func(hours, concurrency int) string {
		return fmt.Sprintf(`[{cron: "0 %d * * *", duration: %dh, fleetConcurrency: %d}]`, opens.Hour(), hours, concurrency)
	}
	eight, forty := strings.Repeat(".", 8), strings.Repeat(".", 40)
	nextWeek := time.Date(2026, 3, 8, 6, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		plain, windows, clusters string
		opens                    time.Time // of their own windows
		wantRounds               int       // 0: unknown
	}{
		"it rises as they open":           {"1", window(8, 4), eight, opens, 8},
		"it falls as they open":           {"4", window(8, 2), eight, opens, 4},
		"it closes as they open":          {"4", window(8, 0), eight, opens, 0},
		"it falls after the last begins":  {"4", window(8, 2), eight, now, 2},
		"it falls before the last begins": {"4", window(8, 2), forty, now, 20},
		"it opens for all":                {"0", window(3, 4), eight, opens, 2},
		"it opens for some":               {"0", window(1, 4), eight, opens, 0},
		"it falls in a week":              {"4", `[{cron: "0 0 8 3 *", duration: 24h, fleetConcurrency: 2}]`, eight, nextWeek, 4},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": tt.plain, "windows": tt.windows})
			require.Empty(t, errs)
			v := idleBehindWindows(newUbuntu(), "canary=S eu="+tt.clusters, tt.opens)
			v.Image.Spec.Rollout.Waves[1].RequireApproval, v.Budget = true, p.Budget(v.Now)
			reach, _ := rollout.EstimateReach(v, "eu", 0)
			v.Image.Spec.Rollout.Waves[1].RequireApproval = false
			d := decideAndCheck(t, v)
			if tt.wantRounds == 0 {
				assert.Equal(t, eta.UnknownNothingGranted, reach.Why)
				assert.Nil(t, d.Status.ExpectedAt)
				assert.Equal(t, string(eta.UnknownNothingGranted), d.Status.ExpectedReason)
				return
			}
			require.Empty(t, reach.Why)
			imported := time.Duration(reach.EachBytes/perSecond) * time.Second
			want := now.Add(reach.Takes)
			assert.InDelta(t, (time.Duration(tt.wantRounds) * imported).Minutes(), want.Sub(tt.opens).Minutes(), 1)
			if tt.opens.After(now) { // else all have started
				require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
				assert.InDelta(t, 0, d.Status.ExpectedAt.Sub(want).Minutes(), 2)
			}
		})
	}
}

// What clusters have queued until the budget is lower begins within the lower one.
func TestQueuedImportsBeginWithinTheLowerBudget(t *testing.T) {
	v := newView(newUbuntu(), "canary=PPP")
	for i := range v.Clusters {
		a := withImport(0)
		a.Active[0].Name, a.Active[0].BytesTotal, a.Active[0].BytesDone = "fedora-1.0.0", 9*3600*perSecond, 1
		v = withActivity(v, v.Clusters[i].Name, a)
	}
	imported := time.Duration(v.Image.Spec.Template.DiskSize.Value()/perSecond) * time.Second
	expect := func(lowerFrom time.Duration) time.Time {
		v.Budget = &policy.Budget{Concurrency: 4, LowerFrom: now.Add(lowerFrom), Least: 1}
		d := decideAndCheck(t, v)
		require.NotNil(t, d.Status.ExpectedAt, d.Status.ExpectedReason)
		return d.Status.ExpectedAt.Time
	}
	begun := expect(10 * time.Hour)
	assert.Greater(t, begun.Sub(now), 9*time.Hour)
	assert.InDelta(t, (2 * imported).Minutes(), expect(8*time.Hour).Sub(begun).Minutes(), 1, "one after the other")
}

// The pace until now says nothing of what a window lets later.
func TestNoPaceBeyondTheBudget(t *testing.T) {
	ofGroup := func(concurrency int, least int32) *policy.Budget {
		p, _, errs := policy.ParsePolicy(map[string]string{
			"fleetConcurrency": "4", "fleetSources": fmt.Sprintf(`[{name: bucket, hosts: ["images.example.com"], concurrency: %d}]`, concurrency),
		})
		require.Empty(t, errs)
		b := p.Budget(now)
		b.LowerFrom, b.Least = now.Add(10*time.Minute), least
		return b
	}
	for name, tt := range map[string]struct {
		budget   *policy.Budget
		wantTime bool
	}{
		"of one number":     {&policy.Budget{Concurrency: 4}, true},
		"lower after it":    {&policy.Budget{Concurrency: 4, LowerFrom: now.Add(time.Hour)}, true},
		"lower before it":   {&policy.Budget{Concurrency: 4, LowerFrom: now.Add(10 * time.Minute)}, false},
		"lower for others":  {ofGroup(1, 2), true},
		"as low as others":  {ofGroup(3, 2), false},
		"closed, and opens": {&policy.Budget{RisesAt: now.Add(time.Hour), RisesTo: 4}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(newUbuntu(), "canary=SP")
			v.Image.Status.Versions = []v1alpha1.VersionStatus{{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0", Revision: revision, Since: *toStoredTime(now.Add(-30 * time.Minute))}}
			v.Image.Status.Clusters.Succeeded, v.Image.Status.LastSuccessAt = 1, toStoredTime(now)
			v.Budget = tt.budget
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.wantTime, d.Status.ExpectedAt != nil, d.Status.ExpectedAt)
			assert.Equal(t, !tt.wantTime, d.Status.ExpectedReason == string(eta.UnknownNotReported), d.Status.ExpectedReason)
		})
	}
}

// What an approval starts while the budget of the fleet is closed is estimated from its opening on.
func TestReachWhileTheFleetIsClosed(t *testing.T) {
	opens := now.Add(8 * time.Hour)
	v := newView(newUbuntu(), "canary=S eu=.")
	v.Image.Spec.Rollout.Waves[1].RequireApproval, v.Budget = true, &policy.Budget{RisesAt: opens}
	idle := newActivity()
	idle.Active, idle.Head, idle.Queued, idle.Slots, idle.Budget = nil, nil, 0, 0, 0
	for i := range v.Clusters {
		v.Clusters[i].WindowOpensAt = opens
		v = withActivity(v, v.Clusters[i].Name, idle)
	}
	reach, found := rollout.EstimateReach(v, "eu", 1<<30)
	require.True(t, found)
	assert.Empty(t, reach.Why)
	assert.Greater(t, reach.Takes, opens.Sub(now))
}
