package diagnosis_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/diagnosis"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type condition struct{ t, status, reason, message string }

func machineWith(status string, created bool, conditions ...condition) *unstructured.Unstructured {
	var list []any
	for _, c := range conditions {
		list = append(list, map[string]any{"type": c.t, "status": c.status, "reason": c.reason, "message": c.message})
	}
	return &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"printableStatus": status, "created": created, "conditions": list}}}
}

// Conditions as KubeVirt 1.8 writes them.
func TestForMachine(t *testing.T) {
	const quota = `exceeded quota: q, requested: count/virtualmachineinstances.kubevirt.io=1, used: count/virtualmachineinstances.kubevirt.io=0, limited: count/virtualmachineinstances.kubevirt.io=0`
	for name, tt := range map[string]struct {
		condition condition
		stopped   bool
		urgency   diagnosis.Urgency
		reason    v1alpha1.Reason
		want      []string
	}{
		"instancetype missing":    {condition{"Failure", "True", "FailedFindInstancetype", `virtualmachineclusterinstancetypes.instancetype.kubevirt.io "nope" not found`}, true, diagnosis.Act, v1alpha1.ReasonInstancetypeMissing, []string{"KubeVirt reports FailedFindInstancetype: ", `"nope" not found`, "correct spec.instancetype"}},
		"instancetype not read":   {condition{"Failure", "True", "FailedFindInstancetype", "Get https://x: context deadline exceeded"}, true, diagnosis.Waits, "", []string{"deadline"}},
		"preference missing":      {condition{"Failure", "True", "FailedFindPreference", `virtualmachinepreferences "nope" not found`}, true, diagnosis.Act, v1alpha1.ReasonPreferenceMissing, []string{"correct spec.preference"}},
		"quota of instances":      {condition{"Failure", "True", "FailedCreate", `Failure while starting VMI: virtualmachineinstances.kubevirt.io "vm" is forbidden: ` + quota}, true, diagnosis.Act, v1alpha1.ReasonQuotaExceeded, []string{quota, "raise the quota"}},
		"webhook refuses":         {condition{"Failure", "True", "FailedCreate", `Failure while starting VMI: admission webhook "x" denied the request: no`}, true, diagnosis.Act, "", []string{"denied the request: no"}},
		"webhook down":            {condition{"Failure", "True", "FailedCreate", `Failure while starting VMI: Internal error occurred: failed calling webhook "x": connect: connection refused`}, true, diagnosis.Waits, "", []string{"connection refused"}},
		"quota conflict":          {condition{"Failure", "True", "FailedCreate", `Operation cannot be fulfilled on resourcequotas "q": the object has been modified`}, true, diagnosis.Waits, "", nil},
		"unknown failure":         {condition{"Failure", "True", "SomethingNew", "of a later version"}, true, diagnosis.Act, "", []string{"SomethingNew: of a later version"}},
		"no failure":              {condition{"Failure", "False", "", ""}, true, diagnosis.Routine, "", nil},
		"manual recovery":         {condition{"ManualRecoveryRequired", "True", "VolumeMigrationFailed", "recover"}, true, diagnosis.Act, "", []string{"recover"}},
		"quota of Pods":           {condition{"Synchronized", "False", "FailedCreate", `failed to create virtual machine pod: pods "virt-launcher-vm-x4b2c" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0`}, false, diagnosis.Act, v1alpha1.ReasonQuotaExceeded, []string{`pods "virt-launcher-vm-…" is forbidden`, "limited: pods=0"}},
		"LimitRange":              {condition{"Synchronized", "False", "FailedCreate", `failed to create virtual machine pod: pods "virt-launcher-vm-x4b2c" is forbidden: maximum memory usage per Container is 64Mi, but limit is 1Gi`}, false, diagnosis.Act, "", []string{"maximum memory usage"}},
		"PodSecurity":             {condition{"Synchronized", "False", "FailedCreate", `failed to create pod for vmi ns/vm, it needs a privileged namespace to run: pods "virt-launcher-vm-bbbbb" is forbidden: violates PodSecurity "restricted:latest"`}, false, diagnosis.Act, "", []string{"violates PodSecurity"}},
		"image pull":              {condition{"Synchronized", "False", "ImagePullBackOff", `Back-off pulling image "x"`}, false, diagnosis.Act, "", []string{"Back-off pulling"}},
		"image pull times out":    {condition{"Synchronized", "False", "ErrImagePull", `dial tcp: i/o timeout`}, false, diagnosis.Act, "", nil},
		"claim missing":           {condition{"Synchronized", "False", "FailedPvcNotFound", "failed to render launch manifest: didn't find PVC vm-root"}, false, diagnosis.Act, "", nil},
		"backend storage":         {condition{"Synchronized", "False", "BackendStorageNotReady", "PVC pending"}, false, diagnosis.Waits, "", []string{"PVC pending"}},
		"virt-handler":            {condition{"Synchronized", "False", "Synchronizing with the Domain failed.", "no KVM"}, false, diagnosis.Waits, "", []string{"no KVM"}},
		"of a former instance":    {condition{"Synchronized", "False", "FailedCreate", "exceeded quota"}, true, diagnosis.Routine, "", nil},
		"synchronized":            {condition{"Synchronized", "True", "", ""}, false, diagnosis.Routine, "", nil},
		"unschedulable":           {condition{"PodScheduled", "False", "Unschedulable", "0/3 nodes are available"}, false, diagnosis.ActIfLasting, "", []string{"0/3 nodes are available"}},
		"gated":                   {condition{"PodScheduled", "False", "SchedulingGated", "gated"}, false, diagnosis.Waits, "", nil},
		"disk full":               {condition{"Paused", "True", "PausedIOError", "VMI was paused, low-level IO error detected"}, false, diagnosis.Act, "", []string{"low-level IO error", "virtctl unpause"}},
		"paused":                  {condition{"Paused", "True", "PausedByUser", "VMI was paused by user"}, false, diagnosis.Routine, "", nil},
		"paused by another cause": {condition{"Paused", "True", "PausedByAliens", "VMI was abducted"}, false, diagnosis.Unknown, "", []string{"VMI was abducted"}},
		"volumes not ready":       {condition{"DataVolumesReady", "False", "NotAllDVsReady", "Not all of the VMI's DVs are ready"}, false, diagnosis.Waits, "", nil},
		"keys not propagated":     {condition{"AccessCredentialsSynchronized", "False", "AccessCredentialsSyncFailed", "no agent"}, false, diagnosis.Waits, "", []string{"no agent"}},
		"guest off":               {condition{"Ready", "False", "GuestNotRunning", "Guest VM is not reported as running"}, false, diagnosis.Routine, "", nil},
		"containers not ready":    {condition{"Ready", "False", "ContainersNotReady", "containers with unready status: [compute]"}, false, diagnosis.Waits, "", nil},
		"not migratable":          {condition{"LiveMigratable", "False", "DisksNotLiveMigratable", "cannot migrate VMI"}, false, diagnosis.Routine, "", nil},
		"a condition of later":    {condition{"Levitating", "False", "TooHeavy", "cannot lift off"}, false, diagnosis.Unknown, "", []string{"KubeVirt reports TooHeavy: cannot lift off"}},
		"without a reason":        {condition{"Levitating", "False", "", "cannot lift off"}, false, diagnosis.Unknown, "", []string{"KubeVirt reports Levitating False: cannot lift off"}},
		"that says nothing":       {condition{"Levitating", "True", "", ""}, false, diagnosis.Routine, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			status := "Starting"
			if tt.stopped {
				status = "Stopped"
			}
			found := diagnosis.ForMachine(machineWith(status, !tt.stopped, condition{"Ready", "False", "GuestNotRunning", "Guest VM is not reported as running"}, tt.condition), nil)
			worst := found.Worst()
			assert.Equal(t, tt.urgency, worst.Urgency)
			assert.Equal(t, tt.reason, worst.MachineReason)
			text := found.Describe(diagnosis.Unknown)
			for _, part := range tt.want {
				assert.Contains(t, text, part)
			}
			assert.Equal(t, tt.urgency == diagnosis.Routine, text == "", "what is routine is not quoted, all else is: %s", text)
		})
	}
}

