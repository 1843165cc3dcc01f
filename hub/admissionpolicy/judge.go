package admissionpolicy

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Policy is one of the chart's policies; its binding has the same name.
type Policy struct {
	Name string
	// guardedMessage is what the API server does by it, and otherwise what happens without it.
	guardedMessage, unguardedAdvice string
}

// The policies of chart ot-hub that approvals rest on.
var (
	// WavesPolicy is about the approvals in FleetDiskImages.
	WavesPolicy = Policy{
		Name:            "ot-hub-approvals",
		guardedMessage:  "the API server checks who approves of waves",
		unguardedAdvice: "Meanwhile everybody who may update FleetDiskImages approves of waves, in any name: look through spec.approvals",
	}
	// PrunesPolicy is about who creates ImagePrunes.
	PrunesPolicy = Policy{
		Name:            "ot-hub-prunes",
		guardedMessage:  "the API server checked who approved of it",
		unguardedAdvice: "Who creates an ImagePrune meanwhile is not asked for verb approve, and approvedBy says what he likes: to keep what has not been deleted yet, set spec.undo",
	}
)

// PolicyState is what the API server has of a policy.
type PolicyState struct {
	// Served: it knows such policies.
	PoliciesServed bool
	// Policy and Binding are nil where they are not there.
	Policy  *admissionv1.ValidatingAdmissionPolicy
	Binding *admissionv1.ValidatingAdmissionPolicyBinding
}

// ApprovalCondition says whether the API server goes by a policy. What an administrator has made of
// its expressions is not looked at.
func ApprovalCondition(p Policy, s PolicyState) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse}
	if !s.PoliciesServed {
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 (it does by default from Kubernetes 1.30 on). " + p.unguardedAdvice
		return c
	}
	if fault := p.findFault(s); fault != "" {
		c.Reason = v1alpha1.ReasonPolicyNotInForce
		c.Message = fault + ": `helm upgrade` of the hub brings back what its chart says. " + p.unguardedAdvice
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonGuarded, p.guardedMessage
	return c
}

// findFault is why the policy refuses nothing, or not all that it has to.
func (p Policy) findFault(s PolicyState) string {
	policy, binding := "ValidatingAdmissionPolicy "+p.Name, "ValidatingAdmissionPolicyBinding "+p.Name
	switch {
	case s.Policy == nil:
		return policy + " is not there"
	case len(s.Policy.Spec.Validations) == 0:
		return policy + " has no validations"
	case s.Policy.Spec.FailurePolicy != nil && *s.Policy.Spec.FailurePolicy != admissionv1.Fail:
		return fmt.Sprintf("%s has failurePolicy %s", policy, *s.Policy.Spec.FailurePolicy)
	case s.Binding == nil:
		return binding + " is not there"
	case s.Binding.Spec.PolicyName != p.Name:
		return fmt.Sprintf("%s is for policy %s", binding, s.Binding.Spec.PolicyName)
	case !slices.Contains(s.Binding.Spec.ValidationActions, admissionv1.Deny):
		return fmt.Sprintf("%s has validationActions %v, without Deny", binding, s.Binding.Spec.ValidationActions)
	case s.Binding.Spec.MatchResources != nil:
		return binding + " has matchResources, and takes some requests out"
	}
	return ""
}

// notEnforcedCondition is what the chart's value says.
func (p Policy) notEnforcedCondition() metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotEnforced,
		Message: "value approvals.enforced of the hub's chart is false: approvals are to be checked by other means, and the API server checks none",
	}
}
