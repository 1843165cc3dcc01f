package vm_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// findAddressConflict finds the conflict of a machine with others by an index of their AddressKeys.
func findAddressConflict(t require.TestingT, machine *v1alpha1.VirtualMachine, others []v1alpha1.VirtualMachine) string {
	conflict, err := vm.FindAddressConflict(machine, func(key string) (holders []v1alpha1.VirtualMachine, err error) {
		for _, other := range others {
			if slices.Contains(vm.AddressKeys(&other), key) {
				holders = append(holders, other)
			}
		}
		return holders, nil
	})
	require.NoError(t, err)
	return conflict
}

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
		"ignored on deploy, and built before": {older: []v1alpha1.Interface{mac}, younger: []v1alpha1.Interface{mac}, change: func(older *v1alpha1.VirtualMachine) {
			older.Spec.IgnoreOnDeploy, older.Status.Conditions = true, []metav1.Condition{{Type: v1alpha1.ConditionMachineCreated, Status: metav1.ConditionTrue}}
		}, want: "interfaces[0] (a) has macAddress 02:00:00:00:00:aa, which interfaces[0] of VirtualMachine older has, too: change one"},
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
			assert.Equal(t, tt.want, findAddressConflict(t, younger, all))
			assert.Empty(t, findAddressConflict(t, older, all), "the older one keeps the address")
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
		assert.Contains(t, findAddressConflict(t, &all[3], others), "of VirtualMachine a has, too", order)
	}
}

// drawMachines draws machines of a namespace that share a few addresses.
func drawMachines(t *rapid.T) (machines []v1alpha1.VirtualMachine) {
	nic := rapid.Custom(func(t *rapid.T) v1alpha1.Interface {
		ip := rapid.SampledFrom([]string{"", "10.0.0.5/24", "10.0.0.6/16", "FD00::5/64", "fd00:0::5/80"})
		return v1alpha1.Interface{
			Network: rapid.SampledFrom([]string{"a", "ns/a", "b"}).Draw(t, "network"), MACAddress: rapid.SampledFrom([]string{"", "02:00:00:00:00:aa", "02:00:00:00:00:AA"}).Draw(t, "MAC"),
			IPAddress: ip.Draw(t, "IP"), AdditionalAddresses: rapid.SliceOfN(ip, 0, 2).Draw(t, "more"),
		}
	})
	for i := range rapid.IntRange(1, 6).Draw(t, "machines") {
		machine := apitest.VirtualMachine("ns", fmt.Sprintf("vm-%d", i)).WithUID(types.UID(rune('a' + i))).WithInterfaces(rapid.SliceOfN(nic, 0, 3).Draw(t, "interfaces")...).Obj()
		machine.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "created")) * time.Second))
		machine.Spec.IgnoreOnDeploy = rapid.Bool().Draw(t, "ignored")
		if rapid.Bool().Draw(t, "built") {
			machine.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionMachineCreated, Status: metav1.ConditionTrue}}
		}
		if rapid.Bool().Draw(t, "deleted") {
			markDeleted(machine)
		}
		machines = append(machines, *machine)
	}
	return machines
}

// TestAddressConflictIsThatOfAllPairs compares with the plain rule: the first address of a machine
// that an older one has, too, conflicts with the oldest of those.
func TestAddressConflictIsThatOfAllPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawMachines(t)
		for i := range all {
			machine, want := &all[i], ""
			for _, key := range vm.AddressKeys(machine) {
				var oldest *v1alpha1.VirtualMachine
				for j := range all {
					other := &all[j]
					older := func(a, b *v1alpha1.VirtualMachine) bool {
						return a.CreationTimestamp.Before(&b.CreationTimestamp) || (a.CreationTimestamp.Equal(&b.CreationTimestamp) && a.Name < b.Name)
					}
					if other.DeletionTimestamp == nil && (!other.Spec.IgnoreOnDeploy || len(other.Status.Conditions) > 0) && older(other, machine) && slices.Contains(vm.AddressKeys(other), key) && (oldest == nil || older(other, oldest)) {
						oldest = other
					}
				}
				if oldest != nil {
					want = " of VirtualMachine " + oldest.Name + " has, too"
					break
				}
			}
			got := findAddressConflict(t, machine, all)
			require.Equal(t, want == "", got == "", got)
			require.Contains(t, got, want)
		}
	})
}

