package vm

import (
	"fmt"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// awaitsStart reports whether CDI fills the disk once an instance is scheduled, and nobody but a
// person starts one. KubeVirt 1.8 reports such a machine as Stopped (HasDataVolumeProvisioning of
// pkg/storage/types).
func (d *diskDecider) awaitsStart(dv *cdiv1.DataVolume) bool {
	if dv.Status.Phase != cdiv1.PendingPopulation && dv.Status.Phase != cdiv1.WaitForFirstConsumer {
		return false
	}
	if d.KubeVirtVM == nil || !d.ownsObject(d.KubeVirtVM) || d.KubeVirtVM.GetDeletionTimestamp() != nil || d.printableStatus() != "Stopped" {
		return false
	}
	run := liveRunStrategy(d.KubeVirtVM)
	return run == string(halted) || run == "Manual"
}

// lateText says when a disk is filled that awaits a start.
func (d *diskDecider) lateText() string {
	return fmt.Sprintf("%s is %s at the next start, since its StorageClass binds volumes late", d.title, d.doneWord())
}

// lateTexts are those of all disks that await a start.
func (d *decider) lateTexts() (text string) {
	for _, disk := range d.wantedDisks() {
		if disk.late {
			text += "; " + disk.lateText()
		}
	}
	return text
}
