package preflight

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/agent/metadataservice"
	"github.com/pelotech/ot-fleet/api/policy"
)

// addressJudge decides which addresses the preflight connects to. An author of images
// chooses the host: the agent must not become a way into the networks around it.
type addressJudge struct {
	allow policy.PreflightAllow
	// clusterNetworks are those of the cluster's Services and of the agent's Pod, which
	// need not be private ones.
	clusterNetworks []netip.Prefix
}

// permitsName reports whether a host may be looked up. What a name without dots or of the
// cluster's domain means depends on the Pod that asks.
func (j addressJudge) permitsName(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || j.allow.ContainsHost(host) {
		return true
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return strings.Contains(name, ".") && !strings.Contains(name, ".svc.") &&
		!slices.ContainsFunc(internalDomains, func(domain string) bool { return strings.HasSuffix(name, domain) })
}

// internalDomains are never public: those of clusters, multicast DNS and private use.
var internalDomains = []string{".svc", ".local", ".localhost", ".internal", ".home.arpa"}

// permits reports whether the preflight may connect to an address of a host. A CIDR of
// the allow-list admits any address, but for metadata services; a name admits its private
// addresses only, since whoever may change its records is not always trusted.
func (j addressJudge) permits(host string, addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if inner, ok := metadataservice.EmbeddedIPv4(addr); ok && !j.permits(host, inner) {
		return false
	}
	switch {
	case metadataservice.IsAddress(addr):
		return false
	case j.allow.ContainsAddr(addr):
		return true
	case containsAddr(privateNetworks, addr), containsAddr(j.clusterNetworks, addr):
		return j.allow.ContainsHost(host) && !containsAddr(localNetworks, addr)
	default:
		return isGlobal(addr)
	}
}

var privateNetworks = parsePrefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10")

// localNetworks end at the node or its link.
var localNetworks = parsePrefixes("127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10")

// specialIPv4 and specialIPv6 are the networks, next to the private ones, that IANA's
// registries of special-purpose addresses do not call globally reachable.
var (
	specialIPv4 = parsePrefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
		"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4")
	// 2001::/23 has Teredo, which hides an IPv4 address on both ends.
	specialIPv6 = parsePrefixes("2001::/23", "2001:db8::/32", "3fff::/20")
	globalIPv6  = netip.MustParsePrefix("2000::/3")
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
)

// isGlobal reports whether an address is one of the Internet. Of IPv6, only 2000::/3 is
// assigned; NAT64 leads to an IPv4 address, which is judged by itself.
func isGlobal(addr netip.Addr) bool {
	if addr.Is4() {
		return !containsAddr(specialIPv4, addr)
	}
	return nat64.Contains(addr) || globalIPv6.Contains(addr) && !containsAddr(specialIPv6, addr)
}

func containsAddr(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func parsePrefixes(texts ...string) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		prefixes[i] = netip.MustParsePrefix(text)
	}
	return prefixes
}
