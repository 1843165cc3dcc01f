package cloudinit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestRenderNetworkConfig(t *testing.T) {
	cfg := mustRender(t, apitest.VirtualMachine("ns", "vm").WithInterfaces(
		v1alpha1.Interface{Network: "a", MACAddress: "02:00:00:12:34:56"},
		v1alpha1.Interface{Network: "b", MACAddress: "02:00:00:00:00:0B", IPAddress: "10.0.0.2/24", Gateway: "10.0.0.1", Nameservers: []string{"10.0.0.53", "FD00::53"}},
		v1alpha1.Interface{Network: "c", MACAddress: "02:00:00:00:00:0c", IPAddress: "10.1.0.2/32", Gateway: "10.1.0.1"},
		v1alpha1.Interface{Network: "d", MACAddress: "02:00:00:00:00:0d", IPAddress: "FD00:0::2/64", Gateway: "fe80::1"},
		v1alpha1.Interface{Network: "e", MACAddress: "02:00:00:00:00:0e", Gateway: "10.2.0.1"},
	).Obj())
	assert.Equal(t, `ethernets:
  eth0:
    dhcp4: true
    match:
      macaddress: "02:00:00:12:34:56"
  eth1:
    addresses:
    - 10.0.0.2/24
    match:
      macaddress: 02:00:00:00:00:0b
    nameservers:
      addresses:
      - 10.0.0.53
      - fd00::53
    routes:
    - to: 0.0.0.0/0
      via: 10.0.0.1
  eth2:
    addresses:
    - 10.1.0.2/32
    match:
      macaddress: 02:00:00:00:00:0c
    routes:
    - metric: 100
      on-link: true
      to: 0.0.0.0/0
      via: 10.1.0.1
  eth3:
    addresses:
    - fd00::2/64
    match:
      macaddress: 02:00:00:00:00:0d
    routes:
    - to: ::/0
      via: fe80::1
  eth4:
    dhcp4: true
    match:
      macaddress: 02:00:00:00:00:0e
    routes:
    - metric: 200
      to: 0.0.0.0/0
      via: 10.2.0.1
version: 2
`, string(cfg.NetworkData))
}

func TestRenderRoutesAndSearchDomains(t *testing.T) {
	cfg := mustRender(t, apitest.VirtualMachine("ns", "vm").WithInterfaces(
		v1alpha1.Interface{
			Network: "a", MACAddress: "02:00:00:00:00:0a", IPAddress: "10.0.0.2/24", AdditionalAddresses: []string{"FD00::2/64", "10.9.0.2/24"}, Gateway: "10.0.0.1",
			Nameservers: []string{"10.0.0.53"}, SearchDomains: []string{"lab.example.org", "_tcp.example.org"},
			Routes: []v1alpha1.Route{
				{To: "::/0", Via: "fd00::1"}, {To: "10.20.0.0/16", Via: "10.9.0.1", Metric: ptr.To[int32](50)}, {To: "10.21.0.0/16", Via: "10.8.0.1"}, {To: "fd01::/64", Via: "fe80::1"},
			},
		},
		v1alpha1.Interface{
			Network: "b", MACAddress: "02:00:00:00:00:0b", SearchDomains: []string{"example.org"},
			Routes: []v1alpha1.Route{{To: "0.0.0.0/0", Via: "10.1.0.1"}, {To: "::/0", Via: "fd00::9", Metric: ptr.To[int32](7)}},
		},
	).Obj())
	assert.Equal(t, `ethernets:
  eth0:
    addresses:
    - 10.0.0.2/24
    - fd00::2/64
    - 10.9.0.2/24
    match:
      macaddress: 02:00:00:00:00:0a
    nameservers:
      addresses:
      - 10.0.0.53
      search:
      - lab.example.org
      - _tcp.example.org
    routes:
    - to: 0.0.0.0/0
      via: 10.0.0.1
    - to: ::/0
      via: fd00::1
    - metric: 50
      to: 10.20.0.0/16
      via: 10.9.0.1
    - on-link: true
      to: 10.21.0.0/16
      via: 10.8.0.1
    - to: fd01::/64
      via: fe80::1
  eth1:
    dhcp4: true
    match:
      macaddress: 02:00:00:00:00:0b
    nameservers:
      search:
      - example.org
    routes:
    - metric: 100
      to: 0.0.0.0/0
      via: 10.1.0.1
    - metric: 7
      to: ::/0
      via: fd00::9
version: 2
`, string(cfg.NetworkData))
}

