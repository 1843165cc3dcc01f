package hubclient

import (
	"errors"
	"net/netip"
	"syscall"
)

// metadataServices are addresses of clouds that are not link-local.
var metadataServices = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("100.100.100.200"),
}

// nat64 embeds IPv4 addresses in its last four bytes.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// errForbiddenAddress ends dialling an address that has no API server.
var errForbiddenAddress = errors.New("its address is link-local or a cloud's metadata service, to which no request is sent")

// isForbidden reports whether no API server can have an address, but something else that
// trusts this machine. The machine's own addresses are not among them: what serves there
// has no certificate of an authority in the kubeconfig.
func isForbidden(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if nat64.Contains(address) {
		bytes := address.As16()
		address = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	for _, service := range metadataServices {
		if address == service {
			return true
		}
	}
	return address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified()
}

// refuseForbidden is a Dialer's Control: it sees the address after the name was resolved.
func refuseForbidden(_, address string, _ syscall.RawConn) error {
	if resolved, err := netip.ParseAddrPort(address); err == nil && isForbidden(resolved.Addr()) {
		return errForbiddenAddress
	}
	return nil
}
