package preload

import (
	"time"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/rollout"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// maxHeldFor is for members whose policy says nothing.
const maxHeldFor = 365 * 24 * time.Hour

// CountHeld counts the slots that the budget reserves for each member, with what is known of the imports that
// hold them. activities are by the members' namespaces.
func (f *Fleet) CountHeld(inForce *policy.Policy, members []v1alpha1.MemberCluster, activities map[string]*v1alpha1.ReportedActivity) {
	f.Held, f.Running = map[string]int32{}, map[string]map[string]int32{}
	for i := range members {
		m := &members[i]
		if m.Status.Transfers == nil || m.Status.Transfers.Held <= 0 {
			continue
		}
		f.Held[m.Name] = m.Status.Transfers.Held
		f.HeldFor = max(f.HeldFor, f.findHeldFor(inForce, m))
		if a := activities[v1alpha1.MemberNamespacePrefix+m.Name]; a != nil && rollout.WhyUnknown(m) == "" {
			for j := range a.Active {
				f.addRunning(m.Name, a.Active[j].Source)
			}
		}
	}
}

// findHeldFor returns how long an import that runs in a member may go on: no attempt runs for longer than
// attemptTimeout, nor is a slot of a silent member reserved for longer than its status says.
func (f *Fleet) findHeldFor(inForce *policy.Policy, m *v1alpha1.MemberCluster) time.Duration {
	data, _, _ := inForce.ForMember(m.Name, m.Labels)
	timeout, err := time.ParseDuration(data[apipolicy.KeyAttemptTimeout])
	if err != nil {
		return maxHeldFor
	}
	if until := m.Status.Transfers.HeldUntil; until != nil {
		timeout = max(timeout, until.Sub(f.Now))
	}
	return timeout
}

// CountRunning counts the imports that hold slots as the read API lists them.
func (f *Fleet) CountRunning(running []readapi.Transfer) {
	f.Running = map[string]map[string]int32{}
	for i := range running {
		if running[i].Unknown == "" {
			f.addRunning(running[i].Cluster, running[i].Source)
		}
	}
}

func (f *Fleet) addRunning(member, source string) {
	if source == "" {
		return // of any group
	}
	if f.Running[member] == nil {
		f.Running[member] = map[string]int32{}
	}
	f.Running[member][source]++
}