func TestForPods(t *testing.T) {
	waiting := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
	}
	for name, tt := range map[string]struct {
		status  corev1.PodStatus
		urgency diagnosis.Urgency
		want    string
	}{
		"Secret missing":     {waiting("CreateContainerConfigError", `secret "x" not found`), diagnosis.Act, `Kubernetes reports CreateContainerConfigError of container compute: secret "x" not found`},
		"image name invalid": {waiting("InvalidImageName", "couldn't parse"), diagnosis.Act, "InvalidImageName of container compute"},
		"crashes":            {waiting("CrashLoopBackOff", "back-off 10s"), diagnosis.Act, "back-off 10s"},
		"starts":             {waiting("ContainerCreating", ""), diagnosis.Routine, ""},
		"a state of later":   {waiting("Pondering", "hm"), diagnosis.Unknown, "Pondering of container compute: hm"},
		"has ended": {corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "no space"}}}}},
			diagnosis.Waits, "Error of container init: no space"},
		"evicted":                       {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory"}, diagnosis.Waits, "Evicted of Pod p: The node was low"},
		"done":                          {corev1.PodStatus{Phase: corev1.PodSucceeded, Reason: "Evicted"}, diagnosis.Routine, ""},
		"unschedulable":                 {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "0/1 nodes"}}}, diagnosis.ActIfLasting, "0/1 nodes"},
		"Secret of a volume missing":    {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Events", Status: "False", Reason: "SecretNotFound", Message: `secret "x" not found`}}}, diagnosis.Act, `Kubernetes reports SecretNotFound of Events: secret "x" not found`},
		"ConfigMap of a volume missing": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Events", Status: "False", Reason: "ConfigMapNotFound", Message: `configmap "x" not found`}}}, diagnosis.Act, `configmap "x" not found`},
		"CSI driver not there yet":      {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Events", Status: "False", Reason: "FailedMount", Message: `driver name rbd.csi.ceph.com not found in the list of registered CSI drivers`}}}, diagnosis.Waits, `Kubernetes reports FailedMount of Events: driver name rbd.csi.ceph.com not found`},
		"volume not attached":           {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Events", Status: "False", Reason: "FailedAttachVolume", Message: "Multi-Attach error"}}}, diagnosis.Waits, "Multi-Attach error"},
		"not ready yet":                 {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "ContainersReady", Status: "False", Reason: "ContainersNotReady", Message: "containers with unready status"}}}, diagnosis.Routine, ""},
		"a condition of later": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Weird", Status: "True", Reason: "Why", Message: "because"}}},
			diagnosis.Unknown, "because"},
	} {
		t.Run(name, func(t *testing.T) {
			pods := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: tt.status}}
			found := diagnosis.ForMachine(machineWith("Starting", true), pods)
			assert.Equal(t, tt.urgency, found.Worst().Urgency)
			text := found.Describe(diagnosis.Unknown)
			assert.Contains(t, text, tt.want)
			assert.Equal(t, tt.want == "", text == "", text)

			pods[0].DeletionTimestamp = &metav1.Time{}
			assert.Empty(t, diagnosis.ForMachine(machineWith("Starting", true), pods), "it ends")
			pods[0].DeletionTimestamp = nil
			assert.Empty(t, diagnosis.ForMachine(machineWith("Stopped", false), pods), "it is of a former instance")
		})
	}
}

