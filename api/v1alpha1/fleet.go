package v1alpha1

// Labels, annotations and finalizers of the fleet.
const (
	// LabelPlanned stands on a ImageNameForVersion that was made because a ClusterPlan
	// asked for it. Only such images does the plan change.
	LabelPlanned = "pelotech.ot/planned"
	// LabelMember on a Secret in the hub's namespace: its key kubeconfig reaches
	// the member of that name, and the hub makes the MemberCluster.
	LabelMember = "pelotech.ot/member"
	// LabelDiscovered stands on a MemberCluster that the hub made of a Secret or of
	// a Cluster, and with which it goes. Its value says which: secret, cluster-api.
	LabelDiscovered = "pelotech.ot/discovered"
	// LabelInstallAgent with value "true" on a MemberCluster, or on the Cluster or Secret
	// that it is made of, has the hub install and upgrade the agent there.
	LabelInstallAgent = "pelotech.ot/install-agent"
	// LabelPolicyPreview on a ConfigMap beside the fleet's policy: the hub answers
	// in AnnotationPreview what it would change, and applies nothing.
	LabelPolicyPreview = "pelotech.ot/policy-preview"

	// LabelPruneReport stands on a PruneReportPage. Its value is the UID of its
	// PruneReport.
	LabelPruneReport = "pelotech.ot/prune-report"

	// AnnotationAcceptCluster of a MemberCluster accepts the cluster of that UID
	// under this name, in place of the one that was known.
	AnnotationAcceptCluster = "pelotech.ot/accept-cluster"
	// AnnotationJoinToken of a MemberCluster whose agent dials in: each new value has
	// the hub make a new join token, and the one before is worth nothing any more.
	AnnotationJoinToken = "pelotech.ot/join-token"
	// AnnotationAdoptAgent with value "true" on a MemberCluster has the hub take over an
	// agent that somebody else has installed there.
	AnnotationAdoptAgent = "pelotech.ot/adopt-agent"
	// AnnotationDowngradeAgent of a MemberCluster names the version of the agent that the
	// hub may install although the one there may be newer.
	AnnotationDowngradeAgent = "pelotech.ot/downgrade-agent"
	// AnnotationInstallAttempts of a MemberCluster is where the hub counts its attempts to
	// install. Removed, the count begins anew.
	AnnotationInstallAttempts = "pelotech.ot/install-attempts"
	// AnnotationPreview is the hub's answer to a preview of a policy.
	AnnotationPreview = "pelotech.ot/preview"

	// FinalizerMember keeps a MemberCluster until the hub has let go of it.
	FinalizerMember = "pelotech.ot/member"
	// FinalizerFleetDiskImage keeps a FleetDiskImage whose deletionPolicy is Delete
	// until its images are gone, or go by themselves.
	FinalizerFleetDiskImage = "pelotech.ot/fleet-disk-image"
)

// Conditions of a MemberCluster, beside Ready.
const (
	// ConditionReachable: the hub talks to the member's API server.
	ConditionReachable = "Reachable"
	// ConditionAgentHealthy: the agent's reports keep coming.
	ConditionAgentHealthy = "AgentHealthy"
	// ConditionIdentityConfirmed: it is the cluster that it was.
	ConditionIdentityConfirmed = "IdentityConfirmed"
	// ConditionPolicyAcknowledged: the member's ledger was written under the
	// newest plan.
	ConditionPolicyAcknowledged = "PolicyAcknowledged"
	// ConditionJoined: the agent, which dials in, has a credential of its own on the
	// hub. It is there in mode Pull only.
	ConditionJoined = "Joined"
	// ConditionAgentInstalled: the agent is installed as the hub would have it. It is
	// there where the hub is asked to install it only.
	ConditionAgentInstalled = "AgentInstalled"
	// ConditionVersionSupported: hub and agent are of versions that work together.
	ConditionVersionSupported = "VersionSupported"
	// ConditionReportComplete: all pages of the report are there, and of one state.
	ConditionReportComplete = "ReportComplete"
)

