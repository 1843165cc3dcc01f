package kubevirt

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxDiskNameLength leaves room in a label for what CDI and Kubernetes add to a name.
const maxDiskNameLength = 53

// RootDiskName is the name of a machine's root disk, the same whenever a machine
// of that name is made again.
func RootDiskName(vm *v1alpha1.VirtualMachine) string {
	const suffix = "-root"
	name := strings.ReplaceAll(vm.Name, ".", "-")
	if name == vm.Name && len(name)+len(suffix) <= maxDiskNameLength {
		return name + suffix
	}
	sum := sha256.Sum256([]byte(vm.Name))
	hash := "-" + hex.EncodeToString(sum[:])[:8]
	if most := maxDiskNameLength - len(hash) - len(suffix); len(name) > most {
		name = strings.TrimRight(name[:most], "-")
	}
	return name + hash + suffix
}

// BuildRootDisk is the DataVolume of a machine's root disk, cloned from what the
// machine has pinned. Unlike an image's it is bound by the machine that uses it
// first, and is no concern of the ledger's.
func BuildRootDisk(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage, pin v1alpha1.PinnedImage, size resource.Quantity) *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: cdiv1.SchemeGroupVersion.String(), Kind: "DataVolume"},
		ObjectMeta: ownedObjectMeta(vm, RootDiskName(vm)),
		Spec: cdiv1.DataVolumeSpec{
			Source:      &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: pin.Namespace, Name: pin.PersistentVolumeClaim}},
			ContentType: cdiv1.DataVolumeKubeVirt,
			Storage: &cdiv1.StorageSpec{
				Resources: corev1.VolumeResourceRequirements{Requests: storageRequest(size, img, pin)},
			},
		},
	}
	dv.Annotations = map[string]string{
		v1alpha1.AnnotationClonedFrom:                   ClonedFromValue(pin),
		"cdi.kubevirt.io/storage.deleteAfterCompletion": "false",
	}
	if pin.VolumeSnapshot != "" {
		dv.Spec.Source = &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: pin.Namespace, Name: pin.VolumeSnapshot}}
	}
	if img.Spec.StorageClass != "" {
		dv.Spec.Storage.StorageClassName = ptr.To(img.Spec.StorageClass)
	}
	return dv
}

// ClonedFromValue is the value of AnnotationClonedFrom.
func ClonedFromValue(pin v1alpha1.PinnedImage) string {
	source := pin.VolumeSnapshot
	if source == "" {
		source = pin.PersistentVolumeClaim
	}
	return strings.Join([]string{string(pin.UID), pin.Revision, strconv.Itoa(int(pin.Attempt)), source}, "/")
}

// RootDiskSize is the size of a machine's root disk as the guest sees it: as asked
// for, and no less than the image has. Where that is more, adjusted says so.
func RootDiskSize(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) (size resource.Quantity, adjusted string) {
	least := img.Spec.DiskSize
	if vm.Spec.Resources == nil || vm.Spec.Resources.DiskSize == nil {
		return least, ""
	}
	asked := *vm.Spec.Resources.DiskSize
	if asked.Cmp(least) >= 0 {
		return asked, ""
	}
	return least, fmt.Sprintf("resources.diskSize %s is less than image %s/%s has: the root disk has %s", asked.String(), img.Namespace, img.Name, least.String())
}

// storageRequest is what CDI is asked for (CDI 1.65). Of a claim that is the size of
// the disk: CDI adds the overhead of a filesystem to it as it did for the image,
// and would have to start a Pod to find out where nothing is asked for. Of a
// snapshot, a disk as large as its image asks for nothing: CDI takes the size of
// the snapshot, overhead included, and refuses to clone into less; it would add
// the overhead a second time.
func storageRequest(size resource.Quantity, img *v1alpha1.VMDiskImage, pin v1alpha1.PinnedImage) corev1.ResourceList {
	known := pin.RestoreSize != nil && pin.RestoreSize.Sign() > 0
	switch {
	case pin.VolumeSnapshot == "" || !known:
	case size.Cmp(img.Spec.DiskSize) <= 0:
		return nil
	case size.Cmp(*pin.RestoreSize) < 0:
		size = *pin.RestoreSize
	}
	return corev1.ResourceList{corev1.ResourceStorage: size}
}

// BuildCloudInitSecret holds what the guest is told. The keys are those that BuildVirtualMachine
// looks for.
func BuildCloudInitSecret(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) *corev1.Secret {
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: ownedObjectMeta(vm, cloudinit.SecretName(vm)),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"userdata": cfg.UserData},
	}
	if cfg.NetworkData != nil {
		secret.Data["networkdata"] = cfg.NetworkData
	}
	return secret
}

func ownedObjectMeta(vm *v1alpha1.VirtualMachine, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: vm.Namespace, Name: name,
		Labels: map[string]string{v1alpha1.LabelMachineUID: string(vm.UID)},
		// No blockOwnerDeletion: who may make the object need not be allowed to
		// change finalizers of its owner.
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine", Name: vm.Name, UID: vm.UID, Controller: ptr.To(true),
		}},
	}
}
