package join

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Joins is what is known of the joining of each member, for whoever writes their
// status.
type Joins struct {
	mu      sync.Mutex
	of      map[string]told
	changed []func(member string)
}

type told struct {
	member    types.UID
	condition *metav1.Condition // nil: there is none
	pending   bool
}

// OnChange has something done, without blocking, when a member's condition has
// changed. Call it before the controller starts.
func (j *Joins) OnChange(do func(member string)) { j.changed = append(j.changed, do) }

// Of is condition Joined of a member, nil for none. Until the member was looked at,
// what it says already stays.
func (j *Joins) Of(member *v1alpha1.MemberCluster) *metav1.Condition {
	j.mu.Lock()
	defer j.mu.Unlock()
	t, known := j.of[member.Name]
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

// set tells of a member, and returns how many wait for acceptance.
func (j *Joins) set(member *v1alpha1.MemberCluster, c *metav1.Condition, pending bool) (waiting int) {
	next := told{member: member.UID, condition: c, pending: pending}
	j.mu.Lock()
	if j.of == nil {
		j.of = map[string]told{}
	}
	before := j.of[member.Name]
	j.of[member.Name] = next
	waiting = j.waiting()
	j.mu.Unlock()
	if before.member != next.member || !same(before.condition, c) {
		for _, do := range j.changed {
			do(member.Name)
		}
	}
	return waiting
}

// forget a member that is gone.
func (j *Joins) forget(member string) (waiting int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.of, member)
	return j.waiting()
}

func (j *Joins) waiting() (n int) {
	for _, t := range j.of {
		if t.pending {
			n++
		}
	}
	return n
}

// same tells whether two conditions say the same, whenever they came to.
func same(a, b *metav1.Condition) bool {
	if a == nil || b == nil {
		return a == b
	}
	left, right := *a, *b
	left.LastTransitionTime, right.LastTransitionTime = metav1.Time{}, metav1.Time{}
	return equality.Semantic.DeepEqual(left, right)
}
