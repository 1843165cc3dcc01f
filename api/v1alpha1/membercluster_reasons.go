package v1alpha1

// Conditions of a MemberCluster, beside Ready, Reconciling, Stalled and WithinBudget.
const (
	// ConditionReachable: the hub talks to the member's API server.
	ConditionReachable = "Reachable"
	// ConditionAgentHealthy: the hub keeps receiving the agent's reports.
	ConditionAgentHealthy = "AgentHealthy"
	// ConditionIdentityConfirmed: the name still belongs to the same cluster.
	ConditionIdentityConfirmed = "IdentityConfirmed"
	// ConditionPolicyAcknowledged: the member's ledger was written under the newest plan.
	ConditionPolicyAcknowledged = "PolicyAcknowledged"
	// ConditionJoined: the agent has its own credential for the hub; set in pull mode only.
	ConditionJoined = "Joined"
	// ConditionCredentialRotated: the hub's credential in the member expires, and the hub
	// renews it; set in push mode only.
	ConditionCredentialRotated = "CredentialRotated"
	// ConditionAgentInstalled: the agent is installed as the hub wants it; set only where
	// the hub installs the agent.
	ConditionAgentInstalled = "AgentInstalled"
	// ConditionTransfersAccounted: the member reports no more slots than the hub has
	// planned or granted; set only with a fleet-wide budget.
	ConditionTransfersAccounted = "TransfersAccounted"
	// ConditionQuarantined: a person has put the member in quarantine; set only then.
	ConditionQuarantined = "Quarantined"
	// ConditionVersionSupported: the versions of hub and agent work together.
	ConditionVersionSupported = "VersionSupported"
	// ConditionServerVerified: the hub verifies the certificate of the member's API server;
	// not set in pull mode.
	ConditionServerVerified = "ServerVerified"
	// ConditionReportComplete: all pages of the report exist and belong to the same state.
	ConditionReportComplete = "ReportComplete"
	// ConditionMailboxSynced: plan and grant are written in the member, and its report is
	// copied to the hub.
	ConditionMailboxSynced = "MailboxSynced"
)

// Conditions of a SyncLedger and a ReportRoot about the ClusterPlan.
const (
	// ConditionPlanAccepted: the agent applies the existing ClusterPlan.
	ConditionPlanAccepted = "PlanAccepted"
)

// Reasons of several conditions of a MemberCluster.
const (
	// ReasonUnknown: the hub cannot judge the condition yet, for example because it has
	// just started.
	ReasonUnknown = "Unknown"
	// ReasonConnectionChanged: the spec changed, and the hub has not checked the condition
	// for the new one yet.
	ReasonConnectionChanged = "ConnectionChanged"
	// ReasonNeverReported: the hub has no report of the member yet.
	ReasonNeverReported = "NeverReported"
	// ReasonAnotherCluster: a cluster answers that is not the one that the name belongs to,
	// so it gets no plan.
	ReasonAnotherCluster = "AnotherCluster"
	// ReasonDuplicateCluster: the cluster already belongs to another MemberCluster, so the
	// hub ignores this one.
	ReasonDuplicateCluster = "DuplicateCluster"
	// ReasonTwoAgents: two agents report as this member in turns, as after its cluster was
	// cloned, so what is known of it is of either.
	ReasonTwoAgents = "TwoAgents"
	// ReasonQuarantined: the member is in quarantine, so the hub syncs nothing with it and
	// grants it nothing.
	ReasonQuarantined = "Quarantined"
)

// Reasons of condition Ready of a MemberCluster, beside those of its other conditions,
// NamespaceMissing and NamespaceTerminating.
const (
	// ReasonNamespaceTaken: the member's namespace on the hub belongs to something else.
	ReasonNamespaceTaken = "NamespaceTaken"
)

// Reasons of condition Reachable of a MemberCluster.
const (
	// ReasonConnected: hub and member are connected.
	ReasonConnected = "Connected"
	// ReasonNeverConnected: hub and member have not connected yet.
	ReasonNeverConnected = "NeverConnected"
	// ReasonCredentialsMissing: the hub has no credential for the member that it can use.
	ReasonCredentialsMissing = "CredentialsMissing"
	// ReasonUnauthorized: the other side's API server refuses the credential, or the
	// credential lacks permissions there.
	ReasonUnauthorized = "Unauthorized"
	// ReasonCertificateNotTrusted: the certificate of the other side's API server cannot be
	// verified.
	ReasonCertificateNotTrusted = "CertificateNotTrusted"
	// ReasonUnreachable: the other side's API server does not answer or does not serve
	// requests.
	ReasonUnreachable = "Unreachable"
	// ReasonOverLimits: the other side's API server exceeded a limit of what is read from
	// it, and is cut off for a while.
	ReasonOverLimits = "OverLimits"
	// ReasonReportNotCarried: the member is reachable, but its report is not copied to the
	// hub.
	ReasonReportNotCarried = "ReportNotCarried"
	// ReasonNotDialledIn: the agent, which connects in pull mode, has not been heard from
	// for a while.
	ReasonNotDialledIn = "NotDialledIn"
)

