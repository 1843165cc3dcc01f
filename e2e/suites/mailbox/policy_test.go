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
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPlanPolicyAndOwnPolicy has each side want fewer imports than the other.
func TestPlanPolicyAndOwnPolicy(t *testing.T) {
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
			deletePlanAndAwait(t)
			testScene.SetPolicy(t, newPolicy("concurrency", tt.own+"0", "retryLimit", "7"))
			if tt.own == "" {
				require.NoError(t, testScene.Client().Delete(t.Context(), testScene.PolicyConfigMap()))
				testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
			} else {
				testScene.SetPolicy(t, newPolicy("concurrency", tt.own, "retryLimit", "7"))
			}
			wantRetries := "7"
			p := newPlan(t, nil)
			if tt.plan != "" {
				p.Spec.Policy = newPolicy("concurrency", tt.plan, "retryLimit", "2")
				wantRetries = "2"
			}
			setPlan(t, p)
			testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionTrue, v1alpha1.ReasonPlanInForce)
			c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
			assert.Contains(t, c.Message, tt.wantText)
			st := testScene.Ledger(t).Status
			assert.Equal(t, tt.wantBudget, st.Budget)
			assert.Equal(t, fmt.Sprint(tt.wantBudget), st.Policy["concurrency"])
			assert.Equal(t, wantRetries, st.Policy["retryLimit"])
			assert.Equal(t, p.Spec.Policy, st.PlanPolicy)
			assert.Equal(t, "a test", st.PlanPolicySource)
		})
	}
}

// awaitPlanRejected waits until the plan that is there is refused, and wants the policy
// of before to stay.
func awaitPlanRejected(t *testing.T, stored *v1alpha1.ClusterPlan, reason, says string, before *v1alpha1.SyncLedgerStatus) {
	t.Helper()
	var c *metav1.Condition
	require.True(t, testenv.Await(t, func() bool {
		c = testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, reason)
		return strings.Contains(c.Message, says)
	}), "condition says %s", c.Message)
	testScene.AwaitEvent(t, stored, "PlanRefused", says)
	st := testScene.Ledger(t).Status
	assert.Equal(t, before.Budget, st.Budget)
	assert.Equal(t, before.Policy, st.Policy)
	assert.Equal(t, before.Plan, st.Plan)
	assert.Equal(t, before.PlanPolicy, st.PlanPolicy)
}

func TestRejectedPlan(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "8"))
	ns := createHomeNamespace(t)
	older := newPlan(t, newPolicy("concurrency", "5"), testScene.NewImage(ns, "older", "/ok/200ms/a"))
	acknowledged := newPlan(t, newPolicy("concurrency", "2"))
	setPlan(t, acknowledged)
	before := testScene.Ledger(t).Status
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
		{"for another cluster", v1alpha1.ReasonPlanForAnotherCluster, "was made for cluster somebody", func(p *v1alpha1.ClusterPlan) { p.Spec.ClusterUID = "somebody" }},
		{"with a wrong policy", v1alpha1.ReasonPlanPolicyInvalid, `concurrency: "many" is not a whole number`, func(p *v1alpha1.ClusterPlan) { p.Spec.Policy["concurrency"] = "many" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlan(t, newPolicy("concurrency", "5"), testScene.NewImage(ns, "refused", "/ok/200ms/a"))
			tt.change(p)
			stored := storePlan(t, p)
			awaitPlanRejected(t, stored, tt.reason, tt.says, before)
			t.Run("after a restart", func(t *testing.T) {
				testScene.WithoutAgent(t, func() {})
				testScene.SetPolicy(t, newPolicy("concurrency", "9")) // the new agent has read all
				awaitPlanRejected(t, stored, tt.reason, tt.says, before)
			})
		})
	}
	var images v1alpha1.VMDiskImageList
	require.NoError(t, testScene.Client().List(t.Context(), &images, client.InNamespace(ns)))
	assert.Empty(t, images.Items, "nothing of a refused plan is used")

	t.Run("the member can still lower its own", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("concurrency", "1"))
		assert.EqualValues(t, 1, testScene.Ledger(t).Status.Budget)
	})
	t.Run("a newer one heals", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("concurrency", "9"))
		setPlan(t, newPlan(t, newPolicy("concurrency", "6")))
		assert.EqualValues(t, 6, testScene.Ledger(t).Status.Budget)
	})
	t.Run("so does one of a later epoch", func(t *testing.T) {
		p := newPlan(t, newPolicy("concurrency", "3"))
		p.Spec.Epoch, p.Spec.Sequence = 2, 1
		setPlan(t, p)
		assert.EqualValues(t, 3, testScene.Ledger(t).Status.Budget)
		testScene.WithoutAgent(t, func() { // for the tests to come
			l := testScene.Ledger(t)
			l.Status.Plan = nil
			require.NoError(t, testScene.Client().Status().Update(t.Context(), l))
			require.NoError(t, testScene.Client().Delete(t.Context(), emptyPlan()))
		})
	})
}