// Conditions as CDI 1.65 writes them.
func TestForDisk(t *testing.T) {
	for name, tt := range map[string]struct {
		condition cdiv1.DataVolumeCondition
		urgency   diagnosis.Urgency
		reason    v1alpha1.Reason
		want      string
	}{
		"storage quota":         {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "ErrExceededQuota", Message: `persistentvolumeclaims "vm-root" is forbidden: exceeded quota: q, requested: requests.storage=1Gi`}, diagnosis.Act, v1alpha1.ReasonQuotaExceeded, "CDI reports ErrExceededQuota: persistentvolumeclaims"},
		"quota of a temporary":  {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "Error", Message: `persistentvolumeclaims "tmp-pvc" is forbidden: exceeded quota: q`}, diagnosis.Act, v1alpha1.ReasonQuotaExceeded, "exceeded quota"},
		"LimitRange":            {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "Error", Message: `persistentvolumeclaims "tmp-pvc" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi`}, diagnosis.Act, "", "maximum storage"},
		"access modes":          {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "ErrClaimNotValid", Message: "no accessMode defined"}, diagnosis.Act, "", "in the StorageProfile"},
		"no StorageClass":       {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "ErrClaimNotValid", Message: "PVC spec is missing accessMode and no storageClass to choose profile"}, diagnosis.Act, "", "create the StorageClass, or name one that exists"},
		"unschedulable":         {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "Unschedulable", Message: "Importer pod cannot be scheduled"}, diagnosis.ActIfLasting, "", "cannot be scheduled"},
		"Pod refused":           {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "ErrStartingPod", Message: "Error starting pod 'x'"}, diagnosis.ActIfLasting, "", "Error starting pod"},
		"image pull":            {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "ImagePullFailed", Message: "Unable to pull image: x"}, diagnosis.Act, "", "Unable to pull"},
		"invalid clone":         {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "CloneValidationFailed", Message: "target is smaller"}, diagnosis.Act, "", "target is smaller"},
		"source in use":         {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "CloneSourceInUse", Message: "pod x using it"}, diagnosis.Waits, "", "pod x using it"},
		"an error of later":     {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "Error", Message: "connection refused"}, diagnosis.Waits, "", "connection refused"},
		"unknown":               {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "SomethingNew", Message: "of a later version"}, diagnosis.Unknown, "", "SomethingNew: of a later version"},
		"unknown type":          {cdiv1.DataVolumeCondition{Type: "Polished", Status: "False", Message: "out of polish"}, diagnosis.Unknown, "", "CDI reports Polished False: out of polish"},
		"provisioner fails":     {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "Pending", Message: `target PVC vm-root Pending and failed to provision volume with StorageClass "x": rpc error: code = ResourceExhausted desc = full`}, diagnosis.Act, "", "CDI reports Pending: failed to provision volume"},
		"backend down":          {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "Pending", Message: `target PVC vm-root Pending and [prime-0d4f] : failed to provision volume with StorageClass "x": rpc error: code = Unavailable desc = down`}, diagnosis.Waits, "", "desc = down"},
		"claim over a quota":    {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "Pending", Message: `target PVC vm-root Pending and exceeded quota: q`}, diagnosis.Act, v1alpha1.ReasonQuotaExceeded, "exceeded quota: q"},
		"event of every clone":  {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "Pending", Message: `target PVC vm-root Pending and waiting for first consumer to be created before binding`}, diagnosis.Routine, "", ""},
		"event of later":        {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "Pending", Message: `target PVC vm-root Pending and Volume is on holiday`}, diagnosis.Passing, "", ""},
		"claim pending":         {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "Pending", Message: "PVC vm-root Pending"}, diagnosis.Routine, "", ""},
		"no claim yet":          {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: "False", Reason: "NotFound", Message: "No PVC found"}, diagnosis.Passing, "", ""},
		"not running, silently": {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "False"}, diagnosis.Routine, "", ""},
		"runs":                  {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: "True", Reason: "Pod is running"}, diagnosis.Routine, "", ""},
		"transfers":             {cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeReady, Status: "False", Reason: "TransferRunning"}, diagnosis.Routine, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := diagnosis.ForDisk(&cdiv1.DataVolume{Status: cdiv1.DataVolumeStatus{Conditions: []cdiv1.DataVolumeCondition{tt.condition}}}, nil)
			worst := found.Worst()
			assert.Equal(t, tt.urgency, worst.Urgency)
			assert.Equal(t, tt.reason, worst.MachineReason)
			text := found.Describe(diagnosis.Unknown)
			assert.Contains(t, text, tt.want)
			assert.Equal(t, tt.want == "", text == "", text)
		})
	}
}

