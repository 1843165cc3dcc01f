package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (w *world) podNetworkMAC() any {
	list := w.getList(interfacesPath)
	require.Len(w.t, list, 1)
	return list[0].(map[string]any)["macAddress"]
}

func (w *world) setPodNetworkMAC(mac string) {
	list := w.getList(interfacesPath)
	item := list[0].(map[string]any)
	if item["macAddress"] = mac; mac == "" {
		delete(item, "macAddress")
	}
	w.setList(list, interfacesPath)
}

const derivedMAC = "02:c6:04:0e:a6:22"

// asCreatedBy02 makes the KubeVirt VirtualMachine what agents up to 0.2 have created for a
// machine without interfaces.
func (w *world) asCreatedBy02() {
	w.setPodNetworkMAC("")
	w.setAnnotation(v1alpha1.AnnotationAppliedDigest, appliedDigestOf02)
}

// appliedDigestOf02 is the golden digest of apitest.VirtualMachine("ns", "vm") in version 0.2.
const appliedDigestOf02 = "2cf652c605dced069d9c90f86a398616"

// Without an address of the agent, each start had another one. An instance keeps the one that
// it has until it ends.
func TestUpgradeKeepsAddressOfRunningGuest(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	assert.Equal(t, derivedMAC, w.podNetworkMAC())
	w.asCreatedBy02()
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.Nil(t, w.lastDecision.ApplyKubeVirtVM, "the guest runs with another address")
	assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionRestartRequired), "applies at the next start")

	w.setKubeVirtStatus("Stopped", nil).reconcile()
	require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
	assert.Equal(t, derivedMAC, w.podNetworkMAC(), "from now on it stays")
	assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
}

// An address pool or a person has given the machine its address, and the guest is tied to it.
func TestForeignAddressOfPodNetworkIsKept(t *testing.T) {
	const foreign = "02:00:00:00:12:34"
	for name, upgrade := range map[string]bool{"since this version": false, "from 0.2": true} {
		t.Run(name, func(t *testing.T) {
			w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
			if upgrade {
				w.asCreatedBy02()
			}
			w.setPodNetworkMAC(foreign)
			assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
			w.setKubeVirtStatus("Stopped", nil).reconcile()
			assert.Equal(t, foreign, w.podNetworkMAC())
			w.VM.Spec.Version, w.VM.Generation = "2", 2
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
			assert.Equal(t, foreign, w.podNetworkMAC())
		})
	}
	t.Run("unless the overlay sets one", func(t *testing.T) {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm").WithOverlay(`{"template":{"spec":{"domain":{"devices":{"interfaces":[{"name":"default","macAddress":"02:00:00:00:00:99"}]}}}}}`))
		w.setPodNetworkMAC(foreign)
		w.reconcile()
		assert.Equal(t, "02:00:00:00:00:99", w.podNetworkMAC())
	})
}