// Reasons of condition AgentHealthy of a MemberCluster.
const (
	// ReasonReporting: the hub receives the agent's reports in time.
	ReasonReporting = "Reporting"
	// ReasonSilent: the hub has received no report for longer than the agent may be silent.
	ReasonSilent = "Silent"
)

// Reasons of condition IdentityConfirmed of a MemberCluster.
const (
	// ReasonSameCluster: the cluster that reports is the one that the name belongs to.
	ReasonSameCluster = "SameCluster"
)

// Reasons of condition PolicyAcknowledged of a MemberCluster.
const (
	// ReasonAcknowledged: the member runs the newest plan.
	ReasonAcknowledged = "Acknowledged"
	// ReasonNotAcknowledged: the member does not run the newest plan or policy yet.
	ReasonNotAcknowledged = "NotAcknowledged"
	// ReasonPolicyHeld: the hub was restored or set up again, so the member keeps its
	// policy until the hub's ConfigMap changes.
	ReasonPolicyHeld = "PolicyHeld"
	// ReasonAnotherHub: another hub writes to the member, too, and raises its versions above
	// this hub's, which gives way for a while.
	ReasonAnotherHub = "AnotherHub"
	// ReasonNoPolicy: the member has no planned policy, because the hub has no valid one.
	ReasonNoPolicy = "NoPolicy"
	// ReasonPolicyRefused: the policy's overrides for this member contradict each other, or
	// the agent refuses the planned policy.
	ReasonPolicyRefused = "PolicyRefused"
)

// Reasons of condition MailboxSynced of a MemberCluster.
const (
	// ReasonSynced: plan and report are copied.
	ReasonSynced = "Synced"
	// ReasonSyncFailed: plan, grant or report cannot be copied, or the report in the member
	// is older than the hub's copy.
	ReasonSyncFailed = "SyncFailed"
)

// Reasons of condition VersionSupported of a MemberCluster.
const (
	// ReasonSupported: agent and hub are at most one minor version apart.
	ReasonSupported = "Supported"
	// ReasonVersionTooOld: the agent is more than one minor version older than the hub.
	ReasonVersionTooOld = "VersionTooOld"
	// ReasonVersionTooNew: the agent is more than one minor version newer than the hub.
	ReasonVersionTooNew = "VersionTooNew"
	// ReasonVersionUnknown: agent or hub is not a release, so the hub cannot compare their
	// versions.
	ReasonVersionUnknown = "VersionUnknown"
	// ReasonKindsOlder: the agent is as new as the hub, but the CustomResourceDefinitions
	// of the mailbox in its cluster are older.
	ReasonKindsOlder = "KindsOlder"
)

// Reasons of condition ServerVerified of a MemberCluster.
const (
	// ReasonCertificateVerified: the hub verifies the certificate of the member's API
	// server.
	ReasonCertificateVerified = "CertificateVerified"
	// ReasonVerificationSkipped: the spec allows a kubeconfig that does not verify the
	// certificate of the member's API server.
	ReasonVerificationSkipped = "VerificationSkipped"
)

// Reasons of condition AgentInstalled of a MemberCluster, beside those of Reachable where
// the hub cannot read which agent the member has.
const (
	// ReasonInstalled: the agent is installed with the version and values that the hub
	// wants.
	ReasonInstalled = "Installed"
	// ReasonInstalling: the hub installs or upgrades the agent, or waits for another
	// replica that does.
	ReasonInstalling = "Installing"
	// ReasonInstallFailed: the last attempt failed, and the hub tries again.
	ReasonInstallFailed = "InstallFailed"
	// ReasonInstallAttemptsExhausted: all attempts failed, and the hub does not try again
	// until version, values or annotations change.
	ReasonInstallAttemptsExhausted = "InstallAttemptsExhausted"
	// ReasonForeignAgent: the cluster has an agent that this hub did not install for this
	// member.
	ReasonForeignAgent = "ForeignAgent"
	// ReasonReleasePending: the agent's Helm release is in an operation that this hub did
	// not start.
	ReasonReleasePending = "ReleasePending"
	// ReasonDowngradeRefused: the agent or the CustomResourceDefinitions that the hub would
	// install are not known to be newer than the member's.
	ReasonDowngradeRefused = "DowngradeRefused"
	// ReasonValuesInvalid: the values for the agent's chart are invalid.
	ReasonValuesInvalid = "ValuesInvalid"
	// ReasonAgentDialsIn: the member is in pull mode, where the hub cannot install the
	// agent.
	ReasonAgentDialsIn = "AgentDialsIn"
)

