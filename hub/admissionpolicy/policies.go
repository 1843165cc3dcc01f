package admissionpolicy

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Policy is a ValidatingAdmissionPolicy of chart ot-hub. Its binding has the same name.
type Policy struct {
	Name string
	// guardedMessage says what the API server checks while the policy is in force,
	// unguardedAdvice what to review when it is not.
	guardedMessage, unguardedAdvice string
}

var (
	// WavesPolicy guards the approvals in spec of FleetDiskImages.
	WavesPolicy = Policy{
		Name:            "ot-hub-approvals",
		guardedMessage:  "the API server checks who approves waves",
		unguardedAdvice: "Until then whoever may update FleetDiskImages can approve waves in any name: review spec.approvals",
	}
	// AccountPolicy bounds what the hub's own account writes.
	AccountPolicy = Policy{
		Name:            "ot-hub-account",
		guardedMessage:  "the API server refuses what the hub never writes",
		unguardedAdvice: "Until then a stolen token of the hub's account can delete any namespace",
	}
	// PrunesPolicy guards the creation of ImagePrunes.
	PrunesPolicy = Policy{
		Name:            "ot-hub-prunes",
		guardedMessage:  "the API server checked who approved this ImagePrune",
		unguardedAdvice: "Until then ImagePrunes are created without verb approve, and approvedBy can be any name: to keep the images that are not deleted yet, set spec.undo",
	}
)

// PolicyState is what the API server has of a Policy.
type PolicyState struct {
	// PoliciesServed: the API server serves ValidatingAdmissionPolicy.
	PoliciesServed bool
	// Policy and Binding are nil where they do not exist.
	Policy  *admissionv1.ValidatingAdmissionPolicy
	Binding *admissionv1.ValidatingAdmissionPolicyBinding
}

// ApprovalCondition returns condition ApprovalGuarded: whether a policy is in force. The
// expressions of the policy are not compared with the chart's.
func ApprovalCondition(p Policy, s PolicyState) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse}
	if !s.PoliciesServed {
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 (served by default from Kubernetes 1.30). " + p.unguardedAdvice
		return c
	}
	if fault := p.findFault(s); fault != "" {
		c.Reason = v1alpha1.ReasonPolicyNotInForce
		c.Message = fault + ": `helm upgrade` of the hub restores it. " + p.unguardedAdvice
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonGuarded, p.guardedMessage
	return c
}

// findFault returns why the policy refuses less than it should; empty if it does not.
func (p Policy) findFault(s PolicyState) string {
	policy, binding := "ValidatingAdmissionPolicy "+p.Name, "ValidatingAdmissionPolicyBinding "+p.Name
	switch {
	case s.Policy == nil:
		return policy + " does not exist"
	case len(s.Policy.Spec.Validations) == 0:
		return policy + " has no validations"
	case s.Policy.Spec.FailurePolicy != nil && *s.Policy.Spec.FailurePolicy != admissionv1.Fail:
		return fmt.Sprintf("%s has failurePolicy %s", policy, *s.Policy.Spec.FailurePolicy)
	case s.Binding == nil:
		return binding + " does not exist"
	case s.Binding.Spec.PolicyName != p.Name:
		return fmt.Sprintf("%s binds policy %s", binding, s.Binding.Spec.PolicyName)
	case !slices.Contains(s.Binding.Spec.ValidationActions, admissionv1.Deny):
		return fmt.Sprintf("%s has validationActions %v, without Deny", binding, s.Binding.Spec.ValidationActions)
	case s.Binding.Spec.MatchResources != nil:
		return binding + " has matchResources, which exempts some requests"
	}
	return ""
}

func notEnforcedCondition() metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotEnforced,
		Message: "value approvals.enforced of the hub's chart is false: the API server does not check approvals, so other means have to",
	}
}
