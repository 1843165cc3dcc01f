package join

import "fmt"

// Side is where a step acts.
type Side string

// The sides.
const (
	OnHub    Side = "hub"
	OnMember Side = "member"
	Here     Side = "here"
)

// Action is what a step does.
type Action string

// The actions.
const (
	// Keep does nothing: what is there is as it should be.
	Keep Action = "Keep"
	// CreateMember creates the MemberCluster in pull mode.
	CreateMember Action = "CreateMember"
	// SetAutoAccept sets spec.connection.pull.autoAccept.
	SetAutoAccept Action = "SetAutoAccept"
	// SetLabels sets labels of the MemberCluster.
	SetLabels Action = "SetLabels"
	// RequestToken has the hub make another join token.
	RequestToken Action = "RequestToken"
	// AwaitToken waits for the join token.
	AwaitToken Action = "AwaitToken"
	// InstallAgent installs or upgrades chart ot-agent.
	InstallAgent Action = "InstallAgent"
	// StoreToken stores the join token in the member.
	StoreToken Action = "StoreToken"
	// DeleteUsedToken deletes a join token that has been used.
	DeleteUsedToken Action = "DeleteUsedToken"
	// WriteFile writes the join token to a file.
	WriteFile Action = "WriteFile"
	// AwaitAgent waits until an agent asks to be accepted.
	AwaitAgent Action = "AwaitAgent"
	// GiveCredential gives the hub a token of its account in the member.
	GiveCredential Action = "GiveCredential"
	// LabelSecret sets labels of the hub's Secret.
	LabelSecret Action = "LabelSecret"
	// AwaitReady waits for condition Ready.
	AwaitReady Action = "AwaitReady"
	// AwaitRotated waits until the hub has replaced the token.
	AwaitRotated Action = "AwaitRotated"
	// DeleteLegacyToken deletes the token of earlier versions.
	DeleteLegacyToken Action = "DeleteLegacyToken"
	// DeleteHubSecret deletes the hub's Secret with the kubeconfig.
	DeleteHubSecret Action = "DeleteHubSecret"
	// DeleteMember deletes the MemberCluster.
	DeleteMember Action = "DeleteMember"
	// AwaitGone waits until the MemberCluster is gone.
	AwaitGone Action = "AwaitGone"
	// RevokeTokens deletes what the hub's tokens are bound to.
	RevokeTokens Action = "RevokeTokens"
	// DeleteCredential deletes the join token and the agent's credential.
	DeleteCredential Action = "DeleteCredential"
)

// Step is one thing to do.
type Step struct {
	Side   Side   `json:"side"`
	Action Action `json:"action"`
	// Text says it to a person.
	Text string `json:"text"`
	// Values are arguments of helm, which hold no secret.
	Values []string `json:"values,omitempty"`
	// Commands do the same by hand, where leaving has been interrupted.
	Commands []string `json:"commands,omitempty"`
}

func step(side Side, action Action, format string, args ...any) Step {
	return Step{Side: side, Action: action, Text: fmt.Sprintf(format, args...)}
}
