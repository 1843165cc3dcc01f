//go:build linux

package workspaces

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func newMachineCorpus(t *testing.T) *corpus {
	c := &corpus{
		kind: "VirtualMachine",
		base: map[string]any{
			"metadata": map[string]any{"name": "machine"},
			"spec": map[string]any{
				"resources":      map[string]any{"cpu": "2", "memory": "2Gi", "diskSize": "24Gi"},
				"vmDiskImageRef": map[string]any{"name": "golden"},
			},
		},
	}
	c.vary("metadata.name", objectNames)
	c.vary("spec.name", []any{"web-1", "Web_Server!", "", "a.b.c", "-", "ü", "a\nb", strings.Repeat("h", 253), strings.Repeat("h", 254), int64(1)})
	labels := []any{"2.1.0", "A_b-c.d", "", "-a", "a-", "a b", "a/b", "ü", "a\n", strings.Repeat("v", 63), strings.Repeat("v", 64), int64(2), 2.1}
	for _, field := range []string{"baseVm", "baseVmVersion", "version"} {
		c.vary("spec."+field, labels)
	}
	addMachineResources(c)
	addMachineNetworks(c)
	addMachineImages(c)
	addDisks(c)
	addGuests(c)
	addOverlays(t, c)
	c.vary("spec.runStrategy", []any{"Always", "RerunOnFailure", "Manual", "Halted", "Once", "WaitAsReceiver", "always", "", true})
	c.vary("spec.architecture", []any{"amd64", "arm64", "s390x", "x86_64", "AMD64", "", int64(1)})
	c.vary("spec.ignoreOnDeploy", []any{true, false, "true"})
	c.vary("spec.unknown", []any{"a"})
	return c
}

func addMachineResources(c *corpus) {
	c.vary("spec.resources.cpu", []any{
		"1", "512", "513", "0", "-1", "1.5", "1500m", "2000m", "1e2", "1k", "0.5", "1Ki", "two", "", " 2", "2\n", int64(4), int64(0), int64(600), 1.5, true, removed,
	})
	c.vary("spec.resources.memory", sizes)
	c.vary("spec.resources.diskSize", everySecond(sizes))
	c.vary("spec.resources", []any{removed, map[string]any{}, "2Gi"})
	for _, field := range []string{"instancetype", "preference"} {
		bare := map[string]any{"spec.resources": removed}
		if field == "preference" {
			bare = nil
		}
		c.vary("spec."+field+".name", everySecond(objectNames), bare)
		c.vary("spec."+field, []any{map[string]any{}, "small", removed}, bare)
		c.vary("spec."+field+".kind", []any{
			"VirtualMachineInstancetype", "VirtualMachineClusterInstancetype", "VirtualMachinePreference", "VirtualMachineClusterPreference", "virtualmachineinstancetype", "", "Pod",
		}, map[string]any{"spec.instancetype.name": "small", "spec.preference.name": "small", "spec.resources": removed})
	}
	c.varyAll(map[string][]any{
		"spec.instancetype": {map[string]any{"name": "small"}, removed}, "spec.preference": {map[string]any{"name": "linux"}, removed},
		"spec.resources.cpu": {"2", removed}, "spec.resources.memory": {"2Gi", removed}, "spec.resources.diskSize": {"24Gi", removed},
	})
}