func TestDeletedPlan(t *testing.T) {
	t.Run("its own policy holds", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("concurrency", "5", "retryLimit", "7"))
		setPlan(t, newPlan(t, newPolicy("concurrency", "2")))
		deletePlanAndAwait(t)
		st := testScene.Ledger(t).Status
		assert.EqualValues(t, 5, st.Budget)
		assert.Equal(t, "7", st.Policy["retryLimit"])
	})
	t.Run("a hub is not held to what it said", func(t *testing.T) {
		p := newPlan(t, newPolicy("concurrency", "2"))
		setPlan(t, p)
		require.Equal(t, p.Spec.Policy, testScene.Ledger(t).Status.PlanPolicy)
		deletePlanAndAwait(t)
		st := testScene.Ledger(t).Status
		assert.Empty(t, st.PlanPolicy)
		assert.Empty(t, st.PlanPolicySource)
		assert.Equal(t, &p.Spec.PlanVersion, st.Plan, "what comes is above what was acknowledged")
	})
	t.Run("without one of its own, the last stays", func(t *testing.T) {
		setPlan(t, newPlan(t, newPolicy("concurrency", "2")))
		deleteOwnPolicy(t)
		deletePlanAndAwait(t)
		c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
		assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
		testScene.WithoutAgent(t, func() {})
		testScene.SetPolicy(t, newPolicy("concurrency", "3"))
		assert.EqualValues(t, 3, testScene.Ledger(t).Status.Budget)
	})
	t.Run("an older one is refused still", func(t *testing.T) {
		older := newPlan(t, newPolicy("concurrency", "1"))
		setPlan(t, newPlan(t, newPolicy("concurrency", "2")))
		deletePlanAndAwait(t)
		storePlan(t, older)
		testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, v1alpha1.ReasonPlanOlder)
		deletePlanAndAwait(t)
	})
}

// TestUnparsableOwnPolicyUnderAPlan wants that it disturbs nothing of the
// plan's, and that it does not lift the limit that it had set.
func TestUnparsableOwnPolicyUnderAPlan(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "3"))
	setPlan(t, newPlan(t, newPolicy("concurrency", "2", "retryLimit", "1")))
	testScene.StorePolicy(t, newPolicy("concurrency", "three"))
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
	assert.Contains(t, c.Message, `concurrency: "three" is not a whole number`)
	assert.Contains(t, c.Message, "the hub's policy is in force (a test), concurrency 2")

	setPlan(t, newPlan(t, newPolicy("concurrency", "5", "retryLimit", "4")))
	st := testScene.Ledger(t).Status
	assert.EqualValues(t, 3, st.Budget, "the last valid one goes on to be the limit")
	assert.Equal(t, "4", st.Policy["retryLimit"])

	testScene.WithoutAgent(t, func() {})
	setPlan(t, newPlan(t, newPolicy("concurrency", "5", "retryLimit", "6")))
	st = testScene.Ledger(t).Status
	assert.EqualValues(t, 3, st.Budget, "also for an agent that never saw it")
	assert.Equal(t, "6", st.Policy["retryLimit"])

	testScene.SetPolicy(t, newPolicy("concurrency", "8"))
	assert.EqualValues(t, 5, testScene.Ledger(t).Status.Budget)
	deletePlanAndAwait(t)
}

// requireStarted judges by the DataVolumes that were created since an observation
// began: none while n attempts could download already.
func requireStarted(t *testing.T, o *observer.Observer, n int) observer.History {
	t.Helper()
	h := testenv.History(t, o)
	for _, s := range h.Creations() {
		assert.LessOrEqual(t, s.Running, n, "S1: %s was created beside too many", s.DataVolume)
	}
	assert.Empty(t, h.ReusedNames())
	return h
}

func awaitImporting(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonImporting))
}

// TestPlanLoweringBudgetEndsNothing wants that nothing is killed, and that nothing
// starts until it fits.
func TestPlanLoweringBudgetEndsNothing(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "8"))
	ns := createHomeNamespace(t)
	setPlan(t, newPlan(t, newPolicy("concurrency", "3")))
	var run, wait []*v1alpha1.VMDiskImage
	for i := range 3 {
		run = append(run, testScene.NewImage(ns, fmt.Sprintf("run-%d", i), "/hang/a"))
		testScene.Create(t, run[i])
	}
	for _, img := range run {
		awaitImporting(t, img)
	}
	for i := range 2 {
		wait = append(wait, testScene.NewImage(ns, fmt.Sprintf("wait-%d", i), "/ok/200ms/a"))
		testScene.Create(t, wait[i])
		testScene.AwaitImage(t, wait[i], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	}
	before := testScene.Ledger(t).Status.Slots

	setPlan(t, newPlan(t, newPolicy("concurrency", "1")))
	o := testScene.StartObserver(t)
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse, "OverBudget")
	assert.Contains(t, c.Message, "3 imports run and the policy allows 1")
	assert.Equal(t, before, testScene.Ledger(t).Status.Slots, "nothing is killed")

	for _, img := range run[:2] { // 3 run, then 2, then 1: it fits, and nothing is free
		require.NoError(t, testScene.Client().Delete(t.Context(), img))
		testScene.AwaitGone(t, img.DeepCopy())
	}
	testScene.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionTrue, "WithinBudget")
	for _, img := range wait {
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	}
	assert.Empty(t, requireStarted(t, o, 1).Creations(), "nothing starts")
	assert.Equal(t, before[2:], testScene.Ledger(t).Status.Slots, "what runs is not disturbed")

	require.NoError(t, testScene.Client().Delete(t.Context(), run[2]))
	for _, img := range wait {
		awaitSucceeded(t, img)
	}
	assert.Equal(t, []types.UID{wait[0].UID, wait[1].UID}, requireStarted(t, o, 1).StartOrder())
	deletePlanAndAwait(t)
}

