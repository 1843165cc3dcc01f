package kubevirt

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxDiskNameLength leaves room within 63 characters for what CDI and Kubernetes append
// to the name in labels.
const maxDiskNameLength = 53

// Suffixes of the names of disks, which admission policies know them by.
const (
	rootDiskSuffix = "-root"
	dataDiskSuffix = "-disk"
)

// RootDiskName returns the name of a machine's root disk. It depends on the name of the
// machine only.
func RootDiskName(vm *v1alpha1.VirtualMachine) string {
	name := strings.ReplaceAll(vm.Name, ".", "-")
	if name == vm.Name && len(name)+len(rootDiskSuffix) <= maxDiskNameLength {
		return name + rootDiskSuffix
	}
	return hashedName(name, vm.Name, rootDiskSuffix)
}

// DataDiskName returns the name of a machine's data disk. It depends on the names of the
// machine and of the disk only, and is the name of no other machine's disk.
func DataDiskName(vm *v1alpha1.VirtualMachine, disk string) string {
	return hashedName(strings.ReplaceAll(vm.Name, ".", "-"), vm.Name+"/"+disk, dataDiskSuffix)
}

// hashedName cuts a name so that the hash of what it stands for and a suffix fit.
func hashedName(name, hashed, suffix string) string {
	sum := sha256.Sum256([]byte(hashed))
	hash := "-" + hex.EncodeToString(sum[:])[:8]
	if limit := maxDiskNameLength - len(hash) - len(suffix); len(name) > limit {
		name = strings.TrimRight(name[:limit], "-")
	}
	return name + hash + suffix
}

// IsDiskOf reports whether an object has the name and namespace of a disk of a machine.
func IsDiskOf(o metav1.Object, machine types.NamespacedName) bool {
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: machine.Namespace, Name: machine.Name}}
	wantName := RootDiskName(vm)
	if disk := o.GetLabels()[v1alpha1.LabelDisk]; disk != "" {
		wantName = DataDiskName(vm, disk)
	}
	return o.GetNamespace() == machine.Namespace && o.GetName() == wantName
}

// dataDiskName is the form of the names of data disks.
var dataDiskName = regexp.MustCompile(`^.+-[0-9a-f]{8}` + dataDiskSuffix + `$`)

// HasDiskName reports whether an object is named as a disk of some machine is.
func HasDiskName(o metav1.Object) bool {
	name := o.GetName()
	if len(name) > maxDiskNameLength {
		return false
	}
	if o.GetLabels()[v1alpha1.LabelDisk] != "" {
		return dataDiskName.MatchString(name)
	}
	return len(name) > len(rootDiskSuffix) && strings.HasSuffix(name, rootDiskSuffix)
}

// restoreKeyPrefix is of the labels and annotations of a claim that KubeVirt (1.8) restored from a
// snapshot of a machine's disk, for that machine, another or a clone. It keeps the disk's own.
// Its name, restore-<UID>-root or <machine>-root, can look like a disk's.
const restoreKeyPrefix = "restore.kubevirt.io/"

// IsRestored reports whether KubeVirt made a disk from a snapshot of another.
func IsRestored(o metav1.Object) bool {
	for _, keys := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		for key := range keys {
			if strings.HasPrefix(key, restoreKeyPrefix) {
				return true
			}
		}
	}
	return false
}

// BuildRootDisk returns the DataVolume that clones pin, which is of img, into a disk of
// the given size. Unlike an image's DataVolume it takes no slot of the SyncLedger.
func BuildRootDisk(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage, pin v1alpha1.PinnedImage, size resource.Quantity) *cdiv1.DataVolume {
	dv := buildDisk(vm, RootDiskName(vm), size)
	cloneFrom(dv, img, pin, size)
	recordRequestedStorage(dv)
	return dv
}

// BuildDataDisk returns the DataVolume of a disk of spec.disks: a clone of pin, which is of
// img, or a blank disk where pin is nil.
func BuildDataDisk(vm *v1alpha1.VirtualMachine, disk *v1alpha1.Disk, img *v1alpha1.VMDiskImage, pin *v1alpha1.PinnedImage, size resource.Quantity) *cdiv1.DataVolume {
	dv := buildDisk(vm, DataDiskName(vm, disk.Name), size)
	dv.Labels[v1alpha1.LabelDisk] = disk.Name
	if pin != nil {
		cloneFrom(dv, img, *pin, size)
		recordRequestedStorage(dv)
		return dv
	}
	dv.Spec.Source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
	if disk.StorageClass != "" {
		dv.Spec.Storage.StorageClassName = ptr.To(disk.StorageClass)
	}
	recordRequestedStorage(dv)
	return dv
}

// RequestedStorageSeparator is between size and StorageClass in AnnotationRequestedStorage.
const RequestedStorageSeparator = "/"