func addMachineNetworks(c *corpus) {
	nic := func(fields ...any) map[string]any {
		m := map[string]any{"network": "lan"}
		for i := 0; i < len(fields); i += 2 {
			m[fields[i].(string)] = fields[i+1]
		}
		return m
	}
	nics := func(list ...any) []any { return list }
	for _, network := range append([]any{"ns/lan", "/lan", "ns/", "ns/a/b", "ns.x/lan", strings.Repeat("n", 63) + "/" + strings.Repeat("a", 253), strings.Repeat("n", 64) + "/a"}, objectNames...) {
		c.vary("spec.interfaces", nics(nics(nic("network", network))))
	}
	for _, address := range []any{
		"10.10.0.161/24", "10.10.0.161", "10.10.0.0/24", "10.10.0.255/24", "10.10.0.1/32", "10.10.0.0/31", "0.0.0.0/0", "0.0.0.0/24", "127.0.0.1/8", "224.0.0.1/24", "169.254.0.5/16",
		"255.255.255.255/32", "010.10.0.1/24", "10.10.0.256/24", "10.10.0.1/33", "10.10.0.1/-1", "10.10.0.1/024", "2001:db8::5/64", "2001:db8::/64", "::1/128", "::/0", "fe80::1/64", "fe80::1%eth0/64",
		"ff02::1/64", "::ffff:10.0.0.1/120", "", " 10.10.0.1/24", "10.10.0.1/24\n", "lan", int64(10),
	} {
		c.vary("spec.interfaces", nics(nics(nic("ipAddress", address))))
	}
	for _, gateway := range []any{"10.10.0.1", "10.10.0.161", "10.10.0.0", "10.10.0.255", "10.20.0.1", "2001:db8::1", "0.0.0.0", "127.0.0.1", "224.0.0.1", "10.10.0.1/24", "", "10.10.0.1 ", "router"} {
		c.vary("spec.interfaces", nics(nics(nic("gateway", gateway)), nics(nic("gateway", gateway, "ipAddress", "10.10.0.161/24")), nics(nic("gateway", gateway, "ipAddress", "2001:db8::5/64"))))
	}
	for _, mac := range []any{
		"02:00:00:12:34:56", "02:00:00:12:34:5A", "02-00-00-12-34-56", "0200.0012.3456", "02:00:00:12:34", "02:00:00:12:34:56:78", "01:00:00:12:34:56", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00",
		"02:00:00:00:00:00", "", "02:00:00:12:34:5g", " 02:00:00:12:34:56", "02:00:00:12:34:56\n", int64(2),
	} {
		c.vary("spec.interfaces", nics(nics(nic("macAddress", mac))))
	}
	for _, servers := range []any{nics("10.10.0.53"), nics("2001:db8::53", "10.10.0.53"), nics("dns"), nics(""), nics("10.10.0.53/24"), nics("1.1.1.1", "1.1.1.1"), nics(nics()...), "10.10.0.53", nics("1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4", "1.0.0.5", "1.0.0.6", "1.0.0.7", "1.0.0.8", "1.0.0.9")} {
		c.vary("spec.interfaces", nics(nics(nic("nameservers", servers))))
	}
	static := nic("ipAddress", "10.10.0.161/24")
	for _, address := range []any{"fd00:10::161/64", "10.10.0.162/24", "10.10.0.161/24", "10.10.0.0/24", "10.10.0.255/24", "10.10.0.162", "127.0.0.1/8", "", int64(1)} {
		c.vary("spec.interfaces", nics(nics(nic("ipAddress", "10.10.0.161/24", "additionalAddresses", nics(address)))))
	}
	c.vary("spec.interfaces", nics(nics(nic("additionalAddresses", nics("fd00:10::161/64"))), nics(static, nic("additionalAddresses", nics("10.10.0.161/24"), "ipAddress", "10.10.0.163/24"))))
	for _, domain := range []any{"lab.example.org", "lab", "_srv.example.org", "lab.example.org.", ".", "a b", "", "ü.org", strings.Repeat("d", 64) + ".org", int64(1)} {
		c.vary("spec.interfaces", nics(nics(nic("searchDomains", nics(domain)))))
	}
	for _, route := range []map[string]any{
		{"to": "10.20.0.0/16", "via": "10.10.0.2"}, {"to": "0.0.0.0/0", "via": "10.10.0.2"}, {"to": "::/0", "via": "fd00:10::1"}, {"to": "10.20.0.0/16", "via": "10.10.0.161"}, {"to": "10.20.0.0/16", "via": "10.10.0.255"},
		{"to": "10.20.0.0/16", "via": "10.99.0.2"}, {"to": "10.20.0.1/16", "via": "10.10.0.2"}, {"to": "10.20.0.0", "via": "10.10.0.2"}, {"to": "10.20.0.0/16", "via": "fd00:10::1"}, {"to": "10.20.0.0/16", "via": "0.0.0.0"},
		{"to": "10.20.0.0/16"}, {"via": "10.10.0.2"}, {"to": "default", "via": "10.10.0.2"}, {"to": "10.20.0.0/16", "via": "10.10.0.2", "metric": int64(-1)}, {"to": "10.20.0.0/16", "via": "10.10.0.2", "metric": int64(1 << 33)},
	} {
		c.vary("spec.interfaces", nics(nics(nic("ipAddress", "10.10.0.161/24", "routes", nics(route)))))
	}
	many := make([]any, 17)
	for i := range many {
		many[i] = nic()
	}
	c.vary("spec.interfaces", nics(
		nics(), many[:16], many, nics(nic(), nic("network", "wan")), nics(map[string]any{}), nics("lan"), map[string]any{},
		nics(nic("ipAddress", "10.0.0.1/24"), nic("ipAddress", "10.0.0.1/24")), nics(nic("ipAddress", "10.0.0.1/24"), nic("ipAddress", "10.0.0.1/16")),
		nics(nic("macAddress", "02:00:00:12:34:5a"), nic("macAddress", "02:00:00:12:34:5A")),
		nics(nic("gateway", "10.0.0.1", "ipAddress", "10.0.0.2/24"), nic("gateway", "10.0.1.1", "ipAddress", "10.0.1.2/24")),
	))
}

