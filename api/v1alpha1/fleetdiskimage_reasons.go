package v1alpha1

// Reasons of a FleetDiskImage: why its rollout does not start another cluster, or is
// finished.
const (
	// ReasonRolledOut: the rollout is finished.
	ReasonRolledOut = "RolledOut"
	// ReasonMaxConcurrency: as many clusters of the wave as maxConcurrency allows are in
	// progress.
	ReasonMaxConcurrency = "MaxConcurrency"
	// ReasonMaxFailures: more than maxFailures clusters failed.
	ReasonMaxFailures = "MaxFailures"
	// ReasonRolloutPaused: the rollout is paused by spec.rollout.paused.
	ReasonRolloutPaused = "Paused"
	// ReasonAwaitingApproval: the wave needs an approval.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonMinSuccessTime: the previous wave has not been done for minSuccessTime.
	ReasonMinSuccessTime = "MinSuccessTime"
	// ReasonRolloutWaitingForWindow: every cluster in progress waits for a window of the policy
	// to open, or for a person; no deadline runs meanwhile.
	ReasonRolloutWaitingForWindow = "WaitingForWindow"
	// ReasonAwaitingClusters: all clusters of the wave are in progress or finished.
	ReasonAwaitingClusters = "AwaitingClusters"
	// ReasonClustersBlocked: for a minute, every cluster in progress has waited until a
	// person acts there, and no other can start; see status.blocked.
	ReasonClustersBlocked = "ClustersBlocked"
	// ReasonOfflineClusters: the wave waits for offline clusters.
	ReasonOfflineClusters = "OfflineClusters"
	// ReasonPlanFull: the plans of the remaining clusters have no room for another
	// image.
	ReasonPlanFull = "PlanFull"
	// ReasonFieldsUnknown: the agents of the remaining clusters, or the
	// CustomResourceDefinitions there, do not know what spec.template uses; see
	// status.blocked.
	ReasonFieldsUnknown = "FieldsUnknown"
	// ReasonLabelMissing: the remaining clusters lack a label that the url of an override
	// names; see status.blocked.
	ReasonLabelMissing = "LabelMissing"
	// ReasonSourceInvalid: with spec.overrides, the spec of the remaining clusters is invalid;
	// see status.blocked.
	ReasonSourceInvalid = "SourceInvalid"
	// ReasonOverridesApplied: every placed cluster has a valid spec; used by condition
	// OverridesApplied only.
	ReasonOverridesApplied = "OverridesApplied"
	// ReasonNoClusters: the placement selects no MemberCluster.
	ReasonNoClusters = "NoClusters"
	// ReasonNameConflict: another FleetDiskImage creates VMDiskImages of the same name.
	ReasonNameConflict = "NameConflict"
	// ReasonSelectorInvalid: a label selector cannot be parsed.
	ReasonSelectorInvalid = "SelectorInvalid"
	// ReasonDeletingImages: the FleetDiskImage is being deleted and waits for clusters
	// that still have its images.
	ReasonDeletingImages = "DeletingImages"
)

// Conditions of a FleetDiskImage, beside Ready, Reconciling, Stalled and ApprovalGuarded.
const (
	// ConditionFinished: the rollout is Succeeded or Failed (status.phase), for kubectl
	// wait.
	ConditionFinished = "Finished"
	// ConditionSucceeded: the rollout is Succeeded.
	ConditionSucceeded = "Succeeded"
	// ConditionProgressing: clusters are in progress, or will be without anybody's
	// action.
	ConditionProgressing = "Progressing"
	// ConditionOverridesApplied: every placed cluster has a valid spec; while it is False,
	// clusters that the message names keep what they have; absent without spec.overrides.
	ConditionOverridesApplied = "OverridesApplied"
)

// IsHeldReason reports whether a rollout with this reason waits for a step that a person takes when it
// is time: nothing is wrong. Clusters may still be in progress.
func IsHeldReason(reason string) bool {
	return reason == ReasonAwaitingApproval || reason == ReasonRolloutPaused
}
