package kubevirt

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// VirtualMachineGVK is KubeVirt's VirtualMachine.
var VirtualMachineGVK = kubevirtv1.VirtualMachineGroupVersionKind

// Names of the agent's items in a KubeVirt VirtualMachine, which overlays refer to. Those of
// spec.disks have the names of the disks.
// Interfaces and their networks are net0, net1 and so on; without spec.interfaces there is
// PodNetwork.
const (
	RootVolume      = "root"
	CloudInitVolume = "cloudinit"
	PodNetwork      = "default"
)

// BuildVirtualMachine returns the fields that the agent owns of a machine's KubeVirt
// VirtualMachine, for server-side apply. An error is for the author of the VirtualMachine:
// its overlay is invalid.
func BuildVirtualMachine(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) (*unstructured.Unstructured, error) {
	overlay, err := decodeOverlay(vm)
	if err != nil {
		return nil, err
	}
	typed := kubevirtv1.VirtualMachine{ObjectMeta: ownedObjectMeta(vm, vm.Name), Spec: buildSpec(vm, cfg)}
	addVersionLabels(typed.Labels, vm)
	typed.Spec.Template.ObjectMeta.Labels = typed.Labels
	typed.SetGroupVersionKind(VirtualMachineGVK)
	content, err := toUnstructuredContent(typed)
	if err != nil {
		return nil, fmt.Errorf("encoding KubeVirt VirtualMachine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	if content, err = applyOverlay(content, overlay); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	appliedDigest, specDigest, err := computeDigests(u, vm, overlay)
	if err != nil {
		return nil, fmt.Errorf("encoding KubeVirt VirtualMachine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	annotations := map[string]string{
		v1alpha1.AnnotationAppliedDigest: appliedDigest, v1alpha1.AnnotationAppliedSpec: specDigest, v1alpha1.AnnotationAppliedGuest: cfg.Digest,
	}
	if names := matcherNames(vm); names != "" {
		annotations[v1alpha1.AnnotationAppliedInstancetype] = names
	}
	if names := overlayItemNames(u); names != "" {
		annotations[v1alpha1.AnnotationOverlaid] = names
	}
	u.SetAnnotations(annotations)
	return u, nil
}

// toUnstructuredContent converts by way of JSON: runtime's converter keeps unsigned
// numbers, which an Unstructured cannot hold. It drops the empty objects that the types
// always encode, so that the agent does not own them.
func toUnstructuredContent(typed kubevirtv1.VirtualMachine) (map[string]any, error) {
	text, err := json.Marshal(typed)
	if err != nil {
		return nil, err
	}
	var content map[string]any
	if err := utiljson.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(content, "status")
	domain := []string{"spec", "template", "spec", "domain", "resources"}
	if resources, found, _ := unstructured.NestedMap(content, domain...); found && len(resources) == 0 {
		unstructured.RemoveNestedField(content, domain...)
	}
	return content, nil
}

// RequestedArchitecture returns the architecture that a machine asks for: that of its overlay,
// which is merged over the rest, else its own; empty for none.
func RequestedArchitecture(vm *v1alpha1.VirtualMachine) v1alpha1.Architecture {
	if overlay, err := decodeOverlay(vm); err == nil {
		if architecture, _, _ := unstructured.NestedString(overlay, "template", "spec", "architecture"); architecture != "" {
			return v1alpha1.Architecture(architecture)
		}
	}
	return vm.Spec.Architecture
}

// matcherNames returns what AnnotationAppliedInstancetype says. Kinds are part of it: an
// instancetype of the namespace may have the name of one of the cluster.
func matcherNames(vm *v1alpha1.VirtualMachine) string {
	if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return ""
	}
	name := func(m *v1alpha1.Matcher) string {
		if m == nil {
			return ""
		}
		return strings.TrimPrefix(m.Kind+"/"+m.Name, "/")
	}
	return name(vm.Spec.Instancetype) + "," + name(vm.Spec.Preference)
}

// DropExpandedMatchers leaves instancetype and preference out of what is applied where
// KubeVirt has put their values into live in their place, once (its
// instancetype.referencePolicy is expand or expandAll, KubeVirt 1.8). An instancetype that
// is applied again is refused because of these values, and a preference is expanded again
// each time. Those that the author has named since are applied, and may be refused.
func DropExpandedMatchers(desired, live *unstructured.Unstructured) {
	// An earlier release applied them without the annotation.
	recorded := v1alpha1.AnnotationAppliedSpec
	if _, ok := live.GetAnnotations()[v1alpha1.AnnotationAppliedInstancetype]; ok {
		recorded = v1alpha1.AnnotationAppliedInstancetype
	}
	if live.GetAnnotations()[recorded] != desired.GetAnnotations()[recorded] {
		return
	}
	for _, matcher := range []string{"instancetype", "preference"} {
		if _, has, _ := unstructured.NestedMap(live.Object, "spec", matcher); has {
			return
		}
	}
	if _, wanted, _ := unstructured.NestedMap(desired.Object, "spec", "instancetype"); wanted && !hasCPU(live) {
		return // somebody has removed it
	}
	unstructured.RemoveNestedField(desired.Object, "spec", "instancetype")
	unstructured.RemoveNestedField(desired.Object, "spec", "preference")
}

func hasCPU(vm *unstructured.Unstructured) bool {
	_, has, _ := unstructured.NestedMap(vm.Object, "spec", "template", "spec", "domain", "cpu")
	return has
}

func addVersionLabels(labels map[string]string, vm *v1alpha1.VirtualMachine) {
	for label, value := range map[string]string{
		v1alpha1.LabelBaseVM: vm.Spec.BaseVM, v1alpha1.LabelBaseVMVersion: vm.Spec.BaseVMVersion, v1alpha1.LabelVersion: vm.Spec.Version,
	} {
		if value != "" {
			labels[label] = value
		}
	}
}

func buildSpec(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) kubevirtv1.VirtualMachineSpec {
	spec := kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}}
	if vm.Spec.RunStrategy != "" {
		spec.RunStrategy = ptr.To(kubevirtv1.VirtualMachineRunStrategy(vm.Spec.RunStrategy))
	}
	if m := vm.Spec.Instancetype; m != nil {
		spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Name: m.Name, Kind: m.Kind}
	}
	if m := vm.Spec.Preference; m != nil {
		spec.Preference = &kubevirtv1.PreferenceMatcher{Name: m.Name, Kind: m.Kind}
	}
	instance := &spec.Template.Spec
	instance.Architecture = string(vm.Spec.Architecture)
	instance.Hostname = cfg.Hostname
	instance.Domain.CPU, instance.Domain.Memory = cpuAndMemory(vm)
	instance.Domain.Devices.Disks, instance.Volumes = buildDisks(vm, cfg)
	instance.Domain.Devices.Interfaces, instance.Networks = buildInterfaces(vm, cfg)
	return spec
}

