package vm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

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

// FindAddressConflict returns a sentence about an address that an older machine of others has,
// too; empty for none. The oldest one keeps it. A machine that is not to be built, or is being
// deleted, needs no address. Invariant: the sentence does not depend on the order of others.
func FindAddressConflict(vm *v1alpha1.VirtualMachine, others []v1alpha1.VirtualMachine) string {
	for _, a := range listAddresses(vm) {
		var oldest *v1alpha1.VirtualMachine
		var index int
		for i := range others {
			other := &others[i]
			if other.UID == vm.UID || other.Namespace != vm.Namespace || other.DeletionTimestamp != nil || other.Spec.IgnoreOnDeploy || !isOlder(other, vm) {
				continue
			}
			addresses := listAddresses(other)
			at := slices.IndexFunc(addresses, func(b interfaceAddress) bool { return a.key == b.key })
			if at >= 0 && (oldest == nil || isOlder(other, oldest)) {
				oldest, index = other, addresses[at].index
			}
		}
		if oldest != nil {
			return fmt.Sprintf("interfaces[%d] (%s) has %s, which interfaces[%d] of VirtualMachine %s has, too: change one", a.index, vm.Spec.Interfaces[a.index].Network, a.text, index, oldest.Name)
		}
	}
	return ""
}

// isOlder orders machines that were created in the same second by name.
func isOlder(a, b *v1alpha1.VirtualMachine) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}
