//go:build linux

package mailbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// TestPolicyByPlan has each side want fewer imports than the other.
func TestPolicyByPlan(t *testing.T) {
	for _, tt := range []struct {
		name       string
		own, plan  string // concurrency; empty for none
		wantBudget int32
		wantText   string
	}{
		{"the plan's is smaller", "5", "2", 2, "the hub's policy is in force (a test)"},
		{"the member's own is smaller", "1", "3", 1, "with the smaller concurrency of ConfigMap sync-operator/sync-operator-policy, 1"},
		{"paused by the member", "0", "3", 0, "with the smaller concurrency"},
		{"paused by the hub", "3", "0", 0, "the hub's policy is in force (a test)"},
		{"the plan alone", "", "3", 3, "the hub's policy is in force (a test)"},
		{"its own alone", "3", "", 3, "in force"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withoutPlan(t)
			place.SetPolicy(t, policy("concurrency", tt.own+"0", "retryLimit", "7"))
			if tt.own == "" {
				require.NoError(t, place.Client().Delete(t.Context(), place.Policy()))
				place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
			} else {
				place.SetPolicy(t, policy("concurrency", tt.own, "retryLimit", "7"))
			}
			wantRetries := "7"
			p := planOf(t, nil)
			if tt.plan != "" {
				p.Spec.Policy = policy("concurrency", tt.plan, "retryLimit", "2")
				wantRetries = "2"
			}
			setPlan(t, p)
			place.LedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionTrue, v1alpha1.ReasonPlanInForce)
			c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
			assert.Contains(t, c.Message, tt.wantText)
			st := place.Ledger(t).Status
			assert.Equal(t, tt.wantBudget, st.Budget)
			assert.Equal(t, fmt.Sprint(tt.wantBudget), st.Policy["concurrency"])
			assert.Equal(t, wantRetries, st.Policy["retryLimit"])
			assert.Equal(t, p.Spec.Policy, st.PlanPolicy)
			assert.Equal(t, "a test", st.PlanPolicySource)
		})
	}
}

// wantRefused waits until the plan that is there is refused, and wants the policy
// of before to stay.
func wantRefused(t *testing.T, stored *v1alpha1.ClusterPlan, reason, says string, before *v1alpha1.SyncLedgerStatus) {
	t.Helper()
	var c *metav1.Condition
	require.True(t, scene.Await(t, func() bool {
		c = place.LedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, reason)
		return strings.Contains(c.Message, says)
	}), "condition says %s", c.Message)
	place.WantEvent(t, stored, "PlanRefused", says)
	st := place.Ledger(t).Status
	assert.Equal(t, before.Budget, st.Budget)
	assert.Equal(t, before.Policy, st.Policy)
	assert.Equal(t, before.Plan, st.Plan)
	assert.Equal(t, before.PlanPolicy, st.PlanPolicy)
}

