package diagnosis

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/importcause"
)

// Kinds of objects that report.
const (
	objectMachine = "VirtualMachine"
	objectDisk    = "DataVolume"
	objectPod     = "Pod"
	// objectClaimEvent is the latest event of a claim, as CDI puts it into condition Bound.
	objectClaimEvent = "PersistentVolumeClaim"
)

// reporters are the authors of reports, by object.
var reporters = map[string]string{objectMachine: "KubeVirt", objectDisk: "CDI", objectClaimEvent: "CDI", objectPod: "Kubernetes"}

// machineConditions are about the VirtualMachine itself. KubeVirt copies all others from the
// instance, and leaves them when the instance is gone (KubeVirt 1.8.0,
// pkg/virt-controller/watch/vm/vm.go, syncConditions).
var machineConditions = map[string]bool{
	string(kubevirtv1.VirtualMachineFailure): true, string(kubevirtv1.VirtualMachineReady): true,
	string(kubevirtv1.VirtualMachineManualRecoveryRequired): true,
}

// missingClaim is what KubeVirt (1.8) says of an instance whose claim does not exist. It makes the Pod
// once the claim does, and leaves the sentence for as long as the Pod is not scheduled.
var missingClaim = regexp.MustCompile(`^PVC \S+ does not exist, waiting for it to appear`)

// isConsidered reports whether the scheduler says why a Pod is not scheduled: a claim that does not
// exist, too.
func isConsidered(pod corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && IsLauncher(&pod) && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != ""
	})
}

// ForMachine returns what KubeVirt says about a machine, and Kubernetes about the Pods of its
// instance. Conditions of a former instance do not count.
func ForMachine(kubeVirtVM *unstructured.Unstructured, pods []corev1.Pod) Findings {
	created, _, _ := unstructured.NestedBool(kubeVirtVM.Object, "status", "created")
	status, _, _ := unstructured.NestedString(kubeVirtVM.Object, "status", "printableStatus")
	hasInstance := created || (status != "" && status != string(kubevirtv1.VirtualMachineStatusStopped))
	var reports []Report
	list, _, _ := unstructured.NestedSlice(kubeVirtVM.Object, "status", "conditions")
	for _, item := range list {
		c, _ := item.(map[string]any)
		text := func(key string) string { s, _ := c[key].(string); return s }
		if missingClaim.MatchString(text("message")) && slices.ContainsFunc(pods, isConsidered) {
			continue
		}
		if hasInstance || machineConditions[text("type")] {
			reports = append(reports, Report{objectMachine, text("type"), text("status"), text("reason"), text("message")})
		}
	}
	if hasInstance {
		reports = append(reports, podReports(pods)...)
	}
	return judgeReports(reports)
}

// ForDisk returns what CDI says about a disk that is being cloned, and Kubernetes
// about the Pods that fill it.
func ForDisk(dv *cdiv1.DataVolume, pods []corev1.Pod) Findings {
	var reports []Report
	for i := range dv.Status.Conditions {
		c := &dv.Status.Conditions[i]
		if cause, text, known := importcause.OfClaimEvent(*c); known {
			reports = append(reports, Report{objectClaimEvent, string(c.Type), statusOfEvent(cause), c.Reason, text})
			continue
		}
		reports = append(reports, Report{objectDisk, string(c.Type), string(c.Status), c.Reason, c.Message})
	}
	return judgeReports(append(reports, podReports(pods)...))
}

// statusOfEvent is what importcause makes of an event of a claim.
func statusOfEvent(cause *importcause.Cause) string {
	switch {
	case cause == nil:
		return eventRoutine
	case cause.NeedsPerson:
		return eventNeedsPerson
	case cause.Passing:
		return eventPassing
	default:
		return eventHeals
	}
}

// IsLauncher reports whether a Pod runs an instance of a machine, in place of filling a
// disk.
func IsLauncher(pod *corev1.Pod) bool {
	return pod.Labels[kubevirtv1.AppLabel] == "virt-launcher" || pod.Labels[kubevirtv1.AppLabel] == "hotplug-disk"
}

// podReports leaves out Pods that end or have ended well.
func podReports(pods []corev1.Pod) (reports []Report) {
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded {
			continue
		}
		for _, c := range pod.Status.Conditions {
			reports = append(reports, Report{objectPod, string(c.Type), string(c.Status), c.Reason, c.Message})
		}
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				reports = append(reports, containerReports(&list[i])...)
			}
		}
		if pod.Status.Phase == corev1.PodFailed {
			reports = append(reports, Report{objectPod, "Pod " + pod.Name, stateFailed, pod.Status.Reason, pod.Status.Message})
		}
	}
	return reports
}

// States of containers and Pods, in place of the status of a condition.
const (
	stateWaiting    = "Waiting"
	stateTerminated = "Terminated"
	stateFailed     = "Failed"

	eventRoutine     = "Routine"
	eventPassing     = "Passing"
	eventHeals       = "Heals"
	eventNeedsPerson = "NeedsPerson"
)

func containerReports(c *corev1.ContainerStatus) (reports []Report) {
	name := "container " + c.Name
	if w := c.State.Waiting; w != nil {
		reports = append(reports, Report{objectPod, name, stateWaiting, w.Reason, w.Message})
	}
	if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
		reports = append(reports, Report{objectPod, name, stateTerminated, t.Reason, t.Message})
	}
	return reports
}
