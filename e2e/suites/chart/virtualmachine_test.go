//go:build linux

package chart_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fieldChanges are spec fields by path, such as "resources.cpu"; nil removes a field.
type fieldChanges map[string]any

// newVM returns the proposal's example with spec fields changed.
func newVM(t *testing.T, changes fieldChanges) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(apitest.ProposedMachine), &object.Object))
	object.SetNamespace(imageNamespace)
	setFields(t, object, changes)
	return object
}

func setFields(t *testing.T, object *unstructured.Unstructured, changes fieldChanges) {
	t.Helper()
	for path, value := range changes {
		steps := append([]string{"spec"}, strings.Split(path, ".")...)
		if value == nil {
			unstructured.RemoveNestedField(object.Object, steps...)
			continue
		}
		require.NoError(t, unstructured.SetNestedField(object.Object, value, steps...), path)
	}
}

func listOf(entries ...map[string]any) []any {
	var all []any
	for _, entry := range entries {
		all = append(all, entry)
	}
	return all
}

func TestProposalVMAppliesUnchanged(t *testing.T) {
	object := newVM(t, nil)
	configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
	require.NoError(t, adminClient.Apply(t.Context(), configuration, client.FieldOwner("person")))

	stored := &v1alpha1.VirtualMachine{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), stored))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), stored)) })
	assert.Equal(t, int64(2), stored.Spec.Resources.CPU.Value())
	assert.Equal(t, "2Gi", stored.Spec.Resources.Memory.String())
	assert.Equal(t, "demo user", stored.Spec.Users[0].Name)
	assert.Equal(t, "4.29.163.6/28", stored.Spec.Interfaces[1].IPAddress)
	assert.Equal(t, "vmdi-farm", stored.Spec.VMDiskImageRef.Namespace)
	assert.Equal(t, "24Gi", stored.Spec.VMDiskImageTemplate.DiskSize.String())

	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(object.GroupVersionKind())
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), found))
	assert.Equal(t, object.Object["spec"], found.Object["spec"], "the stored spec differs from the applied one")
}

