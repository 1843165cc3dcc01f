package v1alpha1

// ConditionHubConnected of a SyncLedger whose agent dials in: it carries plan, grant
// and report itself. It is not there where nothing was ever given to it to dial in
// with.
const ConditionHubConnected = "HubConnected"

// Reasons of condition HubConnected, beside Connected, Unreachable,
// CertificateNotTrusted, Unauthorized and AwaitingAcceptance: a closed set.
const (
	// ReasonConnecting: nothing is known to be wrong.
	ReasonConnecting = "Connecting"
	// ReasonJoinSecretInvalid: what is in Secret ot-hub-join is no join token.
	ReasonJoinSecretInvalid = "JoinSecretInvalid"
	// ReasonJoinTokenRefused: the hub does not take the join token.
	ReasonJoinTokenRefused = "JoinTokenRefused"
	// ReasonJoinTokenUsed: somebody else has presented the join token.
	ReasonJoinTokenUsed = "JoinTokenUsed"
	// ReasonCredentialNotStored: the agent's Secrets cannot be read or written.
	ReasonCredentialNotStored = "CredentialNotStored"
	// ReasonAnswerRefused: what the hub has answered is not for this agent.
	ReasonAnswerRefused = "AnswerRefused"
	// ReasonMailboxNotServed: the hub, or this cluster, does not serve the mailbox's kinds.
	ReasonMailboxNotServed = "MailboxNotServed"
)
