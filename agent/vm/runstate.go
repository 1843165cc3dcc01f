package vm

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/diagnosis"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// liveRunStrategy returns spec.runStrategy of a KubeVirt VirtualMachine; empty for none.
func liveRunStrategy(kubeVirtVM *unstructured.Unstructured) string {
	run, _, _ := unstructured.NestedString(kubeVirtVM.Object, "spec", "runStrategy")
	return run
}

// recordedRunStrategy returns the strategy of its last instance; empty if it had none.
func recordedRunStrategy(kubeVirtVM *unstructured.Unstructured) string {
	run, _, _ := unstructured.NestedString(kubeVirtVM.Object, "status", "runStrategy")
	return run
}

func isInstanceCreated(kubeVirtVM *unstructured.Unstructured) bool {
	created, _, _ := unstructured.NestedBool(kubeVirtVM.Object, "status", "created")
	return created
}

// runState returns the state that KubeVirt reports. No fault that it reports is final
// (KubeVirt 1.8).
func (d *decider) runState() machineState {
	if d.KubeVirtVM == nil {
		return provisioningState(v1alpha1.ReasonStarting, "the KubeVirt VirtualMachine is being created")
	}
	run := liveRunStrategy(d.KubeVirtVM)
	ready, _, _ := unstructured.NestedBool(d.KubeVirtVM.Object, "status", "ready")
	findings := diagnosis.ForMachine(d.KubeVirtVM, d.launcherPods())
	status := d.printableStatus()
	runs := status == "Running" || status == "Migrating" || status == "Paused"
	worst := findings.Worst()
	if worst.Urgency == diagnosis.Act && (!runs || !ready) && !isErrorStatus[status] {
		return d.actionNeeded(worst, findings)
	}
	switch {
	case runs && (ready || status == "Paused"):
		return machineState{v1alpha1.MachineReady, v1alpha1.ReasonRunning, "the machine is " + strings.ToLower(status) + suffix("; ", findings.Describe(diagnosis.Waits))}
	case runs:
		return provisioningState(v1alpha1.ReasonStarting, "the machine runs but is not ready yet"+suffix(": ", findings.Describe(diagnosis.Unknown)))
	case status == "Stopped" && (run == "Always" || (!d.hasRunUnder(run) && (run == "Once" || run == string(rerunOnFailure)))):
		return provisioningState(v1alpha1.ReasonStarting, "the machine is about to be started"+suffix(": ", findings.Describe(diagnosis.Unknown)))
	case status == "Stopped":
		return machineState{v1alpha1.MachineReady, v1alpha1.ReasonStopped, fmt.Sprintf("the machine is stopped (runStrategy %s)", run) + d.lateTexts() + suffix("; ", findings.Describe(diagnosis.Unknown))}
	case status == "":
		return provisioningState(v1alpha1.ReasonStarting, "KubeVirt has not processed its VirtualMachine yet"+suffix(": ", findings.Describe(diagnosis.Unknown)))
	}
	problem := findings.Describe(diagnosis.Unknown)
	if problem == "" {
		problem = d.kubeVirtReadyMessage()
	}
	problem = strings.TrimPrefix(problem, "KubeVirt reports ")
	text := "KubeVirt reports " + status + suffix(": ", problem)
	lasting := status == "ErrorUnschedulable" || (worst.Urgency == diagnosis.ActIfLasting && !isErrorStatus[status])
	switch {
	case lasting && d.awaitsRescheduling():
		return provisioningState(v1alpha1.ReasonStarting, d.describeDisks()+" just become ready; KubeVirt still reports "+status+suffix(": ", problem))
	case worst.Urgency == diagnosis.Act:
		return failedState(cmp.Or(worst.MachineReason, v1alpha1.ReasonMachineError), text)
	case lasting || isErrorStatus[status]:
		return failedState(v1alpha1.ReasonMachineError, text)
	default:
		return provisioningState(v1alpha1.ReasonStarting, text)
	}
}