func TestValidVMs(t *testing.T) {
	const net = "network"
	for name, changes := range map[string]fieldChanges{
		"only what is required": {
			"baseVm": nil, "baseVmVersion": nil, "version": nil, "ignoreOnDeploy": nil, "name": nil, "users": nil, "interfaces": nil,
			"vmDiskImageTemplate": nil, "vmDiskImageRef": map[string]any{"name": "ubuntu"}, "resources": map[string]any{"memory": "2Gi"},
		},
		"an instancetype":           {"resources": nil, "instancetype": map[string]any{"name": "u1.medium"}},
		"an instancetype, a size":   {"resources": map[string]any{"diskSize": "30Gi"}, "instancetype": map[string]any{"name": "u1.medium", "kind": "VirtualMachineInstancetype"}},
		"a preference":              {"preference": map[string]any{"name": "ubuntu", "kind": "VirtualMachineClusterPreference"}},
		"cpu as a number":           {"resources.cpu": int64(2)},
		"the most cpu":              {"resources.cpu": "512"},
		"the least memory":          {"resources.memory": "1Mi"},
		"memory in bytes":           {"resources.memory": int64(2147483648)},
		"no cpu":                    {"resources.cpu": nil},
		"create if it is not there": {"imageMode": "CreateIfNotExist"},
		"fail, with a template":     {"imageMode": "FailIfNotExist"},
		"fail, without one":         {"imageMode": "FailIfNotExist", "vmDiskImageTemplate": nil},
		"a run strategy":            {"runStrategy": "Halted"},
		"labels of 63 characters":   {"baseVm": strings.Repeat("b", 63), "baseVmVersion": "1", "version": "v1.0-rc_1"},
		"empty labels":              {"baseVm": "", "baseVmVersion": "", "version": ""},
		"a password in a Secret":    {"users": listOf(map[string]any{"name": "demo", "passwordSecretRef": map[string]any{"name": "demo", "key": "password"}})},
		"keys and no password":      {"users": listOf(map[string]any{"name": "demo", "ssh_authorized_keys": []any{"ssh-ed25519 AAAA me"}})},
		"no address":                {"interfaces": listOf(map[string]any{net: "control-net"}, map[string]any{net: "other/net.2"})},
		"all of an interface": {"interfaces": listOf(map[string]any{
			net: "control-net", "ipAddress": "2001:db8::5/64", "gateway": "2001:db8::1", "macAddress": "02:00:00:aB:cD:ef", "nameservers": []any{"10.10.0.53", "2001:db8::53"},
		})},
		"a gateway of two addresses":   {"interfaces": listOf(map[string]any{net: "control-net", "ipAddress": "10.0.0.1/31", "gateway": "10.0.0.0"})},
		"a gateway of another network": {"interfaces": listOf(map[string]any{net: "control-net", "ipAddress": "10.0.0.1/32", "gateway": "169.254.1.1"})},
		"an anycast gateway":           {"interfaces": listOf(map[string]any{net: "control-net", "ipAddress": "2001:db8::5/64", "gateway": "2001:db8::"})},
		"a link-local gateway":         {"interfaces": listOf(map[string]any{net: "control-net", "ipAddress": "2001:db8::5/64", "gateway": "fe80::1"})},
		"two families and routes": {"interfaces": listOf(map[string]any{
			net: "control-net", "ipAddress": "10.0.0.5/24", "gateway": "10.0.0.1", "additionalAddresses": []any{"2001:db8::5/64", "10.1.0.0/31"}, "searchDomains": []any{"lab.example.org", "org"},
			"routes": listOf(map[string]any{"to": "::/0", "via": "2001:db8::1"}, map[string]any{"to": "10.20.0.0/16", "via": "10.0.0.2", "metric": int64(1)}),
		})},
		"a cloned and a blank disk": {"disks": listOf(
			map[string]any{"name": "tools", "image": map[string]any{"name": "tools", "namespace": "farm"}, "bus": "scsi"},
			map[string]any{"name": "0", "size": int64(1 << 20), "storageClass": "fast.ssd"},
		)},
		"8 disks":                   {"disks": newDisks(8)},
		"removal in the overlay":    {"overlay": map[string]any{"template": map[string]any{"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{"rng": map[string]any{"$patch": "delete"}}}}}}},
		"100 KiB of user data":      {"cloudInit": map[string]any{"userData": "#cloud-config\n" + strings.Repeat("#", 100<<10)}},
		"512 KiB of user data":      {"cloudInit": map[string]any{"userData": strings.Repeat("#", 512<<10)}},
		"user data in a Secret":     {"cloudInit": map[string]any{"userDataSecretRef": map[string]any{"name": "demo", "key": "userdata"}}},
		"an image of a long name":   {"vmDiskImageRef.name": strings.Repeat("n", 253)},
		"an image with dots":        {"vmDiskImageRef.name": "ubuntu-20.04.5"},
		"a namespace that is empty": {"vmDiskImageRef.namespace": ""},
		"a template of http":        {"vmDiskImageTemplate": map[string]any{"name": "u", "sourceType": "http", "url": "https://example.com/a.qcow2", "diskSize": "24Gi"}},
		"16 interfaces, 32 users":   {"interfaces": newInterfaces(16), "users": newUsers(32)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, adminClient.Create(t.Context(), newVM(t, changes), client.DryRunAll))
		})
	}
}

func newInterfaces(n int) []any {
	var all []any
	for i := range n {
		digit := "0123456789abcdef"[i : i+1]
		all = append(all, map[string]any{"network": "net-" + digit, "ipAddress": "2001:db8:1234:5678:9abc:def0:1234:567" + digit + "/64", "macAddress": "02:00:00:00:00:0" + digit})
	}
	return all
}

func newDisks(n int) []any {
	var all []any
	for i := range n {
		all = append(all, map[string]any{"name": strings.Repeat("d", 63-i), "size": "64Ti"})
	}
	return all
}

func newUsers(n int) []any {
	var all []any
	for i := range n {
		all = append(all, map[string]any{"name": strings.Repeat("u", 127-i)})
	}
	return all
}

func TestInvalidVMsAreRejected(t *testing.T) {
	type refusal struct {
		changes fieldChanges
		says    string
	}
	user := func(user map[string]any) fieldChanges { return fieldChanges{"users": listOf(user)} }
	nic := func(nic map[string]any) fieldChanges {
		if nic["network"] == nil {
			nic["network"] = "control-net"
		}
		return fieldChanges{"interfaces": listOf(nic)}
	}
	disk := func(disk map[string]any) fieldChanges { return fieldChanges{"disks": listOf(disk)} }
	route := func(to, via string) fieldChanges {
		return nic(map[string]any{"routes": listOf(map[string]any{"to": to, "via": via})})
	}
	two := func(field, one, other string) fieldChanges {
		return fieldChanges{"interfaces": listOf(map[string]any{"network": "a", field: one}, map[string]any{"network": "b", field: other})}
	}
	const (
		cpu   = "cpu must be a whole number from 1 to 512"
		unit  = "must be a quantity such as 2Gi (use Mi, Gi or Ti, not GB or GiB)"
		label = "becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
		cidr  = "ipAddress must be an address with a prefix length, as in 10.10.0.161/24"
		mac   = "macAddress must be six bytes separated by colons, as in 02:00:00:12:34:56, and not a multicast address"
		ref   = "name must be that of a VMDiskImage: up to 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	)
	for name, test := range map[string]refusal{
		"no cpus":                      {fieldChanges{"resources.cpu": "0"}, cpu},
		"no cpus, as a number":         {fieldChanges{"resources.cpu": int64(0)}, cpu},
		"half a cpu":                   {fieldChanges{"resources.cpu": "500m"}, cpu},
		"a cpu and a half":             {fieldChanges{"resources.cpu": "1.5"}, cpu},
		"cpus below zero":              {fieldChanges{"resources.cpu": "-2"}, cpu},
		"too many cpus":                {fieldChanges{"resources.cpu": "513"}, cpu},
		"cpus in words":                {fieldChanges{"resources.cpu": "two"}, cpu},
		"no number of cpus":            {fieldChanges{"resources.cpu": ""}, cpu},
		"memory in GB":                 {fieldChanges{"resources.memory": "2GB"}, "memory " + unit},
		"memory in GiB":                {fieldChanges{"resources.memory": "2GiB"}, "memory " + unit},
		"memory without a unit":        {fieldChanges{"resources.memory": "2"}, "memory must be from 1Mi to 64Ti: is the unit missing, as in 2Gi?"},
		"memory as a small number":     {fieldChanges{"resources.memory": int64(2048)}, "memory must be from 1Mi to 64Ti: is the unit missing, as in 2Gi?"},
		"memory in thousandths":        {fieldChanges{"resources.memory": "2048m"}, "memory must be from 1Mi to 64Ti"},
		"memory below zero":            {fieldChanges{"resources.memory": "-2Gi"}, "memory must be from 1Mi to 64Ti"},
		"neither memory nor type":      {fieldChanges{"resources.memory": nil}, "resources.memory is required without an instancetype"},
		"no resources":                 {fieldChanges{"resources": nil}, "resources.memory is required without an instancetype"},
		"a disk in GB":                 {fieldChanges{"resources.diskSize": "24GB"}, "diskSize must be a quantity such as 24Gi"},
		"a disk without a unit":        {fieldChanges{"resources.diskSize": "24"}, "diskSize must be from 1Mi to 64Ti: is the unit missing, as in 24Gi?"},
		"instancetype with cpu":        {fieldChanges{"resources": map[string]any{"cpu": "2"}, "instancetype": map[string]any{"name": "u1"}}, "instancetype excludes resources.cpu and resources.memory"},
		"instancetype with memory":     {fieldChanges{"resources": map[string]any{"memory": "2Gi"}, "instancetype": map[string]any{"name": "u1"}}, "instancetype excludes resources.cpu and resources.memory"},
		"instancetype of a preference": {fieldChanges{"resources": nil, "instancetype": map[string]any{"name": "u1", "kind": "VirtualMachinePreference"}}, "instancetype.kind must be VirtualMachineInstancetype or VirtualMachineClusterInstancetype"},
		"preference of an instance":    {fieldChanges{"preference": map[string]any{"name": "u1", "kind": "VirtualMachineInstancetype"}}, "preference.kind must be VirtualMachinePreference or VirtualMachineClusterPreference"},
		"a kind that is none":          {fieldChanges{"preference": map[string]any{"name": "u1", "kind": "Pod"}}, `Unsupported value: "Pod"`},

		"a user without a name":  {user(map[string]any{"sudo": "ALL"}), "spec.users[0].name: Required value"},
		"an empty user name":     {user(map[string]any{"name": ""}), "name must not be empty"},
		"two users of one name":  {fieldChanges{"users": listOf(map[string]any{"name": "a"}, map[string]any{"name": "b"}, map[string]any{"name": "a"})}, "two users have the same name"},
		"two kinds of password":  {user(map[string]any{"name": "a", "plain_text_passwd": "p", "passwordSecretRef": map[string]any{"name": "a", "key": "b"}}), "set only one of plain_text_passwd and passwordSecretRef; prefer passwordSecretRef"},
		"a Secret without a key": {user(map[string]any{"name": "a", "passwordSecretRef": map[string]any{"name": "a"}}), "passwordSecretRef.key: Required value"},
		"33 users":               {fieldChanges{"users": newUsers(33)}, "spec.users: Too many: 33: must have at most 32 items"},

		"a bad prefix":                    {nic(map[string]any{"ipAddress": "10.10.0.161/33"}), cidr},
		"no prefix":                       {nic(map[string]any{"ipAddress": "10.10.0.161"}), cidr},
		"a bad address":                   {nic(map[string]any{"ipAddress": "10.10.0.256/24"}), cidr},
		"leading zeros":                   {nic(map[string]any{"ipAddress": "10.10.0.016/24"}), cidr},
		"an empty address":                {nic(map[string]any{"ipAddress": ""}), cidr},
		"a bad gateway":                   {nic(map[string]any{"gateway": "10.10.0.1/24"}), "gateway must be an address, as in 10.10.0.1"},
		"a zero MAC address":              {nic(map[string]any{"macAddress": "00:00:00:00:00:00"}), "macAddress must not be all zeros"},
		"a gateway of another family":     {nic(map[string]any{"ipAddress": "10.0.0.5/24", "gateway": "2001:db8::1"}), "gateway must be of the same address family as ipAddress"},
		"an IPv4 gateway for IPv6":        {nic(map[string]any{"ipAddress": "2001:db8::5/64", "gateway": "10.0.0.1"}), "gateway must be of the same address family as ipAddress"},
		"the network as gateway":          {nic(map[string]any{"ipAddress": "10.0.1.5/23", "gateway": "10.0.0.0"}), "gateway must not be the network address itself"},
		"itself as gateway":               {nic(map[string]any{"ipAddress": "10.0.1.5/23", "gateway": "10.0.1.5"}), "gateway must be the router's address, not the interface's own"},
		"a multicast gateway":             {nic(map[string]any{"gateway": "224.0.0.1"}), "gateway must be the address of a router"},
		"the network as address":          {nic(map[string]any{"ipAddress": "10.0.0.0/24"}), "and not the network address itself"},
		"a loopback address":              {nic(map[string]any{"ipAddress": "127.0.0.1/8"}), "ipAddress must be the address of a host"},
		"an unspecified address":          {nic(map[string]any{"ipAddress": "0.0.0.0/0"}), "ipAddress must be the address of a host"},
		"additional addresses with DHCP":  {nic(map[string]any{"additionalAddresses": []any{"10.0.0.5/24"}}), "additionalAddresses needs ipAddress"},
		"an additional network":           {nic(map[string]any{"ipAddress": "10.0.0.5/24", "additionalAddresses": []any{"10.1.0.0/24"}}), "additionalAddresses must be addresses of a host"},
		"an additional name":              {nic(map[string]any{"ipAddress": "10.0.0.5/24", "additionalAddresses": []any{"host"}}), "additionalAddresses must be addresses of a host"},
		"a search domain with a dot":      {nic(map[string]any{"searchDomains": []any{"example.org."}}), "searchDomains must be domain names without a dot at the end"},
		"a search domain with a newline":  {nic(map[string]any{"searchDomains": []any{"a\nb"}}), "searchDomains must be domain names without a dot at the end"},
		"a route to a host's network":     {route("10.20.0.1/16", "10.10.0.1"), "to must be the address of a network"},
		"a route without a prefix":        {route("10.20.0.0", "10.10.0.1"), "to must be a network with a prefix length"},
		"a route with metric 0":           {nic(map[string]any{"routes": listOf(map[string]any{"to": "10.20.0.0/16", "via": "10.10.0.1", "metric": int64(0)})}), "metric: Invalid value: 0: spec.interfaces[0].routes[0].metric in body should be greater than or equal to 1"},
		"a route via a name":              {route("10.20.0.0/16", "router"), "via must be an address, as in 10.10.0.2"},
		"a route via another family":      {route("10.20.0.0/16", "2001:db8::1"), "via must be of the same address family as to"},
		"a route via multicast":           {route("10.20.0.0/16", "224.0.0.1"), "via must be the address of a router"},
		"a bad nameserver":                {nic(map[string]any{"nameservers": []any{"dns.example.com"}}), "nameservers must be addresses, as in 10.10.0.53"},
		"one address twice":               {two("ipAddress", "10.0.0.1/24", "10.0.0.1/24"), "two interfaces have the same ipAddress"},
		"one address, two prefixes":       {two("ipAddress", "10.0.0.1/24", "10.0.0.1/16"), "two interfaces have the same ipAddress"},
		"one address in two ways":         {two("ipAddress", "2001:DB8::1/64", "2001:db8::1/64"), "two interfaces have the same ipAddress"},
		"one address, short and long":     {two("ipAddress", "2001:db8::1/64", "2001:db8:0:0::0:1/64"), "two interfaces have the same ipAddress"},
		"one MAC address twice":           {two("macAddress", "02:00:00:00:00:0a", "02:00:00:00:00:0a"), "two interfaces have the same macAddress"},
		"one MAC address, upper case":     {two("macAddress", "02:00:00:00:00:0a", "02:00:00:00:00:0A"), "two interfaces have the same macAddress"},
		"a multicast MAC address":         {nic(map[string]any{"macAddress": "01:00:5e:00:00:01"}), mac},
		"a MAC address with dashes":       {nic(map[string]any{"macAddress": "02-00-00-00-00-01"}), mac},
		"a MAC address cut short":         {nic(map[string]any{"macAddress": "02:00:00:00:00"}), mac},
		"an interface without a network":  {fieldChanges{"interfaces": listOf(map[string]any{"ipAddress": "10.0.0.1/24"})}, "spec.interfaces[0].network: Required value"},
		"a network in upper case":         {nic(map[string]any{"network": "Control"}), "network must be the name of a NetworkAttachmentDefinition, or namespace/name"},
		"a network with too many slashes": {nic(map[string]any{"network": "a/b/c"}), "network must be the name of a NetworkAttachmentDefinition, or namespace/name"},
		"17 interfaces":                   {fieldChanges{"interfaces": append(newInterfaces(16), map[string]any{"network": "x"})}, "spec.interfaces: Too many: 17: must have at most 16 items"},

		"9 disks":                           {fieldChanges{"disks": newDisks(9)}, "spec.disks: Too many: 9: must have at most 8 items"},
		"two disks of one name":             {fieldChanges{"disks": append(newDisks(1), newDisks(1)...)}, "spec.disks[1]: Duplicate value"},
		"a disk of the root disk's name":    {disk(map[string]any{"name": "root", "size": "1Gi"}), "root and cloudinit are the VM's own disks"},
		"a disk of cloud-init's name":       {disk(map[string]any{"name": "cloudinit", "size": "1Gi"}), "root and cloudinit are the VM's own disks"},
		"a disk in upper case":              {disk(map[string]any{"name": "Data", "size": "1Gi"}), "name must have up to 63 lower case letters"},
		"a disk with a dot":                 {disk(map[string]any{"name": "a.b", "size": "1Gi"}), "name must have up to 63 lower case letters"},
		"a blank disk without a size":       {disk(map[string]any{"name": "data"}), "a disk without an image is blank and needs a size"},
		"a disk size without a unit":        {disk(map[string]any{"name": "data", "size": "24"}), "size must be from 1Mi to 64Ti: is the unit missing, as in 24Gi?"},
		"a disk size in GB":                 {disk(map[string]any{"name": "data", "size": "24GB"}), "size must be a quantity such as 24Gi"},
		"a clone with a storage class":      {disk(map[string]any{"name": "data", "image": map[string]any{"name": "a"}, "storageClass": "fast"}), "storageClass is for blank disks"},
		"a disk of an image without a name": {disk(map[string]any{"name": "data", "image": map[string]any{"namespace": "a"}}), "spec.disks[0].image.name: Required value"},
		"a disk of an image in upper case":  {disk(map[string]any{"name": "data", "image": map[string]any{"name": "A"}}), ref},
		"a bus that is none":                {disk(map[string]any{"name": "data", "size": "1Gi", "bus": "ide"}), `Unsupported value: "ide"`},

		"a label with a space":       {fieldChanges{"baseVm": "ubuntu 20"}, "baseVm " + label},
		"a label that ends in a dot": {fieldChanges{"baseVmVersion": "2.1."}, "baseVmVersion " + label},
		"a label with a plus":        {fieldChanges{"version": "1.0+1"}, "version " + label},
		"a label of 64 characters":   {fieldChanges{"version": strings.Repeat("v", 64)}, "spec.version: Too long: may not be more than 63"},

		"no image":                     {fieldChanges{"vmDiskImageRef": nil}, "spec.vmDiskImageRef: Required value"},
		"an image without a name":      {fieldChanges{"vmDiskImageRef": map[string]any{}}, "spec.vmDiskImageRef.name: Required value"},
		"an empty image name":          {fieldChanges{"vmDiskImageRef.name": ""}, ref},
		"an image name in upper case":  {fieldChanges{"vmDiskImageRef.name": "Ubuntu"}, ref},
		"an image by namespace/name":   {fieldChanges{"vmDiskImageRef.name": "farm/ubuntu"}, ref},
		"an image of no namespace":     {fieldChanges{"vmDiskImageRef.namespace": "../farm"}, "namespace must be that of a VMDiskImage: up to 63 lower case letters, digits and '-'"},
		"creation without a template":  {fieldChanges{"imageMode": "CreateIfNotExist", "vmDiskImageTemplate": nil}, "imageMode CreateIfNotExist needs a vmDiskImageTemplate to create the image from"},
		"a mode that is none":          {fieldChanges{"imageMode": "Create"}, `Unsupported value: "Create": supported values: "CreateIfNotExist", "FailIfNotExist"`},
		"a run strategy that is none":  {fieldChanges{"runStrategy": "Sometimes"}, `Unsupported value: "Sometimes"`},
		"a template with a size in GB": {fieldChanges{"vmDiskImageTemplate.diskSize": "24GB"}, "diskSize must be a quantity such as 24Gi"},
		"a template without a url":     {fieldChanges{"vmDiskImageTemplate.url": nil}, "url is required: say where the image is downloaded from"},
		"a template with a password":   {fieldChanges{"vmDiskImageTemplate.url": "https://me:secret@example.com/a"}, "url must not carry a user name or password"},
		"a template of no type":        {fieldChanges{"vmDiskImageTemplate.sourceType": "ftp"}, `Unsupported value: "ftp"`},
		"a template of http by s3":     {fieldChanges{"vmDiskImageTemplate.sourceType": "http", "vmDiskImageTemplate.url": "s3://a/b"}, "url must start with http:// or https:// for sourceType http"},
		"a template of a YAML block":   {fieldChanges{"vmDiskImageTemplate.url": "https://example.com/a\n"}, "url must have no space at its beginning or end, and no line break"},
		"a template for a minute less": {fieldChanges{"vmDiskImageTemplate.deleteUnreferencedAfter": "59s"}, "deleteUnreferencedAfter must be a duration of at least 1m"},

		"too much user data":      {fieldChanges{"cloudInit": map[string]any{"userData": strings.Repeat("#", 512<<10+1)}}, "spec.cloudInit.userData: Too long: may not be more than 524288"},
		"two kinds of user data":  {fieldChanges{"cloudInit": map[string]any{"userData": "a", "userDataSecretRef": map[string]any{"name": "a", "key": "b"}}}, "set only one of userData and userDataSecretRef"},
		"an overlay that is text": {fieldChanges{"overlay": "spec: {}"}, `spec.overlay: Invalid value: "string": spec.overlay in body must be of type object: "string"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), newVM(t, test.changes), client.DryRunAll)
			require.ErrorContains(t, err, test.says)
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
			assert.NotContains(t, err.Error(), "no such key")
			assert.NotContains(t, err.Error(), "evaluation error")
		})
	}
}

func TestVMNameLengthIsBounded(t *testing.T) {
	object := newVM(t, nil)
	object.SetName(strings.Repeat("m", 63))
	require.NoError(t, adminClient.Create(t.Context(), object, client.DryRunAll))
	object.SetName(strings.Repeat("m", 64))
	err := adminClient.Create(t.Context(), object, client.DryRunAll)
	require.ErrorContains(t, err, "metadata.name must have at most 63 characters: KubeVirt makes labels and a host name of it")
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
}

func TestOverlayKeepsUnknownFields(t *testing.T) {
	overlay := map[string]any{"template": map[string]any{"spec": map[string]any{
		"domain":  map[string]any{"devices": map[string]any{"gpus": []any{map[string]any{"name": "g", "futureField": map[string]any{"a": int64(1)}}}}},
		"nothing": nil,
	}}}
	object := newVM(t, fieldChanges{"overlay": overlay})
	object.SetName("overlaid")
	awaitCreated(t, object)
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	stored, _, err := unstructured.NestedMap(object.Object, "spec", "overlay")
	require.NoError(t, err)
	assert.Equal(t, overlay, stored, "null has to be kept: it removes a field of the VM")
}

func TestAllVMErrorsAreReportedAtOnce(t *testing.T) {
	err := adminClient.Create(t.Context(), newVM(t, fieldChanges{"resources.cpu": "0", "resources.memory": "2GB", "vmDiskImageTemplate.diskSize": "24"}), client.DryRunAll)
	require.ErrorContains(t, err, "cpu must be a whole number")
	require.ErrorContains(t, err, "memory must be a quantity")
	require.ErrorContains(t, err, "diskSize must be at least 1Mi")
}
