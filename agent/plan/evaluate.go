package plan

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kind of a plan. It may come to be served after the agent has started.
var Kind = v1alpha1.GroupVersion.WithKind("ClusterPlan")

// Verdict on a plan.
type Verdict struct {
	// Accepted: the plan applies. A refused plan changes neither policy nor images.
	Accepted bool
	// Reason and Message of condition PlanAccepted.
	Reason  string
	Message string
	// Policy of an accepted plan; nil where it has none.
	Policy *policy.Policy
	// UnknownPolicyKeys are keys of that policy that this agent does not know.
	UnknownPolicyKeys []string
}

// EvaluatePlan decides whether a plan applies in the cluster whose UID is own. acknowledged
// is the plan that the ledger was last written under; nil for none.
func EvaluatePlan(p v1alpha1.ClusterPlanSpec, own types.UID, acknowledged *v1alpha1.PlanVersion) Verdict {
	if p.ClusterUID != own {
		return refusedVerdict(v1alpha1.ReasonPlanForAnotherCluster,
			"%s was made for cluster %s, this is %s: nothing of it is used; on the hub, accept this cluster under its name, or give it one of its own",
			DescribeVersion(p.PlanVersion), p.ClusterUID, own)
	}
	if !MayFollow(p.PlanVersion, acknowledged) {
		if p.Compare(*acknowledged) == 0 {
			return refusedVerdict(v1alpha1.ReasonPlanOlder,
				"%s is refused: another plan of that version was acknowledged; the hub makes a new plan when it reads this cluster's report", DescribeVersion(p.PlanVersion))
		}
		return refusedVerdict(v1alpha1.ReasonPlanOlder, "%s is refused: %s was acknowledged before", DescribeVersion(p.PlanVersion), DescribeVersion(*acknowledged))
	}
	v := Verdict{Accepted: true, Reason: v1alpha1.ReasonPlanInForce, Message: DescribeVersion(p.PlanVersion) + " is in force"}
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
		return refusedVerdict(v1alpha1.ReasonPlanPolicyInvalid, "%s is not used, its policy is wrong: %s", DescribeVersion(p.PlanVersion), strings.Join(texts, "; "))
	}
	v.Policy, v.UnknownPolicyKeys = &parsed, unknown
	if len(unknown) > 0 {
		v.Message += fmt.Sprintf("; keys of its policy that this agent does not know are ignored: %s", strings.Join(unknown, ", "))
	}
	return v
}

func refusedVerdict(reason, format string, args ...any) Verdict {
	return Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// MayFollow: a plan is newer than the acknowledged one, or it is that one. Of two plans of
// one version, which differ in their hash, neither is known to be newer: the acknowledged
// one stays.
func MayFollow(v v1alpha1.PlanVersion, acknowledged *v1alpha1.PlanVersion) bool {
	if acknowledged == nil {
		return true
	}
	order := v.Compare(*acknowledged)
	return order > 0 || (order == 0 && v.Hash == acknowledged.Hash)
}

// DescribeVersion names a plan in messages.
func DescribeVersion(v v1alpha1.PlanVersion) string {
	return fmt.Sprintf("the plan of epoch %d, sequence %d", v.Epoch, v.Sequence)
}
