package v1alpha1

// Conditions of a MemberCluster, beside Ready.
const (
	// ConditionReachable: the hub talks to the member's API server.
	ConditionReachable = "Reachable"
	// ConditionAgentHealthy: the hub keeps receiving the agent's reports.
	ConditionAgentHealthy = "AgentHealthy"
	// ConditionIdentityConfirmed: the name still belongs to the same cluster.
	ConditionIdentityConfirmed = "IdentityConfirmed"
	// ConditionPolicyAcknowledged: the member's ledger was written under the newest
	// plan.
	ConditionPolicyAcknowledged = "PolicyAcknowledged"
	// ConditionJoined: the agent has its own credential for the hub. Set in pull mode
	// only.
	ConditionJoined = "Joined"
	// ConditionCredentialRotated: the hub's credential in the member expires, and the hub
	// renews it. Set in push mode only.
	ConditionCredentialRotated = "CredentialRotated"
	// ConditionAgentInstalled: the agent is installed as the hub wants it. Set only
	// where the hub installs the agent.
	ConditionAgentInstalled = "AgentInstalled"
	// ConditionTransfersAccounted: the member reports no more slots than the hub has
	// planned or granted. Set only with a fleet-wide budget.
	ConditionTransfersAccounted = "TransfersAccounted"
	// ConditionQuarantined: a person has put the member in quarantine. Set only then.
	ConditionQuarantined = "Quarantined"
	// ConditionVersionSupported: the versions of hub and agent work together.
	ConditionVersionSupported = "VersionSupported"
	// ConditionServerVerified: the hub verifies the certificate of the member's API
	// server. Not set in pull mode.
	ConditionServerVerified = "ServerVerified"
	// ConditionReportComplete: all pages of the report exist and belong to the same
	// state.
	ConditionReportComplete = "ReportComplete"
	// ConditionMailboxSynced: plan and grant are written in the member, and its report is
	// copied to the hub.
	ConditionMailboxSynced = "MailboxSynced"
)

