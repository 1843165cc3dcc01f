//go:build linux

package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPlanPolicyAndOwnPolicy wants the smaller concurrency of plan and own policy to apply. Package
// agent/controllers/policy has all cases.
func TestPlanPolicyAndOwnPolicy(t *testing.T) {
	for _, tt := range []struct {
		name       string
		own, plan  string // concurrency; empty for no plan
		wantBudget int32
		wantText   string
	}{
		{"the member's own is smaller", "1", "3", 1, "with the smaller concurrency of ConfigMap sync-operator/sync-operator-policy, 1"},
		{"paused by the hub", "3", "0", 0, "the hub's policy is in force (a test)"},
		{"its own alone", "3", "", 3, "in force"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			deletePlanAndAwait(t)
			env.SetPolicy(t, testenv.NewPolicy("concurrency", "7", "retryLimit", "7"))
			env.SetPolicy(t, testenv.NewPolicy("concurrency", tt.own, "retryLimit", "7"))
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
			require.NotNil(t, st.OwnConcurrency)
			assert.Equal(t, tt.own, fmt.Sprint(*st.OwnConcurrency))
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

// TestRejectedPlan wants nothing of a rejected plan to apply, also after a restart. Package agent/plan
// has all reasons.
func TestRejectedPlan(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "8"))
	ns := env.CreateHomeNamespace(t)
	older := newPlan(t, testenv.NewPolicy("concurrency", "5"), env.NewImage(ns, "older", "/ok/200ms/a"))
	acknowledged := newPlan(t, testenv.NewPolicy("concurrency", "2"))
	setPlan(t, acknowledged)
	before := env.Ledger(t).Status
	require.EqualValues(t, 2, before.Budget)

	stored := storePlan(t, older)
	awaitPlanRejected(t, stored, v1alpha1.ReasonPlanOlder, "was acknowledged before", before)
	t.Run("after a restart", func(t *testing.T) {
		env.WithoutAgent(t, func() {})
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "9")) // acknowledged: the new agent has read everything
		awaitPlanRejected(t, stored, v1alpha1.ReasonPlanOlder, "was acknowledged before", before)
	})
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
				all := createImages(t, ns, 3, "/hang/a")
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
				killAndAwait(stale, fresh)
			})
			deletePlanAndAwait(t)
		})
	}
}
