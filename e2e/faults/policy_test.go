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
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestPolicyMissingFromTheStart(t *testing.T) {
	place.WithoutAgent(t, func() {
		require.NoError(t, client.IgnoreNotFound(place.Client().Delete(t.Context(), place.Policy())))
		l := place.Ledger(t)
		if l.UID != "" {
			require.NoError(t, place.Client().Delete(t.Context(), l))
		}
	})
	c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
	assert.Contains(t, c.Message, "sync-operator/sync-operator-policy does not exist")
	assert.Contains(t, c.Message, "nothing is downloaded")
	assert.Zero(t, place.Ledger(t).Status.Budget)

	history := observed(t)
	img := place.Image(home(t), "image", "/ok/200ms/a")
	place.Create(t, img)
	got := place.Eventually(t, img, scene.Because(v1alpha1.ReasonPolicyMissing))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	assert.True(t, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionStalled), "it needs a person")
	assert.Zero(t, history().Attempts(img.UID))

	place.SetPolicy(t, policy())
	succeeded(t, img)
	place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
	history()
}

func TestPolicyDeletedLater(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "2"))
	history := observed(t)
	require.NoError(t, place.Client().Delete(t.Context(), place.Policy()))
	c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Missing")
	assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
	assert.EqualValues(t, 2, place.Ledger(t).Status.Budget)

	img := place.Image(home(t), "image", "/ok/200ms/a")
	place.Create(t, img)
	succeeded(t, img)
	history()
}

func TestPolicyThatCannotBeUsed(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "2"))
	history := observed(t) // from here on: an observer knows the last good one only if it has seen it
	for _, tt := range []struct{ name, key, value, wantText string }{
		{"unparsable", "concurrency", "three", `concurrency: "three" is not a whole number from 0 to 256`},
		{"empty", "concurrency", "", `concurrency: "" is not a whole number`},
		{"negative", "concurrency", "-1", "concurrency: -1 is too small: the least is 0"},
		{"no duration", "retryBackoffDuration", "5", `retryBackoffDuration: "5" is not a duration`},
		{"huge", "concurrency", "1000", "concurrency: 1000 is too large: the most is 256"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cm := place.StorePolicy(t, policy(tt.key, tt.value))
			var c *metav1.Condition
			require.True(t, scene.Await(t, func() bool {
				c = place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
				return strings.Contains(c.Message, tt.wantText)
			}), "condition says %s", c.Message)
			assert.Contains(t, c.Message, "last valid policy stays in force, concurrency 2")
			place.WantEvent(t, cm, "PolicyInvalid", tt.wantText)
			assert.EqualValues(t, 2, place.Ledger(t).Status.Budget)
			require.True(t, scene.Await(t, func() bool {
				return metric(t, "ot_agent_policy_key_invalid", "key", tt.key) == 1 && metric(t, "ot_agent_policy_accepted") == 0
			}))
		})
	}
	t.Run("the last good one outlives the agent", func(t *testing.T) {
		place.WithoutAgent(t, func() {})
		ns := home(t)
		var images []*v1alpha1.VMDiskImage
		for i := range 4 {
			images = append(images, place.Image(ns, fmt.Sprintf("image-%d", i), "/ok/300ms/a"))
			place.Create(t, images[i])
		}
		for _, img := range images {
			succeeded(t, img)
		}
		h := history()
		assert.LessOrEqual(t, h.MostRunning(), 2)
		assert.EqualValues(t, 2, place.Ledger(t).Status.Budget)
	})
	t.Run("a good one heals", func(t *testing.T) {
		place.SetPolicy(t, policy("concurrency", "256"))
		c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
		assert.Equal(t, "in force", c.Message)
		assert.EqualValues(t, 256, place.Ledger(t).Status.Budget)
		require.True(t, scene.Await(t, func() bool { return metric(t, "ot_agent_policy_accepted") == 1 }))
	})
}

func TestPolicyKeyThatIsNotKnown(t *testing.T) {
	place.SetPolicy(t, policy("concurency", "5"))
	c := place.LedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionTrue, "Accepted")
	assert.Contains(t, c.Message, "keys that are not for a cluster's own policy are ignored: concurency")
	assert.EqualValues(t, 2, place.Ledger(t).Status.Budget)
}