func TestDerivedMACAddressIsStable(t *testing.T) {
	two := []v1alpha1.Interface{{Network: "a"}, {Network: "a"}}
	macs := mustRender(t, apitest.VirtualMachine("ns", "vm").WithInterfaces(two...).Obj()).MACs
	same := apitest.VirtualMachine("ns", "vm").WithUID("recreated").WithHostname("other").
		WithInterfaces(v1alpha1.Interface{Network: "other", IPAddress: "10.0.0.1/8"}, two[1])
	assert.Equal(t, macs, mustRender(t, same.Obj()).MACs, "they do not change when the machine is recreated")

	all := append([]string{}, macs...)
	all = append(all, mustRender(t, apitest.VirtualMachine("ns", "vm2").WithInterfaces(two...).Obj()).MACs...)
	all = append(all, mustRender(t, apitest.VirtualMachine("ns2", "vm").WithInterfaces(two...).Obj()).MACs...)
	elsewhere, err := cloudinit.Render(apitest.VirtualMachine("ns", "vm").WithInterfaces(two...).Obj(), cloudinit.Inputs{ClusterUID: "another"})
	require.NoError(t, err)
	all = append(all, elsewhere.MACs...)
	unique := map[string]bool{}
	for _, mac := range all {
		unique[mac] = true
	}
	assert.Len(t, unique, len(all), "clusters can share a network")
}

func TestUnusualAddressesAreAccepted(t *testing.T) {
	for _, nic := range []v1alpha1.Interface{
		{IPAddress: "10.0.0.0/31", Gateway: "10.0.0.1"}, {IPAddress: "10.0.0.1/31", Gateway: "10.0.0.0"}, {IPAddress: "10.0.0.0/32", Gateway: "169.254.1.1"},
		{IPAddress: "10.0.0.5/24", Gateway: "10.0.1.0"}, {IPAddress: "fd00::2/64", Gateway: "fd00::"}, {IPAddress: "fd00::2/64", Gateway: "fe80::1"}, {Gateway: "10.0.0.0"},
	} {
		_, err := cloudinit.Render(apitest.VirtualMachine("ns", "vm").WithInterfaces(nic).Obj(), cloudinit.Inputs{ClusterUID: clusterUID})
		assert.NoError(t, err, nic)
		assert.NoError(t, cloudinit.CheckAddresses(apitest.VirtualMachine("ns", "vm").WithInterfaces(nic).Obj()), nic)
	}
}