// Reasons of condition Joined of a MemberCluster.
const (
	// ReasonJoined: the agent has its own credential and has used it.
	ReasonJoined = "Joined"
	// ReasonAwaitingAgent: a join token is being prepared, or waits for an agent to present
	// it.
	ReasonAwaitingAgent = "AwaitingAgent"
	// ReasonAwaitingAcceptance: an agent has presented the join token, and a person has to
	// accept its key.
	ReasonAwaitingAcceptance = "AwaitingAcceptance"
	// ReasonAwaitingContact: the agent's key is accepted, and the agent has not used its
	// credential yet.
	ReasonAwaitingContact = "AwaitingContact"
	// ReasonJoinTokenExpired: the join token expired before an agent was accepted.
	ReasonJoinTokenExpired = "JoinTokenExpired"
	// ReasonRevoking: the hub revokes the agent's credentials and join tokens, some of
	// which may still be valid.
	ReasonRevoking = "Revoking"
	// ReasonRevoked: no issued credential works any longer, so users may unset
	// spec.connection.pull.revoked.
	ReasonRevoked = "Revoked"
)

// Reasons of condition CredentialRotated of a MemberCluster.
const (
	// ReasonRotated: the hub's token expires, and the hub renews it before.
	ReasonRotated = "Rotated"
	// ReasonRotationPending: the hub still uses the token that it was given.
	ReasonRotationPending = "RotationPending"
	// ReasonRotationFailed: the hub has no new token; it uses the old one and retries.
	ReasonRotationFailed = "RotationFailed"
	// ReasonLegacyToken: the hub works with a token that expires, but the one that it was
	// given never does and is still valid.
	ReasonLegacyToken = "LegacyToken"
	// ReasonCredentialRefused: the hub has no token left that the member accepts.
	ReasonCredentialRefused = "CredentialRefused"
	// ReasonNotRotated: the hub has no kubeconfig, or one whose credential is not a token
	// of ServiceAccount ot-hub.
	ReasonNotRotated = "NotRotated"
)

// Reasons of condition TransfersAccounted of a MemberCluster.
const (
	// ReasonWithinGrants: the member reports no more slots than the hub has planned or
	// granted.
	ReasonWithinGrants = "WithinGrants"
	// ReasonReportedSlotsExceedGrants: the member reports more slots than the hub has
	// planned or granted.
	ReasonReportedSlotsExceedGrants = "ReportedSlotsExceedGrants"
)

// Reasons of condition WithinBudget of a MemberCluster and a SyncLedger.
const (
	// ReasonWithinBudget: no more slots are taken than the budget allows.
	ReasonWithinBudget = "WithinBudget"
	// ReasonOverBudget: more slots are taken than the budget allows, or the budget is
	// larger than the acknowledged plan's.
	ReasonOverBudget = "OverBudget"
)

// Reasons of condition ReportComplete of a MemberCluster.
const (
	// ReasonComplete: all pages of the report are present.
	ReasonComplete = "Complete"
	// ReasonPagesMissing: pages of the report are missing or outdated.
	ReasonPagesMissing = "PagesMissing"
	// ReasonPagesOmitted: the report has no room for all images, or the member's API server
	// refuses a page; the rest are counted but not listed.
	ReasonPagesOmitted = "PagesOmitted"
	// ReasonReportOversized: the report, or a page of it, is larger than an agent writes,
	// and the hub ignores what exceeds the limit.
	ReasonReportOversized = "ReportOversized"
	// ReasonReportUndecodable: the API server stores a part of the report that the hub
	// cannot decode.
	ReasonReportUndecodable = "ReportUndecodable"
	// ReasonUnlistedReports: the hub deleted more ClusterReports that the root does not
	// list than an agent writes.
	ReasonUnlistedReports = "UnlistedReports"
)

// Reasons of condition PlanAccepted of a SyncLedger and a ReportRoot.
const (
	// ReasonPlanInForce: the agent applies this plan.
	ReasonPlanInForce = "PlanInForce"
	// ReasonNoPlan: the agent has no ClusterPlan.
	ReasonNoPlan = "NoPlan"
	// ReasonPlanOlder: the agent acknowledged a newer plan, or another plan of the same
	// version, before.
	ReasonPlanOlder = "PlanOlder"
	// ReasonPlanForAnotherCluster: the plan names another cluster's UID.
	ReasonPlanForAnotherCluster = "PlanForAnotherCluster"
	// ReasonPlanPolicyInvalid: the plan's policy is invalid, so the agent applies nothing
	// of the plan.
	ReasonPlanPolicyInvalid = "PlanPolicyInvalid"
)
