package cloudinit

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// networkConfig is cloud-init's of version 2, no more of it than what it
// documents for systems without netplan, onLink excepted.
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

func renderNetworkConfig(vm *v1alpha1.VirtualMachine, cluster types.UID) (macs []string, text []byte, err error) {
	if len(vm.Spec.Interfaces) == 0 {
		return nil, nil, nil
	}
	if macs, err = assignMACAddresses(vm, cluster); err != nil {
		return nil, nil, err
	}
	cfg := networkConfig{Version: 2, Ethernets: map[string]ethernet{}}
	addresses := map[netip.Addr]int{}
	gateways := map[bool]int{}
	for i, spec := range vm.Spec.Interfaces {
		e := ethernet{Match: matchMAC{macs[i]}, DHCP4: spec.IPAddress == ""}
		var prefix netip.Prefix
		if spec.IPAddress != "" {
			if prefix, err = netip.ParsePrefix(spec.IPAddress); err != nil {
				return nil, nil, fmt.Errorf("%s: ipAddress %q is no address with the length of its prefix, as in 10.10.0.161/24", describeInterface(vm, i), spec.IPAddress)
			}
			if j, taken := addresses[prefix.Addr().Unmap()]; taken {
				return nil, nil, fmt.Errorf("%s and %s both have ipAddress %s: change one", describeInterface(vm, j), describeInterface(vm, i), prefix.Addr().Unmap())
			}
			addresses[prefix.Addr().Unmap()] = i
			e.Addresses = []string{prefix.String()}
		}
		if spec.Gateway != "" {
			via, err := netip.ParseAddr(spec.Gateway)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: gateway %q is no address, as in 10.10.0.1", describeInterface(vm, i), spec.Gateway)
			}
			e.Routes = []route{defaultRoute(via, prefix, gateways)}
		}
		for _, text := range spec.Nameservers {
			server, err := netip.ParseAddr(text)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: nameserver %q is no address, as in 10.10.0.53", describeInterface(vm, i), text)
			}
			if e.Nameservers == nil {
				e.Nameservers = &nameservers{}
			}
			e.Nameservers.Addresses = append(e.Nameservers.Addresses, server.String())
		}
		// The key is free where match is understood; cloud-init before 22.4 takes
		// it for the interface's name where it does not write for netplan.
		cfg.Ethernets["eth"+strconv.Itoa(i)] = e
	}
	text, err = marshalYAML(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the network configuration: %w", err)
	}
	return macs, text, nil
}

// defaultRoute over the first interface that has a gateway goes before those
// over the others.
func defaultRoute(via netip.Addr, prefix netip.Prefix, gateways map[bool]int) route {
	r := route{To: "0.0.0.0/0", Via: via.String()}
	if via.Is6() {
		r.To = "::/0"
	}
	if n := gateways[via.Is6()]; n > 0 {
		r.Metric = 100 * n
	}
	gateways[via.Is6()]++
	r.OnLink = prefix.IsValid() && !prefix.Contains(via) && !via.IsLinkLocalUnicast()
	return r
}

func assignMACAddresses(vm *v1alpha1.VirtualMachine, cluster types.UID) ([]string, error) {
	macs := make([]string, len(vm.Spec.Interfaces))
	by := map[string]int{}
	for i, spec := range vm.Spec.Interfaces {
		macs[i] = strings.ToLower(spec.MACAddress)
		if spec.MACAddress == "" {
			macs[i] = deriveMACAddress(vm, cluster, i)
		}
		if j, taken := by[macs[i]]; taken {
			return nil, fmt.Errorf("%s and %s both have macAddress %s: give one of them another", describeInterface(vm, j), describeInterface(vm, i), macs[i])
		}
		by[macs[i]] = i
	}
	return macs, nil
}

// deriveMACAddress is a unicast address of those that are administered locally. It
// rests on what stays when the machine is made again.
func deriveMACAddress(vm *v1alpha1.VirtualMachine, cluster types.UID, i int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d", cluster, vm.Namespace, vm.Name, i))
	// libvirt keeps fe for its own end of the line.
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", sum[0]&0x3c|0x02, sum[1], sum[2], sum[3], sum[4], sum[5])
}

func describeInterface(vm *v1alpha1.VirtualMachine, i int) string {
	return fmt.Sprintf("interfaces[%d] (%s)", i, vm.Spec.Interfaces[i].Network)
}
