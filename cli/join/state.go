package join

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/quarantine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Names of chart ot-agent in the member.
const (
	// DefaultAgentNamespace is where the agent is installed.
	DefaultAgentNamespace = quarantine.DefaultAgentNamespace
	// HubAccount is the hub's ServiceAccount.
	HubAccount = "ot-hub"
	// AccessSecret is what the hub's tokens are bound to: without it none is valid.
	AccessSecret = quarantine.AccessSecret
	// LegacyTokenSecret has the token without end that earlier versions gave the hub.
	LegacyTokenSecret = quarantine.LegacyTokenSecret
)

// HubState is what the hub has of a member.
type HubState struct {
	// Namespace of chart ot-hub.
	Namespace string
	// Member is nil where there is none.
	Member *v1alpha1.MemberCluster
	// Secret is the one of the member's name in Namespace; nil where there is none.
	Secret *corev1.Secret
	// JoinToken is the kubeconfig of the join token that waits; empty where none does.
	JoinToken []byte
	// Join is the agent's request; nil where there is none.
	Join *v1alpha1.ClusterJoin
}

// MemberState is what the member's API server has.
type MemberState struct {
	// UID of the cluster.
	UID types.UID
	// Access is how its context reaches it.
	Access Access
	// Audiences of its API server's tokens; none where that could not be found out.
	Audiences []string
	// HasAccount and HasAccessSecret report whether the hub's account and the Secret of its
	// tokens are there.
	HasAccount, HasAccessSecret bool
	// HasLegacyToken reports whether the token of earlier versions is there.
	HasLegacyToken bool
	// JoinToken is what Secret ot-hub-join has.
	JoinToken []byte
	// HasJoinSecret and HasCredential report whether the agent's Secrets of pull mode are there.
	HasJoinSecret, HasCredential bool
	// HubConnected is the agent's own condition; nil where it has none.
	HubConnected *metav1.Condition
}

// agentNamespace returns the namespace of the agent in the member.
func (h HubState) agentNamespace() string {
	return AgentNamespace(h.Member)
}

// AgentNamespace returns the namespace of a member's agent.
func AgentNamespace(member *v1alpha1.MemberCluster) string { return quarantine.AgentNamespace(member) }

// condition returns a condition of a MemberCluster, empty where it has none.
func condition(member *v1alpha1.MemberCluster, name string) metav1.Condition {
	if member != nil {
		if found := meta.FindStatusCondition(member.Status.Conditions, name); found != nil {
			return *found
		}
	}
	return metav1.Condition{Status: metav1.ConditionUnknown}
}

// Ready reports whether the hub has a report of this cluster under its plan. Without a UID, any
// cluster will do.
func Ready(member *v1alpha1.MemberCluster, uid types.UID) bool {
	return member != nil && (uid == "" || member.Status.ClusterUID == uid) && condition(member, v1alpha1.ConditionReady).Status == metav1.ConditionTrue
}

// Rotated reports whether the hub works with a token of its own.
func Rotated(member *v1alpha1.MemberCluster) bool {
	return condition(member, v1alpha1.ConditionCredentialRotated).Status == metav1.ConditionTrue
}

// Fingerprints of an agent's key.
type Fingerprints struct {
	// Hub is what the hub was sent.
	Hub string `json:"hub,omitempty"`
	// Agent is what the agent says, in its own cluster.
	Agent string `json:"agent,omitempty"`
}

// fingerprintPattern is how registration.Fingerprint writes one.
var fingerprintPattern = regexp.MustCompile(`SHA256:[A-Za-z0-9+/]{43}`)

// ReadFingerprints finds both fingerprints. That of the agent is empty where its cluster was not
// read, or where it waits for no acceptance.
func ReadFingerprints(hub HubState, member *MemberState) (f Fingerprints) {
	if hub.Join != nil {
		f.Hub = fingerprintPattern.FindString(hub.Join.Status.Fingerprint)
	}
	if f.Hub == "" {
		if joined := condition(hub.Member, v1alpha1.ConditionJoined); joined.Reason == v1alpha1.ReasonAwaitingAcceptance {
			f.Hub = fingerprintPattern.FindString(joined.Message)
		}
	}
	if member != nil && member.HubConnected != nil {
		f.Agent = fingerprintPattern.FindString(member.HubConnected.Message)
	}
	return f
}

// AwaitsAcceptance reports whether an agent asks to be let in.
func AwaitsAcceptance(member *v1alpha1.MemberCluster) bool {
	return condition(member, v1alpha1.ConditionJoined).Reason == v1alpha1.ReasonAwaitingAcceptance
}

// Message returns what a condition of a MemberCluster says, fit for a terminal.
func Message(member *v1alpha1.MemberCluster, name string) string {
	return v1alpha1.SanitizeText(condition(member, name).Message, 1024)
}