func TestFindingsAreOrdered(t *testing.T) {
	found := diagnosis.ForMachine(machineWith("ErrorUnschedulable", true,
		condition{"Levitating", "False", "TooHeavy", "cannot lift off"},
		condition{"PodScheduled", "False", "Unschedulable", "0/3 nodes are available"},
		condition{"Failure", "True", "FailedCreate", "no"},
	), []corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "0/3 nodes are available"}}}}})
	assert.Equal(t, "KubeVirt reports FailedCreate: no; KubeVirt reports Unschedulable: 0/3 nodes are available; KubeVirt reports TooHeavy: cannot lift off", found.Describe(diagnosis.Unknown),
		"the most urgent comes first, and the Pod repeats KubeVirt")
	assert.Equal(t, "KubeVirt reports FailedCreate: no; KubeVirt reports Unschedulable: 0/3 nodes are available", found.Describe(diagnosis.Waits))
	assert.Zero(t, diagnosis.Findings{}.Worst())
}

// Each attempt of KubeVirt has another Pod: the text must not change with it.
func TestTextIsStable(t *testing.T) {
	text := func(suffix string) string {
		return diagnosis.ForMachine(machineWith("Starting", true, condition{"Synchronized", "False", "FailedCreate", fmt.Sprintf(`pods "virt-launcher-my.vm-%s" is forbidden`, suffix)}), nil).Describe(diagnosis.Unknown)
	}
	assert.Equal(t, text("bcdfg"), text("x4z9q"))
}