// Conditions of a ReportRoot, beside those of the SyncLedger.
const (
	// ConditionPlanAccepted: the agent applies the existing ClusterPlan.
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
	// ReasonConnectionChanged: the spec changed, and nothing is known about the new one yet.
	ReasonConnectionChanged = "ConnectionChanged"
	// ReasonOverLimits: the other side's API server exceeded a limit of what is read
	// from it, and is cut off for a while.
	ReasonOverLimits = "OverLimits"
	// ReasonReportNotCarried: the member is reachable, but its report is not copied to
	// the hub.
	ReasonReportNotCarried = "ReportNotCarried"
	// Reasons of ConditionServerVerified.
	ReasonCertificateVerified = "CertificateVerified"
	ReasonVerificationSkipped = "VerificationSkipped"
	// Reasons of ConditionVersionSupported.
	ReasonSupported      = "Supported"
	ReasonVersionTooOld  = "VersionTooOld"
	ReasonVersionTooNew  = "VersionTooNew"
	ReasonVersionUnknown = "VersionUnknown"
	// ReasonKindsOlder: the agent is as new as the hub, but the
	// CustomResourceDefinitions of the mailbox in its cluster are older.
	ReasonKindsOlder = "KindsOlder"
	// Reasons of ConditionAgentInstalled, beside those of Reachable where the hub cannot
	// look.
	ReasonInstalled     = "Installed"
	ReasonInstalling    = "Installing"
	ReasonInstallFailed = "InstallFailed"
	// ReasonInstallAttemptsExhausted: the hub does not try again until version, values or
	// annotations change.
	ReasonInstallAttemptsExhausted = "InstallAttemptsExhausted"
	ReasonForeignAgent             = "ForeignAgent"
	ReasonReleasePending           = "ReleasePending"
	ReasonDowngradeRefused         = "DowngradeRefused"
	ReasonValuesInvalid            = "ValuesInvalid"
	ReasonAgentDialsIn             = "AgentDialsIn"
	// ReasonNamespaceTaken: the member's namespace on the hub is not its own. While it is
	// being deleted, the reason of condition Ready is NamespaceTerminating.
	ReasonNamespaceTaken = "NamespaceTaken"
	// ReasonRotated: the hub's token expires, and is renewed before.
	ReasonRotated = "Rotated"
	// ReasonRotationPending: the hub still uses the token that it was given.
	ReasonRotationPending = "RotationPending"
	// ReasonRotationFailed: the hub has no new token; it uses the old one and retries.
	ReasonRotationFailed = "RotationFailed"
	// ReasonLegacyToken: the hub works with a token that expires, but the one that it was
	// given never does and is still valid.
	ReasonLegacyToken = "LegacyToken"
	// ReasonCredentialRefused: no token is left that the member accepts.
	ReasonCredentialRefused = "CredentialRefused"
	// ReasonNotRotated: the credential is not a token of the hub's ServiceAccount.
	ReasonNotRotated = "NotRotated"
	// ReasonNotDialledIn: the agent, which connects in pull mode, has not been heard
	// from for a while.
	ReasonNotDialledIn = "NotDialledIn"
	// Reasons of condition Joined.
	ReasonJoined             = "Joined"
	ReasonAwaitingAgent      = "AwaitingAgent"
	ReasonAwaitingAcceptance = "AwaitingAcceptance"
	ReasonAwaitingContact    = "AwaitingContact"
	ReasonJoinTokenExpired   = "JoinTokenExpired"
	ReasonRevoking           = "Revoking"
	// ReasonRevoked: no issued credential works any longer. Users may then unset
	// spec.connection.pull.revoked.
	ReasonRevoked          = "Revoked"
	ReasonReporting        = "Reporting"
	ReasonNeverReported    = "NeverReported"
	ReasonSilent           = "Silent"
	ReasonSameCluster      = "SameCluster"
	ReasonAnotherCluster   = "AnotherCluster"
	ReasonDuplicateCluster = "DuplicateCluster"
	ReasonAcknowledged     = "Acknowledged"
	ReasonNotAcknowledged  = "NotAcknowledged"
	ReasonPolicyHeld       = "PolicyHeld"
	ReasonNoPolicy         = "NoPolicy"
	ReasonPolicyRefused    = "PolicyRefused"
	// Reasons of ConditionMailboxSynced.
	ReasonSynced     = "Synced"
	ReasonSyncFailed = "SyncFailed"
	// ReasonQuarantined: see spec.quarantine.
	ReasonQuarantined = "Quarantined"
	// Reasons of condition TransfersAccounted.
	ReasonWithinGrants              = "WithinGrants"
	ReasonReportedSlotsExceedGrants = "ReportedSlotsExceedGrants"
	ReasonWithinBudget              = "WithinBudget"
	ReasonOverBudget                = "OverBudget"
	ReasonComplete                  = "Complete"
	ReasonPagesMissing              = "PagesMissing"
	ReasonPagesOmitted              = "PagesOmitted"
	// ReasonReportOversized: the hub ignores parts of the report, which exceeds
	// MaxReportBytes or MaxReportObjectBytes.
	ReasonReportOversized = "ReportOversized"
	// ReasonReportUndecodable: the API server stores a part of the report that the hub
	// cannot decode.
	ReasonReportUndecodable = "ReportUndecodable"
	// ReasonUnlistedReports: the hub deleted more ClusterReports that the root does not
	// list than an agent writes.
	ReasonUnlistedReports       = "UnlistedReports"
	ReasonUnknown               = "Unknown"
	ReasonPlanInForce           = "PlanInForce"
	ReasonNoPlan                = "NoPlan"
	ReasonPlanOlder             = "PlanOlder"
	ReasonPlanForAnotherCluster = "PlanForAnotherCluster"
	ReasonPlanPolicyInvalid     = "PlanPolicyInvalid"
)
