package install

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Installs is what is known of the agent's installation in each member, for whoever
// writes their status. The zero value knows of none, as in a hub that installs nothing.
type Installs struct {
	mu      sync.Mutex
	of      map[string]told
	changed []func(member string)
	// at work: there is a controller that tells.
	working bool
}

type told struct {
	member    types.UID
	condition *metav1.Condition // nil: there is none
}

// OnChange has something done, without blocking, when a member's condition has changed.
// Call it before the controller starts.
func (i *Installs) OnChange(do func(member string)) { i.changed = append(i.changed, do) }

// Of is condition AgentInstalled of a member, nil for none. Until the member was looked
// at, what it says already stays.
func (i *Installs) Of(member *v1alpha1.MemberCluster) *metav1.Condition {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.working || !optedIn(member) {
		return nil
	}
	t, known := i.of[member.Name]
	c := t.condition
	if !known || t.member != member.UID || c == nil {
		c = meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAgentInstalled)
	}
	if c == nil {
		return &metav1.Condition{
			Type: v1alpha1.ConditionAgentInstalled, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonInstalling,
			Message: "the hub has not looked at it yet", ObservedGeneration: member.Generation,
		}
	}
	return c.DeepCopy()
}

func optedIn(member *v1alpha1.MemberCluster) bool {
	return member.Labels[v1alpha1.LabelInstallAgent] == "true" && member.DeletionTimestamp.IsZero()
}

// set tells of a member, and whether something was told of it before.
func (i *Installs) set(member *v1alpha1.MemberCluster, c *metav1.Condition) (was bool) {
	next := told{member: member.UID, condition: c}
	i.mu.Lock()
	if i.of == nil {
		i.of = map[string]told{}
	}
	before := i.of[member.Name]
	i.of[member.Name] = next
	i.mu.Unlock()
	if before.member != next.member || !equality.Semantic.DeepEqual(before.condition, c) {
		for _, do := range i.changed {
			do(member.Name)
		}
	}
	return before.member == next.member && before.condition != nil
}

// forget a member that is gone.
func (i *Installs) forget(member string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.of, member)
}
