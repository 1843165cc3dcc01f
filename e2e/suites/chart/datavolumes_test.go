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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// noSlotDenial is the message by which the agent recognizes the denial.
	noSlotDenial = "ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: DataVolume is not in a slot of the SyncLedger"
	// noLedgerDenial is the API server's message without a ledger.
	noLedgerDenial = "ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: failed to configure binding: no params found"

	// policyPropagationTimeout bounds how long the API server may take to enforce a new
	// policy, or to see a new parameter.
	policyPropagationTimeout = testenv.Patience
)

// awaitDenied waits until a create is denied: the API server caches policies and parameters.
func awaitDenied(t *testing.T, object client.Object, says string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := adminClient.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		assert.ErrorContains(c, err, says)
		assert.True(c, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%v", err)
	}, policyPropagationTimeout, 20*time.Millisecond)
}

func awaitCreated(t *testing.T, object client.Object) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NoError(c, adminClient.Create(t.Context(), object))
	}, policyPropagationTimeout, 20*time.Millisecond)
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), object)))
	})
}

func newMergePatch(patch string) client.Patch {
	return client.RawPatch(types.MergePatchType, []byte(patch))
}

func TestDataVolumesAreDeniedWithoutALedger(t *testing.T) {
	awaitDenied(t, newDataVolume(imageNamespace, "dv-1", "uid-1"), noLedgerDenial)
	require.NoError(t, adminClient.Create(t.Context(), newDataVolume(imageNamespace, "foreign", ""), client.DryRunAll),
		"a missing ledger must not stop other people's DataVolumes")
}

func TestDataVolumeRequiresASlot(t *testing.T) {
	createLedger(t, 2, "dv-1")
	awaitDenied(t, newDataVolume(imageNamespace, "dv-2", "uid-1"), noSlotDenial)
	awaitCreated(t, newDataVolume(imageNamespace, "dv-1", "uid-1"))
	for name, object := range map[string]client.Object{
		"another name":      newDataVolume(imageNamespace, "dv-2", "uid-1"),
		"another namespace": newDataVolume(agentNamespace, "dv-1", "uid-1"),
		"another image":     newDataVolume(imageNamespace, "dv-1", "uid-2"),
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), object, client.DryRunAll)
			require.ErrorContains(t, err, noSlotDenial)
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
		})
	}
	assert.NoError(t, adminClient.Create(t.Context(), newDataVolume(imageNamespace, "foreign", ""), client.DryRunAll))
}

func TestDataVolumeOfFreedSlotIsDenied(t *testing.T) {
	ledger := createLedger(t, 2, "dv-1", "dv-2")
	awaitCreated(t, newDataVolume(imageNamespace, "dv-1", "uid-1"))
	ledger.Status.Slots = slotsFor("dv-1")
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	awaitDenied(t, newDataVolume(imageNamespace, "dv-2", "uid-1"), noSlotDenial)
}

func TestDataVolumeOfEndedAttemptIsDenied(t *testing.T) {
	ledger := createLedger(t, 2, "dv-1", "dv-2")
	awaitCreated(t, newDataVolume(imageNamespace, "dv-2", "uid-1"))
	require.NoError(t, adminClient.Create(t.Context(), newDataVolume(imageNamespace, "dv-1", "uid-1"), client.DryRunAll))
	ledger.Status.Slots[0].Ended = true
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	awaitDenied(t, newDataVolume(imageNamespace, "dv-1", "uid-1"), noSlotDenial)
}

func TestDataVolumeImageLabelIsImmutable(t *testing.T) {
	ledger := createLedger(t, 1, "dv-1")
	ours := newDataVolume(imageNamespace, "dv-1", "uid-1")
	ours.SetFinalizers([]string{"example.com/keep"})
	awaitCreated(t, ours)
	foreign := newDataVolume(imageNamespace, "foreign", "")
	awaitCreated(t, foreign)

	const says = "ValidatingAdmissionPolicy 'ot-agent-datavolume-label' with binding 'ot-agent-datavolume-label' denied request: label pelotech.ot/image-uid"
	for name, test := range map[string]struct {
		object client.Object
		patch  string
	}{
		"add":               {foreign, `{"metadata":{"labels":{"pelotech.ot/image-uid":"uid-1"}}}`},
		"change":            {ours, `{"metadata":{"labels":{"pelotech.ot/image-uid":"uid-2"}}}`},
		"remove":            {ours, `{"metadata":{"labels":{"pelotech.ot/image-uid":null}}}`},
		"remove all labels": {ours, `{"metadata":{"labels":null}}`},
	} {
		t.Run(name, func(t *testing.T) {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				object := test.object.DeepCopyObject().(client.Object)
				err := adminClient.Patch(t.Context(), object, newMergePatch(test.patch), client.DryRunAll)
				assert.ErrorContains(c, err, says)
				assert.True(c, apierrors.IsForbidden(err), "%v", err)
			}, policyPropagationTimeout, 20*time.Millisecond)
		})
	}

	t.Run("other changes pass, without a ledger too", func(t *testing.T) {
		ledger.Status.Slots = nil
		require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
		require.NoError(t, adminClient.Delete(t.Context(), ledger))
		awaitDenied(t, newDataVolume(imageNamespace, "dv-2", "uid-1"), noLedgerDenial)
		assert.NoError(t, adminClient.Patch(t.Context(), ours, newMergePatch(`{"metadata":{"finalizers":null,"labels":{"a":"b"}}}`)))
	})
}

