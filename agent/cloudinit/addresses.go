package cloudinit

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The schema refuses most of this, too; these checks are for objects that are older than it.

// parseAddress refuses zones. They may be any text, and cloud-init copies addresses into the
// guest's files as they are.
func parseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err == nil && address.Zone() != "" {
		err = errors.New("it has a zone")
	}
	return address, err
}

// checkHostAddress refuses an address that no host of a network can have.
func checkHostAddress(address netip.Addr) error {
	switch {
	case address.IsUnspecified():
		return errors.New("is the unspecified address")
	case address.IsLoopback():
		return errors.New("is a loopback address")
	case address.IsMulticast():
		return errors.New("is a multicast address")
	default:
		return nil
	}
}

// checkInNetwork refuses the network address and the broadcast address of IPv4. Networks of
// two addresses and single hosts have neither (RFC 3021).
func checkInNetwork(address netip.Addr, network netip.Prefix) error {
	if !address.Is4() || !network.Addr().Is4() || network.Bits() >= 31 || !network.Contains(address) {
		return nil
	}
	if address == network.Masked().Addr() {
		return fmt.Errorf("is the network address of %s", network.Masked())
	}
	if bytes, host := address.As4(), 32-network.Bits(); isBroadcast(bytes, host) {
		return fmt.Errorf("is the broadcast address of %s", network.Masked())
	}
	return nil
}

// isBroadcast reports whether the last bits of an address are all ones.
func isBroadcast(address [4]byte, hostBits int) bool {
	n := uint32(address[0])<<24 | uint32(address[1])<<16 | uint32(address[2])<<8 | uint32(address[3])
	mask := uint32(1)<<hostBits - 1
	return n&mask == mask
}

// parseIPAddress returns the address of an interface; not valid where the guest uses DHCP.
func parseIPAddress(vm *v1alpha1.VirtualMachine, i int) (prefix netip.Prefix, err error) {
	text := vm.Spec.Interfaces[i].IPAddress
	if text == "" {
		return prefix, nil
	}
	if prefix, err = netip.ParsePrefix(text); err != nil {
		return prefix, fmt.Errorf("%s: ipAddress %q is not an address with a prefix length, such as 10.10.0.161/24", describeInterface(vm, i), text)
	}
	if err = checkHostAddress(prefix.Addr()); err == nil {
		err = checkInNetwork(prefix.Addr(), prefix)
	}
	if err != nil {
		return prefix, fmt.Errorf("%s: ipAddress %s %w: give the guest another one", describeInterface(vm, i), text, err)
	}
	return prefix, nil
}

// parseGateway returns the gateway of an interface; not valid without one.
func parseGateway(vm *v1alpha1.VirtualMachine, i int, prefix netip.Prefix) (via netip.Addr, err error) {
	text := vm.Spec.Interfaces[i].Gateway
	if text == "" {
		return via, nil
	}
	if via, err = parseAddress(text); err != nil {
		return via, fmt.Errorf("%s: gateway %q is not an address, such as 10.10.0.1", describeInterface(vm, i), text)
	}
	err = checkHostAddress(via)
	if prefix.IsValid() && err == nil {
		switch {
		case via.Unmap().Is4() != prefix.Addr().Unmap().Is4():
			err = fmt.Errorf("is of another address family than ipAddress %s", prefix)
		case via == prefix.Addr():
			err = errors.New("is the interface's own ipAddress")
		default:
			err = checkInNetwork(via, prefix)
		}
	}
	if err != nil {
		return via, fmt.Errorf("%s: gateway %s %w: give the router's address", describeInterface(vm, i), text, err)
	}
	return via, nil
}

// checkMACAddress refuses an address that no interface can have.
func checkMACAddress(mac string) error {
	switch {
	case !macPattern.MatchString(mac):
		return errors.New("is not six bytes separated by colons, such as 02:00:00:12:34:56")
	case mac == "00:00:00:00:00:00":
		return errors.New("is all zeros")
	case !unicastPattern.MatchString(mac):
		return errors.New("is a multicast address")
	default:
		return nil
	}
}
