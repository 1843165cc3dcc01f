// Package registration is what hub and agent share for registration in pull mode: names
// on the hub, sealing of credentials, token claims, and the kubeconfig format.
//
// The steps: a join token, of ServiceAccount JoinAccount, may only create and read
// ClusterJoin default. The agent creates a key pair, stores it, and creates the
// ClusterJoin with its public key and the ServiceAccount UID of the token. The hub
// seals a token of ServiceAccount AgentAccount for that key and writes it to the
// ClusterJoin's status. The agent opens and stores it, and renews Lease LeaseName with
// holder LeaseHolder: so the hub knows that the credential is in use, and invalidates
// the join token.
package registration

import (
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Names in a member's namespace on the hub. Invariant: no other ServiceAccounts have
// these names, because the hub may create tokens for them in all namespaces.
const (
	// AgentAccount is the agent's ServiceAccount and its RoleBinding.
	AgentAccount = "ot-member-agent"
	// JoinAccount is the ServiceAccount of join tokens and its RoleBinding.
	JoinAccount = "ot-member-join"
	// LeaseName is the Lease that the agent renews as its heartbeat.
	LeaseName = "ot-agent"
)

// ClusterRoles of chart ot-hub.
const (
	AgentRole = "ot-hub-member-agent"
	JoinRole  = "ot-hub-member-join"
)

// Secrets in the agent's namespace in the member.
const (
	// JoinSecret is created by the platform team: KubeconfigKey has the join token.
	JoinSecret = "ot-hub-join"
	// CredentialSecret is created by the agent for its own credential.
	CredentialSecret = "ot-hub-credential"
)

// KubeconfigKey is the key of a Secret with a HubAccess.
const KubeconfigKey = "kubeconfig"

// Lifetimes of tokens without flags. The API server issues no token that is valid for
// less than MinTokenLife.
const (
	DefaultJoinTokenLife  = time.Hour
	DefaultAgentTokenLife = 7 * 24 * time.Hour
	MinTokenLife          = 10 * time.Minute
)

// JoinSecretName returns the name of the Secret, in the hub's namespace, with a
// member's join token.
func JoinSecretName(member string) string { return v1alpha1.MemberNamespacePrefix + member + "-join" }

// MemberOfJoinSecret is the inverse of JoinSecretName.
func MemberOfJoinSecret(secret string) (member string, ok bool) {
	rest, prefixed := strings.CutPrefix(secret, v1alpha1.MemberNamespacePrefix)
	member, ok = strings.CutSuffix(rest, "-join")
	if !prefixed || !ok || member == "" {
		return "", false
	}
	return member, true
}
