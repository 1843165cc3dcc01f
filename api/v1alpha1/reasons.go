package v1alpha1

// Reason says why a ImageNameForVersion is where it is. The set is closed: the same
// strings stand in status, conditions, metric labels and events.
type Reason string

// Reasons of an image that is on its way.
const (
	// ReasonWaitingForSlot: in the queue, nothing is wrong.
	ReasonWaitingForSlot Reason = "WaitingForSlot"
	// ReasonWaitingForFleet: the policy's concurrency has a place for it, the hub's grant
	// of the fleet-wide budget has none.
	ReasonWaitingForFleet Reason = "WaitingForFleet"
	// ReasonWaitingForSource: as many as are granted run from its group of sources.
	ReasonWaitingForSource Reason = "WaitingForSource"
	// ReasonPaused: the policy's concurrency is 0.
	ReasonPaused Reason = "Paused"
	// ReasonPolicyMissing: there has never been a valid policy, so nothing is downloaded.
	ReasonPolicyMissing Reason = "PolicyMissing"
	// ReasonBackingOff: the last attempt failed, the next one waits for its time.
	ReasonBackingOff Reason = "BackingOff"
	// ReasonChecking: the source is asked whether it has the image at all.
	ReasonChecking Reason = "Checking"
	// ReasonStorageClassMissing: the StorageClass does not exist, or none is the default.
	ReasonStorageClassMissing Reason = "StorageClassMissing"
	// ReasonSnapshotClassMissing: the VolumeSnapshotClass does not exist.
	ReasonSnapshotClassMissing Reason = "SnapshotClassMissing"
	// ReasonSecretMissing: the Secret named by secretRef is not in the image's namespace.
	ReasonSecretMissing Reason = "SecretMissing"
	// ReasonCertConfigMapMissing: the ConfigMap named by certConfigMap is not in the image's namespace.
	ReasonCertConfigMapMissing Reason = "CertConfigMapMissing"
	// ReasonCDIMissing: the cluster does not serve CDI's DataVolume.
	ReasonCDIMissing Reason = "CDIMissing"
	// ReasonInsufficientStorage: what the cluster tells of its storage, or a quota of
	// the namespace, leaves no room for the image.
	ReasonInsufficientStorage Reason = "InsufficientStorage"
	// ReasonImporting: a DataVolume of the image is being filled.
	ReasonImporting Reason = "Importing"
	// ReasonSnapshotting: imported, its VolumeSnapshot is not ready yet.
	ReasonSnapshotting Reason = "Snapshotting"
	// ReasonReady: VMs can be cloned from the image.
	ReasonReady Reason = "Ready"
)

// Reasons for which an attempt, or the image as a whole, failed.
const (
	// ReasonNotFound: the source answered that it has no such image.
	ReasonNotFound Reason = "NotFound"
	// ReasonForbidden: the source refused access.
	ReasonForbidden Reason = "Forbidden"
	// ReasonChecksumMismatch: what was downloaded is not what spec.checksum says.
	ReasonChecksumMismatch Reason = "ChecksumMismatch"
	// ReasonDiskTooSmall: spec.diskSize is smaller than the image.
	ReasonDiskTooSmall Reason = "DiskTooSmall"
	// ReasonQuotaExceeded: a quota of the namespace refused storage or the importer.
	ReasonQuotaExceeded Reason = "QuotaExceeded"
	// ReasonTimeout: the attempt took longer than the policy's attemptTimeout.
	ReasonTimeout Reason = "Timeout"
	// ReasonStalled: nothing moved for the policy's stallTimeout.
	ReasonStalled Reason = "Stalled"
	// ReasonImportFailed: the import failed in a way that is none of the others.
	ReasonImportFailed Reason = "ImportFailed"
	// ReasonDataVolumeLost: the DataVolume vanished before its import ended.
	ReasonDataVolumeLost Reason = "DataVolumeLost"
	// ReasonDataVolumeRefused: the API server refused the DataVolume.
	ReasonDataVolumeRefused Reason = "DataVolumeRefused"
	// ReasonSnapshotFailed: imported, but no VolumeSnapshot became ready.
	ReasonSnapshotFailed Reason = "SnapshotFailed"
	// ReasonStorageLost: the storage of a finished image vanished.
	ReasonStorageLost Reason = "StorageLost"
	// ReasonResyncLimit: the storage vanished more often than the policy's resyncLimit.
	ReasonResyncLimit Reason = "ResyncLimit"
	// ReasonSuperseded: the source was changed, this revision is no longer wanted.
	ReasonSuperseded Reason = "Superseded"
	// ReasonDeleted: the image is being deleted.
	ReasonDeleted Reason = "Deleted"
	// ReasonReferenced: the image is to be deleted and waits for those who hold it.
	ReasonReferenced Reason = "Referenced"
	// ReasonUndoWindowOpen: the image is to be pruned when its undo window ends.
	ReasonUndoWindowOpen Reason = "UndoWindow"
)

