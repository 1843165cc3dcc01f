package diagnosis

import (
	"regexp"
	"slices"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// rule judges the reports that match all of its fields; an empty one matches everything.
type rule struct {
	object, condition, status string
	reasons                   []string
	message                   *regexp.Regexp

	urgency       Urgency
	machineReason v1alpha1.Reason
	advice        string
}

var (
	// passing are refusals that pass by themselves: somebody repeats the request.
	passing = regexp.MustCompile(`failed calling webhook|connection refused|i/o timeout|context deadline exceeded|Client\.Timeout|` +
		`the object has been modified|Operation cannot be fulfilled|etcdserver: |Internal error occurred|[Tt]oo many requests|` +
		`already exists|because it is being terminated|is being deleted`)
	refused       = regexp.MustCompile(`is forbidden: |denied the request|is invalid: `)
	exceededQuota = regexp.MustCompile(`exceeded quota`)
	// noStorageClass: neither the one that a DataVolume names nor a default exists.
	noStorageClass = regexp.MustCompile(`no storageClass to choose profile`)
)

const (
	adviceQuota  = "free or raise the quota of the namespace"
	adviceImages = "make the image of KubeVirt or CDI pullable from the node"
)

var (
	imageErrors  = []string{"ErrImagePull", "ImagePullBackOff", "ImagePullFailed", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
	configErrors = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "PreStartHookError", "PostStartHookError", "StartError", "ContainerCannotRun"}
)

// rules in the order in which they are tried (KubeVirt 1.8 and 1.9, CDI 1.65 and 1.66,
// Kubernetes 1.36). What no rule matches is Unknown.
var rules = []rule{
	// Of the VirtualMachine: what virt-controller could not do (pkg/virt-controller/watch/vm).
	{object: objectMachine, condition: "Failure", status: "True", message: exceededQuota, urgency: Act, machineReason: v1alpha1.ReasonQuotaExceeded, advice: adviceQuota},
	{object: objectMachine, condition: "Failure", status: "True", message: passing, urgency: Waits},
	{object: objectMachine, condition: "Failure", status: "True", reasons: []string{"FailedFindInstancetype"}, urgency: Act, machineReason: v1alpha1.ReasonInstancetypeMissing, advice: "create it, or correct spec.instancetype"},
	{object: objectMachine, condition: "Failure", status: "True", reasons: []string{"FailedFindPreference"}, urgency: Act, machineReason: v1alpha1.ReasonPreferenceMissing, advice: "create it, or correct spec.preference"},
	{object: objectMachine, condition: "Failure", status: "True", reasons: []string{"FailedDelete"}, urgency: Waits},
	{object: objectMachine, condition: "Failure", status: "True", urgency: Act},
	{object: objectMachine, condition: "Failure", urgency: Routine},
	{object: objectMachine, condition: "ManualRecoveryRequired", status: "True", urgency: Act},
	{object: objectMachine, condition: "ManualRecoveryRequired", urgency: Routine},

	// Of its instance: what virt-controller and virt-handler could not do (…/watch/vmi).
	{object: objectMachine, condition: "Synchronized", status: "False", reasons: imageErrors, urgency: Act, advice: adviceImages},
	{object: objectMachine, condition: "Synchronized", status: "False", message: exceededQuota, urgency: Act, machineReason: v1alpha1.ReasonQuotaExceeded, advice: adviceQuota},
	{object: objectMachine, condition: "Synchronized", status: "False", message: passing, urgency: Waits},
	{object: objectMachine, condition: "Synchronized", status: "False", reasons: []string{
		"FailedCreate", "FailedCreateValidation", "FailedPvcNotFound", "FailedGuaranteeResources", "FailedDataVolumeImport",
		"FailedBackendStorageCreate", "ContainerPathVolumesDisabled", "MissingVirtiofsContainers",
	}, urgency: Act},
	{object: objectMachine, condition: "Synchronized", status: "False", urgency: Waits},
	{object: objectMachine, condition: "Synchronized", urgency: Routine},
	{object: objectMachine, condition: "PodScheduled", status: "False", reasons: []string{"Unschedulable"}, urgency: ActIfLasting},
	{object: objectMachine, condition: "PodScheduled", status: "False", urgency: Waits},
	{object: objectMachine, condition: "PodScheduled", urgency: Routine},
	{object: objectMachine, condition: "Paused", status: "True", reasons: []string{"PausedIOError"}, urgency: Act, advice: "free space on the volumes of the machine, then run virtctl unpause"},
	{object: objectMachine, condition: "Paused", reasons: []string{"PausedByUser", "PausedByMigrationMonitor", ""}, urgency: Routine},
	{object: objectMachine, condition: "Paused", status: "False", urgency: Routine},
	{object: objectMachine, condition: "DataVolumesReady", status: "True", urgency: Routine},
	{object: objectMachine, condition: "DataVolumesReady", urgency: Waits},
	{object: objectMachine, condition: "AccessCredentialsSynchronized", status: "False", urgency: Waits},
	{object: objectMachine, condition: "AccessCredentialsSynchronized", urgency: Routine},
	{object: objectMachine, condition: "DecentralizedLiveMigrationFailure", status: "True", urgency: Waits},
	{object: objectMachine, condition: "Ready", status: "True", urgency: Routine},
	{object: objectMachine, condition: "Ready", reasons: []string{
		"", "VMINotExists", "VMIConditionMissing", "PodNotExists", "PodConditionMissing", "PodTerminating", "GuestNotRunning", "ReadinessGatesNotReady", "PodCompleted", "PodFailed",
	}, urgency: Routine},
	{object: objectMachine, condition: "Ready", reasons: []string{"ContainersNotReady"}, urgency: Waits},
	{object: objectMachine, condition: "Provisioning", urgency: Routine},
	{object: objectMachine, condition: "LiveMigratable", urgency: Routine},
	{object: objectMachine, condition: "StorageLiveMigratable", urgency: Routine},
	{object: objectMachine, condition: "AgentConnected", urgency: Routine},
	{object: objectMachine, condition: "AgentVersionNotSupported", urgency: Routine},
	{object: objectMachine, condition: "VolumesChange", urgency: Routine},
	{object: objectMachine, condition: "HotVCPUChange", urgency: Routine},
	{object: objectMachine, condition: "HotMemoryChange", urgency: Routine},
	{object: objectMachine, condition: "MigrationRequired", urgency: Routine},
	{object: objectMachine, condition: "EvictionRequested", urgency: Routine},
	{object: objectMachine, condition: "RestartRequired", urgency: Routine}, // a condition of the VirtualMachine has it
	{object: objectMachine, condition: "Initialized", urgency: Routine},
	{object: objectMachine, condition: "ContainersReady", urgency: Routine},

	// Of disks: what CDI could not do (pkg/controller/datavolume).
	{object: objectDisk, reasons: []string{"ErrExceededQuota"}, urgency: Act, machineReason: v1alpha1.ReasonQuotaExceeded, advice: adviceQuota},
	{object: objectDisk, status: "False", message: exceededQuota, urgency: Act, machineReason: v1alpha1.ReasonQuotaExceeded, advice: adviceQuota},
	{object: objectDisk, reasons: []string{"ErrClaimNotValid"}, message: noStorageClass, urgency: Act, advice: "create the StorageClass, or name one that exists"},
	{object: objectDisk, reasons: []string{"ErrClaimNotValid"}, urgency: Act, advice: "set claimPropertySets (accessModes) in the StorageProfile of the StorageClass"},
	{object: objectDisk, status: "False", reasons: imageErrors, urgency: Act, advice: adviceImages},
	{object: objectDisk, status: "False", reasons: configErrors, urgency: Act},
	{object: objectDisk, status: "False", reasons: []string{"ErrStartingPod", "Unschedulable"}, urgency: ActIfLasting},
	{object: objectDisk, status: "False", reasons: []string{
		"CloneValidationFailed", "ErrIncompatiblePVC", "ErrResourceExists", "ErrUnableToClone", "CloneFailed", "ErrClaimLost", "ClaimLost", "Lost",
	}, urgency: Act},
	{object: objectDisk, status: "False", message: passing, urgency: Waits},
	{object: objectDisk, status: "False", message: refused, urgency: Act},
	{object: objectDisk, status: "False", reasons: []string{"CloneWithoutSource", "CloneSourceInUse", "ErrResourceMarkedForDeletion", "SmartCloneSourceInUse", "Error"}, urgency: Waits},
	{object: objectDisk, condition: "Running", status: "False", reasons: []string{"Pending", "ContainerCreating", "PodInitializing", "Completed", "NotFound"}, urgency: Routine},
	{object: objectDisk, condition: "Bound", status: "False", reasons: []string{"Pending"}, urgency: Routine},
	{object: objectDisk, condition: "Bound", status: "False", reasons: []string{"NotFound"}, urgency: Passing, advice: "check the LimitRanges, quotas and admission policies of the namespace, and the log of cdi-deployment"},
	{object: objectDisk, status: "True", urgency: Routine},
	{object: objectDisk, condition: "Ready", urgency: Routine}, // it follows from the others
	{object: objectDisk, status: "Unknown", urgency: Routine},

	// Of its claim, as agent/importcause judges its events.
	{object: objectClaimEvent, status: eventRoutine, urgency: Routine},
	{object: objectClaimEvent, message: exceededQuota, urgency: Act, machineReason: v1alpha1.ReasonQuotaExceeded, advice: adviceQuota},
	{object: objectClaimEvent, status: eventNeedsPerson, urgency: Act},
	{object: objectClaimEvent, status: eventPassing, urgency: Passing},
	{object: objectClaimEvent, urgency: Waits},

	// Of Pods: what the scheduler and the kubelet could not do.
	{object: objectPod, status: stateWaiting, reasons: imageErrors, urgency: Act, advice: adviceImages},
	{object: objectPod, status: stateWaiting, reasons: configErrors, urgency: Act},
	{object: objectPod, status: stateWaiting, reasons: []string{"ContainerCreating", "PodInitializing", ""}, urgency: Routine},
	{object: objectPod, status: stateTerminated, urgency: Waits},
	{object: objectPod, status: stateFailed, urgency: Waits},
	{object: objectPod, condition: string(importcause.ConditionEvents), reasons: []string{importcause.ReasonSecretNotFound, importcause.ReasonConfigMapNotFound}, urgency: Act},
	{object: objectPod, condition: string(importcause.ConditionEvents), urgency: Waits},
	{object: objectPod, condition: "PodScheduled", status: "False", reasons: []string{"Unschedulable"}, urgency: ActIfLasting},
	{object: objectPod, condition: "PodScheduled", status: "False", urgency: Waits},
	{object: objectPod, condition: "PodScheduled", urgency: Routine},
	{object: objectPod, condition: "DisruptionTarget", status: "True", urgency: Waits},
	{object: objectPod, condition: "DisruptionTarget", urgency: Routine},
	{object: objectPod, condition: "Initialized", urgency: Routine},
	{object: objectPod, condition: "Ready", urgency: Routine},
	{object: objectPod, condition: "ContainersReady", urgency: Routine},
	{object: objectPod, condition: "PodReadyToStartContainers", urgency: Routine},
	{object: objectPod, condition: "kubevirt.io/virtual-machine-unpaused", urgency: Routine},
}

func (r *rule) matches(report Report) bool {
	return (r.object == "" || r.object == report.Object) && (r.condition == "" || r.condition == report.Type) &&
		(r.status == "" || r.status == report.Status) && (r.reasons == nil || slices.Contains(r.reasons, report.Reason)) &&
		(r.message == nil || r.message.MatchString(v1alpha1.Truncate(report.Message, maxJudgedBytes)))
}

// maxJudgedBytes bounds what is read of a message.
const maxJudgedBytes = 4096

func applyRules(report Report) Finding {
	for i := range rules {
		if r := &rules[i]; r.matches(report) {
			return Finding{Report: report, Urgency: r.urgency, MachineReason: r.machineReason, Advice: r.advice, rule: i}
		}
	}
	urgency := Unknown
	if report.Reason == "" && report.Message == "" {
		urgency = Routine // it says nothing
	}
	return Finding{Report: report, Urgency: urgency, rule: len(rules)}
}