func addMachineImages(c *corpus) {
	c.vary("spec.vmDiskImageRef.name", objectNames)
	c.vary("spec.vmDiskImageRef.namespace", everySecond(objectNames))
	c.vary("spec.imageMode", []any{"CreateIfNotExist", "FailIfNotExist", "Always", "", removed})
	template := newImageCorpus()
	for i := 0; i < len(template.cases); i += 12 {
		spec := template.cases[i].object.Object["spec"]
		c.add(map[string]any{"spec.vmDiskImageTemplate": spec})
	}
	c.vary("spec.imageMode", []any{"CreateIfNotExist", "FailIfNotExist"}, map[string]any{"spec.vmDiskImageTemplate": newImageCorpus().base["spec"]})
}

func addDisks(c *corpus) {
	disk := func(fields ...any) map[string]any {
		m := map[string]any{"name": "data", "size": "10Gi"}
		for i := 0; i < len(fields); i += 2 {
			setPath(m, fields[i].(string), fields[i+1])
		}
		return m
	}
	many := make([]any, 9)
	for i := range many {
		many[i] = disk("name", fmt.Sprintf("data%d", i))
	}
	lists := []any{
		[]any{}, many[:8], many, []any{disk(), disk()}, []any{disk(), disk("name", "more", "image.name", "golden")}, disk(),
		[]any{disk("name", "root")}, []any{disk("name", "cloudinit")}, []any{disk("name", "net0")}, []any{disk("name", strings.Repeat("d", 63))}, []any{disk("name", strings.Repeat("d", 64))},
		[]any{disk("size", removed)}, []any{disk("size", removed, "image.name", "golden")}, []any{disk("size", "1Mi", "image.name", "golden")}, []any{disk("image.name", "golden", "storageClass", "gp3")},
		[]any{disk("bus", "virtio")}, []any{disk("bus", "scsi")}, []any{disk("bus", "sata")}, []any{disk("bus", "usb")}, []any{disk("bus", "floppy")}, []any{disk("bus", "")}, []any{disk("unknown", "a")},
		[]any{disk("image.name", "golden", "image.namespace", "farm")}, []any{disk("image.name", "golden", "image.namespace", "a.b")},
	}
	for _, name := range everySecond(objectNames) {
		lists = append(lists, []any{disk("name", name)}, []any{disk("storageClass", name)}, []any{disk("size", removed, "image.name", name)})
	}
	for _, size := range everySecond(sizes) {
		lists = append(lists, []any{disk("size", size)})
	}
	c.vary("spec.disks", lists)
	c.add(map[string]any{"spec.disks": []any{disk()}, "spec.overlay": map[string]any{"template": map[string]any{"spec": map[string]any{"volumes": []any{map[string]any{"name": "data", "emptyDisk": map[string]any{"capacity": "1Gi"}}}}}}})
	c.add(map[string]any{"spec.disks": []any{disk()}, "spec.overlay": map[string]any{"template": map[string]any{"spec": map[string]any{"volumes": []any{map[string]any{"name": "data", "$patch": "delete"}}}}}})
}