func TestPlanThatIsRefused(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "8"))
	ns := home(t)
	older := planOf(t, policy("concurrency", "5"), place.Image(ns, "older", "/ok/200ms/a"))
	acknowledged := planOf(t, policy("concurrency", "2"))
	setPlan(t, acknowledged)
	before := place.Ledger(t).Status
	require.EqualValues(t, 2, before.Budget)

	for _, tt := range []struct {
		name, reason, says string
		change             func(*v1alpha1.ClusterPlan)
	}{
		{"of a lower sequence", v1alpha1.ReasonPlanOlder, "was acknowledged before", func(p *v1alpha1.ClusterPlan) { *p = *older.DeepCopy() }},
		{"of a lower epoch", v1alpha1.ReasonPlanOlder, "epoch 0", func(p *v1alpha1.ClusterPlan) { p.Spec.Epoch, p.Spec.Sequence = 0, 1000000 }},
		{"another of the same version", v1alpha1.ReasonPlanOlder, "another plan of that version", func(p *v1alpha1.ClusterPlan) {
			p.Spec.PlanVersion = acknowledged.Spec.PlanVersion
			p.Spec.Hash = "other"
		}},
		{"for another cluster", v1alpha1.ReasonPlanForAnother, "was made for cluster somebody", func(p *v1alpha1.ClusterPlan) { p.Spec.ClusterUID = "somebody" }},
		{"with a wrong policy", v1alpha1.ReasonPlanPolicyFaulty, `concurrency: "many" is not a whole number`, func(p *v1alpha1.ClusterPlan) { p.Spec.Policy["concurrency"] = "many" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := planOf(t, policy("concurrency", "5"), place.Image(ns, "refused", "/ok/200ms/a"))
			tt.change(p)
			stored := store(t, p)
			wantRefused(t, stored, tt.reason, tt.says, before)
			t.Run("after a restart", func(t *testing.T) {
				place.WithoutAgent(t, func() {})
				place.SetPolicy(t, policy("concurrency", "9")) // the new agent has read all
				wantRefused(t, stored, tt.reason, tt.says, before)
			})
		})
	}
	var images v1alpha1.VMDiskImageList
	require.NoError(t, place.Client().List(t.Context(), &images, client.InNamespace(ns)))
	assert.Empty(t, images.Items, "nothing of a refused plan is used")

	t.Run("the member can still lower its own", func(t *testing.T) {
		place.SetPolicy(t, policy("concurrency", "1"))
		assert.EqualValues(t, 1, place.Ledger(t).Status.Budget)
	})
	t.Run("a newer one heals", func(t *testing.T) {
		place.SetPolicy(t, policy("concurrency", "9"))
		setPlan(t, planOf(t, policy("concurrency", "6")))
		assert.EqualValues(t, 6, place.Ledger(t).Status.Budget)
	})
	t.Run("so does one of a later epoch", func(t *testing.T) {
		p := planOf(t, policy("concurrency", "3"))
		p.Spec.Epoch, p.Spec.Sequence = 2, 1
		setPlan(t, p)
		assert.EqualValues(t, 3, place.Ledger(t).Status.Budget)
		place.WithoutAgent(t, func() { // for the tests to come
			l := place.Ledger(t)
			l.Status.Plan = nil
			require.NoError(t, place.Client().Status().Update(t.Context(), l))
			require.NoError(t, place.Client().Delete(t.Context(), plan()))
		})
	})
}

func TestPlanDeleted(t *testing.T) {
	t.Run("its own policy holds", func(t *testing.T) {
		place.SetPolicy(t, policy("concurrency", "5", "retryLimit", "7"))
		setPlan(t, planOf(t, policy("concurrency", "2")))
		withoutPlan(t)
		st := place.Ledger(t).Status
		assert.EqualValues(t, 5, st.Budget)
		assert.Equal(t, "7", st.Policy["retryLimit"])
	})
	t.Run("a hub is not held to what it said", func(t *testing.T) {
		p := planOf(t, policy("concurrency", "2"))
		setPlan(t, p)
		require.Equal(t, p.Spec.Policy, place.Ledger(t).Status.PlanPolicy)
		withoutPlan(t)
		st := place.Ledger(t).Status
		assert.Empty(t, st.PlanPolicy)
		assert.Empty(t, st.PlanPolicySource)
		assert.Equal(t, &p.Spec.PlanVersion, st.Plan, "what comes is above what was acknowledged")
	})
	t.Run("without one of its own, the last stays", func(t *testing.T) {
		setPlan(t, planOf(t, policy("concurrency", "2")))
		withoutOwn(t)
		withoutPlan(t)
		c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
		assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
		place.WithoutAgent(t, func() {})
		place.SetPolicy(t, policy("concurrency", "3"))
		assert.EqualValues(t, 3, place.Ledger(t).Status.Budget)
	})
	t.Run("an older one is refused still", func(t *testing.T) {
		older := planOf(t, policy("concurrency", "1"))
		setPlan(t, planOf(t, policy("concurrency", "2")))
		withoutPlan(t)
		store(t, older)
		place.LedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, v1alpha1.ReasonPlanOlder)
		withoutPlan(t)
	})
}

