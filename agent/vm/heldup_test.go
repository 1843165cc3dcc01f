package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func conditionsOf(all ...[4]string) map[string]any {
	var list []any
	for _, c := range all {
		list = append(list, map[string]any{"type": c[0], "status": c[1], "reason": c[2], "message": c[3]})
	}
	return map[string]any{"created": true, "conditions": list}
}

// What holds an instance up is said at once, in the words of whoever knows.
func TestMachineHeldUpByKubeVirt(t *testing.T) {
	const (
		provisioning = v1alpha1.MachineProvisioning
		ready        = v1alpha1.MachineReady
		failed       = v1alpha1.MachineFailed
	)
	missing := [4]string{"Failure", "True", "FailedFindInstancetype", `instancetype "nope" not found`}
	quota := [4]string{"Synchronized", "False", "FailedCreate", `pods "virt-launcher-vm-x4b2c" is forbidden: exceeded quota`}
	later := [4]string{"Levitating", "False", "TooHeavy", "cannot lift off"}
	for name, tt := range map[string]struct {
		run       v1alpha1.RunStrategy
		printable string
		status    map[string]any
		pods      []corev1.Pod
		phase     v1alpha1.MachinePhase
		reason    v1alpha1.Reason
		want      string
	}{
		"instancetype missing":           {printable: "Stopped", status: conditionsOf(missing), phase: failed, reason: v1alpha1.ReasonInstancetypeMissing, want: `FailedFindInstancetype: instancetype "nope" not found`},
		"instancetype missing, halted":   {run: "Halted", printable: "Stopped", status: conditionsOf(missing), phase: failed, reason: v1alpha1.ReasonInstancetypeMissing},
		"quota of Pods":                  {printable: "Starting", status: conditionsOf(quota), phase: failed, reason: v1alpha1.ReasonQuotaExceeded, want: "is forbidden: exceeded quota"},
		"webhook down":                   {printable: "Stopped", status: conditionsOf([4]string{"Failure", "True", "FailedCreate", "failed calling webhook"}), phase: provisioning, reason: v1alpha1.ReasonStarting, want: "about to be started: KubeVirt reports FailedCreate: failed calling webhook"},
		"image pull":                     {printable: "ErrImagePull", status: conditionsOf([4]string{"Synchronized", "False", "ErrImagePull", "not found"}), phase: failed, reason: v1alpha1.ReasonMachineError, want: "KubeVirt reports ErrImagePull: ErrImagePull: not found"},
		"a condition of a later version": {printable: "Starting", status: conditionsOf(later), phase: provisioning, reason: v1alpha1.ReasonStarting, want: "KubeVirt reports Starting: TooHeavy: cannot lift off"},
		"a status of a later version":    {printable: "Pondering", status: conditionsOf(later), phase: provisioning, reason: v1alpha1.ReasonStarting, want: "KubeVirt reports Pondering: TooHeavy: cannot lift off"},
		"nothing, but not ready": {printable: "Starting", status: conditionsOf([4]string{"Ready", "False", "GuestNotRunning", "Guest VM is not reported as running"}), phase: provisioning,
			reason: v1alpha1.ReasonStarting, want: "KubeVirt reports Starting: Guest VM is not reported as running"},
		"Secret of the Pod missing": {printable: "Starting", status: conditionsOf(), pods: []corev1.Pod{launcherPod("CreateContainerConfigError", `secret "x" not found`)}, phase: failed, reason: v1alpha1.ReasonMachineError,
			want: `Kubernetes reports CreateContainerConfigError of container compute: secret "x" not found`},
		"disk full":            {printable: "Paused", status: conditionsOf([4]string{"Paused", "True", "PausedIOError", "low-level IO error"}), phase: failed, reason: v1alpha1.ReasonMachineError, want: "low-level IO error"},
		"crash loop and quota": {printable: "CrashLoopBackOff", status: conditionsOf(quota), phase: failed, reason: v1alpha1.ReasonQuotaExceeded, want: "KubeVirt reports CrashLoopBackOff: FailedCreate"},
		"while it runs": {printable: "Running", status: map[string]any{"created": true, "ready": true, "conditions": conditionsOf([4]string{"Failure", "True", "HotPlugVolumeError", "no such claim"})["conditions"]},
			phase: ready, reason: v1alpha1.ReasonRunning, want: "the machine is running; KubeVirt reports HotPlugVolumeError: no such claim"},
		"a later condition while it runs": {printable: "Running", status: map[string]any{"created": true, "ready": true, "conditions": conditionsOf(later)["conditions"]},
			phase: ready, reason: v1alpha1.ReasonRunning, want: "the machine is running"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy(tt.run)).withRootDisk(goldenImage(1), cdiv1.Succeeded)
			w.withKubeVirtVM(tt.printable, tt.status)
			w.Pods = tt.pods
			w.reconcile()
			w.requireState(tt.phase, tt.reason, tt.want)
			if tt.phase == failed && tt.printable == "Stopped" {
				w.setKubeVirtStatus("Running", map[string]any{"created": true, "ready": true}).reconcile()
				w.requireState(ready, v1alpha1.ReasonRunning)
			}
		})
	}
}

