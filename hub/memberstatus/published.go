package memberstatus

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PublishedConditions has one condition of each member, as its controller has decided it, for
// the planner, which writes the status of all MemberClusters. The zero value has none.
type PublishedConditions struct {
	mu       sync.Mutex
	byMember map[string]publishedCondition
	onChange []func(member string)
}

type publishedCondition struct {
	memberUID types.UID
	condition *metav1.Condition // nil: there is none
}

// OnChange registers a function that is called when a member's condition changes. It must
// not block. Call OnChange before the controller starts.
func (p *PublishedConditions) OnChange(do func(member string)) { p.onChange = append(p.onChange, do) }

// Published returns the condition of a member, nil for none. known is false if nothing was
// published of this member yet; one of the same name may have been deleted before.
func (p *PublishedConditions) Published(member *v1alpha1.MemberCluster) (condition *metav1.Condition, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	published, known := p.byMember[member.Name]
	if !known || published.memberUID != member.UID {
		return nil, false
	}
	return published.condition.DeepCopy(), true
}

// Publish sets the condition of a member, nil for none, and returns the one before.
func (p *PublishedConditions) Publish(member *v1alpha1.MemberCluster, condition *metav1.Condition) (before *metav1.Condition) {
	p.mu.Lock()
	if p.byMember == nil {
		p.byMember = map[string]publishedCondition{}
	}
	former, known := p.byMember[member.Name]
	known = known && former.memberUID == member.UID
	p.byMember[member.Name] = publishedCondition{member.UID, condition}
	p.mu.Unlock()
	if !known || !equalConditions(former.condition, condition) {
		for _, do := range p.onChange {
			do(member.Name)
		}
	}
	if !known {
		return nil
	}
	return former.condition
}

// Forget drops a deleted member.
func (p *PublishedConditions) Forget(member string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byMember, member)
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