// isErrorStatus has the printableStatus values of faults.
var isErrorStatus = map[string]bool{
	"ErrorUnschedulable": true, "CrashLoopBackOff": true, "ErrImagePull": true, "ImagePullBackOff": true,
	"ErrorPvcNotFound": true, "DataVolumeError": true, "Unknown": true,
}

// actionNeeded returns the state for what a person has to act on. What is applied together
// with the machine may follow it.
func (d *decider) actionNeeded(worst diagnosis.Finding, findings diagnosis.Findings) machineState {
	text := findings.Describe(diagnosis.Unknown)
	if worst.MachineReason == v1alpha1.ReasonInstancetypeMissing || worst.MachineReason == v1alpha1.ReasonPreferenceMissing {
		return d.missingDependency(worst.MachineReason, text)
	}
	return failedState(cmp.Or(worst.MachineReason, v1alpha1.ReasonMachineError), text)
}

// suffix returns a text after a separator; empty for none.
func suffix(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

func (d *decider) launcherPods() []corev1.Pod { return d.podsWhere(diagnosis.IsLauncher) }

// fillerPods are the Pods that fill the disk.
func (d *diskDecider) fillerPods() []corev1.Pod {
	return d.podsWhere(func(pod *corev1.Pod) bool {
		return !diagnosis.IsLauncher(pod) && pod.Labels[v1alpha1.LabelDisk] == d.name
	})
}

func (d *decider) podsWhere(wanted func(*corev1.Pod) bool) (pods []corev1.Pod) {
	for i := range d.Pods {
		if wanted(&d.Pods[i]) {
			pods = append(pods, d.Pods[i])
		}
	}
	return pods
}

// instanceIsRunning reports whether a change of the template would not reach the instance.
// An instance that is ending does not count: the next one is created from the new template.
func (d *decider) instanceIsRunning() bool {
	created := isInstanceCreated(d.KubeVirtVM)
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
	created := isInstanceCreated(d.KubeVirtVM)
	status := d.printableStatus()
	switch run {
	case "", string(rerunOnFailure):
		return false
	case "Halted":
		// A status under another run strategy does not show yet that an instance is ended.
		// A machine that never started has no run strategy in status.
		recorded := recordedRunStrategy(d.KubeVirtVM)
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

// awaitsRescheduling reports whether a disk became ready so recently that the scheduler may
// not have retried KubeVirt's Pod.
func (d *decider) awaitsRescheduling() bool {
	conditions := []string{v1alpha1.ConditionRootDiskReady}
	if len(d.wantedDisks()) > 1 {
		conditions = append(conditions, v1alpha1.ConditionDisksReady)
	}
	left := time.Duration(0)
	for _, t := range conditions {
		remaining := reschedulingGracePeriod
		c := meta.FindStatusCondition(d.VM.Status.Conditions, t)
		if c != nil && c.Status == metav1.ConditionTrue { // otherwise this decision sets it True
			remaining = storedtime.Remaining(d.Now, c.LastTransitionTime.Time, reschedulingGracePeriod)
		}
		left = max(left, remaining)
	}
	if left <= 0 {
		return false
	}
	d.requeueWithin(left)
	return true
}

func (d *decider) describeDisks() string {
	if len(d.wantedDisks()) == 1 {
		return "the root disk has"
	}
	return "the disks have"
}

// hasRunUnder reports whether there was an instance under a run strategy: KubeVirt copies
// the strategy to status with the first one (1.8).
func (d *decider) hasRunUnder(run string) bool {
	return recordedRunStrategy(d.KubeVirtVM) == run
}

// kubeVirtReadyMessage returns why the machine is not ready, in words of KubeVirt that say
// little; empty for none.
func (d *decider) kubeVirtReadyMessage() string {
	if holds, message := d.kubeVirtCondition(kubevirtv1.VirtualMachineReady); !holds {
		return v1alpha1.SanitizeText(message, maxQuotedBytes)
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
