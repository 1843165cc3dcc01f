package admissionpolicy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
)

func TestApprovalCondition(t *testing.T) {
	const is, isNot = metav1.ConditionTrue, metav1.ConditionFalse
	for name, test := range map[string]struct {
		change     func(*admissionpolicy.PolicyState)
		want       metav1.ConditionStatus
		wantReason string
		wantText   string
	}{
		"all is there":         {func(*admissionpolicy.PolicyState) {}, is, v1alpha1.ReasonGuarded, "checked who approved"},
		"by what is default":   {func(s *admissionpolicy.PolicyState) { s.Policy.Spec.FailurePolicy = nil }, is, v1alpha1.ReasonGuarded, ""},
		"it audits, too":       {func(s *admissionpolicy.PolicyState) { setValidationActions(s, admissionv1.Audit, admissionv1.Deny) }, is, v1alpha1.ReasonGuarded, ""},
		"kinds are not served": {func(s *admissionpolicy.PolicyState) { *s = admissionpolicy.PolicyState{} }, isNot, v1alpha1.ReasonPoliciesNotServed, "from Kubernetes 1.30 on"},
		"no policy":            {func(s *admissionpolicy.PolicyState) { s.Policy = nil }, isNot, v1alpha1.ReasonPolicyNotInForce, "ValidatingAdmissionPolicy ot-hub-prunes is not there: `helm upgrade`"},
		"an empty one":         {func(s *admissionpolicy.PolicyState) { s.Policy.Spec.Validations = nil }, isNot, v1alpha1.ReasonPolicyNotInForce, "no validations"},
		"one that may fail":    {func(s *admissionpolicy.PolicyState) { s.Policy.Spec.FailurePolicy = ptr.To(admissionv1.Ignore) }, isNot, v1alpha1.ReasonPolicyNotInForce, "failurePolicy Ignore"},
		"no binding":           {func(s *admissionpolicy.PolicyState) { s.Binding = nil }, isNot, v1alpha1.ReasonPolicyNotInForce, "ValidatingAdmissionPolicyBinding ot-hub-prunes is not there: `helm upgrade`"},
		"of another policy":    {func(s *admissionpolicy.PolicyState) { s.Binding.Spec.PolicyName = "another" }, isNot, v1alpha1.ReasonPolicyNotInForce, "for policy another"},
		"one that only warns":  {func(s *admissionpolicy.PolicyState) { setValidationActions(s, admissionv1.Warn) }, isNot, v1alpha1.ReasonPolicyNotInForce, "validationActions [Warn], without Deny"},
		"one of some requests": {func(s *admissionpolicy.PolicyState) { s.Binding.Spec.MatchResources = &admissionv1.MatchResources{} }, isNot, v1alpha1.ReasonPolicyNotInForce, "matchResources"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := admissionpolicy.PolicyState{
				PoliciesServed: true,
				Policy: &admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{
					FailurePolicy: ptr.To(admissionv1.Fail), Validations: []admissionv1.Validation{{Expression: "true"}},
				}},
				Binding: &admissionv1.ValidatingAdmissionPolicyBinding{Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: admissionpolicy.PrunesPolicy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
				}},
			}
			test.change(&seen)
			c := admissionpolicy.ApprovalCondition(admissionpolicy.PrunesPolicy, seen)
			assert.Equal(t, v1alpha1.ConditionApprovalGuarded, c.Type)
			assert.Equal(t, test.want, c.Status)
			assert.Equal(t, test.wantReason, c.Reason)
			assert.Contains(t, c.Message, test.wantText)
			if test.want == isNot {
				assert.Contains(t, c.Message, "set spec.undo", "what to do about what is there")
			}
		})
	}
}

func setValidationActions(s *admissionpolicy.PolicyState, all ...admissionv1.ValidationAction) {
	s.Binding.Spec.ValidationActions = all
}

// Where the chart leaves the policies out, none is looked for.
func TestNotEnforcedPolicyIsNotRead(t *testing.T) {
	c, err := (&admissionpolicy.ApprovalCheck{}).CheckPolicy(t.Context(), admissionpolicy.WavesPolicy)
	require.NoError(t, err)
	assert.Equal(t, metav1.ConditionFalse, c.Status)
	assert.Equal(t, v1alpha1.ReasonNotEnforced, c.Reason)
	assert.Contains(t, c.Message, "approvals.enforced")
}