func addGuests(c *corpus) {
	user := func(fields ...any) map[string]any {
		m := map[string]any{"name": "ada"}
		for i := 0; i < len(fields); i += 2 {
			m[fields[i].(string)] = fields[i+1]
		}
		return m
	}
	secret := func(name, key any) map[string]any { return map[string]any{"name": name, "key": key} }
	for _, u := range []map[string]any{
		user(), user("name", ""), user("name", "Ada Lovelace"), user("name", "root"), user("name", "default"), user("name", "a:b"), user("name", "a\nb"), user("name", strings.Repeat("u", 128)), user("name", strings.Repeat("u", 129)),
		user("plain_text_passwd", "pw"), user("plain_text_passwd", "p\nw"), user("plain_text_passwd", ""), user("plain_text_passwd", "pw", "passwordSecretRef", secret("s", "k")),
		user("lock_passwd", true), user("lock_passwd", "yes"), user("ssh_authorized_keys", []any{"ssh-ed25519 AAAA a"}), user("ssh_authorized_keys", []any{""}), user("ssh_authorized_keys", "ssh-ed25519 AAAA"),
		user("sudo", "ALL=(ALL) NOPASSWD:ALL"), user("groups", "wheel, docker"), user("shell", "/bin/bash"), user("unknown", "a"),
	} {
		c.vary("spec.users", []any{[]any{u}})
	}
	for _, name := range everySecond(objectNames) {
		c.vary("spec.users", []any{[]any{user("passwordSecretRef", secret(name, "password"))}})
		c.vary("spec.cloudInit", []any{map[string]any{"userDataSecretRef": secret(name, "user-data")}})
	}
	for _, key := range []any{"password", "a.b_c-D", "a b", "a/b", "..", ".", "", "ü", "a\n", strings.Repeat("k", 253), strings.Repeat("k", 254)} {
		c.vary("spec.users", []any{[]any{user("passwordSecretRef", secret("s", key))}})
	}
	c.vary("spec.users", []any{[]any{}, []any{user(), user()}, []any{user("name", "Ada"), user("name", "ada")}, []any{user(), user("name", "bob")}, user(), "ada"})
	c.vary("spec.cloudInit", []any{
		map[string]any{"userData": "#cloud-config\npackages: [git]\n"}, map[string]any{"userData": "#!/bin/sh\ntrue\n"}, map[string]any{"userData": "#cloud-config\n: [\n"}, map[string]any{"userData": ""},
		map[string]any{"userData": "no header"}, map[string]any{"userData": strings.Repeat("#", 524288)}, map[string]any{"userData": strings.Repeat("#", 524289)}, map[string]any{"userData": "\x1f\u008b"},
		map[string]any{"userData": "#cloud-config\n", "userDataSecretRef": secret("s", "k")}, map[string]any{}, map[string]any{"unknown": "a"}, "#cloud-config",
	})
}

// machineWaits are what the schema cannot tell: it knows neither KubeVirt's fields, which an
// overlay can set, nor how a name looks in the guest, nor the arithmetic of addresses.
var machineWaits = []difference{
	{refusal: regexp.MustCompile(`^overlay`), why: "overlay that the agent refuses", reason: v1alpha1.ReasonSpecInvalid, applies: hasOverlay},
	{refusal: regexp.MustCompile(`.`), why: "overlay that KubeVirt refuses", reason: v1alpha1.ReasonMachineRefused, applies: hasOverlay},
	{refusal: regexp.MustCompile(`would both be named`), why: "users with one name in the guest", reason: v1alpha1.ReasonSpecInvalid},
	{refusal: regexp.MustCompile(`is the broadcast address`), why: "broadcast address", reason: v1alpha1.ReasonSpecInvalid},
	{refusal: regexp.MustCompile(`has address \S+ twice|both have ipAddress|no address of that family|the interface's own address`), why: "addresses that contradict each other", reason: v1alpha1.ReasonSpecInvalid},
}