// cpuAndMemory returns nil with an instancetype: KubeVirt refuses both together.
func cpuAndMemory(vm *v1alpha1.VirtualMachine) (*kubevirtv1.CPU, *kubevirtv1.Memory) {
	if vm.Spec.Instancetype != nil {
		return nil, nil
	}
	cpu := &kubevirtv1.CPU{Cores: 1}
	if vm.Spec.Resources == nil {
		return cpu, nil
	}
	if cores := vm.Spec.Resources.CPU; cores != nil {
		cpu.Cores = uint32(cores.Value())
	}
	if vm.Spec.Resources.Memory == nil {
		return cpu, nil
	}
	return cpu, &kubevirtv1.Memory{Guest: ptr.To(vm.Spec.Resources.Memory.DeepCopy())}
}

func buildDisks(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) ([]kubevirtv1.Disk, []kubevirtv1.Volume) {
	// KubeVirt uses the bus of a preference only where the disk names none.
	bus := kubevirtv1.DiskBusVirtio
	if vm.Spec.Preference != nil {
		bus = ""
	}
	disk := func(name string, bootOrder *uint) kubevirtv1.Disk {
		return kubevirtv1.Disk{Name: name, BootOrder: bootOrder, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: bus}}}
	}
	source := &kubevirtv1.CloudInitNoCloudSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: cloudinit.SecretName(vm)}}
	if cfg.NetworkData != nil {
		source.NetworkDataSecretRef = source.UserDataSecretRef
	}
	disks := []kubevirtv1.Disk{disk(RootVolume, ptr.To[uint](1)), disk(CloudInitVolume, nil)}
	volumes := []kubevirtv1.Volume{
		{Name: RootVolume, VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: RootDiskName(vm)}}},
		{Name: CloudInitVolume, VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: source}},
	}
	for i := range vm.Spec.Disks {
		spec := &vm.Spec.Disks[i]
		data := disk(spec.Name, nil)
		data.Serial = spec.Name
		if spec.Bus != "" {
			data.Disk.Bus = kubevirtv1.DiskBus(spec.Bus)
		}
		disks = append(disks, data)
		volumes = append(volumes, kubevirtv1.Volume{
			Name: spec.Name, VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: DataDiskName(vm, spec.Name)}},
		})
	}
	return disks, volumes
}

