package connection

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Rotations holds condition CredentialRotated of each member, for the controller that
// writes their status.
type Rotations struct {
	mu       sync.Mutex
	byMember map[string]memberRotation
	onChange []func(member string)
}

type memberRotation struct {
	member    types.UID
	condition *metav1.Condition // nil: there is none
}

// OnChange calls do when a member's condition changes. do must not block. Call it
// before the controllers start.
func (r *Rotations) OnChange(do func(member string)) { r.onChange = append(r.onChange, do) }

// ForMember returns the condition of a member, nil for none. Until the member is
// reconciled, its existing condition is returned.
func (r *Rotations) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	if member.Spec.Connection.Pull != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	stored, known := r.byMember[member.Name]
	condition := stored.condition
	if !known || stored.member != member.UID {
		condition = meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionCredentialRotated)
	}
	return condition.DeepCopy()
}

func (r *Rotations) setCondition(member *v1alpha1.MemberCluster, condition *metav1.Condition) {
	if condition != nil {
		condition.ObservedGeneration = member.Generation
	}
	updated := memberRotation{member: member.UID, condition: condition}
	r.mu.Lock()
	if r.byMember == nil {
		r.byMember = map[string]memberRotation{}
	}
	before := r.byMember[member.Name]
	r.byMember[member.Name] = updated
	r.mu.Unlock()
	if before.member == updated.member && (before.condition == nil) == (condition == nil) && (condition == nil || *before.condition == *condition) {
		return
	}
	for _, do := range r.onChange {
		do(member.Name)
	}
}

func (r *Rotations) forgetMember(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byMember, member)
}
