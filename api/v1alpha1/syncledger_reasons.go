package v1alpha1

// Conditions of a SyncLedger, and ApprovalGuarded of ImagePrunes and FleetDiskImages.
const (
	// ConditionPolicyAccepted: the policy ConfigMap is valid and applied, or the hub's
	// policy applies without one.
	ConditionPolicyAccepted = "PolicyAccepted"
	// ConditionWithinBudget: no more slots are taken than the budget allows.
	ConditionWithinBudget = "WithinBudget"
	// ConditionSlotsReclaimed: no slot is held by what is left of an image that is gone or, for over a
	// minute, of an import that has ended.
	ConditionSlotsReclaimed = "SlotsReclaimed"
	// ConditionGranted: the fleet-wide budget does not limit the cluster to its safe share
	// while it needs more.
	ConditionGranted = "Granted"
	// ConditionRightsComplete: the agent has all permissions it needs.
	ConditionRightsComplete = "RightsComplete"
	// ConditionBudgetGuarded: the API server refuses DataVolumes that no slot lists.
	ConditionBudgetGuarded = "BudgetGuarded"
	// ConditionAccountGuarded: the API server refuses what the agent never writes, which
	// bounds what a stolen token of its account can do.
	ConditionAccountGuarded = "AccountGuarded"
	// ConditionApprovalGuarded: the API server checked who approved the ImagePrune, or
	// checks who approves waves of the FleetDiskImage.
	ConditionApprovalGuarded = "ApprovalGuarded"
	// ConditionOneDownload: CDI does not restart a failed download within an attempt.
	ConditionOneDownload = "OneDownloadPerAttempt"
)

// Reasons of condition PolicyAccepted of a SyncLedger.
const (
	// ReasonAccepted: the policy ConfigMap is valid and applied, or the hub's policy
	// applies without one.
	ReasonAccepted = "Accepted"
	// ReasonInvalid: the policy ConfigMap is invalid and is not used.
	ReasonInvalid = "Invalid"
	// ReasonMissing: the policy ConfigMap does not exist, and the hub has planned no
	// policy.
	ReasonMissing = "Missing"
)

// Reasons of condition SlotsReclaimed of a SyncLedger.
const (
	// ReasonSlotsReclaimed: every slot is of an image that exists.
	ReasonSlotsReclaimed = "SlotsReclaimed"
	// ReasonLeftoversHoldSlots: imports that belong to no image, or have ended, keep slots from others.
	// The message names them.
	ReasonLeftoversHoldSlots = "LeftoversHoldSlots"
)

// Reasons of condition RightsComplete of a SyncLedger.
const (
	// ReasonRightsComplete: the agent has all permissions it needs.
	ReasonRightsComplete = "RightsComplete"
	// ReasonRightsMissing: the agent lacks permissions, which the message lists.
	ReasonRightsMissing = "RightsMissing"
)

// Reasons of conditions ApprovalGuarded, BudgetGuarded and AccountGuarded.
const (
	// ReasonGuarded: the admission policy is in force.
	ReasonGuarded = "Guarded"
	// ReasonPoliciesNotServed: the API server does not serve admission policies.
	ReasonPoliciesNotServed = "PoliciesNotServed"
	// ReasonPolicyNotInForce: the chart's admission policy or its binding is missing, or
	// does not deny.
	ReasonPolicyNotInForce = "PolicyNotInForce"
	// ReasonNotEnforced: the chart's value approvals.enforced is false.
	ReasonNotEnforced = "NotEnforced"
	// ReasonNotTried: the agent has not tried its admission policies yet.
	ReasonNotTried = "NotTried"
)

// Reasons of condition OneDownloadPerAttempt of a SyncLedger, beside PoliciesNotServed.
const (
	// ReasonInForce: no importer Pod of an image restarts on failure.
	ReasonInForce = "InForce"
	// ReasonPoliciesMissing: the chart's mutating admission policy or its binding does not
	// exist.
	ReasonPoliciesMissing = "PoliciesMissing"
	// ReasonNotApplied: an importer Pod restarts on failure, although the admission policy
	// exists.
	ReasonNotApplied = "NotApplied"
	// ReasonNotLooked: the agent has not checked the admission policies yet.
	ReasonNotLooked = "NotLooked"
)

// Reasons of condition Granted of a SyncLedger.
const (
	// ReasonNoFleetBudget: the policy has no fleet-wide budget; only its concurrency
	// counts.
	ReasonNoFleetBudget = "NoFleetBudget"
	// ReasonGrantInForce: the cluster has a valid grant of the hub.
	ReasonGrantInForce = "GrantInForce"
	// ReasonNothingWanted: the cluster requests no grant because it has nothing to import.
	ReasonNothingWanted = "NothingWanted"
	// ReasonAwaitingGrant: the cluster waits for a grant of the hub and runs its safe share
	// meanwhile.
	ReasonAwaitingGrant = "AwaitingGrant"
	// ReasonGrantEnded: the grant was not renewed in time.
	ReasonGrantEnded = "GrantEnded"
)

// Conditions of a SyncLedger about the connection in pull mode.
const (
	// ConditionHubConnected: the agent syncs plan, grant and report with the hub in pull
	// mode; absent where there is no join token or credential.
	ConditionHubConnected = "HubConnected"
)

// Reasons of condition HubConnected of a SyncLedger, beside Connected, Unreachable,
// CertificateNotTrusted, Unauthorized, OverLimits and AwaitingAcceptance.
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