// TestOwnPolicyThatCannotBeUsedUnderAPlan wants that it disturbs nothing of the
// plan's, and that it does not lift the limit that it had set.
func TestOwnPolicyThatCannotBeUsedUnderAPlan(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "3"))
	setPlan(t, planOf(t, policy("concurrency", "2", "retryLimit", "1")))
	place.StorePolicy(t, policy("concurrency", "three"))
	c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
	assert.Contains(t, c.Message, `concurrency: "three" is not a whole number`)
	assert.Contains(t, c.Message, "the hub's policy is in force (a test), concurrency 2")

	setPlan(t, planOf(t, policy("concurrency", "5", "retryLimit", "4")))
	st := place.Ledger(t).Status
	assert.EqualValues(t, 3, st.Budget, "the last valid one goes on to be the limit")
	assert.Equal(t, "4", st.Policy["retryLimit"])

	place.WithoutAgent(t, func() {})
	setPlan(t, planOf(t, policy("concurrency", "5", "retryLimit", "6")))
	st = place.Ledger(t).Status
	assert.EqualValues(t, 3, st.Budget, "also for an agent that never saw it")
	assert.Equal(t, "6", st.Policy["retryLimit"])

	place.SetPolicy(t, policy("concurrency", "8"))
	assert.EqualValues(t, 5, place.Ledger(t).Status.Budget)
	withoutPlan(t)
}

// started judges by the DataVolumes that were created since an observation
// began: none while n attempts could download already.
func started(t *testing.T, o *observer.Observer, n int) observer.History {
	t.Helper()
	h := scene.History(t, o)
	for _, s := range h.Starts() {
		assert.LessOrEqual(t, s.Running, n, "S1: %s was created beside too many", s.DataVolume)
	}
	assert.Empty(t, h.Reused())
	return h
}

func importing(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	place.Eventually(t, img, scene.Because(v1alpha1.ReasonImporting))
}

// TestPlanLowersBelowWhatRuns wants that nothing is killed, and that nothing
// starts until it fits.
func TestPlanLowersBelowWhatRuns(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "8"))
	ns := home(t)
	setPlan(t, planOf(t, policy("concurrency", "3")))
	var run, wait []*v1alpha1.VMDiskImage
	for i := range 3 {
		run = append(run, place.Image(ns, fmt.Sprintf("run-%d", i), "/hang/a"))
		place.Create(t, run[i])
	}
	for _, img := range run {
		importing(t, img)
	}
	for i := range 2 {
		wait = append(wait, place.Image(ns, fmt.Sprintf("wait-%d", i), "/ok/200ms/a"))
		place.Create(t, wait[i])
		place.Eventually(t, wait[i], scene.Because(v1alpha1.ReasonWaitingForSlot))
	}
	before := place.Ledger(t).Status.Slots

	setPlan(t, planOf(t, policy("concurrency", "1")))
	o := place.Observe(t)
	c := place.LedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse, "OverBudget")
	assert.Contains(t, c.Message, "3 imports run and the policy allows 1")
	assert.Equal(t, before, place.Ledger(t).Status.Slots, "nothing is killed")

	for _, img := range run[:2] { // 3 run, then 2, then 1: it fits, and nothing is free
		require.NoError(t, place.Client().Delete(t.Context(), img))
		place.Gone(t, img.DeepCopy())
	}
	place.LedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionTrue, "WithinBudget")
	for _, img := range wait {
		place.Eventually(t, img, scene.Because(v1alpha1.ReasonWaitingForSlot))
	}
	assert.Empty(t, started(t, o, 1).Starts(), "nothing starts")
	assert.Equal(t, before[2:], place.Ledger(t).Status.Slots, "what runs is not disturbed")

	require.NoError(t, place.Client().Delete(t.Context(), run[2]))
	for _, img := range wait {
		succeeded(t, img)
	}
	assert.Equal(t, []types.UID{wait[0].UID, wait[1].UID}, started(t, o, 1).StartOrder())
	withoutPlan(t)
}