func TestPaused(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "0"))
	o := place.Observe(t)
	require.NoError(t, o.Bind(t.Context()))
	ns := home(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 3 {
		images = append(images, place.Image(ns, fmt.Sprintf("image-%d", i), "/ok/200ms/a"))
		place.Create(t, images[i])
	}
	for _, img := range images {
		place.Eventually(t, img, scene.Because(v1alpha1.ReasonPaused))
	}
	assert.Empty(t, scene.History(t, o).Starts())

	place.SetPolicy(t, policy("concurrency", "1"))
	for _, img := range images {
		succeeded(t, img)
	}
	h := scene.History(t, o)
	assert.Empty(t, h.OverBudget())
	assert.Equal(t, []types.UID{images[0].UID, images[1].UID, images[2].UID}, h.StartOrder())
}

// TestBudgetLoweredBelowWhatRuns wants that nothing is killed, and that nothing
// starts until it fits.
func TestBudgetLoweredBelowWhatRuns(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "4"))
	o := place.Observe(t)
	ns := home(t)
	var run, wait []*v1alpha1.VMDiskImage
	running := map[types.UID]types.UID{} // image to its DataVolume
	for i := range 4 {
		run = append(run, place.Image(ns, fmt.Sprintf("run-%d", i), "/hang/a"))
		place.Create(t, run[i])
	}
	for _, img := range run {
		running[img.UID] = importing(t, img).UID
	}
	for i := range 2 {
		wait = append(wait, place.Image(ns, fmt.Sprintf("wait-%d", i), "/ok/200ms/a"))
		place.Create(t, wait[i])
		place.Eventually(t, wait[i], scene.Because(v1alpha1.ReasonWaitingForSlot))
	}

	place.SetPolicy(t, policy("concurrency", "2"))
	require.NoError(t, o.Bind(t.Context()))
	c := place.LedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse, "OverBudget")
	assert.Contains(t, c.Message, "4 imports run and the policy allows 2")
	assert.EqualValues(t, 2, place.Ledger(t).Status.Budget)
	assert.Len(t, place.Ledger(t).Status.Slots, 4)

	for _, img := range run[:2] { // 4 run, then 3, then 2: it fits, and nothing is free
		require.NoError(t, place.Client().Delete(t.Context(), img))
		place.Gone(t, img.DeepCopy())
	}
	place.LedgerCondition(t, v1alpha1.ConditionWithinBudget, metav1.ConditionTrue, "WithinBudget")
	for _, img := range wait {
		assert.Equal(t, v1alpha1.ReasonWaitingForSlot, place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseQueued)).Status.Reason)
	}
	assert.Len(t, scene.History(t, o).Starts(), 4)

	require.NoError(t, place.Client().Delete(t.Context(), run[2]))
	for _, img := range wait {
		succeeded(t, img)
	}
	assert.Equal(t, running[run[3].UID], importing(t, run[3]).UID, "what runs is not disturbed")
	h := scene.History(t, o)
	assert.Empty(t, h.OverBudget())
	assert.Equal(t, 1, h.Attempts(run[3].UID))
}

func TestPriorityIsCapped(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "0", "maxPriority", "10"))
	o := place.Observe(t)
	ns := home(t)
	var want []types.UID
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, tt := range []struct {
		name     string
		priority int32
	}{{"none", 0}, {"some", 5}, {"beyond", 1000}, {"most", 10}, {"less", -1}} {
		img := place.Image(ns, tt.name, "/ok/100ms/a")
		img.Spec.Priority = tt.priority
		place.Create(t, img)
		images[tt.name] = img
		place.Eventually(t, img, scene.Because(v1alpha1.ReasonPaused))
	}
	place.SetPolicy(t, policy("concurrency", "1", "maxPriority", "10"))
	for _, name := range []string{"beyond", "most", "some", "none", "less"} {
		want = append(want, images[name].UID)
	}
	for _, img := range images {
		succeeded(t, img)
	}
	h := scene.History(t, o)
	assert.Empty(t, h.OverBudget())
	assert.Equal(t, want, h.StartOrder())
}
