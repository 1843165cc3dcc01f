package v1alpha1

// Conditions of a SyncLedger, and ApprovalGuarded of ImagePrunes and FleetDiskImages.
const (
	// ConditionPolicyAccepted of a SyncLedger: the policy ConfigMap is valid and
	// applied.
	ConditionPolicyAccepted = "PolicyAccepted"
	// ConditionWithinBudget of a SyncLedger: no more slots are taken than the budget
	// allows.
	ConditionWithinBudget = "WithinBudget"
	// ConditionGranted of a SyncLedger: the fleet-wide budget does not limit the
	// cluster to its safe share while it needs more.
	ConditionGranted = "Granted"
	// ConditionRightsComplete of a SyncLedger: the agent has all permissions it needs.
	ConditionRightsComplete = "RightsComplete"
	// ConditionBudgetGuarded of a SyncLedger: the API server refuses DataVolumes that
	// no slot lists.
	ConditionBudgetGuarded = "BudgetGuarded"
	// ConditionAccountGuarded of a SyncLedger: the API server refuses what the agent
	// never writes, so that a stolen token of its account gets no further.
	ConditionAccountGuarded = "AccountGuarded"
	// ConditionApprovalGuarded of an ImagePrune: the API server checked who approved
	// it. Of a FleetDiskImage with waves that need approval: the API server checks who
	// approves.
	ConditionApprovalGuarded = "ApprovalGuarded"
	// ConditionOneDownload of a SyncLedger: CDI does not restart a failed download
	// within an attempt.
	ConditionOneDownload = "OneDownloadPerAttempt"
)

// Reasons of condition ApprovalGuarded and of other conditions about admission
// policies.
const (
	ReasonGuarded = "Guarded"
	// ReasonPoliciesNotServed: the API server does not serve admission policies.
	ReasonPoliciesNotServed = "PoliciesNotServed"
	// ReasonPolicyNotInForce: the chart's policy or its binding is missing, or does not
	// deny.
	ReasonPolicyNotInForce = "PolicyNotInForce"
	// ReasonNotEnforced: the chart's value approvals.enforced is false.
	ReasonNotEnforced = "NotEnforced"
)

// Reasons of condition Granted.
const (
	// ReasonNoFleetBudget: the policy has no fleet-wide budget; only its concurrency
	// counts.
	ReasonNoFleetBudget = "NoFleetBudget"
	ReasonGrantInForce  = "GrantInForce"
	// ReasonNothingWanted: the cluster requests no grant because it has nothing to
	// import.
	ReasonNothingWanted = "NothingWanted"
	ReasonAwaitingGrant = "AwaitingGrant"
	// ReasonGrantEnded: the grant was not renewed in time.
	ReasonGrantEnded = "GrantEnded"
)

// ConditionHubConnected means that the agent syncs plan, grant and report with the hub in pull
// mode. It is absent where there is no join token or credential.
const ConditionHubConnected = "HubConnected"

// Reasons of condition HubConnected, beside Connected, Unreachable,
// CertificateNotTrusted, Unauthorized and AwaitingAcceptance: a closed set.
const (
	// ReasonConnecting: the connection is being made; nothing is known to be wrong.
	ReasonConnecting = "Connecting"
	// ReasonJoinSecretInvalid: Secret ot-hub-join has no valid join token.
	ReasonJoinSecretInvalid = "JoinSecretInvalid"
	// ReasonJoinTokenRefused: the hub refuses the join token.
	ReasonJoinTokenRefused = "JoinTokenRefused"
	// ReasonJoinTokenUsed: another agent has used the join token.
	ReasonJoinTokenUsed = "JoinTokenUsed"
	// ReasonCredentialNotStored: the agent cannot read or write its Secrets.
	ReasonCredentialNotStored = "CredentialNotStored"
	// ReasonAnswerRefused: the hub's answer is not for this agent.
	ReasonAnswerRefused = "AnswerRefused"
	// ReasonMailboxNotServed: the hub or this cluster does not serve the kinds of the
	// mailbox.
	ReasonMailboxNotServed = "MailboxNotServed"
)