// TestLedgerLostUnderAPlan wants the plan acknowledged anew and what runs found
// again.
func TestLedgerLostUnderAPlan(t *testing.T) {
	const n = 2
	place.SetPolicy(t, policy("concurrency", "8"))
	ns := home(t)
	p := planOf(t, policy("concurrency", fmt.Sprint(n)))
	setPlan(t, p)
	o := place.Observe(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 2 * n {
		path := "/ok/15s/a"
		if i >= n {
			path = "/ok/200ms/a"
		}
		images = append(images, place.Image(ns, fmt.Sprintf("image-%d", i), path))
		place.Create(t, images[i])
	}
	for _, img := range images[:n] {
		importing(t, img)
	}
	require.True(t, scene.Await(t, func() bool {
		l := place.Ledger(t)
		*l.Status = v1alpha1.SyncLedgerStatus{}
		return place.Client().Status().Update(t.Context(), l) == nil
	}))
	wantAcknowledged(t, p)
	for _, img := range images {
		succeeded(t, img)
	}
	require.True(t, scene.Await(t, func() bool { return place.Ledger(t).Status.Budget == n }))
	h := started(t, o, n)
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), "image %s is downloaded once", img.Name)
	}
	withoutPlan(t)
}

// TestStaleAgentRaisesNoBudget has an agent go on that has not heard of what
// another one has acknowledged: the ledger tells it.
func TestStaleAgentRaisesNoBudget(t *testing.T) {
	for _, tt := range []struct {
		name     string
		before   func(*testing.T) // what the stale agent goes on to see
		resource string           // of which it hears nothing then
		lower    func(*testing.T)
	}{
		{"that sees an older plan", func(t *testing.T) { setPlan(t, planOf(t, policy("concurrency", "2"))) }, "clusterplans",
			func(t *testing.T) { setPlan(t, planOf(t, policy("concurrency", "1"))) }},
		{"that sees no plan", withoutPlan, "clusterplans",
			func(t *testing.T) { setPlan(t, planOf(t, policy("concurrency", "1"))) }},
		{"that sees no policy of the member's own", func(t *testing.T) {
			setPlan(t, planOf(t, policy("concurrency", "2")))
			withoutOwn(t)
		}, "configmaps", func(t *testing.T) { place.SetPolicy(t, policy("concurrency", "1")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "2"))
			ns := home(t)
			tt.before(t)
			place.WithoutAgent(t, func() {
				stale, p := proxied(t)
				var all []*v1alpha1.VMDiskImage
				for i := range 3 {
					all = append(all, place.Image(ns, fmt.Sprintf("image-%d", i), "/hang/a"))
					place.Create(t, all[i])
				}
				for _, img := range all[:2] {
					importing(t, img)
				}
				place.Eventually(t, all[2], scene.Because(v1alpha1.ReasonWaitingForSlot))
				p.HoldWatches(tt.resource)
				fresh, _ := proxied(t)
				tt.lower(t)
				require.True(t, scene.Await(t, func() bool { return place.Ledger(t).Status.Budget == 1 }))
				o := place.Observe(t)
				require.NoError(t, fresh.Pause(t.Context()))

				require.NoError(t, place.Client().Delete(t.Context(), all[0].DeepCopy()))
				place.Gone(t, all[0].DeepCopy())
				require.True(t, scene.Await(t, func() bool { return len(place.Ledger(t).Status.Slots) == 1 || len(scene.History(t, o).Starts()) > 0 }))
				st := place.Ledger(t).Status
				assert.EqualValues(t, 1, st.Budget)
				assert.True(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionPlanAccepted), "it refuses no plan but one that is there")
				assert.Empty(t, started(t, o, 1).Starts())
				require.NoError(t, fresh.Resume())
				p.ReleaseWatches()
				for _, a := range []*agent.Agent{stale, fresh} {
					a.Kill()
					<-a.Done()
				}
			})
			withoutPlan(t)
		})
	}
}
