package cloudinit

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

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

// CheckAddresses refuses addresses that can be rendered and that no guest can use. The schema
// refuses most of them, too: this is for objects that are older than it. Invariant: what Render
// accepted of an existing machine it goes on to accept.
func CheckAddresses(vm *v1alpha1.VirtualMachine) error {
	for i, nic := range vm.Spec.Interfaces {
		prefix, _ := parseIPAddress(vm, i)
		via, _ := parseGateway(vm, i)
		if err := checkMACAddress(strings.ToLower(nic.MACAddress)); err != nil {
			return fmt.Errorf("%s: macAddress %q %w", describeInterface(vm, i), nic.MACAddress, err)
		}
		if err := checkIPAddress(prefix); err != nil {
			return fmt.Errorf("%s: ipAddress %s %w: give the guest another one", describeInterface(vm, i), nic.IPAddress, err)
		}
		if err := checkGateway(via, prefix); err != nil {
			return fmt.Errorf("%s: gateway %s %w: give the router's address", describeInterface(vm, i), nic.Gateway, err)
		}
	}
	return nil
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
	return prefix, nil
}

// parsePrefixes returns all addresses of an interface; none where the guest uses DHCP. Only
// additional ones are checked: no stored object is older than their checks.
func parsePrefixes(vm *v1alpha1.VirtualMachine, i int) (prefixes []netip.Prefix, err error) {
	first, err := parseIPAddress(vm, i)
	if err != nil {
		return nil, err
	}
	additional := vm.Spec.Interfaces[i].AdditionalAddresses
	switch {
	case first.IsValid():
		prefixes = append(prefixes, first)
	case len(additional) > 0:
		return nil, fmt.Errorf("%s: additionalAddresses needs ipAddress, without which the guest uses DHCP", describeInterface(vm, i))
	}
	for _, text := range additional {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: additional address %q is not an address with a prefix length, such as fd00:10::161/64", describeInterface(vm, i), text)
		}
		if err := checkIPAddress(prefix); err != nil {
			return nil, fmt.Errorf("%s: additional address %s %w: give the guest another one", describeInterface(vm, i), text, err)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// parseRoute checks a route against the addresses of its interface.
func parseRoute(r *v1alpha1.Route, prefixes []netip.Prefix) (to netip.Prefix, via netip.Addr, err error) {
	if to, err = netip.ParsePrefix(r.To); err != nil {
		return to, via, fmt.Errorf("is to %q, which is not a network with a prefix length, such as 10.20.0.0/16", r.To)
	}
	if via, err = parseAddress(r.Via); err != nil {
		return to, via, fmt.Errorf("is via %q, which is not an address, such as 10.10.0.2", r.Via)
	}
	switch {
	case to != to.Masked():
		return to, via, fmt.Errorf("is to %s, which is no network: write %s", to, to.Masked())
	case to.Addr().Is4() != via.Is4():
		return to, via, fmt.Errorf("is to %s via %s of another address family", to, via)
	}
	if err := checkHostAddress(via); err != nil {
		return to, via, fmt.Errorf("is via %s, which %w: give the router's address", via, err)
	}
	family := len(prefixes) == 0 || via.IsLinkLocalUnicast()
	for _, prefix := range prefixes {
		if via == prefix.Addr() {
			return to, via, fmt.Errorf("is via %s, which is the interface's own address: give the router's", via)
		}
		if err := checkInNetwork(via, prefix); err != nil {
			return to, via, fmt.Errorf("is via %s, which %w: give the router's address", via, err)
		}
		family = family || prefix.Addr().Unmap().Is4() == via.Is4()
	}
	if !family {
		return to, via, fmt.Errorf("is via %s, and the interface has no address of that family: add one to additionalAddresses", via)
	}
	return to, via, nil
}

func checkIPAddress(prefix netip.Prefix) error {
	if !prefix.IsValid() {
		return nil
	}
	if err := checkHostAddress(prefix.Addr()); err != nil {
		return err
	}
	return checkInNetwork(prefix.Addr(), prefix)
}

// parseGateway returns the gateway of an interface; not valid without one.
func parseGateway(vm *v1alpha1.VirtualMachine, i int) (via netip.Addr, err error) {
	text := vm.Spec.Interfaces[i].Gateway
	if text == "" {
		return via, nil
	}
	if via, err = parseAddress(text); err != nil {
		return netip.Addr{}, fmt.Errorf("%s: gateway %q is not an address, such as 10.10.0.1", describeInterface(vm, i), text)
	}
	return via, nil
}

func checkGateway(via netip.Addr, prefix netip.Prefix) error {
	if !via.IsValid() {
		return nil
	}
	if err := checkHostAddress(via); err != nil || !prefix.IsValid() {
		return err
	}
	switch {
	case via.Unmap().Is4() != prefix.Addr().Unmap().Is4():
		return fmt.Errorf("is of another address family than ipAddress %s", prefix)
	case via == prefix.Addr():
		return errors.New("is the interface's own ipAddress")
	default:
		return checkInNetwork(via, prefix)
	}
}

// checkMACAddress refuses an address that no interface can have.
func checkMACAddress(mac string) error {
	switch {
	case mac == "00:00:00:00:00:00":
		return errors.New("is all zeros")
	case mac != "" && !unicastPattern.MatchString(mac):
		return errors.New("is a multicast address")
	default:
		return nil
	}
}
