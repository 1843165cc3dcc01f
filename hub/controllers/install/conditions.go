package install

import (
	"cmp"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Conditions has condition AgentInstalled of each member, for the planner. The zero
// Conditions has none, as in a hub that installs nothing.
type Conditions struct {
	memberstatus.PublishedConditions
	// enabled: there is a controller that publishes.
	enabled atomic.Bool
}

// ForMember returns condition AgentInstalled of a member; nil for none. Before the first
// decision it is the stored one. In quarantine nothing is read, so nothing is known.
func (c *Conditions) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	if !c.enabled.Load() || !isOptedIn(member) {
		return nil
	}
	if member.Spec.Quarantine != nil {
		return unknownCondition(member, v1alpha1.ReasonQuarantined, "in quarantine the hub neither reads nor upgrades the agent, and counts no attempt; it does so again once the quarantine ends")
	}
	published, _ := c.Published(member)
	condition := cmp.Or(published, meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAgentInstalled))
	if condition == nil || condition.Reason == v1alpha1.ReasonQuarantined {
		return unknownCondition(member, v1alpha1.ReasonInstalling, "the hub has not read the member yet")
	}
	return condition.DeepCopy()
}

func unknownCondition(member *v1alpha1.MemberCluster, reason, message string) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.ConditionAgentInstalled, Status: metav1.ConditionUnknown, Reason: reason, Message: message, ObservedGeneration: member.Generation,
	}
}

func isOptedIn(member *v1alpha1.MemberCluster) bool {
	return member.Labels[v1alpha1.LabelInstallAgent] == "true" && member.DeletionTimestamp.IsZero()
}

// mayInstall reports whether the hub may read and change the agent of a member.
func mayInstall(member *v1alpha1.MemberCluster) bool {
	return isOptedIn(member) && member.Spec.Quarantine == nil
}
