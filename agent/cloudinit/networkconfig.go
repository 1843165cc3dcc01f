package cloudinit

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

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
	Addresses []string `json:"addresses"`
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
	for i, spec := range vm.Spec.Interfaces {
		e := ethernet{Match: matchMAC{macs[i]}, DHCP4: spec.IPAddress == ""}
		prefix, err := parseIPAddress(vm, i)
		if err != nil {
			return nil, nil, err
		}
		if prefix.IsValid() {
			address := prefix.Addr().Unmap()
			if j, taken := interfaceByAddress[address]; taken {
				return nil, nil, fmt.Errorf("%s and %s both have ipAddress %s: change one", describeInterface(vm, j), describeInterface(vm, i), address)
			}
			interfaceByAddress[address] = i
			e.Addresses = []string{prefix.String()}
		}
		via, err := parseGateway(vm, i)
		if err != nil {
			return nil, nil, err
		}
		if via.IsValid() {
			e.Routes = []route{defaultRoute(via, prefix, defaultRoutes)}
		}
		for _, text := range spec.Nameservers {
			server, err := parseAddress(text)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: nameserver %q is not an address, such as 10.10.0.53", describeInterface(vm, i), text)
			}
			if e.Nameservers == nil {
				e.Nameservers = &nameservers{}
			}
			e.Nameservers.Addresses = append(e.Nameservers.Addresses, server.String())
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

// defaultRoute returns a default route by a gateway. Of several, the first of each address
// family is preferred; counts has how many there are already, by Is6.
func defaultRoute(via netip.Addr, prefix netip.Prefix, counts map[bool]int) route {
	r := route{To: "0.0.0.0/0", Via: via.String()}
	if via.Is6() {
		r.To = "::/0"
	}
	if n := counts[via.Is6()]; n > 0 {
		r.Metric = 100 * n
	}
	counts[via.Is6()]++
	r.OnLink = prefix.IsValid() && !prefix.Contains(via) && !via.IsLinkLocalUnicast()
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
