//go:build linux

package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestPolicyMissingFromTheStart(t *testing.T) {
	env.WithoutAgent(t, func() {
		require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), env.PolicyConfigMap())))
		l := env.Ledger(t)
		if l.UID != "" {
			require.NoError(t, env.Client().Delete(t.Context(), l))
		}
	})
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
	assert.Contains(t, c.Message, "sync-operator/sync-operator-policy does not exist")
	assert.Contains(t, c.Message, "nothing is downloaded")
	assert.Zero(t, env.Ledger(t).Status.Budget)

	history := env.ObserveTest(t)
	img := env.NewImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/a")
	env.Create(t, img)
	got := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPolicyMissing))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	assert.True(t, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionStalled), "only a person can resolve it")
	assert.Zero(t, history().Attempts(img.UID))

	env.SetPolicy(t, testenv.NewPolicy())
	env.AwaitSucceeded(t, img)
	env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
	history()
}

func TestPolicyDeletedLater(t *testing.T) {
	testenv.RunInTurn(t, 9)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "2"))
	history := env.ObserveTest(t)
	require.NoError(t, env.Client().Delete(t.Context(), env.PolicyConfigMap()))
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
	assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
	assert.EqualValues(t, 2, env.Ledger(t).Status.Budget)

	env.ImportImage(t, env.NewImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/a"))
	history()
}

func TestUnparsablePolicyKeepsTheLastGood(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "2"))
	testenv.AdmitInvalidPolicy(t, env.Client())
	history := env.ObserveTest(t) // from here: an observer has to have seen the last valid policy
	const wantText = `concurrency: "three" is not a whole number from 0 to 256`
	cm := env.StorePolicy(t, testenv.NewPolicy("concurrency", "three"))
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
	assert.Contains(t, c.Message, wantText)
	assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
	env.AwaitEvent(t, cm, "PolicyInvalid", wantText)
	assert.EqualValues(t, 2, env.Ledger(t).Status.Budget)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return env.MetricValue(t, "ot_agent_policy_key_invalid", "key", "concurrency") == 1 && env.MetricValue(t, "ot_agent_policy_accepted") == 0
	}))
	t.Run("the last valid policy outlives the agent", func(t *testing.T) {
		env.WithoutAgent(t, func() {})
		ns := env.CreateHomeNamespace(t)
		for _, img := range createImages(t, ns, 4, "/ok/300ms/a") {
			env.AwaitSucceeded(t, img)
		}
		h := history()
		assert.LessOrEqual(t, h.MaxRunning(), 2)
		assert.EqualValues(t, 2, env.Ledger(t).Status.Budget)
	})
	t.Run("a valid policy recovers", func(t *testing.T) {
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "256"))
		c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
		assert.Equal(t, "in force", c.Message)
		assert.EqualValues(t, 256, env.Ledger(t).Status.Budget)
		require.True(t, testenv.AwaitCondition(t, func() bool { return env.MetricValue(t, "ot_agent_policy_accepted") == 1 }))
	})
}

func TestUnknownPolicyKeyIsReported(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurency", "5"))
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
	assert.Contains(t, c.Message, "keys that are not for a cluster's own policy are ignored: concurency")
	assert.EqualValues(t, 2, env.Ledger(t).Status.Budget)
}

func TestPausedImageIsNotSynced(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0"))
	o := env.StartObserver(t)
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	ns := env.CreateHomeNamespace(t)
	images := createImages(t, ns, 3, "/ok/200ms/a")
	for _, img := range images {
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	assert.Empty(t, testenv.History(t, o).Creations())

	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1"))
	for _, img := range images {
		env.AwaitSucceeded(t, img)
	}
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, []types.UID{images[0].UID, images[1].UID, images[2].UID}, h.StartOrder())
}

// TestLoweredBudgetEndsNothing wants running imports to go on, and no other to start until the
// budget allows it.
func TestLoweredBudgetEndsNothing(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	o := env.StartObserver(t)
	ns := env.CreateHomeNamespace(t)
	var run, wait []*v1alpha1.VMDiskImage
	dataVolumes := map[types.UID]types.UID{} // by image
	for i := range 4 {
		run = append(run, env.NewImage(ns, fmt.Sprintf("run-%d", i), "/hang/a"))
		env.Create(t, run[i])
	}
	for _, img := range run {
		dataVolumes[img.UID] = env.AwaitImporting(t, img).UID
	}
	for i := range 2 {
		wait = append(wait, env.NewImage(ns, fmt.Sprintf("wait-%d", i), "/ok/200ms/a"))
		env.Create(t, wait[i])
		env.AwaitImage(t, wait[i], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	}

	env.SetPolicy(t, testenv.NewPolicy("concurrency", "2"))
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	c := env.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse, "OverBudget")
	assert.Contains(t, c.Message, "4 imports run and the policy allows 2")
	assert.EqualValues(t, 2, env.Ledger(t).Status.Budget)
	assert.Len(t, env.Ledger(t).Status.Slots, 4)

	for _, img := range run[:2] { // 4 run, then 3, then 2: within the budget, with no slot free
		require.NoError(t, env.Client().Delete(t.Context(), img))
		env.AwaitGone(t, img.DeepCopy())
	}
	env.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionTrue, "WithinBudget")
	for _, img := range wait {
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseQueued)).Status.Reason)
	}
	assert.Len(t, testenv.History(t, o).Creations(), 4)

	require.NoError(t, env.Client().Delete(t.Context(), run[2]))
	for _, img := range wait {
		env.AwaitSucceeded(t, img)
	}
	assert.Equal(t, dataVolumes[run[3].UID], env.AwaitImporting(t, run[3]).UID, "running imports were disturbed")
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, 1, h.Attempts(run[3].UID))
}

func TestPriorityIsCapped(t *testing.T) {
	testenv.RunInTurn(t, 10)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0", "maxPriority", "10"))
	o := env.StartObserver(t)
	ns := env.CreateHomeNamespace(t)
	var want []types.UID
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, tt := range []struct {
		name     string
		priority int32
	}{{"none", 0}, {"some", 5}, {"beyond", 1000}, {"most", 10}, {"less", -1}} {
		img := env.NewImage(ns, tt.name, "/ok/100ms/a")
		img.Spec.Priority = tt.priority
		env.Create(t, img)
		images[tt.name] = img
		env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1", "maxPriority", "10"))
	for _, name := range []string{"beyond", "most", "some", "none", "less"} {
		want = append(want, images[name].UID)
	}
	for _, img := range images {
		env.AwaitSucceeded(t, img)
	}
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, want, h.StartOrder())
}
