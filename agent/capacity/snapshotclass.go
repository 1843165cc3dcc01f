package capacity

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// LocalProvisioner provisions nothing: its class has volumes of any driver.
const LocalProvisioner = "kubernetes.io/no-provisioner"

// FindDriverMismatch returns why no snapshot can be taken of an image in a StorageClass; nil
// for nothing. A driver takes snapshots of its own volumes only.
func FindDriverMismatch(storage *storagev1.StorageClass, class *snapshotv1.VolumeSnapshotClass) *image.Blocker {
	if storage.Provisioner == class.Driver || storage.Provisioner == LocalProvisioner {
		return nil
	}
	return &image.Blocker{Reason: v1alpha1.ReasonSnapshotClassMismatch, Message: fmt.Sprintf(
		"VolumeSnapshotClass %s is of driver %s, and StorageClass %s of %s: choose a spec.snapshotClass of that driver, or none",
		class.Name, class.Driver, storage.Name, storage.Provisioner)}
}
