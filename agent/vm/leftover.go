package vm

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// waitForLeftover blocks on an object of a former machine with this name. An owned one is
// garbage-collected; one that was orphaned or restored from a backup needs a person.
func (d *decider) waitForLeftover(kind string, o metav1.Object, dataVolume *cdiv1.DataVolume) {
	if d.isBeingRemoved(o, dataVolume) {
		d.setBlocker(provisioningState(v1alpha1.ReasonNameTaken, fmt.Sprintf("%s %s of a former machine of this name still exists: waiting until it is removed", kind, o.GetName())))
		d.requeueWithin(d.leftoverRecheckInterval(o))
		return
	}
	dataLoss, resource := "", "virtualmachines.kubevirt.io"
	if kind == "DataVolume" || kind == "PersistentVolumeClaim" {
		dataLoss, resource = " (this loses what the guest has written)", "datavolume,persistentvolumeclaim"
	}
	d.setBlocker(failedState(v1alpha1.ReasonNameTaken, fmt.Sprintf("%s %s belongs to a former machine of this name and has no owner that removes it. Delete it%s, or let this machine take it over, which deletes it with the machine: %s",
		kind, o.GetName(), dataLoss, shellword.FormatCommand("kubectl -n %s label %s %s %s --overwrite", d.VM.Namespace, resource, o.GetName(), v1alpha1.LabelMachineUID+"="+string(d.VM.UID)))))
	d.requeueWithin(missingRecheckInterval)
}

// isBeingRemoved reports whether an object of a former machine is going to be removed
// without the agent. dataVolume is the one that may own a claim; nil for none.
func (d *decider) isBeingRemoved(o metav1.Object, dataVolume *cdiv1.DataVolume) bool {
	if o.GetDeletionTimestamp() != nil {
		return true
	}
	for _, owner := range o.GetOwnerReferences() {
		switch owner.Kind {
		case "VirtualMachine":
			return true
		case "DataVolume":
			return dataVolume == nil || !d.ownsObject(dataVolume) || dataVolume.DeletionTimestamp != nil
		}
	}
	return false
}

// leftoverRecheckInterval grows with the wait: events of the object map to the former
// machine only. The wait began when this machine was created or the object was deleted.
func (d *decider) leftoverRecheckInterval(o metav1.Object) time.Duration {
	since := d.VM.CreationTimestamp.Time
	if deleted := o.GetDeletionTimestamp(); deleted != nil && deleted.After(since) {
		since = deleted.Time
	}
	return min(max(d.Now.Sub(since)/10, time.Second), missingRecheckInterval)
}