// Conditions of a ReportRoot, beside those of the SyncLedger.
const (
	// ConditionPlanAccepted: the agent goes by the ClusterPlan that is there.
	ConditionPlanAccepted = "PlanAccepted"
)

// Reasons in the conditions of a MemberCluster and a ReportRoot: a closed set.
const (
	ReasonConnected             = "Connected"
	ReasonNeverConnected        = "NeverConnected"
	ReasonCredentialsMissing    = "CredentialsMissing"
	ReasonUnauthorized          = "Unauthorized"
	ReasonCertificateNotTrusted = "CertificateNotTrusted"
	ReasonUnreachable           = "Unreachable"
	// ReasonReportNotCarried: the member answers, and nobody carries its report.
	ReasonReportNotCarried = "ReportNotCarried"
	// Reasons of ConditionVersionSupported.
	ReasonSupported      = "Supported"
	ReasonVersionTooOld  = "VersionTooOld"
	ReasonVersionTooNew  = "VersionTooNew"
	ReasonVersionUnknown = "VersionUnknown"
	// ReasonKindsOlder: the agent is as new as the hub, and the kinds of the mailbox in its
	// cluster are not.
	ReasonKindsOlder = "KindsOlder"
	// Reasons of ConditionAgentInstalled, beside those of Reachable where the hub cannot
	// look.
	ReasonInstalled        = "Installed"
	ReasonInstalling       = "Installing"
	ReasonInstallFailed    = "InstallFailed"
	ReasonForeignAgent     = "ForeignAgent"
	ReasonReleasePending   = "ReleasePending"
	ReasonDowngradeRefused = "DowngradeRefused"
	ReasonValuesInvalid    = "ValuesInvalid"
	ReasonAgentDialsIn     = "AgentDialsIn"
	// ReasonNotDialledIn: the agent, which dials in, has not been heard of for a while.
	ReasonNotDialledIn = "NotDialledIn"
	// Reasons of condition Joined.
	ReasonJoined             = "Joined"
	ReasonAwaitingAgent      = "AwaitingAgent"
	ReasonAwaitingAcceptance = "AwaitingAcceptance"
	ReasonAwaitingContact    = "AwaitingContact"
	ReasonJoinTokenExpired   = "JoinTokenExpired"
	ReasonRevoking           = "Revoking"
	// ReasonRevoked is said once nothing is left of what was issued, and until something
	// is issued anew, never else: spec.connection.pull.revoked is taken back by it.
	ReasonRevoked               = "Revoked"
	ReasonReporting             = "Reporting"
	ReasonNeverReported         = "NeverReported"
	ReasonSilent                = "Silent"
	ReasonSameCluster           = "SameCluster"
	ReasonAnotherCluster        = "AnotherCluster"
	ReasonDuplicateCluster      = "DuplicateCluster"
	ReasonAcknowledged          = "Acknowledged"
	ReasonNotAcknowledged       = "NotAcknowledged"
	ReasonPolicyHeld            = "PolicyHeld"
	ReasonNoPolicy              = "NoPolicy"
	ReasonPolicyRefused         = "PolicyRefused"
	ReasonWithinBudget          = "WithinBudget"
	ReasonOverBudget            = "OverBudget"
	ReasonComplete              = "Complete"
	ReasonPagesMissing          = "PagesMissing"
	ReasonPagesOmitted          = "PagesOmitted"
	ReasonUnknown               = "Unknown"
	ReasonPlanInForce           = "PlanInForce"
	ReasonNoPlan                = "NoPlan"
	ReasonPlanOlder             = "PlanOlder"
	ReasonPlanForAnotherCluster = "PlanForAnotherCluster"
	ReasonPlanPolicyInvalid     = "PlanPolicyInvalid"
)
