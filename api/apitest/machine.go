package apitest

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// MachineBuilder builds a VirtualMachine.
type MachineBuilder struct{ vm v1alpha1.VirtualMachine }

// VirtualMachine of one core and 1Gi, whose image is "golden" of its namespace.
func VirtualMachine(namespace, name string) *MachineBuilder {
	b := &MachineBuilder{v1alpha1.VirtualMachine{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine"},
		ObjectMeta: newObjectMeta(namespace + "/" + name),
	}}
	b.vm.UID = "vm-" + b.vm.UID
	b.vm.Spec.VMDiskImageRef.Name = "golden"
	return b.WithResources("1", "1Gi", "")
}

// Obj returns the machine; the builder can be used further.
func (b *MachineBuilder) Obj() *v1alpha1.VirtualMachine { return b.vm.DeepCopy() }

// WithUID sets the UID.
func (b *MachineBuilder) WithUID(uid types.UID) *MachineBuilder { b.vm.UID = uid; return b }

// WithGeneration sets the generation.
func (b *MachineBuilder) WithGeneration(n int64) *MachineBuilder { b.vm.Generation = n; return b }

// WithResources sets what is not empty.
func (b *MachineBuilder) WithResources(cpu, memory, disk string) *MachineBuilder {
	b.vm.Spec.Resources = &v1alpha1.MachineResources{CPU: quantity(cpu), Memory: quantity(memory), DiskSize: quantity(disk)}
	return b
}

func quantity(text string) *resource.Quantity {
	if text == "" {
		return nil
	}
	q := resource.MustParse(text)
	return &q
}

// WithMatchers names an instancetype and a preference, which may be empty, in the place of resources.
func (b *MachineBuilder) WithMatchers(instancetype, preference string) *MachineBuilder {
	if b.vm.Spec.Resources = nil; instancetype != "" {
		b.vm.Spec.Instancetype = &v1alpha1.Matcher{Name: instancetype}
	}
	if preference != "" {
		b.vm.Spec.Preference = &v1alpha1.Matcher{Name: preference}
	}
	return b
}

// WithImage names the image; no namespace is the machine's own.
func (b *MachineBuilder) WithImage(namespace, name string) *MachineBuilder {
	b.vm.Spec.VMDiskImageRef = v1alpha1.ImageReference{Namespace: namespace, Name: name}
	return b
}

// WithTemplate sets what the image is made from.
func (b *MachineBuilder) WithTemplate(spec v1alpha1.VMDiskImageSpec) *MachineBuilder {
	b.vm.Spec.VMDiskImageTemplate = &spec
	return b
}

// WithImageMode sets what is done where the image is not there.
func (b *MachineBuilder) WithImageMode(m v1alpha1.ImageMode) *MachineBuilder {
	b.vm.Spec.ImageMode = m
	return b
}

// IgnoredOnDeploy sets ignoreOnDeploy.
func (b *MachineBuilder) IgnoredOnDeploy() *MachineBuilder {
	b.vm.Spec.IgnoreOnDeploy = true
	return b
}

// WithHostname sets spec.name.
func (b *MachineBuilder) WithHostname(name string) *MachineBuilder { b.vm.Spec.Name = name; return b }

// WithUsers sets the users.
func (b *MachineBuilder) WithUsers(users ...v1alpha1.User) *MachineBuilder {
	b.vm.Spec.Users = users
	return b
}

// WithInterfaces sets the interfaces.
func (b *MachineBuilder) WithInterfaces(interfaces ...v1alpha1.Interface) *MachineBuilder {
	b.vm.Spec.Interfaces = interfaces
	return b
}

// WithRunStrategy sets the run strategy.
func (b *MachineBuilder) WithRunStrategy(s v1alpha1.RunStrategy) *MachineBuilder {
	b.vm.Spec.RunStrategy = s
	return b
}

// WithUserData sets the author's own user data.
func (b *MachineBuilder) WithUserData(text string) *MachineBuilder {
	b.vm.Spec.CloudInit = &v1alpha1.CloudInit{UserData: text}
	return b
}

// WithOverlay sets the overlay, which is JSON.
func (b *MachineBuilder) WithOverlay(json string) *MachineBuilder {
	b.vm.Spec.Overlay = &runtime.RawExtension{Raw: []byte(json)}
	return b
}

// WithPin sets what the machine is cloned from.
func (b *MachineBuilder) WithPin(pin v1alpha1.PinnedImage) *MachineBuilder {
	b.vm.Status.Pinned = &pin
	return b
}

// WithStatus sets the status.
func (b *MachineBuilder) WithStatus(st v1alpha1.VirtualMachineStatus) *MachineBuilder {
	b.vm.Status = st
	return b
}
