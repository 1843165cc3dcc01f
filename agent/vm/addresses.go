package vm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AddressIndex is the field index of VirtualMachines by AddressKeys.
const AddressIndex = "address"

// interfaceAddress is an address that a spec gives to one interface.
type interfaceAddress struct {
	// key is the same for machines of a namespace that cannot run side by side.
	key string
	// index of the interface.
	index int
	// text names the address.
	text string
}

// listAddresses returns the addresses that the spec of a machine sets. IP addresses conflict
// on one network only.
func listAddresses(vm *v1alpha1.VirtualMachine) (addresses []interfaceAddress) {
	for i := range vm.Spec.Interfaces {
		nic := &vm.Spec.Interfaces[i]
		if nic.MACAddress != "" {
			mac := strings.ToLower(nic.MACAddress)
			addresses = append(addresses, interfaceAddress{vm.Namespace + "/mac/" + mac, i, "macAddress " + mac})
		}
		network := nic.Network
		if !strings.Contains(network, "/") {
			network = vm.Namespace + "/" + network
		}
		for _, text := range append([]string{nic.IPAddress}, nic.AdditionalAddresses...) {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				ip := prefix.Addr().Unmap().String()
				addresses = append(addresses, interfaceAddress{vm.Namespace + "/ip/" + ip + "/" + network, i, "ipAddress " + ip})
			}
		}
	}
	return addresses
}

// AddressKeys returns the values of AddressIndex of a machine.
func AddressKeys(vm *v1alpha1.VirtualMachine) (keys []string) {
	for _, a := range listAddresses(vm) {
		keys = append(keys, a.key)
	}
	return keys
}

// FindAddressConflict returns a sentence about an address that an older machine has, too; empty
// for none. The oldest one keeps it. listHolders returns the machines whose AddressKeys have a key.
//
// Invariants: the sentence does not depend on their order, and one list at a time is held, of whose
// machines only the oldest is parsed: a namespace may have thousands with the same addresses.
func FindAddressConflict(vm *v1alpha1.VirtualMachine, listHolders func(key string) ([]v1alpha1.VirtualMachine, error)) (string, error) {
	for _, a := range listAddresses(vm) {
		holders, err := listHolders(a.key)
		if err != nil {
			return "", err
		}
		oldest := findOldestHolder(vm, holders)
		if oldest == nil {
			continue
		}
		addresses := listAddresses(oldest)
		at := slices.IndexFunc(addresses, func(b interfaceAddress) bool { return a.key == b.key })
		if at < 0 {
			continue // the list is of another version of it
		}
		return fmt.Sprintf("interfaces[%d] (%s) has %s, which interfaces[%d] of VirtualMachine %s has, too: change one",
			a.index, vm.Spec.Interfaces[a.index].Network, a.text, addresses[at].index, oldest.Name), nil
	}
	return "", nil
}

// findOldestHolder returns the oldest of the machines that keep their addresses from vm; nil for
// none.
func findOldestHolder(vm *v1alpha1.VirtualMachine, holders []v1alpha1.VirtualMachine) (oldest *v1alpha1.VirtualMachine) {
	for i := range holders {
		other := &holders[i]
		if !claimsAddresses(other) || !MayLoseAddressTo(vm, other) {
			continue
		}
		if oldest == nil || storedtime.IsOlder(other, oldest) {
			oldest = other
		}
	}
	return oldest
}

// claimsAddresses reports whether a machine keeps its addresses from younger ones. One that is not
// to be built, or is being deleted, needs none. What was built before spec.ignoreOnDeploy became
// true stays as it is and may run.
func claimsAddresses(vm *v1alpha1.VirtualMachine) bool {
	return vm.DeletionTimestamp == nil &&
		(!vm.Spec.IgnoreOnDeploy || meta.IsStatusConditionTrue(vm.Status.Conditions, v1alpha1.ConditionMachineCreated))
}

// ChangedAddressKeys returns the AddressKeys of a machine for which a change of it may change the
// conflicts of others; nil stands for a machine that does not exist.
func ChangedAddressKeys(before, after *v1alpha1.VirtualMachine) (keys []string) {
	claimed := func(vm *v1alpha1.VirtualMachine) []interfaceAddress {
		if vm == nil || !claimsAddresses(vm) {
			return nil
		}
		return listAddresses(vm)
	}
	if before != nil && after != nil && before.Generation == after.Generation && claimsAddresses(before) == claimsAddresses(after) {
		return nil
	}
	former, latter := claimed(before), claimed(after)
	for _, lists := range [][2][]interfaceAddress{{former, latter}, {latter, former}} {
		for _, a := range lists[0] {
			if !slices.Contains(lists[1], a) && !slices.Contains(keys, a.key) {
				keys = append(keys, a.key)
			}
		}
	}
	return keys
}

// MayLoseAddressTo reports whether vm has to do without an address that other has, too.
func MayLoseAddressTo(vm, other *v1alpha1.VirtualMachine) bool {
	return vm.UID != other.UID && storedtime.IsOlder(other, vm)
}
