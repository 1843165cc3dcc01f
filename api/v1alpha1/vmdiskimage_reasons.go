package v1alpha1

// Reason says why a VMDiskImage or VirtualMachine is in its phase. The set is closed:
// status, conditions, metric labels and events use the same strings.
type Reason string

// Reasons of a VMDiskImage that is not ready yet, and Ready.
const (
	// ReasonWaitingForSlot: the image is queued; nothing is wrong.
	ReasonWaitingForSlot Reason = "WaitingForSlot"
	// ReasonWaitingForFleet: the policy's concurrency leaves room, but the hub's grant
	// of the fleet-wide budget is used up.
	ReasonWaitingForFleet Reason = "WaitingForFleet"
	// ReasonWaitingForSource: the grant for the image's group of sources is used up.
	ReasonWaitingForSource Reason = "WaitingForSource"
	// ReasonNamespaceShare: the images of this namespace have the slots of the policy's
	// namespaceShare, and images of other namespaces that arrived later go first.
	ReasonNamespaceShare Reason = "NamespaceShare"
	// ReasonPaused: the policy's concurrency is 0.
	ReasonPaused Reason = "Paused"
	// ReasonWaitingForWindow: there will be a slot when a window of the policy opens.
	ReasonWaitingForWindow Reason = "WaitingForWindow"
	// ReasonPolicyMissing: no valid policy has been seen yet, so nothing is downloaded.
	ReasonPolicyMissing Reason = "PolicyMissing"
	// ReasonBackingOff: the last attempt failed and the next one waits for its backoff.
	ReasonBackingOff Reason = "BackingOff"
	// ReasonChecking: the agent is asking the source whether it has the image.
	ReasonChecking Reason = "Checking"
	// ReasonStorageClassMissing: the StorageClass does not exist, or the cluster has no
	// default one.
	ReasonStorageClassMissing Reason = "StorageClassMissing"
	// ReasonSnapshotClassMissing: the VolumeSnapshotClass does not exist.
	ReasonSnapshotClassMissing Reason = "SnapshotClassMissing"
	// ReasonSnapshotClassMismatch: the VolumeSnapshotClass is of another driver than the
	// StorageClass.
	ReasonSnapshotClassMismatch Reason = "SnapshotClassMismatch"
	// ReasonStorageProfileIncomplete: CDI's StorageProfile of the StorageClass has no
	// access modes.
	ReasonStorageProfileIncomplete Reason = "StorageProfileIncomplete"
	// ReasonSecretMissing: a Secret named by secretRef or secretExtraHeaders does not exist in
	// the image's namespace.
	ReasonSecretMissing Reason = "SecretMissing"
	// ReasonSecretForbidden: the agent may not read Secrets in the namespace of the one that
	// the spec names; the message has the command that allows it.
	ReasonSecretForbidden Reason = "SecretForbidden"
	// ReasonSecretInvalid: a Secret named by secretExtraHeaders has a key that is no HTTP header.
	ReasonSecretInvalid Reason = "SecretInvalid"
	// ReasonCertConfigMapMissing: the ConfigMap named by certConfigMap does not exist
	// in the image's namespace.
	ReasonCertConfigMapMissing Reason = "CertConfigMapMissing"
	// ReasonCDIMissing: the cluster does not serve CDI's DataVolume.
	ReasonCDIMissing Reason = "CDIMissing"
	// ReasonCDITooOld: the CRD of CDI's DataVolume lacks a field that the image needs, such
	// as checksum.
	ReasonCDITooOld Reason = "CDITooOld"
	// ReasonCDIUnavailable: a webhook that the API server asks about DataVolumes, such as
	// CDI's, does not answer.
	ReasonCDIUnavailable Reason = "CDIUnavailable"
	// ReasonInsufficientStorage: the storage capacity that the cluster reports, or a
	// quota or LimitRange of the namespace, is too small for the image.
	ReasonInsufficientStorage Reason = "InsufficientStorage"
	// ReasonImporting: CDI is importing the image into a DataVolume.
	ReasonImporting Reason = "Importing"
	// ReasonVolumePending: the import waits for its volume; the message has the words of
	// the storage driver or of CDI.
	ReasonVolumePending Reason = "VolumePending"
	// ReasonImporterUnschedulable: no node takes CDI's importer Pod.
	ReasonImporterUnschedulable Reason = "ImporterUnschedulable"
	// ReasonImporterRefused: the API server refuses CDI's importer Pod.
	ReasonImporterRefused Reason = "ImporterRefused"
	// ReasonImporterNotStarting: the node cannot start CDI's importer Pod.
	ReasonImporterNotStarting Reason = "ImporterNotStarting"
	// ReasonSnapshotting: the import is done and the VolumeSnapshot is not ready yet.
	ReasonSnapshotting Reason = "Snapshotting"
	// ReasonDataSourceMissing: the DataSource that the image uses, or one that it points at,
	// does not exist.
	ReasonDataSourceMissing Reason = "DataSourceMissing"
	// ReasonDataSourceNotReady: what the DataSource points at does not exist yet or is not ready.
	ReasonDataSourceNotReady Reason = "DataSourceNotReady"
	// ReasonDataSourceInvalid: the DataSource points at nothing, at itself, at another
	// namespace, or at a DataSource that points at yet another.
	ReasonDataSourceInvalid Reason = "DataSourceInvalid"
	// ReasonDataSourceForbidden: the agent may not clone from the DataSource's namespace: value
	// dataSources.namespaces of its chart does not have it.
	ReasonDataSourceForbidden Reason = "DataSourceForbidden"
	// ReasonArchitectureMismatch: image and DataSource, or VirtualMachine and image, name two
	// architectures.
	ReasonArchitectureMismatch Reason = "ArchitectureMismatch"
	// ReasonReady: VMs can be cloned from the image, or the object is as its spec asks.
	ReasonReady Reason = "Ready"
)

