//go:build linux

package plan

import (
	"fmt"
	"strconv"
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

// TestPlanPolicyAndOwnPolicy wants the smaller concurrency of plan and own policy to apply.
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
		{"its own sets none", "none", "8", 8, "the hub's policy is in force (a test)"},
		{"its own sets none, without a plan", "none", "", 3, "in force"},
		{"the plan alone", "", "3", 3, "the hub's policy is in force (a test)"},
		{"its own alone", "3", "", 3, "in force"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			deletePlanAndAwait(t)
			env.SetPolicy(t, testenv.NewPolicy("concurrency", "7", "retryLimit", "7"))
			switch tt.own {
			case "none":
				own := testenv.NewPolicy("retryLimit", "7")
				delete(own, "concurrency")
				env.SetPolicy(t, own)
			case "":
				require.NoError(t, env.Client().Delete(t.Context(), env.PolicyConfigMap()))
				env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
			default:
				env.SetPolicy(t, testenv.NewPolicy("concurrency", tt.own, "retryLimit", "7"))
			}
			wantRetries := "7"
			p := newPlan(t, nil)
			if tt.plan != "" {
				p.Spec.Policy = testenv.NewPolicy("concurrency", tt.plan, "retryLimit", "2")
				wantRetries = "2"
			}
			setPlan(t, p)
			env.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionTrue, v1alpha1.ReasonPlanInForce)
			c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
			assert.Contains(t, c.Message, tt.wantText)
			st := env.Ledger(t).Status
			assert.Equal(t, tt.wantBudget, st.Budget)
			assert.Equal(t, fmt.Sprint(tt.wantBudget), st.Policy["concurrency"])
			if own, err := strconv.Atoi(tt.own); err == nil {
				assert.EqualValues(t, own, *st.OwnConcurrency)
			} else {
				assert.Nil(t, st.OwnConcurrency)
			}
			assert.Equal(t, wantRetries, st.Policy["retryLimit"])
			assert.Equal(t, p.Spec.Policy, st.PlanPolicy)
			assert.Equal(t, "a test", st.PlanPolicySource)
		})
	}
}

// awaitPlanRejected waits until the stored plan is rejected and checks that the former policy
// stays in force.
func awaitPlanRejected(t *testing.T, stored *v1alpha1.ClusterPlan, reason, says string, before *v1alpha1.SyncLedgerStatus) {
	t.Helper()
	var c *metav1.Condition
	require.True(t, testenv.AwaitCondition(t, func() bool {
		c = env.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, reason)
		return strings.Contains(c.Message, says)
	}), "condition says %s", c.Message)
	env.AwaitEvent(t, stored, "PlanRefused", says)
	st := env.Ledger(t).Status
	assert.Equal(t, before.Budget, st.Budget)
	assert.Equal(t, before.Policy, st.Policy)
	assert.Equal(t, before.Plan, st.Plan)
	assert.Equal(t, before.PlanPolicy, st.PlanPolicy)
}

func TestRejectedPlan(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "8"))
	ns := env.CreateHomeNamespace(t)
	older := newPlan(t, testenv.NewPolicy("concurrency", "5"), env.NewImage(ns, "older", "/ok/200ms/a"))
	acknowledged := newPlan(t, testenv.NewPolicy("concurrency", "2"))
	setPlan(t, acknowledged)
	before := env.Ledger(t).Status
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
			p := newPlan(t, testenv.NewPolicy("concurrency", "5"), env.NewImage(ns, "refused", "/ok/200ms/a"))
			tt.change(p)
			stored := storePlan(t, p)
			awaitPlanRejected(t, stored, tt.reason, tt.says, before)
			t.Run("after a restart", func(t *testing.T) {
				env.WithoutAgent(t, func() {})
				env.SetPolicy(t, testenv.NewPolicy("concurrency", "9")) // acknowledged: the new agent has read everything
				awaitPlanRejected(t, stored, tt.reason, tt.says, before)
			})
		})
	}
	var images v1alpha1.VMDiskImageList
	require.NoError(t, env.Client().List(t.Context(), &images, client.InNamespace(ns)))
	assert.Empty(t, images.Items, "images of a rejected plan")

	t.Run("the member can still lower its own", func(t *testing.T) {
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "1"))
		assert.EqualValues(t, 1, env.Ledger(t).Status.Budget)
	})
	t.Run("a newer one heals", func(t *testing.T) {
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "9"))
		setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "6")))
		assert.EqualValues(t, 6, env.Ledger(t).Status.Budget)
	})
	t.Run("so does one of a later epoch", func(t *testing.T) {
		p := newPlan(t, testenv.NewPolicy("concurrency", "3"))
		p.Spec.Epoch, p.Spec.Sequence = 2, 1
		setPlan(t, p)
		assert.EqualValues(t, 3, env.Ledger(t).Status.Budget)
		env.WithoutAgent(t, func() { // resets the ledger for the next tests
			l := env.Ledger(t)
			l.Status.Plan = nil
			require.NoError(t, env.Client().Status().Update(t.Context(), l))
			require.NoError(t, env.Client().Delete(t.Context(), testenv.EmptyPlan()))
		})
	})
}