// stricterMachines are the rules of a machine's spec that KubeVirt's webhooks do not have.
var stricterMachines = []difference{
	{refusal: regexp.MustCompile(`metadata.name must have at most 63`), why: "KubeVirt starts no instance with such a name"},
	{refusal: regexp.MustCompile(`cpu must be|resources.cpu in body`), why: "it would be rounded"},
	{refusal: regexp.MustCompile(`(memory|[sS]ize) must be|resources.memory is required`), why: "no guest has this size"},
	{refusal: regexp.MustCompile(`instancetype excludes|unknown field|storageClass is for blank disks|imageMode CreateIfNotExist needs`), why: "it would be ignored in silence"},
	{refusal: regexp.MustCompile(`kind must be|Unsupported value`), why: "there is no such kind or mode"},
	{refusal: regexp.MustCompile(`(ipAddress|gateway|macAddress) must be`), why: "no host has this address"},
	{refusal: regexp.MustCompile(`Too (long|many)|in body should be (less|greater)`), why: "objects are bounded"},
	{refusal: regexp.MustCompile(`must be (that|the name) of|must not be empty|Required value`), why: "it names nothing"},
	{refusal: regexp.MustCompile(`set only one of`), why: "it says two things"},
}

func hasOverlay(object *unstructured.Unstructured) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "overlay")
	return found
}

func TestCorpusOfMachines(t *testing.T) {
	t.Parallel()
	c := newMachineCorpus(t)
	c.submit, c.waitReason, c.waits, c.stricter = submitMachine, machineWaitReason, machineWaits, stricterMachines
	createInstancetype(t)
	c.compare(t, env.CreateNamespace(t), 300)
}

// createInstancetype creates the one that the cases name.
func createInstancetype(t *testing.T) {
	t.Helper()
	small := &instancetypev1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
		CPU: instancetypev1beta1.CPUInstancetype{Guest: 1}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("1Gi")},
	}}
	env.Create(t, small)
	t.Cleanup(func() { assert.NoError(t, env.Client().Delete(context.Background(), small)) })
}

// specInvalidError is the agent's own sentence about a spec.
type specInvalidError struct{ message string }

func (e *specInvalidError) Error() string { return e.message }

func machineWaitReason(err error) v1alpha1.Reason {
	var invalid *specInvalidError
	switch {
	case errors.As(err, &invalid):
		return v1alpha1.ReasonSpecInvalid
	case vm.IsRefused(err):
		return v1alpha1.ReasonMachineRefused
	default:
		return ""
	}
}

// submitMachine sends the image, root disk, Secret and KubeVirt VirtualMachine that the agent
// decides on for a machine.
func submitMachine(t *testing.T, _ string, object *unstructured.Unstructured) error {
	obj := &v1alpha1.VirtualMachine{}
	if err := decode(object, obj); err != nil {
		return err
	}
	if obj.UID == "" {
		obj.UID = "of-a-refused-machine"
	}
	if err := checkMachineNames(obj); err != nil {
		return err
	}
	obj.Spec.VMDiskImageRef.Namespace = obj.Namespace
	view := vm.View{Now: time.Unix(1e9, 0), VM: obj, CDIServed: true, KubeVirtServed: true, Live: true, Inputs: secretInputs(obj), Disks: map[string]vm.DiskView{}}
	if created := vm.Decide(view).CreateImage; created != nil {
		if err := env.Client().Create(t.Context(), created, client.DryRunAll); err != nil {
			return err
		}
		if err := submitDataVolume(t, created); err != nil {
			return err
		}
	}
	view.DiskView, obj.Status.Pinned = acquired(obj, obj.Spec.VMDiskImageRef.Name)
	for i := range obj.Spec.Disks {
		disk := &obj.Spec.Disks[i]
		status := v1alpha1.DataDisk{Name: disk.Name}
		if disk.Image != nil {
			disk.Image.Namespace = obj.Namespace
			view.Disks[disk.Name], status.Pinned = acquired(obj, disk.Image.Name)
		}
		obj.Status.Disks = append(obj.Status.Disks, status)
	}
	decision := vm.Decide(view)
	if len(decision.CreateDisks) == 0 && len(obj.Spec.Disks) > 0 { // what is requested is stored first
		obj.Status.Disks = decision.Status.Disks
		decision = vm.Decide(view)
	}
	if decision.Status.Reason == v1alpha1.ReasonSpecInvalid {
		return &specInvalidError{decision.Status.Message}
	}
	if obj.Spec.IgnoreOnDeploy {
		return nil
	}
	require.NotEmpty(t, decision.CreateDisks, "%+v", decision.Status)
	for _, disk := range decision.CreateDisks {
		if err := env.Client().Create(t.Context(), disk.DataVolume.DeepCopy(), client.DryRunAll); err != nil {
			return err
		}
		disk.Status.Phase = cdiv1.Succeeded
		if disk.Disk == "" {
			view.DataVolume = disk.DataVolume
			continue
		}
		data := view.Disks[disk.Disk]
		data.DataVolume = disk.DataVolume
		view.Disks[disk.Disk] = data
	}
	decision = vm.Decide(view)
	require.NotNil(t, decision.ApplyKubeVirtVM, "%+v", decision.Status)
	if err := env.Client().Create(t.Context(), decision.ApplySecret, client.DryRunAll); err != nil {
		return err
	}
	return env.Client().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(decision.ApplyKubeVirtVM), client.FieldOwner("corpus"), client.ForceOwnership, client.DryRunAll)
}