// Whatever a later version or a hostile webhook writes is bounded, on one line, and not lost.
func TestAnyConditionIsPassedOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) string {
			return strings.Repeat(rapid.String().Draw(t, label), rapid.SampledFrom([]int{1, 1, 5000}).Draw(t, label+" repeated"))
		}
		c := condition{"X" + draw("type"), draw("status"), draw("reason"), "say " + draw("message")}
		text := diagnosis.ForMachine(machineWith(draw("printable"), true, c), nil).Describe(diagnosis.Unknown)
		require.Contains(t, text, "say")
		require.LessOrEqual(t, len(text), 1200)
		require.NotContains(t, text, "\n")
	})
}

func TestIsLauncher(t *testing.T) {
	assert.True(t, diagnosis.IsLauncher(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{kubevirtv1.AppLabel: "virt-launcher"}}}))
	assert.False(t, diagnosis.IsLauncher(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"cdi.kubevirt.io": "importer"}}}))
}

func TestMissingClaimIsNotReportedBesideTheScheduler(t *testing.T) {
	machine := machineWith("ErrorUnschedulable", true, condition{"PodScheduled", "False", "Unschedulable", "PVC alice/arm-root does not exist, waiting for it to appear"})
	pod := func(message string) []corev1.Pod {
		return []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubevirt.io": "virt-launcher"}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: message}}},
		}}
	}
	assert.Equal(t, "Kubernetes reports Unschedulable of PodScheduled: 0/1 nodes match", diagnosis.ForMachine(machine, pod("0/1 nodes match")).Describe(diagnosis.Unknown))
	for _, pods := range [][]corev1.Pod{nil, pod("")} {
		assert.Contains(t, diagnosis.ForMachine(machine, pods).Describe(diagnosis.Unknown), "PVC alice/arm-root does not exist")
	}
}
