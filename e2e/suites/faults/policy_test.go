//go:build linux

package faults

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
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestPolicyMissingFromTheStart(t *testing.T) {
	testScene.WithoutAgent(t, func() {
		require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), testScene.PolicyConfigMap())))
		l := testScene.Ledger(t)
		if l.UID != "" {
			require.NoError(t, testScene.Client().Delete(t.Context(), l))
		}
	})
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
	assert.Contains(t, c.Message, "sync-operator/sync-operator-policy does not exist")
	assert.Contains(t, c.Message, "nothing is downloaded")
	assert.Zero(t, testScene.Ledger(t).Status.Budget)

	history := observeTest(t)
	img := testScene.NewImage(createHomeNamespace(t), "image", "/ok/200ms/a")
	testScene.Create(t, img)
	got := testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPolicyMissing))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	assert.True(t, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionStalled), "it needs a person")
	assert.Zero(t, history().Attempts(img.UID))

	testScene.SetPolicy(t, newPolicy())
	awaitSucceeded(t, img)
	testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
	history()
}

func TestPolicyDeletedLater(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "2"))
	history := observeTest(t)
	require.NoError(t, testScene.Client().Delete(t.Context(), testScene.PolicyConfigMap()))
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
	assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
	assert.EqualValues(t, 2, testScene.Ledger(t).Status.Budget)

	img := testScene.NewImage(createHomeNamespace(t), "image", "/ok/200ms/a")
	testScene.Create(t, img)
	awaitSucceeded(t, img)
	history()
}

func TestUnparsablePolicyKeepsTheLastGood(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "2"))
	history := observeTest(t) // from here on: an observer knows the last good one only if it has seen it
	for _, tt := range []struct{ name, key, value, wantText string }{
		{"unparsable", "concurrency", "three", `concurrency: "three" is not a whole number from 0 to 256`},
		{"empty", "concurrency", "", `concurrency: "" is not a whole number`},
		{"negative", "concurrency", "-1", "concurrency: -1 is too small: the minimum is 0"},
		{"no duration", "retryBackoffDuration", "5", `retryBackoffDuration: "5" is not a duration`},
		{"huge", "concurrency", "1000", "concurrency: 1000 is too large: the maximum is 256"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cm := testScene.StorePolicy(t, newPolicy(tt.key, tt.value))
			var c *metav1.Condition
			require.True(t, testenv.Await(t, func() bool {
				c = testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
				return strings.Contains(c.Message, tt.wantText)
			}), "condition says %s", c.Message)
			assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
			testScene.AwaitEvent(t, cm, "PolicyInvalid", tt.wantText)
			assert.EqualValues(t, 2, testScene.Ledger(t).Status.Budget)
			require.True(t, testenv.Await(t, func() bool {
				return metricValue(t, "ot_agent_policy_key_invalid", "key", tt.key) == 1 && metricValue(t, "ot_agent_policy_accepted") == 0
			}))
		})
	}
	t.Run("the last good one outlives the agent", func(t *testing.T) {
		testScene.WithoutAgent(t, func() {})
		ns := createHomeNamespace(t)
		var images []*v1alpha1.VMDiskImage
		for i := range 4 {
			images = append(images, testScene.NewImage(ns, fmt.Sprintf("image-%d", i), "/ok/300ms/a"))
			testScene.Create(t, images[i])
		}
		for _, img := range images {
			awaitSucceeded(t, img)
		}
		h := history()
		assert.LessOrEqual(t, h.MaxRunning(), 2)
		assert.EqualValues(t, 2, testScene.Ledger(t).Status.Budget)
	})
	t.Run("a good one heals", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("concurrency", "256"))
		c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
		assert.Equal(t, "in force", c.Message)
		assert.EqualValues(t, 256, testScene.Ledger(t).Status.Budget)
		require.True(t, testenv.Await(t, func() bool { return metricValue(t, "ot_agent_policy_accepted") == 1 }))
	})
}