// TestLostLedgerIsRebuiltUnderAPlan wants the plan acknowledged anew and what runs found
// again.
func TestLostLedgerIsRebuiltUnderAPlan(t *testing.T) {
	const n = 2
	testScene.SetPolicy(t, newPolicy("concurrency", "8"))
	ns := createHomeNamespace(t)
	p := newPlan(t, newPolicy("concurrency", fmt.Sprint(n)))
	setPlan(t, p)
	o := testScene.StartObserver(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 2 * n {
		path := "/ok/15s/a"
		if i >= n {
			path = "/ok/200ms/a"
		}
		images = append(images, testScene.NewImage(ns, fmt.Sprintf("image-%d", i), path))
		testScene.Create(t, images[i])
	}
	for _, img := range images[:n] {
		awaitImporting(t, img)
	}
	require.True(t, testenv.Await(t, func() bool {
		l := testScene.Ledger(t)
		*l.Status = v1alpha1.SyncLedgerStatus{}
		return testScene.Client().Status().Update(t.Context(), l) == nil
	}))
	awaitAcknowledged(t, p)
	for _, img := range images {
		awaitSucceeded(t, img)
	}
	require.True(t, testenv.Await(t, func() bool { return testScene.Ledger(t).Status.Budget == n }))
	h := requireStarted(t, o, n)
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), "image %s is downloaded once", img.Name)
	}
	deletePlanAndAwait(t)
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
		{"that sees an older plan", func(t *testing.T) { setPlan(t, newPlan(t, newPolicy("concurrency", "2"))) }, "clusterplans",
			func(t *testing.T) { setPlan(t, newPlan(t, newPolicy("concurrency", "1"))) }},
		{"that sees no plan", deletePlanAndAwait, "clusterplans",
			func(t *testing.T) { setPlan(t, newPlan(t, newPolicy("concurrency", "1"))) }},
		{"that sees no policy of the member's own", func(t *testing.T) {
			setPlan(t, newPlan(t, newPolicy("concurrency", "2")))
			deleteOwnPolicy(t)
		}, "configmaps", func(t *testing.T) { testScene.SetPolicy(t, newPolicy("concurrency", "1")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testScene.SetPolicy(t, newPolicy("concurrency", "2"))
			ns := createHomeNamespace(t)
			tt.before(t)
			testScene.WithoutAgent(t, func() {
				stale, p := startProxiedAgent(t)
				var all []*v1alpha1.VMDiskImage
				for i := range 3 {
					all = append(all, testScene.NewImage(ns, fmt.Sprintf("image-%d", i), "/hang/a"))
					testScene.Create(t, all[i])
				}
				for _, img := range all[:2] {
					awaitImporting(t, img)
				}
				testScene.AwaitImage(t, all[2], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
				p.HoldWatches(tt.resource)
				fresh, _ := startProxiedAgent(t)
				tt.lower(t)
				require.True(t, testenv.Await(t, func() bool { return testScene.Ledger(t).Status.Budget == 1 }))
				o := testScene.StartObserver(t)
				require.NoError(t, fresh.Pause(t.Context()))

				require.NoError(t, testScene.Client().Delete(t.Context(), all[0].DeepCopy()))
				testScene.AwaitGone(t, all[0].DeepCopy())
				require.True(t, testenv.Await(t, func() bool {
					return len(testScene.Ledger(t).Status.Slots) == 1 || len(testenv.History(t, o).Creations()) > 0
				}))
				st := testScene.Ledger(t).Status
				assert.EqualValues(t, 1, st.Budget)
				assert.True(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionPlanAccepted), "it refuses no plan but one that is there")
				assert.Empty(t, requireStarted(t, o, 1).Creations())
				require.NoError(t, fresh.Resume())
				p.ReleaseWatches()
				for _, a := range []*program.Agent{stale, fresh} {
					a.Kill()
					<-a.Done()
				}
			})
			deletePlanAndAwait(t)
		})
	}
}
