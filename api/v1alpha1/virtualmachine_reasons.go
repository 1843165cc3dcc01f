package v1alpha1

// Reasons of a VirtualMachine in status, conditions, metric labels and events, beside
// CDIMissing, SecretMissing, SecretForbidden, QuotaExceeded, ArchitectureMismatch and Ready.
const (
	// ReasonImageMissing: the image does not exist and the VirtualMachine may not
	// create it.
	ReasonImageMissing Reason = "ImageMissing"
	// ReasonImageNamespaceMissing: the namespace to create the image in does not exist
	// or is being deleted.
	ReasonImageNamespaceMissing Reason = "ImageNamespaceMissing"
	// ReasonImageRefused: the API server refused the image created from the template.
	ReasonImageRefused Reason = "ImageRefused"
	// ReasonWaitingForImage: the image is not ready yet.
	ReasonWaitingForImage Reason = "WaitingForImage"
	// ReasonImageFailed: the image failed, or needs a person; the message has the cause.
	ReasonImageFailed Reason = "ImageFailed"
	// ReasonImageDeleting: the image is being removed and can no longer be acquired.
	ReasonImageDeleting Reason = "ImageDeleting"
	// ReasonAcquiringImage: the image is ready and the VirtualMachine is acquiring it,
	// so that it is not deleted.
	ReasonAcquiringImage Reason = "AcquiringImage"
	// ReasonIgnoredOnDeploy: the image is ready, and spec.ignoreOnDeploy is true.
	ReasonIgnoredOnDeploy Reason = "IgnoredOnDeploy"
	// ReasonSpecInvalid: a field of the spec cannot be applied; see the message.
	ReasonSpecInvalid Reason = "SpecInvalid"
	// ReasonNameTaken: an object with the needed name exists and does not belong to the
	// VirtualMachine.
	ReasonNameTaken Reason = "NameTaken"
	// ReasonRootDiskRefused: the API server refused the root disk.
	ReasonRootDiskRefused Reason = "RootDiskRefused"
	// ReasonRootDiskFailed: the clone of the root disk failed.
	ReasonRootDiskFailed Reason = "RootDiskFailed"
	// ReasonCloningRootDisk: the root disk is being cloned.
	ReasonCloningRootDisk Reason = "CloningRootDisk"
	// ReasonDataDiskRefused: the API server refused a disk of spec.disks.
	ReasonDataDiskRefused Reason = "DataDiskRefused"
	// ReasonDataDiskFailed: the clone, or the creation, of a disk of spec.disks failed.
	ReasonDataDiskFailed Reason = "DataDiskFailed"
	// ReasonDataDiskLost: a disk of spec.disks that the guest may have written to is gone.
	ReasonDataDiskLost Reason = "DataDiskLost"
	// ReasonPreparingDataDisk: a disk of spec.disks is being cloned or created.
	ReasonPreparingDataDisk Reason = "PreparingDataDisk"
	// ReasonKubeVirtMissing: the cluster does not serve KubeVirt's VirtualMachine.
	ReasonKubeVirtMissing Reason = "KubeVirtMissing"
	// ReasonMachineRefused: the API server refused the KubeVirt VirtualMachine.
	ReasonMachineRefused Reason = "MachineRefused"
	// ReasonRequestFailed: a request failed for a cause that may pass, such as a
	// webhook that is down or a timeout.
	ReasonRequestFailed Reason = "RequestFailed"
	// ReasonNetworkMissing: the network of an interface does not exist; KubeVirt starts
	// no instance without it.
	ReasonNetworkMissing Reason = "NetworkMissing"
	// ReasonInstancetypeMissing: the instancetype of the spec does not exist; KubeVirt
	// starts no instance without it.
	ReasonInstancetypeMissing Reason = "InstancetypeMissing"
	// ReasonPreferenceMissing: the preference of the spec does not exist; KubeVirt starts
	// no instance without it.
	ReasonPreferenceMissing Reason = "PreferenceMissing"
	// ReasonStarting: the KubeVirt VirtualMachine exists and is not ready yet.
	ReasonStarting Reason = "Starting"
	// ReasonMachineError: KubeVirt reports an error of the machine; it may pass.
	ReasonMachineError Reason = "MachineError"
	// ReasonRunning: the machine is running.
	ReasonRunning Reason = "Running"
	// ReasonStopped: the machine exists and is not meant to run.
	ReasonStopped Reason = "Stopped"
)

// Conditions of a VirtualMachine, beside Ready, Reconciling and Stalled.
const (
	// ConditionImageAcquired: the image exists and is kept while the VirtualMachine
	// exists.
	ConditionImageAcquired = "ImageAcquired"
	// ConditionRootDiskReady: the root disk has been cloned.
	ConditionRootDiskReady = "RootDiskReady"
	// ConditionDisksReady: all disks of spec.disks are complete; absent where the
	// VirtualMachine has none.
	ConditionDisksReady = "DisksReady"
	// ConditionMachineCreated: the KubeVirt VirtualMachine exists.
	ConditionMachineCreated = "MachineCreated"
	// ConditionSpecAdjusted: the agent applied something that differs from the spec.
	ConditionSpecAdjusted = "SpecAdjusted"
	// ConditionImageDiffers: the existing image differs from the template.
	ConditionImageDiffers = "ImageDiffers"
	// ConditionRestartRequired: the spec was changed while an instance was running.
	ConditionRestartRequired = "RestartRequired"
	// ConditionPlainTextPassword: the spec has a password in plain text.
	ConditionPlainTextPassword = "PlainTextPassword"
)

// Reasons of conditions of a VirtualMachine that are not also reasons of a phase.
const (
	// ReasonAcquired: the VirtualMachine has acquired its images, or they are ready while
	// spec.ignoreOnDeploy is true.
	ReasonAcquired = "Acquired"
	// ReasonNotAcquired: the VirtualMachine has not acquired an image that it needs.
	ReasonNotAcquired = "NotAcquired"
	// ReasonCloned: the root disk is complete.
	ReasonCloned = "Cloned"
	// ReasonCreated: the KubeVirt VirtualMachine exists.
	ReasonCreated = "Created"
	// ReasonNotCreated: the disk or the KubeVirt VirtualMachine does not exist yet.
	ReasonNotCreated = "NotCreated"
	// ReasonAsSpecified: the KubeVirt VirtualMachine matches the spec.
	ReasonAsSpecified = "AsSpecified"
	// ReasonAdjusted: something differs from the spec, and the message lists what.
	ReasonAdjusted = "Adjusted"
	// ReasonSameAsImage: the image matches the template.
	ReasonSameAsImage = "SameAsImage"
	// ReasonDiffersFromTemplate: the image existed before and differs from the template.
	ReasonDiffersFromTemplate = "DiffersFromTemplate"
	// ReasonNoTemplate: the spec has no template, or no image exists to compare it with.
	ReasonNoTemplate = "NoTemplate"
	// ReasonUpToDate: no change is known to need a restart.
	ReasonUpToDate = "UpToDate"
	// ReasonSpecChanged: the spec changed while the machine runs, or KubeVirt requires a
	// restart.
	ReasonSpecChanged = "SpecChanged"
	// ReasonPasswordInSpec: the spec has a password in plain text.
	ReasonPasswordInSpec = "PasswordInSpec"
	// ReasonNoPasswordInSpec: the spec has no password in plain text.
	ReasonNoPasswordInSpec = "NoPasswordInSpec"
)
