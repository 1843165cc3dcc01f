package registration

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Conditions has condition Joined of each member, for the planner.
type Conditions struct {
	memberstatus.PublishedConditions

	mu sync.Mutex
	// pending are the members that await acceptance.
	pending map[string]bool
}

// ForMember returns condition Joined of a member, nil for none. Before the first decision it is
// the stored one.
func (c *Conditions) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	if published, known := c.Published(member); known {
		return published
	}
	stored := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined)
	if stored == nil && member.Spec.Connection.Pull != nil {
		return &metav1.Condition{
			Type: v1alpha1.ConditionJoined, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonAwaitingAgent,
			Message: "not reconciled yet", ObservedGeneration: member.Generation,
		}
	}
	return stored.DeepCopy()
}

// setCondition publishes a condition and returns how many members await acceptance.
func (c *Conditions) setCondition(member *v1alpha1.MemberCluster, condition *metav1.Condition, pending bool) (waiting int) {
	waiting = c.setPending(member.Name, pending)
	c.Publish(member, condition)
	return waiting
}

// forgetMember removes a deleted member and returns how many members await acceptance.
func (c *Conditions) forgetMember(member string) (waiting int) {
	c.Forget(member)
	return c.setPending(member, false)
}

func (c *Conditions) setPending(member string, pending bool) (waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		c.pending = map[string]bool{}
	}
	if delete(c.pending, member); pending {
		c.pending[member] = true
	}
	return len(c.pending)
}