// Reasons why an attempt, or the VMDiskImage as a whole, failed or leaves.
const (
	// ReasonNotFound: the source has no such image.
	ReasonNotFound Reason = "NotFound"
	// ReasonForbidden: the source refused access.
	ReasonForbidden Reason = "Forbidden"
	// ReasonChecksumMismatch: the downloaded file does not match spec.checksum.
	ReasonChecksumMismatch Reason = "ChecksumMismatch"
	// ReasonDiskTooSmall: the image is larger than spec.diskSize.
	ReasonDiskTooSmall Reason = "DiskTooSmall"
	// ReasonQuotaExceeded: a quota of the namespace refused the DataVolume, its storage or
	// the importer Pod.
	ReasonQuotaExceeded Reason = "QuotaExceeded"
	// ReasonTimeout: the attempt took longer than the policy's attemptTimeout.
	ReasonTimeout Reason = "Timeout"
	// ReasonStalled: the import did not start or move for the policy's stallTimeout. One that
	// runs where CDI measures no progress is ended by attemptTimeout only.
	ReasonStalled Reason = "Stalled"
	// ReasonImportFailed: the import failed for any other cause; see the message.
	ReasonImportFailed Reason = "ImportFailed"
	// ReasonDataVolumeLost: the DataVolume disappeared before its import ended.
	ReasonDataVolumeLost Reason = "DataVolumeLost"
	// ReasonDataVolumeRefused: the API server refused the DataVolume, or the agent does not
	// create it: its source is a metadata service.
	ReasonDataVolumeRefused Reason = "DataVolumeRefused"
	// ReasonSnapshotFailed: the import is done, but no VolumeSnapshot became ready.
	ReasonSnapshotFailed Reason = "SnapshotFailed"
	// ReasonStorageLost: the storage of a finished image disappeared.
	ReasonStorageLost Reason = "StorageLost"
	// ReasonResyncLimit: the storage disappeared more often than the policy's
	// resyncLimit allows.
	ReasonResyncLimit Reason = "ResyncLimit"
	// ReasonSuperseded: the source was changed; this revision is no longer needed.
	ReasonSuperseded Reason = "Superseded"
	// ReasonDeleted: the image is being deleted.
	ReasonDeleted Reason = "Deleted"
	// ReasonReferenced: the image is marked for deletion and waits for the
	// VirtualMachines that reference it.
	ReasonReferenced Reason = "Referenced"
	// ReasonUndoWindowOpen: the image will be pruned when its undo window ends.
	ReasonUndoWindowOpen Reason = "UndoWindow"
)

// FailureReasons lists the reasons an attempt can fail with, for metrics that show
// every reason from the start.
func FailureReasons() []Reason {
	return []Reason{
		ReasonNotFound, ReasonForbidden, ReasonChecksumMismatch, ReasonDiskTooSmall,
		ReasonQuotaExceeded, ReasonTimeout, ReasonStalled, ReasonImportFailed,
		ReasonDataVolumeLost, ReasonDataVolumeRefused, ReasonSuperseded, ReasonDeleted,
	}
}

// IsRetryable reports whether another attempt of the same spec can succeed. If not, the
// image fails at once and no retry is spent.
func (r Reason) IsRetryable() bool {
	switch r {
	case ReasonNotFound, ReasonChecksumMismatch, ReasonDiskTooSmall,
		ReasonSuperseded, ReasonDeleted, ReasonResyncLimit:
		return false
	default:
		return true
	}
}

// NeedsUserAction reports whether an image that waits for this reason waits until a person
// acts.
func (r Reason) NeedsUserAction() bool {
	switch r {
	case ReasonPolicyMissing, ReasonStorageClassMissing, ReasonSnapshotClassMissing,
		ReasonSecretMissing, ReasonSecretForbidden, ReasonSecretInvalid, ReasonCertConfigMapMissing, ReasonCDIMissing, ReasonCDITooOld,
		ReasonInsufficientStorage, ReasonStorageProfileIncomplete, ReasonSnapshotClassMismatch,
		ReasonImporterRefused, ReasonDataVolumeRefused, ReasonQuotaExceeded,
		ReasonDataSourceMissing, ReasonDataSourceInvalid, ReasonDataSourceForbidden, ReasonArchitectureMismatch:
		return true
	default:
		return false
	}
}

// Conditions of every kind with conditions but SyncLedger and ReportRoot, as kstatus has
// them. Exactly one is True while the object is not being deleted.
const (
	// ConditionReady: the object is as the spec asks.
	ConditionReady = "Ready"
	// ConditionReconciling: the object becomes Ready by itself, or once a person lets it
	// continue (Paused, AwaitingApproval).
	ConditionReconciling = "Reconciling"
	// ConditionStalled: a person has to correct something.
	ConditionStalled = "Stalled"
)

// Conditions of a VMDiskImage, beside Ready, Reconciling, Stalled and Published.
const (
	// ConditionImported: the current revision is stored in the cluster.
	ConditionImported = "Imported"
	// ConditionSnapshotReady: the current revision has a usable VolumeSnapshot, or
	// needs none.
	ConditionSnapshotReady = "SnapshotReady"
)