// FailureReasons lists what an attempt can fail with, for metrics that must
// show a reason before it first occurs.
func FailureReasons() []Reason {
	return []Reason{
		ReasonNotFound, ReasonForbidden, ReasonChecksumMismatch, ReasonDiskTooSmall,
		ReasonQuotaExceeded, ReasonTimeout, ReasonStalled, ReasonImportFailed,
		ReasonDataVolumeLost, ReasonDataVolumeRefused, ReasonSuperseded, ReasonDeleted,
	}
}

// IsRetryable tells whether another attempt of the same spec can succeed.
// Where it cannot, the image fails at once and no retry is spent.
func (r Reason) IsRetryable() bool {
	switch r {
	case ReasonNotFound, ReasonChecksumMismatch, ReasonDiskTooSmall,
		ReasonSuperseded, ReasonDeleted, ReasonResyncLimit:
		return false
	default:
		return true
	}
}

// Condition types. They follow kstatus: Ready is the summary, Reconciling and
// Stalled are there to be True only while they hold.
const (
	ConditionReady       = "Ready"
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
	// ConditionImported: the current revision's bytes are in the cluster.
	ConditionImported = "Imported"
	// ConditionSnapshotReady: the current revision has a usable VolumeSnapshot,
	// or wants none.
	ConditionSnapshotReady = "SnapshotReady"

	// ConditionPolicyAccepted of a SyncLedger: the policy ConfigMap is valid and in force.
	ConditionPolicyAccepted = "PolicyAccepted"
	// ConditionWithinBudget of a SyncLedger: no more slots are taken than the budget allows.
	ConditionWithinBudget = "WithinBudget"
	// ConditionGranted of a SyncLedger: the fleet-wide budget does not keep the cluster
	// to its safe share while it wants more.
	ConditionGranted = "Granted"
	// ConditionRightsComplete of a SyncLedger: the agent may do what it has to.
	ConditionRightsComplete = "RightsComplete"
	// ConditionBudgetGuarded of a SyncLedger: the API server refuses imports that are in
	// no slot.
	ConditionBudgetGuarded = "BudgetGuarded"
	// ConditionApprovalGuarded of an ImagePrune: the API server checked who approved of
	// it. Of a FleetDiskImage with waves that need approval: it checks who does.
	ConditionApprovalGuarded = "ApprovalGuarded"
	// ConditionOneDownload of a SyncLedger: CDI does not start the failed download of an
	// attempt over.
	ConditionOneDownload = "OneDownloadPerAttempt"
)

// Reasons of condition ApprovalGuarded, and of others that rest on admission policies.
const (
	ReasonGuarded = "Guarded"
	// ReasonPoliciesNotServed: the API server knows no such policies.
	ReasonPoliciesNotServed = "PoliciesNotServed"
	// ReasonPolicyNotInForce: the chart's policy, or its binding, is gone or refuses
	// nothing.
	ReasonPolicyNotInForce = "PolicyNotInForce"
	// ReasonNotEnforced: the chart leaves it to others by its value approvals.enforced.
	ReasonNotEnforced = "NotEnforced"
)

// Reasons of condition Granted.
const (
	// ReasonNoFleetBudget: the policy knows none, its concurrency alone counts.
	ReasonNoFleetBudget = "NoFleetBudget"
	ReasonGrantInForce  = "GrantInForce"
	// ReasonNothingWanted: nothing is asked for, for there is nothing to run.
	ReasonNothingWanted = "NothingWanted"
	ReasonAwaitingGrant = "AwaitingGrant"
	// ReasonGrantEnded: it was not renewed in time.
	ReasonGrantEnded = "GrantEnded"
)