func TestUnknownPolicyKeyIsReported(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurency", "5"))
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
	assert.Contains(t, c.Message, "keys that are not for a cluster's own policy are ignored: concurency")
	assert.EqualValues(t, 2, testScene.Ledger(t).Status.Budget)
}

func TestPausedImageIsNotSynced(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "0"))
	o := testScene.StartObserver(t)
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	ns := createHomeNamespace(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 3 {
		images = append(images, testScene.NewImage(ns, fmt.Sprintf("image-%d", i), "/ok/200ms/a"))
		testScene.Create(t, images[i])
	}
	for _, img := range images {
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	assert.Empty(t, testenv.History(t, o).Creations())

	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	for _, img := range images {
		awaitSucceeded(t, img)
	}
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, []types.UID{images[0].UID, images[1].UID, images[2].UID}, h.StartOrder())
}

// TestLoweredBudgetEndsNothing wants that nothing is killed, and that nothing
// starts until it fits.
func TestLoweredBudgetEndsNothing(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "4"))
	o := testScene.StartObserver(t)
	ns := createHomeNamespace(t)
	var run, wait []*v1alpha1.VMDiskImage
	running := map[types.UID]types.UID{} // image to its DataVolume
	for i := range 4 {
		run = append(run, testScene.NewImage(ns, fmt.Sprintf("run-%d", i), "/hang/a"))
		testScene.Create(t, run[i])
	}
	for _, img := range run {
		running[img.UID] = awaitImporting(t, img).UID
	}
	for i := range 2 {
		wait = append(wait, testScene.NewImage(ns, fmt.Sprintf("wait-%d", i), "/ok/200ms/a"))
		testScene.Create(t, wait[i])
		testScene.AwaitImage(t, wait[i], testenv.HasReason(v1alpha1.ReasonWaitingForSlot))
	}

	testScene.SetPolicy(t, newPolicy("concurrency", "2"))
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse, "OverBudget")
	assert.Contains(t, c.Message, "4 imports run and the policy allows 2")
	assert.EqualValues(t, 2, testScene.Ledger(t).Status.Budget)
	assert.Len(t, testScene.Ledger(t).Status.Slots, 4)

	for _, img := range run[:2] { // 4 run, then 3, then 2: it fits, and nothing is free
		require.NoError(t, testScene.Client().Delete(t.Context(), img))
		testScene.AwaitGone(t, img.DeepCopy())
	}
	testScene.AwaitLedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionTrue, "WithinBudget")
	for _, img := range wait {
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseQueued)).Status.Reason)
	}
	assert.Len(t, testenv.History(t, o).Creations(), 4)

	require.NoError(t, testScene.Client().Delete(t.Context(), run[2]))
	for _, img := range wait {
		awaitSucceeded(t, img)
	}
	assert.Equal(t, running[run[3].UID], awaitImporting(t, run[3]).UID, "what runs is not disturbed")
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, 1, h.Attempts(run[3].UID))
}

func TestPriorityIsCapped(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "0", "maxPriority", "10"))
	o := testScene.StartObserver(t)
	ns := createHomeNamespace(t)
	var want []types.UID
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, tt := range []struct {
		name     string
		priority int32
	}{{"none", 0}, {"some", 5}, {"beyond", 1000}, {"most", 10}, {"less", -1}} {
		img := testScene.NewImage(ns, tt.name, "/ok/100ms/a")
		img.Spec.Priority = tt.priority
		testScene.Create(t, img)
		images[tt.name] = img
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonPaused))
	}
	testScene.SetPolicy(t, newPolicy("concurrency", "1", "maxPriority", "10"))
	for _, name := range []string{"beyond", "most", "some", "none", "less"} {
		want = append(want, images[name].UID)
	}
	for _, img := range images {
		awaitSucceeded(t, img)
	}
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Equal(t, want, h.StartOrder())
}
