package vm

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// waitForLeftover is the wait for what a former machine of the name has left. What is
// owned goes with its owner; what has been orphaned, or restored from a backup,
// is for a person to decide on.
func (s *decider) waitForLeftover(what string, o metav1.Object) {
	if s.isBeingRemoved(o) {
		s.setBlocker(provisioningState(v1alpha1.ReasonNameTaken, fmt.Sprintf("%s %s of a former machine of this name is still there: waits until it is removed", what, o.GetName())))
		s.requeueWithin(s.leftoverRecheckInterval(o))
		return
	}
	loss, resource := "", "secret"
	switch what {
	case "DataVolume", "PersistentVolumeClaim":
		loss, resource = " (what a guest has written is lost then)", "datavolume,persistentvolumeclaim"
	case "KubeVirt VirtualMachine":
		resource = "virtualmachines.kubevirt.io"
	}
	s.setBlocker(failedState(v1alpha1.ReasonNameTaken, fmt.Sprintf("%s %s is of a former machine of this name, and goes with nothing that is there. Delete it%s, or have this machine take it over: kubectl -n %s label %s %s %s=%s --overwrite",
		what, o.GetName(), loss, s.VM.Namespace, resource, o.GetName(), v1alpha1.LabelMachineUID, s.VM.UID)))
	s.requeueWithin(missingRecheckInterval)
}

// isBeingRemoved tells whether an object is about to be removed by others: the machine that
// it was made for is gone.
func (s *decider) isBeingRemoved(o metav1.Object) bool {
	if o.GetDeletionTimestamp() != nil {
		return true
	}
	for _, owner := range o.GetOwnerReferences() {
		switch owner.Kind {
		case "VirtualMachine":
			return true
		case "DataVolume":
			return s.RootDisk == nil || !s.ownsObject(s.RootDisk) || s.RootDisk.DeletionTimestamp != nil
		}
	}
	return false
}

// leftoverRecheckInterval is how often it is looked whether what a former machine has
// left is gone: its events concern that machine only. It is waited for since this
// one is there, or that was deleted.
func (s *decider) leftoverRecheckInterval(o metav1.Object) time.Duration {
	since := s.VM.CreationTimestamp.Time
	if deleted := o.GetDeletionTimestamp(); deleted != nil && deleted.After(since) {
		since = deleted.Time
	}
	return min(max(s.Now.Sub(since)/10, time.Second), missingRecheckInterval)
}