func TestLedgerWithSlotsCannotBeDeleted(t *testing.T) {
	ledger := createLedger(t, 2, "dv-1", "dv-2")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := adminClient.Delete(t.Context(), ledger, client.DryRunAll)
		assert.ErrorContains(c, err, "SyncLedger ot-system/default lists 2 running imports")
	}, policyPropagationTimeout, 20*time.Millisecond)

	err := adminClient.Delete(t.Context(), ledger, client.GracePeriodSeconds(0))
	require.ErrorContains(t, err, `Set concurrency to "0" in the policy ConfigMap sync-operator/sync-operator-policy`)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, adminClient.DeleteAllOf(t.Context(), &v1alpha1.SyncLedger{}, client.InNamespace(agentNamespace)), "running imports")

	ledger.Status.Slots = nil
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	require.NoError(t, adminClient.Delete(t.Context(), ledger))
}

func TestLedgerBeyondItsBudgetIsRejected(t *testing.T) {
	for name, test := range map[string]struct {
		before, after v1alpha1.SyncLedgerStatus
		refused       bool
	}{
		"the first write fits":         {after: v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a")}},
		"the first write is overfull":  {after: v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "b")}, refused: true},
		"one more than the budget":     {v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "b")}, true},
		"a slot with the budget at 0":  {v1alpha1.SyncLedgerStatus{Budget: 1}, v1alpha1.SyncLedgerStatus{Slots: slotsFor("a")}, true},
		"several fit at once":          {v1alpha1.SyncLedgerStatus{Budget: 3}, v1alpha1.SyncLedgerStatus{Budget: 3, Slots: slotsFor("a", "b", "c")}, false},
		"the budget falls":             {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "b")}, false},
		"one ends over budget":         {v1alpha1.SyncLedgerStatus{Budget: 3, Slots: slotsFor("a", "b", "c")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "c")}, false},
		"one is swapped over budget":   {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "c")}, true},
		"one is swapped within budget": {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "c")}, false},
		"the budget is negative":       {after: v1alpha1.SyncLedgerStatus{Budget: -1}, refused: true},
		"the budget is too large":      {after: v1alpha1.SyncLedgerStatus{Budget: v1alpha1.MaxSlots + 1}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := createLedger(t, 0)
			if test.before.Budget > 0 {
				for _, status := range []v1alpha1.SyncLedgerStatus{{Budget: v1alpha1.MaxSlots, Slots: test.before.Slots}, test.before} {
					ledger.Status = status.DeepCopy()
					require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
				}
			}
			ledger.Status = test.after.DeepCopy()
			err := adminClient.Status().Update(t.Context(), ledger)
			if test.refused {
				require.True(t, apierrors.IsInvalid(err), "%v", err)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestOnlyOneLedgerIsAccepted(t *testing.T) {
	second := &v1alpha1.SyncLedger{}
	second.SetNamespace(agentNamespace)
	second.SetName("another")
	require.ErrorContains(t, adminClient.Create(t.Context(), second), "the SyncLedger must be named default")
}

// clientAsUser returns a client with all rights, under a user name.
func clientAsUser(t *testing.T, name string) client.Client {
	t.Helper()
	return clientAsUserOf(t, serverConfig, adminClient, name)
}

// clientAsUserOf is clientAsUser for another control plane, whose kinds its administrator knows.
func clientAsUserOf(t *testing.T, plane *rest.Config, admin client.Client, name string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(plane)
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:masters"}}
	c, err := client.New(cfg, client.Options{Scheme: adminClient.Scheme(), Mapper: admin.RESTMapper()})
	require.NoError(t, err)
	return c
}
