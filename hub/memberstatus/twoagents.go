package memberstatus

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// hasTwoAgents reports whether two agents report as this member in turns. A process that has just begun
// to read reports has seen no turn yet, and keeps what is stored.
func (s *statusBuilder) hasTwoAgents() bool {
	at := s.TwoAgentsAt
	if stored := meta.FindStatusCondition(s.Member.Status.Conditions, v1alpha1.ConditionIdentityConfirmed); at.IsZero() && stored != nil && stored.Reason == v1alpha1.ReasonTwoAgents {
		at = s.WatchedSince
	}
	if at.IsZero() || s.Now.Sub(at) >= twoAgentsHold {
		return false
	}
	s.recheckAt(at.Add(twoAgentsHold + time.Millisecond))
	return true
}

func (s *statusBuilder) twoAgentsState() conditionState {
	register := ""
	if s.Connection.PullMode {
		register = ". To revoke the credential of both, register the agent of the right cluster with another join token: " +
			shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s=$(date +%%s)", s.Member.Name, v1alpha1.AnnotationJoinToken)
	}
	return conditionFalse(v1alpha1.ReasonTwoAgents,
		"two agents report as this member in turns: cluster %s was cloned together with its agent, or somebody else has the credential. "+
			"The hub sees now one and now the other, and prunes neither. Uninstall ot-agent in the cluster that is not this member%s",
		shellword.Quote(string(s.status.ClusterUID)), register)
}
