package vm

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// runState returns the state that KubeVirt reports. No fault that it reports is final
// (KubeVirt 1.8).
func (d *decider) runState() machineState {
	if d.KubeVirtVM == nil {
		return provisioningState(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being created")
	}
	run, _, _ := unstructured.NestedString(d.KubeVirtVM.Object, "spec", "runStrategy")
	ready, _, _ := unstructured.NestedBool(d.KubeVirtVM.Object, "status", "ready")
	switch status := d.printableStatus(); status {
	case "Running", "Migrating", "Paused":
		if ready || status == "Paused" {
			return machineState{v1alpha1.MachineReady, v1alpha1.ReasonRunning, "the machine is " + strings.ToLower(status)}
		}
		return provisioningState(v1alpha1.ReasonStarting, "the machine runs but is not ready yet")
	case "Stopped":
		if run == "Always" || (!d.hasRunUnder(run) && (run == "Once" || run == string(rerunOnFailure))) {
			return provisioningState(v1alpha1.ReasonStarting, "the machine is about to be started")
		}
		return machineState{v1alpha1.MachineReady, v1alpha1.ReasonStopped, fmt.Sprintf("the machine is stopped (runStrategy %s)", run)}
	case "ErrorUnschedulable":
		if d.awaitsRescheduling() {
			return provisioningState(v1alpha1.ReasonStarting, "the root disk has just become ready; KubeVirt still reports "+status+d.kubeVirtProblem())
		}
		fallthrough
	case "CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "ErrorPvcNotFound", "DataVolumeError", "Unknown":
		return failedState(v1alpha1.ReasonMachineError, fmt.Sprintf("KubeVirt reports %s%s", status, d.kubeVirtProblem()))
	case "":
		return provisioningState(v1alpha1.ReasonStarting, "KubeVirt has not processed its VirtualMachine yet")
	default:
		return provisioningState(v1alpha1.ReasonStarting, fmt.Sprintf("KubeVirt reports %s%s", status, d.kubeVirtProblem()))
	}
}

// instanceIsRunning reports whether a change of the template would not reach the instance.
// An instance that is ending does not count: the next one is created from the new template.
func (d *decider) instanceIsRunning() bool {
	created, _, _ := unstructured.NestedBool(d.KubeVirtVM.Object, "status", "created")
	status := d.printableStatus()
	return created && status != "Stopping" && status != "Terminating" && status != "Stopped"
}

// instanceIsEnding reports whether KubeVirt is ending the current instance under run, the
// run strategy of its VirtualMachine. If RerunOnFailure were set before the instance is gone,
// KubeVirt would record that it has had its instance and never start another
// (KubeVirt 1.8.0, pkg/virt-controller/watch/vm/vm.go:1041, 1069 and 2477). A status update
// follows without the agent, and its event triggers the next decision. An instance that
// ended by itself under Once or Manual does not count: KubeVirt keeps it.
func (d *decider) instanceIsEnding(run string) bool {
	created, _, _ := unstructured.NestedBool(d.KubeVirtVM.Object, "status", "created")
	status := d.printableStatus()
	switch run {
	case "", string(rerunOnFailure):
		return false
	case "Halted":
		// A status under another run strategy does not show yet that an instance is ended.
		// A machine that never started has no run strategy in status.
		recorded, _, _ := unstructured.NestedString(d.KubeVirtVM.Object, "status", "runStrategy")
		return created || (recorded != "" && recorded != run)
	case "Always": // an instance that ended is replaced
		return created && (status == "Stopping" || status == "Stopped" || status == "CrashLoopBackOff")
	case "Manual":
		return created && (status == "Stopping" || d.stopRequested())
	default:
		return created && status == "Stopping"
	}
}

// stopRequested reports whether a stop of the instance is requested, as by virtctl under
// Manual. The request stays until the instance is gone.
func (d *decider) stopRequested() bool {
	requests, _, _ := unstructured.NestedSlice(d.KubeVirtVM.Object, "status", "stateChangeRequests")
	if len(requests) == 0 {
		return false
	}
	first, _ := requests[0].(map[string]any)
	return first["action"] == "Stop"
}

func (d *decider) printableStatus() string {
	if d.KubeVirtVM == nil {
		return ""
	}
	status, _, _ := unstructured.NestedString(d.KubeVirtVM.Object, "status", "printableStatus")
	return v1alpha1.SanitizeText(status, maxStateBytes)
}

// reschedulingGracePeriod is how long a Pod may stay unschedulable after its volume became
// ready.
const reschedulingGracePeriod = 30 * time.Second

// awaitsRescheduling reports whether the root disk became ready so recently that the
// scheduler may not have retried KubeVirt's Pod.
func (d *decider) awaitsRescheduling() bool {
	left := reschedulingGracePeriod
	disk := meta.FindStatusCondition(d.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady)
	if disk != nil && disk.Status == metav1.ConditionTrue { // otherwise this decision sets it True
		left -= d.Now.Sub(disk.LastTransitionTime.Time)
	}
	if left <= 0 {
		return false
	}
	d.requeueWithin(left)
	return true
}

// hasRunUnder reports whether there was an instance under a run strategy: KubeVirt copies
// the strategy to status with the first one (1.8).
func (d *decider) hasRunUnder(run string) bool {
	recorded, _, _ := unstructured.NestedString(d.KubeVirtVM.Object, "status", "runStrategy")
	return recorded == run
}

// kubeVirtProblem returns the message of KubeVirt's Failure or Ready condition, after a
// colon; empty for none.
func (d *decider) kubeVirtProblem() string {
	if holds, message := d.kubeVirtCondition(kubevirtv1.VirtualMachineFailure); holds && message != "" {
		return ": " + v1alpha1.SanitizeText(message, maxQuotedBytes)
	}
	if holds, message := d.kubeVirtCondition(kubevirtv1.VirtualMachineReady); !holds && message != "" {
		return ": " + v1alpha1.SanitizeText(message, maxQuotedBytes)
	}
	return ""
}

// kubeVirtCondition reads a condition of the KubeVirt VirtualMachine; false and empty if it
// is not set.
func (d *decider) kubeVirtCondition(t kubevirtv1.VirtualMachineConditionType) (holds bool, message string) {
	list, _, _ := unstructured.NestedSlice(d.KubeVirtVM.Object, "status", "conditions")
	for _, item := range list {
		if c, _ := item.(map[string]any); c["type"] == string(t) {
			message, _ = c["message"].(string)
			return c["status"] == "True", message
		}
	}
	return false, ""
}