func TestDeletedPlan(t *testing.T) {
	t.Run("its own policy holds", func(t *testing.T) {
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "5", "retryLimit", "7"))
		setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "2")))
		deletePlanAndAwait(t)
		st := env.Ledger(t).Status
		assert.EqualValues(t, 5, st.Budget)
		assert.Equal(t, "7", st.Policy["retryLimit"])
	})
	t.Run("a hub is not held to what it said", func(t *testing.T) {
		p := newPlan(t, testenv.NewPolicy("concurrency", "2"))
		setPlan(t, p)
		require.Equal(t, p.Spec.Policy, env.Ledger(t).Status.PlanPolicy)
		deletePlanAndAwait(t)
		st := env.Ledger(t).Status
		assert.Empty(t, st.PlanPolicy)
		assert.Empty(t, st.PlanPolicySource)
		assert.Equal(t, &p.Spec.PlanVersion, st.Plan, "the next plan is newer than the acknowledged one")
	})
	t.Run("without one of its own, the last stays", func(t *testing.T) {
		setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "2")))
		deleteOwnPolicy(t)
		deletePlanAndAwait(t)
		c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
		assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
		env.WithoutAgent(t, func() {})
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "3"))
		assert.EqualValues(t, 3, env.Ledger(t).Status.Budget)
	})
	t.Run("an older one is refused still", func(t *testing.T) {
		older := newPlan(t, testenv.NewPolicy("concurrency", "1"))
		setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "2")))
		deletePlanAndAwait(t)
		storePlan(t, older)
		env.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, v1alpha1.ReasonPlanOlder)
		deletePlanAndAwait(t)
	})
}

// TestUnparsableOwnPolicyUnderAPlan wants the plan's policy to apply within the limit of the
// last valid own policy.
func TestUnparsableOwnPolicyUnderAPlan(t *testing.T) {
	testenv.RunInTurn(t, 6)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "3"))
	setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "2", "retryLimit", "1")))
	testenv.AdmitInvalidPolicy(t, env.Client())
	env.StorePolicy(t, testenv.NewPolicy("concurrency", "three"))
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
	assert.Contains(t, c.Message, `concurrency: "three" is not a whole number`)
	assert.Contains(t, c.Message, "the hub's policy is in force (a test), concurrency 2")

	setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "5", "retryLimit", "4")))
	st := env.Ledger(t).Status
	assert.EqualValues(t, 3, st.Budget, "the last valid own policy remains the limit")
	assert.Equal(t, "4", st.Policy["retryLimit"])

	env.WithoutAgent(t, func() {})
	setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "5", "retryLimit", "6")))
	st = env.Ledger(t).Status
	assert.EqualValues(t, 3, st.Budget, "also for an agent that has not read it")
	assert.Equal(t, "6", st.Policy["retryLimit"])

	env.SetPolicy(t, testenv.NewPolicy("concurrency", "8"))
	assert.EqualValues(t, 5, env.Ledger(t).Status.Budget)
	deletePlanAndAwait(t)
}

// requireStarted checks that no DataVolume was created while n attempts could download.
func requireStarted(t *testing.T, o *observer.Observer, n int) observer.History {
	t.Helper()
	h := testenv.History(t, o)
	for _, s := range h.Creations() {
		assert.LessOrEqual(t, s.Running, n, "S1: %s was created beside too many others", s.DataVolume)
	}
	assert.Empty(t, h.ReusedNames())
	return h
}

// TestPlanLoweringBudgetEndsNothing wants running imports to go on, and no other to start
// until the budget allows it.
func TestPlanLoweringBudgetEndsNothing(t *testing.T) {
	testenv.RunInTurn(t, 3)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "8"))
	ns := env.CreateHomeNamespace(t)
	setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "3")))
	var run, wait []*v1alpha1.VMDiskImage
	for i := range 3 {
		run = append(run, env.NewImage(ns, fmt.Sprintf("run-%d", i), "/hang/a"))
		env.Create(t, run[i])
	}
	for _, img := range run {
		env.AwaitImporting(t, img)
	}
	for i := range 2 {
		wait = append(wait, env.NewImage(ns, fmt.Sprintf("wait-%d", i), "/ok/200ms/a"))
		env.Create(t, wait[i])
		env.AwaitImage(t, wait[i], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	}
	before := env.Ledger(t).Status.Slots

	setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "1")))
	o := env.StartObserver(t)
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse, "OverBudget")
	assert.Contains(t, c.Message, "3 imports run and the policy allows 1")
	assert.Equal(t, before, env.Ledger(t).Status.Slots, "running imports were ended")

	for _, img := range run[:2] { // 3 run, then 2, then 1: within the budget, with no slot free
		require.NoError(t, env.Client().Delete(t.Context(), img))
		env.AwaitGone(t, img.DeepCopy())
	}
	env.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionTrue, "WithinBudget")
	for _, img := range wait {
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	}
	assert.Empty(t, requireStarted(t, o, 1).Creations(), "nothing starts")
	assert.Equal(t, before[2:], env.Ledger(t).Status.Slots, "running imports were disturbed")

	require.NoError(t, env.Client().Delete(t.Context(), run[2]))
	for _, img := range wait {
		env.AwaitSucceeded(t, img)
	}
	assert.Equal(t, []types.UID{wait[0].UID, wait[1].UID}, requireStarted(t, o, 1).StartOrder())
	deletePlanAndAwait(t)
}

