// Package secretaccess says what the owner of a namespace has to do where the agent may not
// read its Secrets: the chart grants that in listed namespaces only.
package secretaccess

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/shellword"
)

// ForbiddenMessage returns a sentence about a Secret that the agent, which runs in
// agentNamespace, may not read. It has the command that allows it.
func ForbiddenMessage(secret types.NamespacedName, agentNamespace string) string {
	return fmt.Sprintf("the agent may not read Secret %s. Allow it: %s", secret,
		shellword.FormatCommand("kubectl create rolebinding secrets-for-ot-agent --namespace %s --clusterrole ot-agent-secrets --serviceaccount %s", secret.Namespace, agentNamespace+":ot-agent"))
}
