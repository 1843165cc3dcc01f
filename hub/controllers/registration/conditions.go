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
func (j *Conditions) OnChange(do func(member string)) { j.onChange = append(j.onChange, do) }

// ForMember returns condition Joined of a member, nil for none. Until the member is
// reconciled, its existing condition is returned.
func (j *Conditions) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, known := j.byMember[member.Name]
	c := t.condition
	if !known || t.member != member.UID {
		c = meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined)
		if c == nil && member.Spec.Connection.Pull != nil {
			return &metav1.Condition{
				Type: v1alpha1.ConditionJoined, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonAwaitingAgent,
				Message: "the hub has not looked at it yet", ObservedGeneration: member.Generation,
			}
		}
	}
	if c == nil {
		return nil
	}
	return c.DeepCopy()
}

// setCondition stores a condition and returns how many members await acceptance.
func (j *Conditions) setCondition(member *v1alpha1.MemberCluster, c *metav1.Condition, pending bool) (waiting int) {
	next := memberCondition{member: member.UID, condition: c, pending: pending}
	j.mu.Lock()
	if j.byMember == nil {
		j.byMember = map[string]memberCondition{}
	}
	before := j.byMember[member.Name]
	j.byMember[member.Name] = next
	waiting = j.countPending()
	j.mu.Unlock()
	if before.member != next.member || !equalConditions(before.condition, c) {
		for _, do := range j.onChange {
			do(member.Name)
		}
	}
	return waiting
}

// forgetMember removes a deleted member and returns how many members await acceptance.
func (j *Conditions) forgetMember(member string) (waiting int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.byMember, member)
	return j.countPending()
}

func (j *Conditions) countPending() (n int) {
	for _, t := range j.byMember {
		if t.pending {
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
