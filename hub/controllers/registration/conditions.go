package registration

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Conditions holds condition Joined of each member, for the controller that writes
// their status.
type Conditions struct {
	mu       sync.Mutex
	byMember map[string]memberCondition
	onChange []func(member string)
}

type memberCondition struct {
	member    types.UID
	condition *metav1.Condition // nil: there is none
	pending   bool
}

// OnChange calls do when a member's condition changes. do must not block. Call it
// before the controller starts.
func (c *Conditions) OnChange(do func(member string)) { c.onChange = append(c.onChange, do) }

// ForMember returns condition Joined of a member, nil for none. Until the member is
// reconciled, its existing condition is returned.
func (c *Conditions) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	stored, known := c.byMember[member.Name]
	condition := stored.condition
	if !known || stored.member != member.UID {
		condition = meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined)
		if condition == nil && member.Spec.Connection.Pull != nil {
			return &metav1.Condition{
				Type: v1alpha1.ConditionJoined, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonAwaitingAgent,
				Message: "not reconciled yet", ObservedGeneration: member.Generation,
			}
		}
	}
	if condition == nil {
		return nil
	}
	return condition.DeepCopy()
}

// setCondition stores a condition and returns how many members await acceptance.
func (c *Conditions) setCondition(member *v1alpha1.MemberCluster, condition *metav1.Condition, pending bool) (waiting int) {
	updated := memberCondition{member: member.UID, condition: condition, pending: pending}
	c.mu.Lock()
	if c.byMember == nil {
		c.byMember = map[string]memberCondition{}
	}
	before := c.byMember[member.Name]
	c.byMember[member.Name] = updated
	waiting = c.countPending()
	c.mu.Unlock()
	if before.member != updated.member || !equalConditions(before.condition, condition) {
		for _, do := range c.onChange {
			do(member.Name)
		}
	}
	return waiting
}

// forgetMember removes a deleted member and returns how many members await acceptance.
func (c *Conditions) forgetMember(member string) (waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byMember, member)
	return c.countPending()
}

func (c *Conditions) countPending() (n int) {
	for _, stored := range c.byMember {
		if stored.pending {
			n++
		}
	}
	return n
}

// equalConditions compares two conditions without their transition times.
func equalConditions(a, b *metav1.Condition) bool {
	if a == nil || b == nil {
		return a == b
	}
	left, right := *a, *b
	left.LastTransitionTime, right.LastTransitionTime = metav1.Time{}, metav1.Time{}
	return equality.Semantic.DeepEqual(left, right)
}
