package plan

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kind of a plan. It may come to be served after the agent runs.
var Kind = v1alpha1.GroupVersion.WithKind("ClusterPlan")

// Verdict on a plan.
type Verdict struct {
	// Accepted: the plan is gone by. One that is refused changes nothing, be it
	// policy or images.
	Accepted bool
	// Reason and Message of condition PlanAccepted.
	Reason  string
	Message string
	// Policy that an accepted plan asks for; nil where it says nothing about it.
	Policy *policy.Policy
	// Unknown are keys of that policy that this agent does not know.
	Unknown []string
}

// Judge tells whether a plan may be gone by in the cluster whose identity is own,
// when acknowledged is the newest plan that its ledger was written under; nil for
// none.
func Judge(p v1alpha1.ClusterPlanSpec, own types.UID, acknowledged *v1alpha1.PlanVersion) Verdict {
	if p.ClusterUID != own {
		return refused(v1alpha1.ReasonPlanForAnother,
			"%s was made for cluster %s, this is %s: nothing of it is used; on the hub, accept this cluster under its name, or give it one of its own",
			Name(p.PlanVersion), p.ClusterUID, own)
	}
	if !Follows(p.PlanVersion, acknowledged) {
		if p.Compare(*acknowledged) == 0 {
			return refused(v1alpha1.ReasonPlanOlder,
				"%s is refused: another plan of that version was acknowledged; the hub plans anew when it reads this cluster's report", Name(p.PlanVersion))
		}
		return refused(v1alpha1.ReasonPlanOlder, "%s is refused: %s was acknowledged before", Name(p.PlanVersion), Name(*acknowledged))
	}
	v := Verdict{Accepted: true, Reason: v1alpha1.ReasonPlanInForce, Message: Name(p.PlanVersion) + " is in force"}
	if len(p.Policy) == 0 {
		v.Message += "; it says nothing about the policy"
		return v
	}
	parsed, unknown, errs := policy.Parse(p.Policy)
	if len(errs) > 0 {
		texts := make([]string, len(errs))
		for i, e := range errs {
			texts[i] = e.Error()
		}
		return refused(v1alpha1.ReasonPlanPolicyFaulty, "%s is not used, its policy is wrong: %s", Name(p.PlanVersion), strings.Join(texts, "; "))
	}
	v.Policy, v.Unknown = &parsed, unknown
	if len(unknown) > 0 {
		v.Message += fmt.Sprintf("; keys of its policy that this agent does not know are ignored: %s", strings.Join(unknown, ", "))
	}
	return v
}

func refused(reason, format string, args ...any) Verdict {
	return Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Follows tells whether a plan may come after the one that was acknowledged: it
// is newer, or it is that one. Two plans of one version are told apart by their
// hash, and neither is known to be the newer one: then the one that was
// acknowledged stays.
func Follows(v v1alpha1.PlanVersion, acknowledged *v1alpha1.PlanVersion) bool {
	if acknowledged == nil {
		return true
	}
	order := v.Compare(*acknowledged)
	return order > 0 || (order == 0 && v.Hash == acknowledged.Hash)
}

// Name of a plan, for people.
func Name(v v1alpha1.PlanVersion) string {
	return fmt.Sprintf("the plan of epoch %d, sequence %d", v.Epoch, v.Sequence)
}