// TestChangedAddressKeysCoverAllConflicts changes one machine: each other one whose conflict differs
// since has a changed key, and may lose an address to it.
func TestChangedAddressKeysCoverAllConflicts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawMachines(t)
		changed := slices.Clone(all)
		drawn := drawMachines(t)[0]
		changed[0].Status = drawn.Status
		if rapid.Bool().Draw(t, "spec") {
			changed[0].Spec, changed[0].DeletionTimestamp, changed[0].Generation = drawn.Spec, drawn.DeletionTimestamp, all[0].Generation+1
		}
		keys := vm.ChangedAddressKeys(&all[0], &changed[0])
		for i := 1; i < len(all); i++ {
			if findAddressConflict(t, &all[i], all) != findAddressConflict(t, &all[i], changed) {
				require.True(t, vm.MayLoseAddressTo(&all[i], &changed[0]))
				require.True(t, slices.ContainsFunc(vm.AddressKeys(&all[i]), func(key string) bool { return slices.Contains(keys, key) }))
			}
		}
	})
	machine := apitest.VirtualMachine("ns", "vm").WithInterfaces(v1alpha1.Interface{Network: "a", IPAddress: "10.0.0.5/24"}).Obj()
	reported := machine.DeepCopy()
	reported.Status.Phase = v1alpha1.MachineReady
	assert.Empty(t, vm.ChangedAddressKeys(machine, reported), "a status changes nothing")
	assert.Len(t, vm.ChangedAddressKeys(nil, machine), 1)
	assert.Len(t, vm.ChangedAddressKeys(machine, nil), 1)
}

// TestAddressConflictCost: a namespace may have thousands of machines with the same 160 addresses.
func TestAddressConflictCost(t *testing.T) {
	var interfaces []v1alpha1.Interface
	for i := range 16 {
		nic := v1alpha1.Interface{Network: "a", MACAddress: fmt.Sprintf("02:00:00:00:00:%02x", i), IPAddress: fmt.Sprintf("10.0.0.%d/24", i)}
		for j := range 8 {
			nic.AdditionalAddresses = append(nic.AdditionalAddresses, fmt.Sprintf("10.0.%d.%d/16", j+1, i))
		}
		interfaces = append(interfaces, nic)
	}
	machine := func(i int) v1alpha1.VirtualMachine {
		obj := apitest.VirtualMachine("ns", fmt.Sprintf("vm-%d", i)).WithUID(types.UID(fmt.Sprint(i))).WithInterfaces(interfaces...).Obj()
		obj.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(time.Duration(i) * time.Second))
		return *obj
	}
	cost := func(others int, of v1alpha1.VirtualMachine) (lists int, allocations float64) {
		var all []v1alpha1.VirtualMachine
		for i := range others {
			all = append(all, machine(i))
		}
		allocations = testing.AllocsPerRun(1, func() {
			lists = 0
			_, err := vm.FindAddressConflict(&of, func(string) ([]v1alpha1.VirtualMachine, error) {
				lists++
				return all, nil
			})
			require.NoError(t, err)
		})
		return lists, allocations
	}
	for name, tt := range map[string]struct {
		of        v1alpha1.VirtualMachine
		wantLists int
	}{
		"the oldest":   {machine(0), 160},
		"the youngest": {machine(1000), 1},
	} {
		t.Run(name, func(t *testing.T) {
			lists, few := cost(2, tt.of)
			assert.Equal(t, tt.wantLists, lists)
			lists, many := cost(200, tt.of)
			assert.Equal(t, tt.wantLists, lists)
			assert.InDelta(t, few, many, few/10, "the addresses of others are not parsed")
		})
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