func buildInterfaces(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) (nics []kubevirtv1.Interface, networks []kubevirtv1.Network) {
	if len(vm.Spec.Interfaces) == 0 {
		nic := kubevirtv1.DefaultMasqueradeNetworkInterface()
		nic.MacAddress = podNetworkMAC(vm, cfg)
		return []kubevirtv1.Interface{*nic}, []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	}
	for i, spec := range vm.Spec.Interfaces {
		name := "net" + strconv.Itoa(i)
		nics = append(nics, kubevirtv1.Interface{
			Name: name, MacAddress: cfg.MACs[i],
			InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}},
		})
		networks = append(networks, kubevirtv1.Network{
			Name: name, NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: spec.Network}},
		})
	}
	return nics, networks
}

// podNetworkMAC returns the address of the interface on the Pod network; empty with
// spec.interfaces. Without one, each start would have another.
func podNetworkMAC(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) string {
	if len(vm.Spec.Interfaces) > 0 || len(cfg.MACs) == 0 {
		return ""
	}
	return cfg.MACs[0]
}

// computeDigests returns the digest of what is applied and of the part of the author's
// spec that it is built from. Both leave out the run strategy, so that it can change while
// an instance runs, and what only cloud-init reads.
func computeDigests(u *unstructured.Unstructured, vm *v1alpha1.VirtualMachine, overlay map[string]any) (applied, spec string, err error) {
	content, _ := u.Object["spec"].(map[string]any)
	content = maps.Clone(content)
	delete(content, "runStrategy")
	if applied, err = hashJSON(map[string]any{"labels": u.GetLabels(), "spec": content}); err != nil {
		return "", "", err
	}
	covered := v1alpha1.VirtualMachineSpec{
		BaseVM: vm.Spec.BaseVM, BaseVMVersion: vm.Spec.BaseVMVersion, Version: vm.Spec.Version, Name: vm.Spec.Name,
		Instancetype: vm.Spec.Instancetype, Preference: vm.Spec.Preference, Architecture: vm.Spec.Architecture,
	}
	if r := vm.Spec.Resources; r != nil && (r.CPU != nil || r.Memory != nil) {
		covered.Resources = &v1alpha1.MachineResources{CPU: r.CPU, Memory: r.Memory}
	}
	for _, nic := range vm.Spec.Interfaces {
		covered.Interfaces = append(covered.Interfaces, v1alpha1.Interface{Network: nic.Network, MACAddress: nic.MACAddress})
	}
	for i := range vm.Spec.Disks {
		covered.Disks = append(covered.Disks, v1alpha1.Disk{Name: vm.Spec.Disks[i].Name, Bus: vm.Spec.Disks[i].Bus})
	}
	if len(overlay) == 0 {
		overlay = nil // an empty overlay has the digest of none
	}
	spec, err = hashJSON(map[string]any{"spec": covered, "overlay": overlay})
	return applied, spec, err
}

func hashJSON(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}
