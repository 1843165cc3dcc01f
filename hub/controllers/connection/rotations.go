package connection

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Rotations has condition CredentialRotated of each member, for the planner.
type Rotations struct {
	memberstatus.PublishedConditions
}

// ForMember returns the condition of a member, nil for none. Until the member is
// reconciled, its existing condition is returned.
func (r *Rotations) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	if member.Spec.Connection.Pull != nil {
		return nil
	}
	if published, known := r.Published(member); known {
		return published
	}
	return meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionCredentialRotated).DeepCopy()
}

func (r *Rotations) setCondition(member *v1alpha1.MemberCluster, condition *metav1.Condition) {
	if condition != nil {
		condition.ObservedGeneration = member.Generation
	}
	r.Publish(member, condition)
}
