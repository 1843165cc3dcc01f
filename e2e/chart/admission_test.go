//go:build linux

package chart_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

const (
	// refused is what the agent recognises a refusal by.
	refused = "ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: DataVolume is not in a slot of the SyncLedger"
	// unknown is how the API server says that it knows of no ledger.
	unknown = "ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: failed to configure binding: no params found"

	// policyDelay bounds how long the API server may take to know of a new
	// policy, or of a parameter that has just been created.
	policyDelay = scene.Patience
)

// eventuallyRefused waits for the API server's cache of policies and parameters.
func eventuallyRefused(t *testing.T, object client.Object, says string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := server.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		assert.ErrorContains(c, err, says)
		assert.True(c, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%v", err)
	}, policyDelay, 20*time.Millisecond)
}

func eventuallyCreated(t *testing.T, object client.Object) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NoError(c, server.Create(t.Context(), object))
	}, policyDelay, 20*time.Millisecond)
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(server.Delete(context.Background(), object)))
	})
}

func mergePatch(patch string) client.Patch {
	return client.RawPatch(types.MergePatchType, []byte(patch))
}

func TestDataVolumesAreRefusedWithoutALedger(t *testing.T) {
	eventuallyRefused(t, dataVolume(imageNamespace, "dv-1", "uid-1"), unknown)
	require.NoError(t, server.Create(t.Context(), dataVolume(imageNamespace, "theirs", ""), client.DryRunAll),
		"a missing ledger must not stop other people's DataVolumes")
}

func TestDataVolumesNeedASlot(t *testing.T) {
	newLedger(t, 2, "dv-1")
	eventuallyRefused(t, dataVolume(imageNamespace, "dv-2", "uid-1"), refused)
	eventuallyCreated(t, dataVolume(imageNamespace, "dv-1", "uid-1"))
	for name, object := range map[string]client.Object{
		"another name":      dataVolume(imageNamespace, "dv-2", "uid-1"),
		"another namespace": dataVolume(agentNamespace, "dv-1", "uid-1"),
		"another image":     dataVolume(imageNamespace, "dv-1", "uid-2"),
	} {
		t.Run(name, func(t *testing.T) {
			err := server.Create(t.Context(), object, client.DryRunAll)
			require.ErrorContains(t, err, refused)
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
		})
	}
	assert.NoError(t, server.Create(t.Context(), dataVolume(imageNamespace, "theirs", ""), client.DryRunAll))
}

func TestDataVolumesOfAFreedSlotAreRefused(t *testing.T) {
	ledger := newLedger(t, 2, "dv-1", "dv-2")
	eventuallyCreated(t, dataVolume(imageNamespace, "dv-1", "uid-1"))
	ledger.Status.Slots = slots("dv-1")
	require.NoError(t, server.Status().Update(t.Context(), ledger))
	eventuallyRefused(t, dataVolume(imageNamespace, "dv-2", "uid-1"), refused)
}

func TestDataVolumesOfAnEndedAttemptAreRefused(t *testing.T) {
	ledger := newLedger(t, 2, "dv-1", "dv-2")
	eventuallyCreated(t, dataVolume(imageNamespace, "dv-2", "uid-1"))
	require.NoError(t, server.Create(t.Context(), dataVolume(imageNamespace, "dv-1", "uid-1"), client.DryRunAll))
	ledger.Status.Slots[0].Ended = true
	require.NoError(t, server.Status().Update(t.Context(), ledger))
	eventuallyRefused(t, dataVolume(imageNamespace, "dv-1", "uid-1"), refused)
}

