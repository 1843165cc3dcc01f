//go:build linux

package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPlanIsConfinedToAllowedNamespaces: the cluster's own policy says where a hub may place
// images, and no plan overrides it.
func TestPlanIsConfinedToAllowedNamespaces(t *testing.T) {
	allowed, other := env.CreateHomeNamespace(t), env.CreateHomeNamespace(t)
	confined := testenv.NewPolicy("allowedNamespaces", allowed+", no-such-*")
	env.SetPolicy(t, confined)
	inside, outside := env.NewImage(allowed, "planned", "/ok/100ms/a"), env.NewImage(other, "planned", "/ok/100ms/b")
	setPlan(t, newPlan(t, testenv.NewPolicy("allowedNamespaces", "*"), inside, outside))
	awaitPlanItem(t, inside, v1alpha1.PlanItemApplied)
	requireRefused := func(img *v1alpha1.VMDiskImage, text string) {
		t.Helper()
		assert.Contains(t, awaitPlanItem(t, img, v1alpha1.PlanItemRejected), text)
	}
	requireRefused(outside, "namespace "+other+" is not allowed: allowedNamespaces of the cluster's own policy ConfigMap does not name it")
	own := env.NewImage(other, "own", "/ok/100ms/c")
	env.Create(t, own)
	env.AwaitSucceeded(t, own)

	t.Run("stays confined while its policy is wrong", func(t *testing.T) {
		testenv.AdmitInvalidPolicy(t, env.Client())
		env.StorePolicy(t, testenv.NewPolicy("allowedNamespaces", "Not_A_Name"))
		env.AwaitLedgerCondition(t, v1alpha1.ConditionPolicyAccepted, metav1.ConditionFalse, "Invalid")
		second := env.NewImage(other, "second", "/ok/100ms/d")
		setPlan(t, newPlan(t, testenv.NewPolicy(), inside, outside, second))
		requireRefused(second, "is not allowed")
		env.WithoutAgent(t, func() {})
		setPlan(t, newPlan(t, testenv.NewPolicy("retryLimit", "2"), inside, outside, second))
		third := env.NewImage(other, "third", "/ok/100ms/e")
		setPlan(t, newPlan(t, testenv.NewPolicy(), inside, outside, second, third))
		requireRefused(third, "is not allowed")
	})
	images := &v1alpha1.VMDiskImageList{}
	require.NoError(t, env.Client().List(t.Context(), images, client.InNamespace(other)))
	assert.Len(t, images.Items, 1, "nothing but the image of its owner")

	env.SetPolicy(t, testenv.NewPolicy())
	setPlan(t, newPlan(t, testenv.NewPolicy(), inside, outside))
	awaitPlanItem(t, outside, v1alpha1.PlanItemApplied)
	placed := env.AwaitSucceeded(t, outside)

	env.SetPolicy(t, confined)
	requireRefused(outside, "is no longer allowed")
	changed := outside.DeepCopy()
	changed.Spec.URL += "2"
	setPlan(t, newPlan(t, testenv.NewPolicy(), inside, changed))
	requireRefused(changed, "the image stays as it is")
	after := &v1alpha1.VMDiskImage{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(outside), after))
	assert.Equal(t, placed.UID, after.UID)
	assert.Equal(t, placed.Spec.URL, after.Spec.URL)

	setPlan(t, withPrunes(newPlan(t, testenv.NewPolicy(), inside), time.Second, placed))
	env.AwaitGone(t, placed)
}

// TestNamespaceShareLetsOthersGoFirst: a namespace that fills the queue does not hold up an
// image of another one. The imports of its images do not end.
func TestNamespaceShareLetsOthersGoFirst(t *testing.T) {
	crowded, other := env.CreateHomeNamespace(t), env.CreateHomeNamespace(t)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0", "namespaceShare", "1"))
	create := func(ns, name, path string) *v1alpha1.VMDiskImage {
		img := env.NewImage(ns, name, path)
		env.Create(t, img)
		return env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.Reason == v1alpha1.ReasonPaused })
	}
	var crowd []*v1alpha1.VMDiskImage
	for i := range 4 {
		crowd = append(crowd, create(crowded, fmt.Sprint("image-", i), "/hang/a"))
	}
	late, later := create(other, "late", "/hang/b"), create(other, "later", "/ok/100ms/c")

	env.SetPolicy(t, testenv.NewPolicy("concurrency", "2", "namespaceShare", "1"))
	env.AwaitImporting(t, late)
	env.AwaitImporting(t, crowd[0])
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "3", "namespaceShare", "1"))
	env.AwaitImporting(t, crowd[1])
	assert.Len(t, env.Ledger(t).Status.Slots, 3, "both namespaces have their share: the others are first in, first out")

	env.SetPolicy(t, testenv.NewPolicy("concurrency", "3", "namespaceShare", "2"))
	waiting := env.AwaitImage(t, crowd[2], func(img *v1alpha1.VMDiskImage) bool { return img.Status.Reason == v1alpha1.ReasonNamespaceShare })
	assert.Equal(t, v1alpha1.PhaseQueued, waiting.Status.Phase)
	assert.Contains(t, waiting.Status.Message, "namespaceShare of the policy")
	env.AwaitImage(t, later, func(img *v1alpha1.VMDiskImage) bool { return img.Status.Reason == v1alpha1.ReasonWaitingForSlot })
	require.NoError(t, env.Client().Delete(t.Context(), late))
	env.AwaitSucceeded(t, later)
	env.AwaitImporting(t, crowd[2])
}