func TestInvalidNetworkIsRefused(t *testing.T) {
	derived := mustRender(t, apitest.VirtualMachine("ns", "vm").WithInterfaces(v1alpha1.Interface{Network: "a"}).Obj()).MACs[0]
	for name, tt := range map[string]refusedNetwork{
		"equal MAC addresses": {
			[]v1alpha1.Interface{{Network: "a", MACAddress: "02:00:00:00:00:AA"}, {Network: "b", MACAddress: "02:00:00:00:00:aa"}},
			"interfaces[0] (a) and interfaces[1] (b) both have macAddress 02:00:00:00:00:aa: change one",
		},
		"MAC address derived for another": {
			[]v1alpha1.Interface{{Network: "a"}, {Network: "b", MACAddress: derived}},
			"interfaces[0] (a) and interfaces[1] (b) both have macAddress " + derived + ": change one",
		},
		"equal addresses": {
			[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/8"}, {Network: "b"}, {Network: "a", IPAddress: "10.0.0.1/24"}},
			"interfaces[0] (a) and interfaces[2] (a) both have ipAddress 10.0.0.1: change one",
		},
		"equal addresses, spelled differently": {
			[]v1alpha1.Interface{{Network: "a", IPAddress: "fd00::1/64"}, {Network: "b", IPAddress: "FD00:0:0::0001/64"}},
			"interfaces[0] (a) and interfaces[1] (b) both have ipAddress fd00::1: change one",
		},
		"address without prefix length": {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1"}}, `interfaces[0] (a): ipAddress "10.0.0.1" is not an address with a prefix length, such as 10.10.0.161/24`},
		"invalid prefix length":         {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/33"}}, `interfaces[0] (a): ipAddress "10.0.0.1/33" is not an address with a prefix length, such as 10.10.0.161/24`},
		"invalid gateway":               {[]v1alpha1.Interface{{Network: "a", Gateway: "router"}}, `interfaces[0] (a): gateway "router" is not an address, such as 10.10.0.1`},
		"additional address of another": {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24"}, {Network: "b", IPAddress: "10.0.0.2/24", AdditionalAddresses: []string{"10.0.0.1/16"}}}, `interfaces[0] (a) and interfaces[1] (b) both have ipAddress 10.0.0.1: change one`},
		"an address twice":              {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24", AdditionalAddresses: []string{"10.0.0.1/16"}}}, `interfaces[0] (a) has address 10.0.0.1 twice: remove one`},
		"additional address with DHCP":  {[]v1alpha1.Interface{{Network: "a", AdditionalAddresses: []string{"10.0.0.1/16"}}}, `interfaces[0] (a): additionalAddresses needs ipAddress, without which the guest uses DHCP`},
		"additional broadcast address":  {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24", AdditionalAddresses: []string{"10.1.0.255/24"}}}, `interfaces[0] (a): additional address 10.1.0.255/24 is the broadcast address of 10.1.0.0/24: give the guest another one`},
		"additional address, no prefix": {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24", AdditionalAddresses: []string{"10.1.0.2"}}}, `interfaces[0] (a): additional address "10.1.0.2" is not an address with a prefix length, such as fd00:10::161/64`},
		"gateway is additional":         {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24", AdditionalAddresses: []string{"10.1.0.2/24"}, Gateway: "10.1.0.2"}}, `interfaces[0] (a): gateway 10.1.0.2 is one of additionalAddresses: give the router's address`},
		"search domain with a dot":      {[]v1alpha1.Interface{{Network: "a", SearchDomains: []string{"example.org."}}}, `interfaces[0] (a): searchDomain "example.org." is not a domain name, such as lab.example.org`},
		"search domain with a space":    {[]v1alpha1.Interface{{Network: "a", SearchDomains: []string{"a b"}}}, `interfaces[0] (a): searchDomain "a b" is not a domain name, such as lab.example.org`},
		"route to a host's network":     routeRefusal("10.20.0.1/16", "10.0.0.1", "is to 10.20.0.1/16, which is no network: write 10.20.0.0/16"),
		"route without a prefix length": routeRefusal("10.20.0.1", "10.0.0.1", `is to "10.20.0.1", which is not a network with a prefix length, such as 10.20.0.0/16`),
		"route via a name":              routeRefusal("10.20.0.0/16", "router", `is via "router", which is not an address, such as 10.10.0.2`),
		"route via another family":      routeRefusal("10.20.0.0/16", "fd00::1", "is to 10.20.0.0/16 via fd00::1 of another address family"),
		"route of a missing family":     routeRefusal("fd01::/64", "fd00::1", "is via fd00::1, and the interface has no address of that family: add one to additionalAddresses"),
		"route via itself":              routeRefusal("10.20.0.0/16", "10.0.0.5", "is via 10.0.0.5, which is the interface's own address: give the router's"),
		"route via the network":         routeRefusal("10.20.0.0/16", "10.0.0.0", "is via 10.0.0.0, which is the network address of 10.0.0.0/24: give the router's address"),
		"route via multicast":           routeRefusal("10.20.0.0/16", "224.0.0.1", "is via 224.0.0.1, which is a multicast address: give the router's address"),
		"second default route":          routeRefusal("0.0.0.0/0", "10.0.0.2", "is a default route beside that of gateway 10.0.0.1: remove one of them"),
		"equal routes": {
			[]v1alpha1.Interface{{Network: "a", Routes: []v1alpha1.Route{{To: "10.20.0.0/16", Via: "10.0.0.1"}, {To: "10.20.0.0/16", Via: "10.0.0.2"}}}},
			"interfaces[0] (a): routes[1] is to 10.20.0.0/16, as another is with the same metric: remove one, or give it another metric",
		},
		"equal routes, metric 0": {
			[]v1alpha1.Interface{{Network: "a", Routes: []v1alpha1.Route{{To: "10.20.0.0/16", Via: "10.0.0.1"}, {To: "10.20.0.0/16", Via: "10.0.0.2", Metric: ptr.To[int32](0)}}}},
			"interfaces[0] (a): routes[1] is to 10.20.0.0/16, as another is with the same metric: remove one, or give it another metric",
		},
		"invalid nameserver": {[]v1alpha1.Interface{{Network: "a", Nameservers: []string{"dns"}}}, `interfaces[0] (a): nameserver "dns" is not an address, such as 10.10.0.53`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cloudinit.Render(apitest.VirtualMachine("ns", "vm").WithInterfaces(tt.interfaces...).Obj(), cloudinit.Inputs{ClusterUID: clusterUID})
			require.EqualError(t, err, tt.want)
		})
	}
}

// refusedNetwork has interfaces, and the error that they get.
type refusedNetwork = struct {
	interfaces []v1alpha1.Interface
	want       string
}

// routeRefusal is of an interface with a gateway and one route.
func routeRefusal(to, via, want string) refusedNetwork {
	nic := v1alpha1.Interface{Network: "a", IPAddress: "10.0.0.5/24", Gateway: "10.0.0.1", Routes: []v1alpha1.Route{{To: to, Via: via}}}
	return refusedNetwork{[]v1alpha1.Interface{nic}, "interfaces[0] (a): routes[0] " + want}
}

// What earlier versions rendered is still rendered: the machine may run.
func TestUnusableAddressesAreRefused(t *testing.T) {
	for name, tt := range map[string]refusedNetwork{
		"zero MAC address":              {[]v1alpha1.Interface{{Network: "a", MACAddress: "00:00:00:00:00:00"}}, `interfaces[0] (a): macAddress "00:00:00:00:00:00" is all zeros`},
		"multicast MAC address":         {[]v1alpha1.Interface{{Network: "a", MACAddress: "03:00:00:00:00:01"}}, `interfaces[0] (a): macAddress "03:00:00:00:00:01" is a multicast address`},
		"gateway of another family":     {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24", Gateway: "fd00::1"}}, `interfaces[0] (a): gateway fd00::1 is of another address family than ipAddress 10.0.0.1/24: give the router's address`},
		"gateway of another family, v6": {[]v1alpha1.Interface{{Network: "a", IPAddress: "fd00::2/64", Gateway: "10.0.0.1"}}, `interfaces[0] (a): gateway 10.0.0.1 is of another address family than ipAddress fd00::2/64: give the router's address`},
		"gateway is the network":        {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.1.5/23", Gateway: "10.0.0.0"}}, `interfaces[0] (a): gateway 10.0.0.0 is the network address of 10.0.0.0/23: give the router's address`},
		"gateway is the broadcast":      {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.1.5/23", Gateway: "10.0.1.255"}}, `interfaces[0] (a): gateway 10.0.1.255 is the broadcast address of 10.0.0.0/23: give the router's address`},
		"gateway is the machine":        {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.1/24", Gateway: "10.0.0.1"}}, `interfaces[0] (a): gateway 10.0.0.1 is the interface's own ipAddress: give the router's address`},
		"gateway is multicast":          {[]v1alpha1.Interface{{Network: "a", Gateway: "224.0.0.1"}}, `interfaces[0] (a): gateway 224.0.0.1 is a multicast address: give the router's address`},
		"address is the network":        {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.0/24"}}, `interfaces[0] (a): ipAddress 10.0.0.0/24 is the network address of 10.0.0.0/24: give the guest another one`},
		"address is the broadcast":      {[]v1alpha1.Interface{{Network: "a", IPAddress: "10.0.0.127/25"}}, `interfaces[0] (a): ipAddress 10.0.0.127/25 is the broadcast address of 10.0.0.0/25: give the guest another one`},
		"address is unspecified":        {[]v1alpha1.Interface{{Network: "a", IPAddress: "0.0.0.0/0"}}, `interfaces[0] (a): ipAddress 0.0.0.0/0 is the unspecified address: give the guest another one`},
	} {
		t.Run(name, func(t *testing.T) {
			machine := apitest.VirtualMachine("ns", "vm").WithInterfaces(tt.interfaces...).Obj()
			require.EqualError(t, cloudinit.CheckAddresses(machine), tt.want)
			mustRender(t, machine)
		})
	}
}