func checkMachineNames(obj *v1alpha1.VirtualMachine) error {
	names := map[string]string{"VMDiskImage": obj.Spec.VMDiskImageRef.Name}
	keys := map[string]string{}
	if m := obj.Spec.Instancetype; m != nil {
		names["instancetype"] = m.Name
	}
	if m := obj.Spec.Preference; m != nil {
		names["preference"] = m.Name
	}
	for _, u := range obj.Spec.Users {
		if ref := u.PasswordSecretRef; ref != nil {
			names["Secret of "+u.Name], keys["Secret of "+u.Name] = ref.Name, ref.Key
		}
	}
	if init := obj.Spec.CloudInit; init != nil && init.UserDataSecretRef != nil {
		names["Secret of cloudInit"], keys["Secret of cloudInit"] = init.UserDataSecretRef.Name, init.UserDataSecretRef.Key
	}
	namespaces := []string{obj.Spec.VMDiskImageRef.Namespace}
	for _, disk := range obj.Spec.Disks {
		if disk.Name == "" {
			return fmt.Errorf("%w: a disk has none", errImpossibleName)
		}
		names["StorageClass of disk "+disk.Name] = disk.StorageClass
		if disk.Image != nil {
			names["VMDiskImage of disk "+disk.Name] = disk.Image.Name
			namespaces = append(namespaces, disk.Image.Namespace)
		}
	}
	for i, nic := range obj.Spec.Interfaces {
		namespace, name, found := strings.Cut(nic.Network, "/")
		if !found {
			namespace, name = "", namespace
		}
		names[fmt.Sprintf("network %d", i)] = name
		namespaces = append(namespaces, namespace)
	}
	for _, namespace := range namespaces {
		if problems := validation.ValidateNamespaceName(namespace, false); namespace != "" && len(problems) > 0 {
			return fmt.Errorf("%w: namespace %q: %s", errImpossibleName, namespace, problems[0])
		}
	}
	for of, key := range keys {
		if problems := utilvalidation.IsConfigMapKey(key); len(problems) > 0 {
			return fmt.Errorf("%w: key %q of the %s: %s", errImpossibleName, key, of, problems[0])
		}
	}
	return checkNames(names)
}

// secretInputs are what the Secrets hold that a machine names.
func secretInputs(obj *v1alpha1.VirtualMachine) cloudinit.Inputs {
	in := cloudinit.Inputs{ClusterUID: "cluster", Passwords: map[string]string{}, UserData: []byte("#cloud-config\n")}
	for _, u := range obj.Spec.Users {
		in.Passwords[u.Name] = "password"
	}
	return in
}

// acquired returns a disk whose image of that name is ready and acquired, and its pin.
func acquired(obj *v1alpha1.VirtualMachine, name string) (vm.DiskView, *v1alpha1.PinnedImage) {
	size := resource.MustParse("1Gi")
	img := &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: name, UID: "image"},
		Spec:       v1alpha1.VMDiskImageSpec{Name: "image", SourceType: v1alpha1.SourceHTTP, URL: imageURL, DiskSize: size},
		Status: v1alpha1.VMDiskImageStatus{
			Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady,
			Serving: &v1alpha1.Serving{Revision: "rev", Attempt: 1, PersistentVolumeClaim: "image-1", DiskSize: &size},
		},
	}
	return vm.DiskView{Image: img, Pinned: img, SourceExists: true}, &v1alpha1.PinnedImage{
		ImageKey: v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID},
		Revision: "rev", Attempt: 1, PersistentVolumeClaim: "image-1", DiskSize: &size, AcquiredAt: ptr.To(metav1.NewTime(time.Unix(1e9, 0))),
	}
}
