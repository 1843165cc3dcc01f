package admissionpolicy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
)

func TestApprovalCondition(t *testing.T) {
	const guarded, notGuarded = metav1.ConditionTrue, metav1.ConditionFalse
	for name, test := range map[string]struct {
		change     func(*admissionpolicy.PolicyState)
		want       metav1.ConditionStatus
		wantReason string
		wantText   string
	}{
		"policy in force":           {func(*admissionpolicy.PolicyState) {}, guarded, v1alpha1.ReasonGuarded, "checked who approved"},
		"default failurePolicy":     {func(s *admissionpolicy.PolicyState) { s.Policy.Spec.FailurePolicy = nil }, guarded, v1alpha1.ReasonGuarded, ""},
		"audits as well":            {func(s *admissionpolicy.PolicyState) { setValidationActions(s, admissionv1.Audit, admissionv1.Deny) }, guarded, v1alpha1.ReasonGuarded, ""},
		"policies not served":       {func(s *admissionpolicy.PolicyState) { *s = admissionpolicy.PolicyState{} }, notGuarded, v1alpha1.ReasonPoliciesNotServed, "from Kubernetes 1.30"},
		"no policy":                 {func(s *admissionpolicy.PolicyState) { s.Policy = nil }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "ValidatingAdmissionPolicy ot-hub-prunes does not exist: `helm upgrade`"},
		"no validations":            {func(s *admissionpolicy.PolicyState) { s.Policy.Spec.Validations = nil }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "no validations"},
		"failurePolicy Ignore":      {func(s *admissionpolicy.PolicyState) { s.Policy.Spec.FailurePolicy = ptr.To(admissionv1.Ignore) }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "failurePolicy Ignore"},
		"no binding":                {func(s *admissionpolicy.PolicyState) { s.Binding = nil }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "ValidatingAdmissionPolicyBinding ot-hub-prunes does not exist: `helm upgrade`"},
		"binding of another policy": {func(s *admissionpolicy.PolicyState) { s.Binding.Spec.PolicyName = "another" }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "binds policy another"},
		"binding without Deny":      {func(s *admissionpolicy.PolicyState) { setValidationActions(s, admissionv1.Warn) }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "validationActions [Warn], without Deny"},
		"binding with exemptions":   {func(s *admissionpolicy.PolicyState) { s.Binding.Spec.MatchResources = &admissionv1.MatchResources{} }, notGuarded, v1alpha1.ReasonPolicyNotInForce, "matchResources"},
	} {
		t.Run(name, func(t *testing.T) {
			state := admissionpolicy.PolicyState{
				PoliciesServed: true,
				Policy: &admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{
					FailurePolicy: ptr.To(admissionv1.Fail), Validations: []admissionv1.Validation{{Expression: "true"}},
				}},
				Binding: &admissionv1.ValidatingAdmissionPolicyBinding{Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: admissionpolicy.PrunesPolicy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
				}},
			}
			test.change(&state)
			c := admissionpolicy.ApprovalCondition(admissionpolicy.PrunesPolicy, state)
			assert.Equal(t, v1alpha1.ConditionApprovalGuarded, c.Type)
			apitest.AssertCondition(t, &c, test.want, test.wantReason, test.wantText)
			if test.want == notGuarded {
				assert.Contains(t, c.Message, "set spec.undo", "the advice")
			}
		})
	}
}

func setValidationActions(s *admissionpolicy.PolicyState, all ...admissionv1.ValidationAction) {
	s.Binding.Spec.ValidationActions = all
}

func TestNotEnforcedPolicyIsNotRead(t *testing.T) {
	c, err := (&admissionpolicy.ApprovalCheck{}).CheckPolicy(t.Context(), admissionpolicy.WavesPolicy)
	require.NoError(t, err)
	apitest.AssertCondition(t, &c, metav1.ConditionFalse, v1alpha1.ReasonNotEnforced, "approvals.enforced")
}
