package memberstatus

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// twoAgentsUntil returns until when two agents count as reporting as this member in turns; zero if they do
// not. A process that has just begun to read reports has seen no turn yet, and keeps what is stored.
func (v *Input) twoAgentsUntil() time.Time {
	at := v.TwoAgentsAt
	if stored := meta.FindStatusCondition(v.Member.Status.Conditions, v1alpha1.ConditionIdentityConfirmed); at.IsZero() && stored != nil && stored.Reason == v1alpha1.ReasonTwoAgents {
		at = v.WatchedSince
	}
	if at.IsZero() || v.Now.Sub(at) >= twoAgentsHold {
		return time.Time{}
	}
	return at.Add(twoAgentsHold)
}

// HasTwoAgents reports whether two agents report as this member in turns.
func (v *Input) HasTwoAgents() bool { return v.Report != nil && !v.twoAgentsUntil().IsZero() }

func (s *statusBuilder) twoAgentsState() conditionState {
	s.recheckAt(s.twoAgentsUntil().Add(time.Millisecond))
	register := ""
	if s.Connection.PullMode {
		register = ". To revoke the credential of both, register the agent of the right cluster with another join token: " +
			shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s=$(date +%%s)", s.Member.Name, v1alpha1.AnnotationJoinToken)
	}
	return conditionFalse(v1alpha1.ReasonTwoAgents,
		"two agents report as this member in turns: cluster %s was cloned together with its agent, or somebody else has the credential. "+
			"The hub sees now one and now the other: it begins no prune there, what has begun goes on in both, and rollouts take the member for offline. "+
			"That ends %d minutes after the last turn, or after a replica of the hub was elected since. Uninstall ot-agent in the cluster that is not this member%s",
		shellword.Quote(string(s.status.ClusterUID)), int(twoAgentsHold.Minutes()), register)
}
