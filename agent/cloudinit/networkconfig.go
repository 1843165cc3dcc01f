package cloudinit

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// networkConfig is cloud-init's network config, version 2. It uses only what cloud-init
// documents for systems without netplan, and on-link.
type networkConfig struct {
	Version   int                 `json:"version"`
	Ethernets map[string]ethernet `json:"ethernets"`
}

type ethernet struct {
	Match       matchMAC     `json:"match"`
	DHCP4       bool         `json:"dhcp4,omitempty"`
	Addresses   []string     `json:"addresses,omitempty"`
	Routes      []route      `json:"routes,omitempty"`
	Nameservers *nameservers `json:"nameservers,omitempty"`
}

type matchMAC struct {
	MACAddress string `json:"macaddress"`
}

type route struct {
	To     string `json:"to"`
	Via    string `json:"via"`
	Metric int    `json:"metric,omitempty"`
	OnLink bool   `json:"on-link,omitempty"`
}

type nameservers struct {
	Addresses []string `json:"addresses,omitempty"`
	Search    []string `json:"search,omitempty"`
}

// renderNetworkConfig returns the MAC address of each interface and the network config. Without
// spec.interfaces there is one address, for the Pod network, and no network config: cloud-init
// makes its own at the first boot and ties it to the address that it finds then.
func renderNetworkConfig(vm *v1alpha1.VirtualMachine, clusterUID types.UID) (macs []string, text []byte, err error) {
	if len(vm.Spec.Interfaces) == 0 {
		return []string{deriveMACAddress(vm, clusterUID, 0)}, nil, nil
	}
	if macs, err = assignMACAddresses(vm, clusterUID); err != nil {
		return nil, nil, err
	}
	cfg := networkConfig{Version: 2, Ethernets: map[string]ethernet{}}
	interfaceByAddress := map[netip.Addr]int{}
	defaultRoutes := map[bool]int{}
	for i := range vm.Spec.Interfaces {
		e := ethernet{Match: matchMAC{macs[i]}}
		prefixes, err := parsePrefixes(vm, i)
		if err != nil {
			return nil, nil, err
		}
		e.DHCP4 = len(prefixes) == 0
		for _, prefix := range prefixes {
			address := prefix.Addr().Unmap()
			if j, taken := interfaceByAddress[address]; taken && i == j {
				return nil, nil, fmt.Errorf("%s has address %s twice: remove one", describeInterface(vm, i), address)
			} else if taken {
				return nil, nil, fmt.Errorf("%s and %s both have ipAddress %s: change one", describeInterface(vm, j), describeInterface(vm, i), address)
			}
			interfaceByAddress[address] = i
			e.Addresses = append(e.Addresses, prefix.String())
		}
		if e.Routes, err = renderRoutes(vm, i, prefixes, defaultRoutes); err != nil {
			return nil, nil, err
		}
		if e.Nameservers, err = renderNameservers(vm, i); err != nil {
			return nil, nil, err
		}
		// The key is arbitrary where match is supported. cloud-init before 22.4 takes it
		// as the interface's name unless it writes for netplan.
		cfg.Ethernets["eth"+strconv.Itoa(i)] = e
	}
	text, err = marshalYAML(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the network config: %w", err)
	}
	return macs, text, nil
}

// renderNameservers returns nil for an interface without nameservers and search domains.
func renderNameservers(vm *v1alpha1.VirtualMachine, i int) (*nameservers, error) {
	spec := &vm.Spec.Interfaces[i]
	if len(spec.Nameservers)+len(spec.SearchDomains) == 0 {
		return nil, nil
	}
	dns := &nameservers{}
	for _, text := range spec.Nameservers {
		server, err := parseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("%s: nameserver %q is not an address, such as 10.10.0.53", describeInterface(vm, i), text)
		}
		dns.Addresses = append(dns.Addresses, server.String())
	}
	for _, domain := range spec.SearchDomains {
		if len(domain) > maxDomainLength || !domainPattern.MatchString(domain) {
			return nil, fmt.Errorf("%s: searchDomain %q is not a domain name, such as lab.example.org", describeInterface(vm, i), domain)
		}
		dns.Search = append(dns.Search, domain)
	}
	return dns, nil
}

const maxDomainLength = 253

