package registration

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// decideLeave revokes everything that the agent has, and then removes the finalizer.
func (s snapshot) decideLeave() decision {
	d := s.withCondition(s.nextRevocationStep(), metav1.ConditionFalse, v1alpha1.ReasonRevoking, "the agent's access to the hub is being revoked, because the member left pull mode")
	switch {
	case d.step != noStep:
	case hasFinalizer(s.member, finalizer):
		d.step = removeFinalizer
	default:
		d.condition = nil
	}
	return d
}

func (s snapshot) decideRevoked() decision {
	if next := s.nextRevocationStep(); next != noStep {
		return s.withCondition(next, metav1.ConditionFalse, v1alpha1.ReasonRevoking, "all credentials of the agent and all join tokens are being revoked: issued ones may still be valid")
	}
	d := s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonRevoked,
		"all credentials of the agent and all join tokens are revoked (spec.connection.pull.revoked or spec.quarantine). Unset it to get a new join token")
	d.requeueAfter = repairInterval
	return d
}

// nextRevocationStep returns the next step until the agent has nothing left. Remove
// permissions first: the API server checks them at each request, while it may cache a
// token's validity for some seconds.
func (s snapshot) nextRevocationStep() step {
	switch {
	case s.agentAccount.bindingExists:
		return unbindAgentAccount
	case s.joinAccount.bindingExists:
		return unbindJoinAccount
	case s.agentAccount.exists():
		return deleteAgentAccount
	case s.joinAccount.exists():
		return deleteJoinAccount
	case s.clusterJoin != nil:
		return deleteClusterJoin
	case s.joinSecret != nil && isManagedByHub(s.joinSecret):
		return deleteJoinSecret
	default:
		return noStep
	}
}