func launcherPod(waiting, message string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-vm-x4b2c", Labels: map[string]string{kubevirtv1.AppLabel: "virt-launcher"}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "compute", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting, Message: message}}},
		}},
	}
}

// What is applied together with the machine may come a little later.
func TestInstancetypeMayFollow(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.withKubeVirtVM("Stopped", conditionsOf([4]string{"Failure", "True", "FailedFindInstancetype", "not found"}))
	w.VM.CreationTimestamp = metav1.NewTime(w.Now)
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonInstancetypeMissing, "not found")
	w.Now = w.Now.Add(w.lastDecision.RequeueAfter * 6)
	w.reconcile()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonInstancetypeMissing, "not found")
}

func TestRootDiskHeldUp(t *testing.T) {
	condition := func(t cdiv1.DataVolumeConditionType, reason, message string) []cdiv1.DataVolumeCondition {
		return []cdiv1.DataVolumeCondition{{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}}
	}
	for name, tt := range map[string]struct {
		conditions []cdiv1.DataVolumeCondition
		age        time.Duration
		phase      v1alpha1.MachinePhase
		reason     v1alpha1.Reason
		want       string
		requeue    time.Duration
	}{
		"storage quota":         {condition(cdiv1.DataVolumeBound, "ErrExceededQuota", "exceeded quota: q"), 0, v1alpha1.MachineFailed, v1alpha1.ReasonQuotaExceeded, "DataVolume vm-root, the root disk, is not cloned: CDI reports ErrExceededQuota: exceeded quota: q", 0},
		"unschedulable":         {condition(cdiv1.DataVolumeRunning, "Unschedulable", "cannot be scheduled"), 10 * time.Second, v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "cannot be scheduled", 20 * time.Second},
		"unschedulable, lastly": {condition(cdiv1.DataVolumeRunning, "Unschedulable", "cannot be scheduled"), time.Minute, v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "cannot be scheduled", 0},
		"unknown":               {condition(cdiv1.DataVolumeRunning, "SomethingNew", "of a later version"), time.Minute, v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "SomethingNew: of a later version", 0},
		"CDI not running":       {nil, time.Minute, v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "CDI has not processed DataVolume vm-root", 0},
		"just created":          {nil, 0, v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "the root disk is being cloned", 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), "")
			w.DataVolume.Status.Conditions = tt.conditions
			w.Now = w.DataVolume.CreationTimestamp.Add(tt.age)
			w.reconcile()
			w.requireState(tt.phase, tt.reason, tt.want)
			assert.Equal(t, tt.requeue, w.lastDecision.RequeueAfter)
			w.DataVolume.Status.Phase = cdiv1.Succeeded
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting)
		})
	}
	t.Run("by what passes elsewhere", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.CloneScheduled)
		w.DataVolume.Status.Conditions = condition(cdiv1.DataVolumeBound, "Pending", "target PVC vm-root Pending and Waiting for a volume to be created by provisioner x")
		w.Now = w.DataVolume.CreationTimestamp.Time
		w.reconcile()
		assert.NotContains(t, w.VM.Status.Message, "provisioner", "a step of every clone")
		assert.Equal(t, 30*time.Second, w.lastDecision.RequeueAfter)
		w.Now = w.Now.Add(time.Minute)
		w.reconcile()
		w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "Waiting for a volume to be created by provisioner x")
	})
	t.Run("its claim does not come", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Pending)
		w.DataVolume.Status.Conditions = condition(cdiv1.DataVolumeBound, "NotFound", "No PVC found")
		w.Now = w.DataVolume.CreationTimestamp.Time
		w.reconcile()
		assert.NotContains(t, w.VM.Status.Message, "No PVC found", "a step of every clone")
		w.Now = w.Now.Add(time.Minute)
		w.reconcile()
		w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "CDI reports NotFound: No PVC found: check the LimitRanges")
	})
	t.Run("its claim cannot be created", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), "")
		w.ClaimProblem = "needs a PersistentVolumeClaim of 2Gi, and LimitRange ns/limits allows 1Gi at most"
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "DataVolume vm-root, the root disk, is not cloned: needs a PersistentVolumeClaim of 2Gi")
		assert.Equal(t, 30*time.Second, w.lastDecision.RequeueAfter, "no event announces another LimitRange")
		w.DataVolume.Status.Conditions = condition(cdiv1.DataVolumeBound, "ErrExceededQuota", "exceeded quota: q")
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonQuotaExceeded, "exceeded quota: q")
		w.ClaimProblem, w.DataVolume.Status.Conditions = "", nil
		w.reconcile()
		w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "the root disk is being cloned")
	})
	t.Run("by its Pod", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.CloneInProgress)
		pod := launcherPod("CreateContainerConfigError", "no such Secret")
		pod.Labels = map[string]string{"cdi.kubevirt.io": "cloner"}
		w.Pods = []corev1.Pod{pod}
		w.reconcile()
		w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "no such Secret")
	})
}