var domainPattern = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?([.][a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?)*$`)

// renderRoutes returns the default route by gateway, if there is one, and the routes of an
// interface. counts has how many default routes there are already, by Is6.
func renderRoutes(vm *v1alpha1.VirtualMachine, i int, prefixes []netip.Prefix, counts map[bool]int) (routes []route, err error) {
	spec := &vm.Spec.Interfaces[i]
	gateway, err := parseGateway(vm, i)
	if err != nil {
		return nil, err
	}
	if gateway.IsValid() {
		for _, prefix := range prefixes[min(1, len(prefixes)):] {
			if gateway == prefix.Addr() {
				return nil, fmt.Errorf("%s: gateway %s is one of additionalAddresses: give the router's address", describeInterface(vm, i), gateway)
			}
		}
		to := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gateway.Is6() {
			to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, newRoute(to, gateway, nil, prefixes, counts))
	}
	seen := map[string]bool{}
	for n := range spec.Routes {
		r := &spec.Routes[n]
		to, via, err := parseRoute(r, prefixes)
		if err != nil {
			return nil, fmt.Errorf("%s: routes[%d] %w", describeInterface(vm, i), n, err)
		}
		if to.Bits() == 0 && gateway.IsValid() && gateway.Is6() == via.Is6() {
			return nil, fmt.Errorf("%s: routes[%d] is a default route beside that of gateway %s: remove one of them", describeInterface(vm, i), n, spec.Gateway)
		}
		key := fmt.Sprint(to, ptr.Deref(r.Metric, 0)) // 0 is rendered like none
		if seen[key] {
			return nil, fmt.Errorf("%s: routes[%d] is to %s, as another is with the same metric: remove one, or give it another metric", describeInterface(vm, i), n, to)
		}
		seen[key] = true
		routes = append(routes, newRoute(to, via, r.Metric, prefixes, counts))
	}
	return routes, nil
}

// newRoute returns a route. Of several default routes, the first of each address family is
// preferred, unless they have metrics.
func newRoute(to netip.Prefix, via netip.Addr, metric *int32, prefixes []netip.Prefix, counts map[bool]int) route {
	r := route{To: to.String(), Via: via.String(), Metric: int(ptr.Deref(metric, 0))}
	if to.Bits() == 0 {
		if n := counts[via.Is6()]; n > 0 && metric == nil {
			r.Metric = 100 * n
		}
		counts[via.Is6()]++
	}
	r.OnLink = len(prefixes) > 0 && !via.IsLinkLocalUnicast() &&
		!slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(via) })
	return r
}

func assignMACAddresses(vm *v1alpha1.VirtualMachine, clusterUID types.UID) ([]string, error) {
	macs := make([]string, len(vm.Spec.Interfaces))
	interfaceByMAC := map[string]int{}
	for i, spec := range vm.Spec.Interfaces {
		macs[i] = strings.ToLower(spec.MACAddress)
		if spec.MACAddress == "" {
			macs[i] = deriveMACAddress(vm, clusterUID, i)
		} else if !macPattern.MatchString(macs[i]) {
			return nil, fmt.Errorf("%s: macAddress %q is not six bytes separated by colons, such as 02:00:00:12:34:56", describeInterface(vm, i), spec.MACAddress)
		}
		if j, taken := interfaceByMAC[macs[i]]; taken {
			return nil, fmt.Errorf("%s and %s both have macAddress %s: change one", describeInterface(vm, j), describeInterface(vm, i), macs[i])
		}
		interfaceByMAC[macs[i]] = i
	}
	return macs, nil
}

var (
	macPattern     = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`)
	unicastPattern = regexp.MustCompile(`^[0-9a-f][02468ace]:`)
)

// deriveMACAddress returns a locally administered unicast address. It depends only on what
// stays the same when the machine is recreated.
func deriveMACAddress(vm *v1alpha1.VirtualMachine, clusterUID types.UID, index int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d", clusterUID, vm.Namespace, vm.Name, index))
	// The first byte is never fe, which libvirt uses for the host's side.
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", sum[0]&0x3c|0x02, sum[1], sum[2], sum[3], sum[4], sum[5])
}

func describeInterface(vm *v1alpha1.VirtualMachine, i int) string {
	return fmt.Sprintf("interfaces[%d] (%s)", i, vm.Spec.Interfaces[i].Network)
}
