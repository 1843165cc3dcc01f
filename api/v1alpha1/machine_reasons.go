package v1alpha1

// Reasons of a VirtualMachine, in status, conditions, metric labels and events:
// a closed set, together with ReasonCDIMissing, ReasonSecretMissing and
// ReasonReady.
const (
	// ReasonImageMissing: the image does not exist, and the machine may not make it.
	ReasonImageMissing Reason = "ImageMissing"
	// ReasonImageNamespaceMissing: the namespace that the image is to be made in
	// does not exist, or is being deleted.
	ReasonImageNamespaceMissing Reason = "ImageNamespaceMissing"
	// ReasonImageRefused: the API server refused the image made from the template.
	ReasonImageRefused Reason = "ImageRefused"
	// ReasonWaitingForImage: the image is on its way.
	ReasonWaitingForImage Reason = "WaitingForImage"
	// ReasonImageFailed: the image failed, for the reason that the message tells.
	ReasonImageFailed Reason = "ImageFailed"
	// ReasonImageDeleting: the image is being removed and can no longer be acquired.
	ReasonImageDeleting Reason = "ImageDeleting"
	// ReasonAcquiringImage: the image serves; it is made sure that it stays.
	ReasonAcquiringImage Reason = "AcquiringImage"
	// ReasonIgnoredOnDeploy: ignoreOnDeploy is true, the image is ready.
	ReasonIgnoredOnDeploy Reason = "IgnoredOnDeploy"
	// ReasonSpecInvalid: something in the spec cannot be carried out.
	ReasonSpecInvalid Reason = "SpecInvalid"
	// ReasonNameTaken: an object of the name that is needed is there and not ours.
	ReasonNameTaken Reason = "NameTaken"
	// ReasonRootDiskRefused: the API server refused the root disk.
	ReasonRootDiskRefused Reason = "RootDiskRefused"
	// ReasonRootDiskFailed: the clone of the root disk failed.
	ReasonRootDiskFailed Reason = "RootDiskFailed"
	// ReasonCloningRootDisk: the root disk is being cloned.
	ReasonCloningRootDisk Reason = "CloningRootDisk"
	// ReasonKubeVirtMissing: the cluster does not serve KubeVirt's VirtualMachine.
	ReasonKubeVirtMissing Reason = "KubeVirtMissing"
	// ReasonMachineRefused: the API server refused the KubeVirt VirtualMachine.
	ReasonMachineRefused Reason = "MachineRefused"
	// ReasonRequestFailed: making something did not succeed, for a reason that may
	// pass by itself: a webhook that is down, a timeout.
	ReasonRequestFailed Reason = "RequestFailed"
	// ReasonNetworkMissing: a network that an interface names does not exist, and
	// KubeVirt makes no instance without.
	ReasonNetworkMissing Reason = "NetworkMissing"
	// ReasonStarting: the KubeVirt VirtualMachine is there and not yet ready.
	ReasonStarting Reason = "Starting"
	// ReasonMachineError: KubeVirt reports a fault of the machine; it may pass.
	ReasonMachineError Reason = "MachineError"
	// ReasonRunning: the machine runs.
	ReasonRunning Reason = "Running"
	// ReasonStopped: the machine is there and is not meant to run.
	ReasonStopped Reason = "Stopped"
)

// Conditions of a VirtualMachine, beside Ready, Reconciling and Stalled.
const (
	// ConditionImageAcquired: the image is there and stays while the machine exists.
	ConditionImageAcquired = "ImageAcquired"
	// ConditionRootDiskReady: the root disk has been cloned.
	ConditionRootDiskReady = "RootDiskReady"
	// ConditionMachineCreated: the KubeVirt VirtualMachine is there.
	ConditionMachineCreated = "MachineCreated"
	// ConditionSpecAdjusted: something else was done than the letter of the spec.
	ConditionSpecAdjusted = "SpecAdjusted"
	// ConditionImageDiffers: the image that is there is not what the template says.
	ConditionImageDiffers = "ImageDiffers"
	// ConditionRestartRequired: the spec was changed while an instance runs.
	ConditionRestartRequired = "RestartRequired"
	// ConditionPlainTextPassword: a password stands in the spec for all to read.
	ConditionPlainTextPassword = "PlainTextPassword"
)

// Reasons of the conditions that are no reason of a phase.
const (
	ReasonAcquired            = "Acquired"
	ReasonNotAcquired         = "NotAcquired"
	ReasonCloned              = "Cloned"
	ReasonCreated             = "Created"
	ReasonNotCreated          = "NotCreated"
	ReasonAsSpecified         = "AsSpecified"
	ReasonAdjusted            = "Adjusted"
	ReasonSameAsImage         = "SameAsImage"
	ReasonDiffersFromTemplate = "DiffersFromTemplate"
	ReasonNoTemplate          = "NoTemplate"
	ReasonUpToDate            = "UpToDate"
	ReasonSpecChanged         = "SpecChanged"
	ReasonPasswordInSpec      = "PasswordInSpec"
	ReasonNoPasswordInSpec    = "NoPasswordInSpec"
)
