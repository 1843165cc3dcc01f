package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ImageReference names a VMDiskImage.
type ImageReference struct {
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must be that of a VMDiskImage: up to 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// namespace of the image. Default: the VM's namespace.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="namespace must be that of a VMDiskImage: up to 63 lower case letters, digits and '-', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// Disk beside the root disk: a clone of an image, or a blank one.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.size)",message="a disk without an image is blank and needs a size"
// +kubebuilder:validation:XValidation:rule="!has(self.image) || !has(self.storageClass)",message="storageClass is for blank disks: a clone has that of its image"
type Disk struct {
	// name of the disk and of its volume in the KubeVirt VirtualMachine. It is the disk's
	// serial number: with bus virtio the guest has /dev/disk/by-id/virtio- and up to 20
	// characters of it.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="name must have up to 63 lower case letters, digits and '-', with a letter or digit at both ends"
	// +kubebuilder:validation:XValidation:rule="!(self in ['root', 'cloudinit'])",message="root and cloudinit are the VM's own disks: give the disk another name"
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// image that the disk is cloned from. Default: the disk is blank. A change applies only
	// before the disk is created.
	// +optional
	Image *ImageReference `json:"image,omitempty"`
	// size of the disk, from 1Mi to 64Ti; required for a blank one. If it is smaller than
	// the image, the disk gets the size of the image. Default: the size of the image.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="size must be a quantity such as 24Gi (use Mi, Gi or Ti, not GB or GiB)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (!quantity(string(self)).isLessThan(quantity('1Mi')) && !quantity(string(self)).isGreaterThan(quantity('64Ti')))",message="size must be from 1Mi to 64Ti: is the unit missing, as in 24Gi?"
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// storageClass of a blank disk. Default: the cluster's.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="storageClass must be the name of a StorageClass: up to 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StorageClass string `json:"storageClass,omitempty"`
	// bus of the disk. Default: virtio, or that of the preference.
	// +kubebuilder:validation:Enum=virtio;scsi;sata;usb
	// +optional
	Bus string `json:"bus,omitempty"`
}

// PinnedImage is what a disk is cloned from. It is stored before the image is
// read again, so that whoever deletes the image or a revision sees it. Invariant:
// pinned images, revisions and snapshots are kept while the VirtualMachine exists.
type PinnedImage struct {
	ImageKey `json:",inline"`
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// +required
	Attempt int32 `json:"attempt"`
	// sourceNamespace of claim and snapshot, as in namespace of the image's status.serving.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	SourceNamespace string `json:"sourceNamespace,omitempty"`
	// +required
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
	// architecture of the image's status.serving.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`
	// volumeSnapshot to clone from, if the image has one.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// diskSize of the image's status.serving.
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
	// restoreSize of the image's status.serving.
	// +optional
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
	// acquiredAt is when a live read after storing the pin showed that the image serves
	// what is pinned. Nothing is cloned before.
	// +optional
	AcquiredAt *metav1.Time `json:"acquiredAt,omitempty"`
}

// DiskVolume is the volume of a disk.
type DiskVolume struct {
	// dataVolume is the name of the DataVolume and its PersistentVolumeClaim.
	// +required
	DataVolume string `json:"dataVolume"`
	// size as the guest sees it; the volume can be larger.
	// +required
	Size resource.Quantity `json:"size"`
	// progress of the clone, as CDI reports it.
	// +optional
	Progress string `json:"progress,omitempty"`
	// ready: the disk is complete, and the guest may have written to it.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// claimUID is that of the PersistentVolumeClaim of a data disk that is ready. Another claim
	// of the name is without what the guest has written.
	// +optional
	ClaimUID types.UID `json:"claimUID,omitempty"`
	// dataVolumeUID is that of the DataVolume of that claim; empty where it had none.
	// +optional
	DataVolumeUID types.UID `json:"dataVolumeUID,omitempty"`
}

// DataDisk is the state of a disk beside the root disk.
type DataDisk struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// pinned is what the disk is cloned from; absent for a blank disk.
	// +optional
	Pinned *PinnedImage `json:"pinned,omitempty"`
	// volume of the disk, once it is requested.
	// +optional
	Volume *DiskVolume `json:"volume,omitempty"`
	// removed: spec.disks no longer has the disk. It is kept until the VM or its DataVolume
	// is deleted, and attached again when spec.disks has its name.
	// +optional
	Removed bool `json:"removed,omitempty"`
}

// ImageNamespacedName returns the image that the VM's root disk is cloned from.
func (vm *VirtualMachine) ImageNamespacedName() types.NamespacedName {
	return vm.Spec.VMDiskImageRef.namespacedName(vm.Namespace)
}

// DiskImage returns the image of a disk; false for a blank disk.
func (vm *VirtualMachine) DiskImage(disk *Disk) (types.NamespacedName, bool) {
	if disk.Image == nil {
		return types.NamespacedName{}, false
	}
	return disk.Image.namespacedName(vm.Namespace), true
}

func (r ImageReference) namespacedName(defaultNamespace string) types.NamespacedName {
	name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
	if name.Namespace == "" {
		name.Namespace = defaultNamespace
	}
	return name
}

// NamedImages returns the images that the spec names, the root disk's first, each once.
func (vm *VirtualMachine) NamedImages() []types.NamespacedName {
	named := []types.NamespacedName{vm.ImageNamespacedName()}
	for i := range vm.Spec.Disks {
		if name, ok := vm.DiskImage(&vm.Spec.Disks[i]); ok && !slices.Contains(named, name) {
			named = append(named, name)
		}
	}
	return named
}

// Pins returns what the disks are cloned from, the root disk first.
func (vm *VirtualMachine) Pins() []*PinnedImage {
	var pins []*PinnedImage
	if vm.Status.Pinned != nil {
		pins = append(pins, vm.Status.Pinned)
	}
	for i := range vm.Status.Disks {
		if p := vm.Status.Disks[i].Pinned; p != nil {
			pins = append(pins, p)
		}
	}
	return pins
}