// TestLostLedgerIsRebuiltUnderAPlan wants the plan to be acknowledged again and running imports
// to get their slots back.
func TestLostLedgerIsRebuiltUnderAPlan(t *testing.T) {
	testenv.RunInTurn(t, 4)
	const n = 2
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "8"))
	ns := env.CreateHomeNamespace(t)
	p := newPlan(t, testenv.NewPolicy("concurrency", fmt.Sprint(n)))
	setPlan(t, p)
	o := env.StartObserver(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 2 * n {
		path := "/ok/15s/a"
		if i >= n {
			path = "/ok/200ms/a"
		}
		images = append(images, env.NewImage(ns, fmt.Sprintf("image-%d", i), path))
		env.Create(t, images[i])
	}
	for _, img := range images[:n] {
		env.AwaitImporting(t, img)
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		l := env.Ledger(t)
		*l.Status = v1alpha1.SyncLedgerStatus{}
		return env.Client().Status().Update(t.Context(), l) == nil
	}))
	awaitAcknowledged(t, p)
	for _, img := range images {
		env.AwaitSucceeded(t, img)
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.Ledger(t).Status.Budget == n }))
	h := requireStarted(t, o, n)
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), "image %s is downloaded once", img.Name)
	}
	deletePlanAndAwait(t)
}

// TestStaleAgentRaisesNoBudget wants an agent that misses a lowered budget to learn of it from
// the ledger, where another agent has acknowledged it.
func TestStaleAgentRaisesNoBudget(t *testing.T) {
	testenv.RunInTurn(t, 5)
	for _, tt := range []struct {
		name     string
		before   func(*testing.T) // what the stale agent sees
		resource string           // held back from the stale agent afterwards
		lower    func(*testing.T)
	}{
		{"that sees an older plan", func(t *testing.T) { setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "2"))) }, "clusterplans",
			func(t *testing.T) { setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "1"))) }},
		{"that sees no plan", deletePlanAndAwait, "clusterplans",
			func(t *testing.T) { setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "1"))) }},
		{"that sees no policy of the member's own", func(t *testing.T) {
			setPlan(t, newPlan(t, testenv.NewPolicy("concurrency", "2")))
			deleteOwnPolicy(t)
		}, "configmaps", func(t *testing.T) { env.SetPolicy(t, testenv.NewPolicy("concurrency", "1")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env.SetPolicy(t, testenv.NewPolicy("concurrency", "2"))
			ns := env.CreateHomeNamespace(t)
			tt.before(t)
			env.WithoutAgent(t, func() {
				stale, p := startProxiedAgent(t)
				var all []*v1alpha1.VMDiskImage
				for i := range 3 {
					all = append(all, env.NewImage(ns, fmt.Sprintf("image-%d", i), "/hang/a"))
					env.Create(t, all[i])
				}
				for _, img := range all[:2] {
					env.AwaitImporting(t, img)
				}
				env.AwaitImage(t, all[2], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
				p.HoldWatches(tt.resource)
				fresh, _ := startProxiedAgent(t)
				tt.lower(t)
				require.True(t, testenv.AwaitCondition(t, func() bool { return env.Ledger(t).Status.Budget == 1 }))
				o := env.StartObserver(t)
				require.NoError(t, fresh.Pause(t.Context()))

				require.NoError(t, env.Client().Delete(t.Context(), all[0].DeepCopy()))
				env.AwaitGone(t, all[0].DeepCopy())
				require.True(t, testenv.AwaitCondition(t, func() bool {
					return len(env.Ledger(t).Status.Slots) == 1 || len(testenv.History(t, o).Creations()) > 0
				}))
				st := env.Ledger(t).Status
				assert.EqualValues(t, 1, st.Budget)
				assert.True(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionPlanAccepted), "a plan that does not exist is not rejected")
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
