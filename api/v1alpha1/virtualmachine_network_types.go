package v1alpha1

// Interface of a VM.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.ipAddress) || !isIP(self.gateway) || !isCIDR(self.ipAddress) || ip(self.gateway).family() == cidr(self.ipAddress).ip().family()",message="gateway must be of the same address family as ipAddress: the default route of the other family goes into routes"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.ipAddress) || !isIP(self.gateway) || !isCIDR(self.ipAddress) || !(ip(self.gateway) == cidr(self.ipAddress).ip())",message="gateway must be the router's address, not the interface's own"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.ipAddress) || !isIP(self.gateway) || !isCIDR(self.ipAddress) || ip(self.gateway).family() == 6 || cidr(self.ipAddress).prefixLength() >= 31 || !(ip(self.gateway) == cidr(self.ipAddress).masked().ip())",message="gateway must not be the network address itself: give the router's address, as in 10.10.0.1"
// +kubebuilder:validation:XValidation:rule="!has(self.additionalAddresses) || size(self.additionalAddresses) == 0 || has(self.ipAddress)",message="additionalAddresses needs ipAddress: without it the guest uses DHCP"
type Interface struct {
	// network is the name of a NetworkAttachmentDefinition in the VM's namespace, or
	// namespace/name.
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="network must be the name of a NetworkAttachmentDefinition, or namespace/name"
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 63 && size(self) - self.lastIndexOf('/') <= 254",message="network must have at most 253 characters in its name, and 63 in its namespace"
	// +kubebuilder:validation:MaxLength=317
	// +required
	Network string `json:"network"`
	// ipAddress with prefix length, as in 10.10.0.161/24; no two machines of a namespace
	// may have the same on one network. Default: the guest uses DHCP.
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="ipAddress must be an address with a prefix length, as in 10.10.0.161/24"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).ip().isGlobalUnicast() || cidr(self).ip().isLinkLocalUnicast()",message="ipAddress must be the address of a host: not unspecified, loopback or multicast"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).ip().family() == 6 || cidr(self).prefixLength() >= 31 || !(cidr(self).ip() == cidr(self).masked().ip())",message="ipAddress must be the address of a host, as in 10.10.0.161/24, and not the network address itself"
	// +kubebuilder:validation:MaxLength=64
	// +optional
	IPAddress string `json:"ipAddress,omitempty"`
	// additionalAddresses with prefix lengths, beside ipAddress, as in fd00:10::161/64.
	// They are as exclusive as it is.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a) && (cidr(a).ip().isGlobalUnicast() || cidr(a).ip().isLinkLocalUnicast()) && (cidr(a).ip().family() == 6 || cidr(a).prefixLength() >= 31 || !(cidr(a).ip() == cidr(a).masked().ip())))",message="additionalAddresses must be addresses of a host with a prefix length, as in fd00:10::161/64, and not the network address itself"
	// +listType=atomic
	// +optional
	AdditionalAddresses []string `json:"additionalAddresses,omitempty"`
	// gateway of the interface's default route, as in 10.10.0.1. That of the other address
	// family is a route to 0.0.0.0/0 or ::/0. A gateway outside of the interface's networks
	// is used as if it were on the link.
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="gateway must be an address, as in 10.10.0.1"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLinkLocalUnicast()",message="gateway must be the address of a router: not unspecified, loopback or multicast"
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// nameservers to use on the interface, as in 10.10.0.53.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(n, isIP(n))",message="nameservers must be addresses, as in 10.10.0.53"
	// +listType=atomic
	// +optional
	Nameservers []string `json:"nameservers,omitempty"`
	// searchDomains that the guest appends to short names, as in lab.example.org.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(d, d.matches('^[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?([.][a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?)*$'))",message="searchDomains must be domain names without a dot at the end, as in lab.example.org"
	// +listType=atomic
	// +optional
	SearchDomains []string `json:"searchDomains,omitempty"`
	// routes of the interface, beside the default route of gateway.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Routes []Route `json:"routes,omitempty"`
	// macAddress of the interface; no two machines of a namespace may have the same.
	// Default: computed from the cluster, the VM's name
	// and the index in this list, so that it stays the same when the VM is created
	// again.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5}$')",message="macAddress must be six bytes separated by colons, as in 02:00:00:12:34:56, and not a multicast address"
	// +kubebuilder:validation:XValidation:rule="self != '00:00:00:00:00:00'",message="macAddress must not be all zeros"
	// +kubebuilder:validation:MaxLength=17
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
}

// Route of an interface.
//
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.to) || !isIP(self.via) || cidr(self.to).ip().family() == ip(self.via).family()",message="via must be of the same address family as to"
type Route struct {
	// to is the destination, as in 10.20.0.0/16; 0.0.0.0/0 or ::/0 for a default route.
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="to must be a network with a prefix length, as in 10.20.0.0/16; a default route is to 0.0.0.0/0 or ::/0"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="to must be the address of a network, as in 10.20.0.0/16: it has bits beyond its prefix length"
	// +kubebuilder:validation:MaxLength=64
	// +required
	To string `json:"to"`
	// via is the router's address, as in 10.10.0.2.
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="via must be an address, as in 10.10.0.2"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLinkLocalUnicast()",message="via must be the address of a router: not unspecified, loopback or multicast"
	// +kubebuilder:validation:MaxLength=64
	// +required
	Via string `json:"via"`
	// metric of the route; of two to one destination, the lower is used. Default: the
	// guest's, and for each further default route of an address family 100 more. 0 is
	// refused: guests take it for their own default, which is 1024 for IPv6.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Metric *int32 `json:"metric,omitempty"`
}
