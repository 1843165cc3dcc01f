package guard_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/guard"
)

func TestApprovalCondition(t *testing.T) {
	const is, isNot = metav1.ConditionTrue, metav1.ConditionFalse
	for name, test := range map[string]struct {
		change     func(*guard.PolicyState)
		want       metav1.ConditionStatus
		wantReason string
		wantText   string
	}{
		"all is there":         {func(*guard.PolicyState) {}, is, v1alpha1.ReasonGuarded, "checked who approved"},
		"by what is default":   {func(s *guard.PolicyState) { s.Policy.Spec.FailurePolicy = nil }, is, v1alpha1.ReasonGuarded, ""},
		"it audits, too":       {func(s *guard.PolicyState) { setValidationActions(s, admissionv1.Audit, admissionv1.Deny) }, is, v1alpha1.ReasonGuarded, ""},
		"kinds are not served": {func(s *guard.PolicyState) { *s = guard.PolicyState{} }, isNot, v1alpha1.ReasonPoliciesNotServed, "from Kubernetes 1.30 on"},
		"no policy":            {func(s *guard.PolicyState) { s.Policy = nil }, isNot, v1alpha1.ReasonPolicyNotInForce, "ValidatingAdmissionPolicy ot-hub-prunes is not there: `helm upgrade`"},
		"an empty one":         {func(s *guard.PolicyState) { s.Policy.Spec.Validations = nil }, isNot, v1alpha1.ReasonPolicyNotInForce, "no validations"},
		"one that may fail":    {func(s *guard.PolicyState) { s.Policy.Spec.FailurePolicy = ptr.To(admissionv1.Ignore) }, isNot, v1alpha1.ReasonPolicyNotInForce, "failurePolicy Ignore"},
		"no binding":           {func(s *guard.PolicyState) { s.Binding = nil }, isNot, v1alpha1.ReasonPolicyNotInForce, "ValidatingAdmissionPolicyBinding ot-hub-prunes is not there: `helm upgrade`"},
		"of another policy":    {func(s *guard.PolicyState) { s.Binding.Spec.PolicyName = "another" }, isNot, v1alpha1.ReasonPolicyNotInForce, "for policy another"},
		"one that only warns":  {func(s *guard.PolicyState) { setValidationActions(s, admissionv1.Warn) }, isNot, v1alpha1.ReasonPolicyNotInForce, "validationActions [Warn], without Deny"},
		"one of some requests": {func(s *guard.PolicyState) { s.Binding.Spec.MatchResources = &admissionv1.MatchResources{} }, isNot, v1alpha1.ReasonPolicyNotInForce, "matchResources"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := guard.PolicyState{
				PoliciesServed: true,
				Policy: &admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{
					FailurePolicy: ptr.To(admissionv1.Fail), Validations: []admissionv1.Validation{{Expression: "true"}},
				}},
				Binding: &admissionv1.ValidatingAdmissionPolicyBinding{Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: guard.PrunesPolicy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
				}},
			}
			test.change(&seen)
			c := guard.ApprovalCondition(guard.PrunesPolicy, seen)
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

func setValidationActions(s *guard.PolicyState, all ...admissionv1.ValidationAction) {
	s.Binding.Spec.ValidationActions = all
}

// Where the chart leaves the policies out, none is looked for.
func TestNotEnforcedPolicyIsNotRead(t *testing.T) {
	c, err := (&guard.ApprovalCheck{}).CheckPolicy(t.Context(), guard.WavesPolicy)
	require.NoError(t, err)
	assert.Equal(t, metav1.ConditionFalse, c.Status)
	assert.Equal(t, v1alpha1.ReasonNotEnforced, c.Reason)
	assert.Contains(t, c.Message, "approvals.enforced")
}
