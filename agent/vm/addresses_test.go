package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestFindAddressConflict(t *testing.T) {
	mac := v1alpha1.Interface{Network: "a", MACAddress: "02:00:00:00:00:AA"}
	ip := v1alpha1.Interface{Network: "a", IPAddress: "10.0.0.5/24"}
	for name, tt := range map[string]struct {
		older, younger []v1alpha1.Interface
		change         func(older *v1alpha1.VirtualMachine)
		want           string
	}{
		"MAC":                     {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{ip, {Network: "a", MACAddress: "02:00:00:00:00:aa"}}, want: "interfaces[1] (a) has macAddress 02:00:00:00:00:aa, which interfaces[0] of VirtualMachine older has, too: change one"},
		"MAC on another network":  {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{{Network: "b", MACAddress: mac.MACAddress}}, want: "interfaces[0] (b) has macAddress 02:00:00:00:00:aa, which interfaces[0] of VirtualMachine older has, too: change one"},
		"IP":                      {older: []v1alpha1.Interface{mac, ip}, younger: []v1alpha1.Interface{{Network: "ns/a", IPAddress: "10.0.0.5/16"}}, want: "interfaces[0] (ns/a) has ipAddress 10.0.0.5, which interfaces[1] of VirtualMachine older has, too: change one"},
		"IP, spelled differently": {older: []v1alpha1.Interface{{Network: "a", IPAddress: "fd00::1/64"}}, younger: []v1alpha1.Interface{{Network: "a", IPAddress: "FD00:0:0::0001/64"}}, want: "interfaces[0] (a) has ipAddress fd00::1, which interfaces[0] of VirtualMachine older has, too: change one"},
		"additional IP":           {older: []v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.9/24", AdditionalAddresses: []string{"fd00::5/64"}}}, younger: []v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.8/24", AdditionalAddresses: []string{"FD00::5/80"}}}, want: "interfaces[0] (a) has ipAddress fd00::5, which interfaces[0] of VirtualMachine older has, too: change one"},
		"IP on another network":   {older: []v1alpha1.Interface{ip}, younger: []v1alpha1.Interface{{Network: "b", IPAddress: ip.IPAddress}}},
		"others":                  {older: []v1alpha1.Interface{mac, ip}, younger: []v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.6/24"}, {Network: "a"}}},
		"without addresses":       {},
		"of another namespace":    {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{mac}, change: func(older *v1alpha1.VirtualMachine) { older.Namespace = "other" }},
		"being deleted":           {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{mac}, change: func(older *v1alpha1.VirtualMachine) { markDeleted(older) }},
		"ignored on deploy":       {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{mac}, change: func(older *v1alpha1.VirtualMachine) { older.Spec.IgnoreOnDeploy = true }},
		"of the same second": {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{mac}, change: func(older *v1alpha1.VirtualMachine) {
			older.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(time.Minute))
		}, want: "interfaces[0] (a) has macAddress 02:00:00:00:00:aa, which interfaces[0] of VirtualMachine older has, too: change one"},
		"stopped, and holds it yet": {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{mac}, change: func(older *v1alpha1.VirtualMachine) { older.Spec.RunStrategy = "Halted" }, want: "interfaces[0] (a) has macAddress 02:00:00:00:00:aa, which interfaces[0] of VirtualMachine older has, too: change one"},
	} {
		t.Run(name, func(t *testing.T) {
			older, younger := apitest.VirtualMachine("ns", "older").WithInterfaces(tt.older...).Obj(), apitest.VirtualMachine("ns", "younger").WithInterfaces(tt.younger...).Obj()
			older.CreationTimestamp, younger.CreationTimestamp = metav1.NewTime(apitest.Epoch), metav1.NewTime(apitest.Epoch.Add(time.Minute))
			if tt.change != nil {
				tt.change(older)
			}
			all := []v1alpha1.VirtualMachine{*younger, *older}
			assert.Equal(t, tt.want, vm.FindAddressConflict(younger, all))
			assert.Empty(t, vm.FindAddressConflict(older, all), "the older one keeps the address")
			if tt.want != "" {
				assert.Subset(t, vm.AddressKeys(older), []string{vm.AddressKeys(younger)[len(vm.AddressKeys(younger))-1]}, "the index finds it")
			}
		})
	}
}

// The index lists machines in random order: a sentence that followed it would have the status
// written without end.
func TestAddressConflictNamesTheOldest(t *testing.T) {
	var all []v1alpha1.VirtualMachine
	for i, name := range []string{"c", "a", "b", "vm"} { // a and b are created in the same second
		machine := apitest.VirtualMachine("ns", name).WithUID(types.UID(name)).WithInterfaces(v1alpha1.Interface{Network: "a", MACAddress: "02:00:00:00:00:aa"}).Obj()
		machine.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add([]time.Duration{time.Minute, 0, 0, time.Hour}[i]))
		all = append(all, *machine)
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 1, 3}, {1, 2, 0, 3}, {0, 2, 3, 1}} {
		var others []v1alpha1.VirtualMachine
		for _, i := range order {
			others = append(others, all[i])
		}
		assert.Contains(t, vm.FindAddressConflict(&all[3], others), "of VirtualMachine a has, too", order)
	}
}

func TestAddressConflict(t *testing.T) {
	t.Run("of a new machine", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.AddressConflict = "interfaces[0] has ipAddress 10.0.0.5"
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonSpecInvalid, "10.0.0.5")
		assert.Nil(t, w.KubeVirtVM)
		w.AddressConflict = ""
		assert.NotNil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("unusable", func(t *testing.T) {
		unusable := []v1alpha1.Interface{{Network: "a", MACAddress: "02:00:00:00:00:aa", IPAddress: "10.0.0.5/24", Gateway: "fe80::1"}}
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithInterfaces(unusable...)).withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonSpecInvalid, "gateway fe80::1 is of another address family")
		assert.Nil(t, w.KubeVirtVM)

		w = newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.Spec.Interfaces, w.VM.Spec.RunStrategy, w.VM.Generation = unusable, "Halted", 2
		assert.Equal(t, v1alpha1.RunStrategy("Halted"), w.reconcile().RunStrategy, "an older version accepted it")
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "gateway fe80::1 is of another address family")
	})
	t.Run("of a machine that runs", func(t *testing.T) {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.AddressConflict = "interfaces[0] has ipAddress 10.0.0.5"
		w.reconcile()
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		assert.True(t, w.hasCondition(v1alpha1.ConditionSpecAdjusted))
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "10.0.0.5")
	})
}