func TestImageLabelOfADataVolumeIsSetOnce(t *testing.T) {
	ledger := newLedger(t, 1, "dv-1")
	ours := dataVolume(imageNamespace, "dv-1", "uid-1")
	ours.SetFinalizers([]string{"example.com/keep"})
	eventuallyCreated(t, ours)
	theirs := dataVolume(imageNamespace, "theirs", "")
	eventuallyCreated(t, theirs)

	const says = "ValidatingAdmissionPolicy 'ot-agent-datavolume-label' with binding 'ot-agent-datavolume-label' denied request: label pelotech.ot/image-uid"
	for name, test := range map[string]struct {
		object client.Object
		patch  string
	}{
		"add":               {theirs, `{"metadata":{"labels":{"pelotech.ot/image-uid":"uid-1"}}}`},
		"change":            {ours, `{"metadata":{"labels":{"pelotech.ot/image-uid":"uid-2"}}}`},
		"remove":            {ours, `{"metadata":{"labels":{"pelotech.ot/image-uid":null}}}`},
		"remove all labels": {ours, `{"metadata":{"labels":null}}`},
	} {
		t.Run(name, func(t *testing.T) {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				object := test.object.DeepCopyObject().(client.Object)
				err := server.Patch(t.Context(), object, mergePatch(test.patch), client.DryRunAll)
				assert.ErrorContains(c, err, says)
				assert.True(c, apierrors.IsForbidden(err), "%v", err)
			}, policyDelay, 20*time.Millisecond)
		})
	}

	t.Run("other changes pass, without a ledger too", func(t *testing.T) {
		ledger.Status.Slots = nil
		require.NoError(t, server.Status().Update(t.Context(), ledger))
		require.NoError(t, server.Delete(t.Context(), ledger))
		eventuallyRefused(t, dataVolume(imageNamespace, "dv-2", "uid-1"), unknown)
		assert.NoError(t, server.Patch(t.Context(), ours, mergePatch(`{"metadata":{"finalizers":null,"labels":{"a":"b"}}}`)))
	})
}

func TestLedgerWithSlotsCannotBeDeleted(t *testing.T) {
	ledger := newLedger(t, 2, "dv-1", "dv-2")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := server.Delete(t.Context(), ledger, client.DryRunAll)
		assert.ErrorContains(c, err, "SyncLedger ot-system/default lists 2 running imports")
	}, policyDelay, 20*time.Millisecond)

	err := server.Delete(t.Context(), ledger, client.GracePeriodSeconds(0))
	require.ErrorContains(t, err, `Set concurrency to "0" in the policy ConfigMap sync-operator/sync-operator-policy`)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, server.DeleteAllOf(t.Context(), &v1alpha1.SyncLedger{}, client.InNamespace(agentNamespace)), "running imports")

	ledger.Status.Slots = nil
	require.NoError(t, server.Status().Update(t.Context(), ledger))
	require.NoError(t, server.Delete(t.Context(), ledger))
}

func TestLedgerBeyondItsBudgetIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		before, after v1alpha1.SyncLedgerStatus
		refused       bool
	}{
		"the first write fits":         {after: v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a")}},
		"the first write is overfull":  {after: v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a", "b")}, refused: true},
		"one more than the budget":     {v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a", "b")}, true},
		"a slot with the budget at 0":  {v1alpha1.SyncLedgerStatus{Budget: 1}, v1alpha1.SyncLedgerStatus{Slots: slots("a")}, true},
		"several fit at once":          {v1alpha1.SyncLedgerStatus{Budget: 3}, v1alpha1.SyncLedgerStatus{Budget: 3, Slots: slots("a", "b", "c")}, false},
		"the budget falls":             {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slots("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a", "b")}, false},
		"one ends over budget":         {v1alpha1.SyncLedgerStatus{Budget: 3, Slots: slots("a", "b", "c")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a", "c")}, false},
		"one is swapped over budget":   {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slots("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slots("a", "c")}, true},
		"one is swapped within budget": {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slots("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slots("a", "c")}, false},
		"the budget is negative":       {after: v1alpha1.SyncLedgerStatus{Budget: -1}, refused: true},
		"the budget is too large":      {after: v1alpha1.SyncLedgerStatus{Budget: v1alpha1.MaxSlots + 1}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := newLedger(t, 0)
			if test.before.Budget > 0 {
				for _, status := range []v1alpha1.SyncLedgerStatus{{Budget: v1alpha1.MaxSlots, Slots: test.before.Slots}, test.before} {
					ledger.Status = status.DeepCopy()
					require.NoError(t, server.Status().Update(t.Context(), ledger))
				}
			}
			ledger.Status = test.after.DeepCopy()
			err := server.Status().Update(t.Context(), ledger)
			if test.refused {
				require.True(t, apierrors.IsInvalid(err), "%v", err)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestLedgerIsOne(t *testing.T) {
	second := &v1alpha1.SyncLedger{}
	second.SetNamespace(agentNamespace)
	second.SetName("another")
	require.ErrorContains(t, server.Create(t.Context(), second), "there is one SyncLedger, named default")
}
