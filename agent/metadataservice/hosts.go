// Package metadataservice knows where clouds serve credentials of their machines. None of
// these services has images.
package metadataservice

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var addresses = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"),
	netip.MustParseAddr("169.254.169.253"),
	netip.MustParseAddr("169.254.170.2"),
	netip.MustParseAddr("169.254.170.23"),
	netip.MustParseAddr("168.63.129.16"),
	netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"),
	netip.MustParseAddr("fd00:ec2::253"),
	netip.MustParseAddr("fd00:ec2::23"),
	netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("fe80::a9fe:a9fe"),
}

// names resolve to one of these addresses on machines of a cloud, some by a search domain.
var names = []string{
	"metadata", "metadata.goog", "metadata.google.internal", "metadata.azure.internal", "metadata.tencentyun.com",
	"instance-data", "instance-data.ec2.internal",
}

// IsAddress reports whether an address is a metadata service's.
func IsAddress(addr netip.Addr) bool {
	return slices.Contains(addresses, addr.Unmap().WithZone(""))
}

// numberPattern matches the last part of an IPv4 address in any form that curl and C libraries
// read, as in 0xa9fea9fe. No domain ends with a number.
var numberPattern = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)$`)

// MayBeHost reports whether the host of a URL can be a metadata service without a look-up: by
// its name, an address, or a way to write one that is not the usual one.
func MayBeHost(host string) bool {
	host = strings.ToLower(strings.TrimRight(host, "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		return leadsToService(addr.Unmap().WithZone(""))
	}
	// Clients read other digits and dots of Unicode as those of ASCII.
	isUnicode := strings.ContainsFunc(host, func(r rune) bool { return r > '~' })
	return isUnicode || slices.Contains(names, host) || numberPattern.MatchString(host[strings.LastIndex(host, ".")+1:])
}

func leadsToService(addr netip.Addr) bool {
	if inner, ok := EmbeddedIPv4(addr); ok && leadsToService(inner) {
		return true
	}
	return addr.IsLinkLocalUnicast() || IsAddress(addr)
}

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// EmbeddedIPv4 returns the IPv4 address to which an IPv6 address leads: by NAT64, 6to4 or
// ISATAP.
func EmbeddedIPv4(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	isatap := b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
	switch {
	case nat64.Contains(addr), isatap:
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}
