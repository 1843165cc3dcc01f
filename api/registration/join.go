// Package registration is what hub and agent share where an agent dials in: names on the
// hub, the sealing of a credential, what a token tells of itself, and how a
// credential is written down.
//
// How it goes. A join token, of ServiceAccount JoinAccount, may create ClusterJoin
// default and read it, nothing else. The agent makes a key pair, keeps it, and
// creates the ClusterJoin with its public key and with the ServiceAccount's UID
// that the token bears. The hub seals a token of ServiceAccount AgentAccount for
// that key and puts it into the ClusterJoin's status. The agent opens it, stores
// it, and renews Lease LeaseName with the holder of function Holder: by that the hub
// knows the credential to be in use, and makes the join token worthless.
package registration

import (
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Names in a member's namespace on the hub. No cluster has ServiceAccounts of these
// names elsewhere: the hub may make tokens of them in all namespaces.
const (
	// AgentAccount is the ServiceAccount of the agent, and the RoleBinding for it.
	AgentAccount = "ot-member-agent"
	// JoinAccount is that of join tokens, and the RoleBinding for it.
	JoinAccount = "ot-member-join"
	// LeaseName is the Lease that the agent renews as a sign of life.
	LeaseName = "ot-agent"
)

// ClusterRoles of chart ot-hub.
const (
	AgentRole = "ot-hub-member-agent"
	JoinRole  = "ot-hub-member-join"
)

// Secrets in the agent's namespace in the member.
const (
	// JoinSecret is what the platform team puts there: KubeconfigKey has the join
	// token.
	JoinSecret = "ot-hub-join"
	// CredentialSecret is the agent's own.
	CredentialSecret = "ot-hub-credential"
)

// KubeconfigKey of a Secret has an Access.
const KubeconfigKey = "kubeconfig"

// How long tokens live unless the hub's flags say otherwise. The API server makes
// none that lives shorter than MinTokenLife.
const (
	DefaultJoinTokenLife  = time.Hour
	DefaultAgentTokenLife = 7 * 24 * time.Hour
	MinTokenLife          = 10 * time.Minute
)

// JoinSecretName of the Secret in the hub's namespace with a member's join token.
func JoinSecretName(member string) string { return v1alpha1.MemberNamespacePrefix + member + "-join" }

// MemberOfJoinSecret returns the member of a Secret that JoinSecretName names.
func MemberOfJoinSecret(secret string) (member string, is bool) {
	rest, mine := strings.CutPrefix(secret, v1alpha1.MemberNamespacePrefix)
	member, is = strings.CutSuffix(rest, "-join")
	if !mine || !is || member == "" {
		return "", false
	}
	return member, true
}
