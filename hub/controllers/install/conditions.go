package install

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Conditions has condition AgentInstalled of each member, for the planner. The zero
// Conditions has none, as in a hub that installs nothing.
type Conditions struct {
	mu       sync.Mutex
	byMember map[string]memberCondition
	onChange []func(member string)
	// enabled: there is a controller that publishes.
	enabled bool
}

type memberCondition struct {
	memberUID types.UID
	condition *metav1.Condition // nil for none
}

// OnChange registers a function that is called when a member's condition changes. It must
// not block. Call OnChange before the controller starts.
func (i *Conditions) OnChange(do func(member string)) { i.onChange = append(i.onChange, do) }

// ForMember returns condition AgentInstalled of a member; nil for none. Before the first
// decision it is the stored one.
func (i *Conditions) ForMember(member *v1alpha1.MemberCluster) *metav1.Condition {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.enabled || !isOptedIn(member) {
		return nil
	}
	t, known := i.byMember[member.Name]
	c := t.condition
	if !known || t.memberUID != member.UID || c == nil {
		c = meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAgentInstalled)
	}
	if c == nil {
		return &metav1.Condition{
			Type: v1alpha1.ConditionAgentInstalled, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonInstalling,
			Message: "the hub has not read the member yet", ObservedGeneration: member.Generation,
		}
	}
	return c.DeepCopy()
}

func isOptedIn(member *v1alpha1.MemberCluster) bool {
	return member.Labels[v1alpha1.LabelInstallAgent] == "true" && member.DeletionTimestamp.IsZero()
}

// publish sets the condition of a member, and returns whether it had one.
func (i *Conditions) publish(member *v1alpha1.MemberCluster, c *metav1.Condition) (published bool) {
	next := memberCondition{memberUID: member.UID, condition: c}
	i.mu.Lock()
	if i.byMember == nil {
		i.byMember = map[string]memberCondition{}
	}
	before := i.byMember[member.Name]
	i.byMember[member.Name] = next
	i.mu.Unlock()
	if before.memberUID != next.memberUID || !equality.Semantic.DeepEqual(before.condition, c) {
		for _, do := range i.onChange {
			do(member.Name)
		}
	}
	return before.memberUID == next.memberUID && before.condition != nil
}

// forget drops a deleted member.
func (i *Conditions) forget(member string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.byMember, member)
}