// recordRequestedStorage notes what is asked for: a webhook may change the spec. A size of 0 leaves it
// to CDI.
func recordRequestedStorage(dv *cdiv1.DataVolume) {
	size := dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]
	dv.Annotations[v1alpha1.AnnotationRequestedStorage] = size.String() + RequestedStorageSeparator + ptr.Deref(dv.Spec.Storage.StorageClassName, "")
}

func buildDisk(vm *v1alpha1.VirtualMachine, name string, size resource.Quantity) *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: cdiv1.SchemeGroupVersion.String(), Kind: "DataVolume"},
		ObjectMeta: ownedObjectMeta(vm, name),
		Spec: cdiv1.DataVolumeSpec{
			ContentType: cdiv1.DataVolumeKubeVirt,
			Storage:     &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}}},
		},
	}
	dv.Annotations = map[string]string{"cdi.kubevirt.io/storage.deleteAfterCompletion": "false"}
	return dv
}

func cloneFrom(dv *cdiv1.DataVolume, img *v1alpha1.VMDiskImage, pin v1alpha1.PinnedImage, size resource.Quantity) {
	dv.Annotations[v1alpha1.AnnotationClonedFrom] = ClonedFromValue(pin)
	dv.Spec.Storage.Resources.Requests = storageRequest(size, img, pin)
	namespace := cmp.Or(pin.SourceNamespace, pin.Namespace)
	dv.Spec.Source = &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: namespace, Name: pin.PersistentVolumeClaim}}
	if pin.VolumeSnapshot != "" {
		dv.Spec.Source = &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: namespace, Name: pin.VolumeSnapshot}}
	}
	if img.Spec.StorageClass != "" {
		dv.Spec.Storage.StorageClassName = ptr.To(img.Spec.StorageClass)
	}
}

// ClonedFromValue returns the value of AnnotationClonedFrom for a disk cloned from pin.
func ClonedFromValue(pin v1alpha1.PinnedImage) string {
	source := pin.VolumeSnapshot
	if source == "" {
		source = pin.PersistentVolumeClaim
	}
	return strings.Join([]string{string(pin.UID), pin.Revision, strconv.Itoa(int(pin.Attempt)), source}, "/")
}

// RootDiskSize returns the size that the guest sees: resources.diskSize, but at least the
// size of the image. adjusted is the sentence for condition SpecAdjusted where the image
// is larger; else empty.
func RootDiskSize(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) (size resource.Quantity, adjusted string) {
	if vm.Spec.Resources == nil {
		return img.Spec.DiskSize, ""
	}
	return cloneSize("resources.diskSize", "the root disk", vm.Spec.Resources.DiskSize, img)
}

// DataDiskSize returns the size of a disk of spec.disks, as RootDiskSize does. img is nil for
// a blank disk.
func DataDiskSize(disk *v1alpha1.Disk, img *v1alpha1.VMDiskImage) (size resource.Quantity, adjusted string) {
	if img == nil {
		return ptr.Deref(disk.Size, resource.Quantity{}), ""
	}
	return cloneSize("size of disk "+disk.Name, "it", disk.Size, img)
}

func cloneSize(field, subject string, requested *resource.Quantity, img *v1alpha1.VMDiskImage) (size resource.Quantity, adjusted string) {
	minimum := img.Spec.DiskSize
	switch {
	case requested == nil:
		return minimum, ""
	case requested.Cmp(minimum) >= 0:
		return *requested, ""
	default:
		return minimum, fmt.Sprintf("%s %s is less than the size of image %s/%s: %s has %s", field, requested.String(), img.Namespace, img.Name, subject, minimum.String())
	}
}

// storageRequest returns what the DataVolume requests (CDI 1.65).
//
// For a claim it is the size of the disk: CDI adds the filesystem overhead, and without a
// request would start a Pod to find the size. For a snapshot, a disk as large as its image
// requests nothing: CDI takes the snapshot's size, which includes the overhead, and would
// add the overhead to a request again. CDI refuses to clone into less than that size.
func storageRequest(size resource.Quantity, img *v1alpha1.VMDiskImage, pin v1alpha1.PinnedImage) corev1.ResourceList {
	known := pin.RestoreSize != nil && pin.RestoreSize.Sign() > 0
	switch {
	case pin.VolumeSnapshot == "" || !known:
	case size.Cmp(img.Spec.DiskSize) <= 0 && (pin.SourceNamespace == "" || size.Cmp(*pin.RestoreSize) <= 0):
		return nil
	case size.Cmp(*pin.RestoreSize) < 0:
		size = *pin.RestoreSize
	}
	return corev1.ResourceList{corev1.ResourceStorage: size}
}

func ownedObjectMeta(vm *v1alpha1.VirtualMachine, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: vm.Namespace, Name: name,
		Labels:          map[string]string{v1alpha1.LabelMachineUID: string(vm.UID)},
		OwnerReferences: []metav1.OwnerReference{ownerReference(vm)},
	}
}
