package registration

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// snapshot is everything that a decision about one member depends on, read live.
type snapshot struct {
	now    time.Time
	member *v1alpha1.MemberCluster
	// hubNamespace is the hub's own namespace.
	hubNamespace string
	// clusterOnlyURL is the address in join tokens if agents in other clusters do not reach it;
	// empty otherwise.
	clusterOnlyURL string
	// namespaceReady: the member's namespace exists, belongs to it and is not being
	// deleted.
	namespaceReady bool
	// quotaMissing: the member is to have a ResourceQuota and has none.
	quotaMissing bool
	// joinAccount and agentAccount are the ServiceAccounts JoinAccount and
	// AgentAccount.
	joinAccount, agentAccount accountState
	// leaseExists and leaseHolder are of the agent's Lease.
	leaseExists bool
	leaseHolder string
	clusterJoin *v1alpha1.ClusterJoin // nil: not there
	// joinSecret is the Secret in the hub's namespace with the join token; nil if it
	// does not exist.
	joinSecret *corev1.Secret
}

// accountState is a ServiceAccount with its RoleBinding.
type accountState struct {
	// uid is empty if the ServiceAccount does not exist.
	uid types.UID
	// joinTokenRequest is the value of annotation AnnotationJoinToken of the member
	// when it was created.
	joinTokenRequest string
	// clusterJoinUID is the UID of the ClusterJoin that the agent's account was created
	// for.
	clusterJoinUID types.UID
	// bindingExists: a RoleBinding of its name exists. bindingForeign: its content is
	// not what the hub writes.
	bindingExists, bindingForeign bool
	bindingUID                    types.UID
}

func (a accountState) exists() bool { return a.uid != "" }
