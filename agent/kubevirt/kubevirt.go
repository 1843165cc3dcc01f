package kubevirt

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// VirtualMachineKind is BuildVirtualMachine's VirtualMachine.
var VirtualMachineKind = kubevirtv1.VirtualMachineGroupVersionKind

// Names inside a machine, for who writes an overlay. Interfaces and their
// networks are net0, net1 and so on; the one of the Pod is PodNetwork.
const (
	RootVolume      = "root"
	CloudInitVolume = "cloudinit"
	PodNetwork      = "default"
)

// BuildVirtualMachine is what is applied as a machine's BuildVirtualMachine VirtualMachine: what the
// agent owns of it and nothing else. An error is for the author of the
// VirtualMachine: the overlay does not do.
func BuildVirtualMachine(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) (*unstructured.Unstructured, error) {
	typed := kubevirtv1.VirtualMachine{ObjectMeta: ownedObjectMeta(vm, vm.Name), Spec: buildSpec(vm, cfg)}
	addVersionLabels(typed.Labels, vm)
	typed.Spec.Template.ObjectMeta.Labels = typed.Labels
	typed.SetGroupVersionKind(VirtualMachineKind)
	content, err := toUnstructuredContent(typed)
	if err != nil {
		return nil, fmt.Errorf("encoding KubeVirt VirtualMachine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	if content, err = applyOverlay(content, vm.Spec.Overlay); err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	rendered, asked, err := computeDigests(u, vm)
	if err != nil {
		return nil, fmt.Errorf("encoding KubeVirt VirtualMachine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	annotations := map[string]string{
		v1alpha1.AnnotationAppliedDigest: rendered, v1alpha1.AnnotationAppliedSpec: asked, v1alpha1.AnnotationAppliedGuest: cfg.Digest,
	}
	if names := overlayItemNames(u); names != "" {
		annotations[v1alpha1.AnnotationOverlaid] = names
	}
	u.SetAnnotations(annotations)
	return u, nil
}

// toUnstructuredContent goes by way of JSON: the converter of runtime keeps unsigned numbers,
// which an Unstructured cannot hold. What is written though it is empty is not
// the agent's.
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
	instance.Hostname = cfg.Hostname
	instance.Domain.CPU, instance.Domain.Memory = cpuAndMemory(vm)
	instance.Domain.Devices.Disks, instance.Volumes = buildDisks(vm, cfg)
	instance.Domain.Devices.Interfaces, instance.Networks = buildInterfaces(vm, cfg)
	return spec
}

// cpuAndMemory is left to the instancetype where there is one: BuildVirtualMachine refuses both.
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
	// A preference's bus is taken where the disk names none.
	bus := kubevirtv1.DiskBusVirtio
	if vm.Spec.Preference != nil {
		bus = ""
	}
	disk := func(name string, order *uint) kubevirtv1.Disk {
		return kubevirtv1.Disk{Name: name, BootOrder: order, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: bus}}}
	}
	source := &kubevirtv1.CloudInitNoCloudSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: cloudinit.SecretName(vm)}}
	if cfg.NetworkData != nil {
		source.NetworkDataSecretRef = source.UserDataSecretRef
	}
	return []kubevirtv1.Disk{disk(RootVolume, ptr.To[uint](1)), disk(CloudInitVolume, nil)}, []kubevirtv1.Volume{
		{Name: RootVolume, VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: RootDiskName(vm)}}},
		{Name: CloudInitVolume, VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: source}},
	}
}

func buildInterfaces(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) (nics []kubevirtv1.Interface, networks []kubevirtv1.Network) {
	if len(vm.Spec.Interfaces) == 0 {
		return []kubevirtv1.Interface{*kubevirtv1.DefaultMasqueradeNetworkInterface()}, []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
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

// computeDigests are of what an instance is made of, and of what the author has asked
// for that it is made of. Whether one is to run is no part of either, so that it
// can be changed while one runs; nor is what the guest alone is told.
func computeDigests(u *unstructured.Unstructured, vm *v1alpha1.VirtualMachine) (rendered, asked string, err error) {
	spec, _ := u.Object["spec"].(map[string]any)
	spec = maps.Clone(spec)
	delete(spec, "runStrategy")
	if rendered, err = hashJSON(map[string]any{"labels": u.GetLabels(), "spec": spec}); err != nil {
		return "", "", err
	}
	of := v1alpha1.VirtualMachineSpec{
		BaseVM: vm.Spec.BaseVM, BaseVMVersion: vm.Spec.BaseVMVersion, Version: vm.Spec.Version, Name: vm.Spec.Name,
		Instancetype: vm.Spec.Instancetype, Preference: vm.Spec.Preference,
	}
	if r := vm.Spec.Resources; r != nil && (r.CPU != nil || r.Memory != nil) {
		of.Resources = &v1alpha1.MachineResources{CPU: r.CPU, Memory: r.Memory}
	}
	for _, nic := range vm.Spec.Interfaces {
		of.Interfaces = append(of.Interfaces, v1alpha1.Interface{Network: nic.Network, MACAddress: nic.MACAddress})
	}
	var overlay map[string]any
	if raw := vm.Spec.Overlay; raw != nil && len(raw.Raw) > 0 {
		if err = utiljson.Unmarshal(raw.Raw, &overlay); err != nil {
			return "", "", err
		}
	}
	if len(overlay) == 0 {
		overlay = nil // as if it were not there
	}
	asked, err = hashJSON(map[string]any{"spec": of, "overlay": overlay})
	return rendered, asked, err
}

func hashJSON(of any) (string, error) {
	text, err := json.Marshal(of)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}
