//go:build linux

package chart_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Who writes off what a departed member may be running needs verb approve, and names
// themselves. The hub's own account cannot, and alone writes the list otherwise.
func TestWriteOffsAreSigned(t *testing.T) {
	const denied = "ValidatingAdmissionPolicy 'ot-hub-writeoffs' with binding 'ot-hub-writeoffs' denied request: "
	awaitRightsGranted(t)
	departed := func(namespace, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ot-hub-departed", Annotations: map[string]string{"pelotech.ot/write-off": text}}}
	}
	awaitDenied(t, departed(hubNamespace, "frankfurt by somebody-else"), denied+"annotation pelotech.ot/write-off must be")
	requireForbidden(t, clientFor(t, "ot-hub").Create(t.Context(), departed(hubNamespace, "frankfurt by system:serviceaccount:ot-hub:ot-hub"), client.DryRunAll), denied+"user system:serviceaccount:ot-hub:ot-hub may not write off")

	self := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, adminClient.Create(t.Context(), self))
	signed := departed(hubNamespace, "frankfurt by "+self.Status.UserInfo.Username)
	require.NoError(t, adminClient.Create(t.Context(), signed.DeepCopy(), client.DryRunAll))
	assert.NoError(t, adminClient.Create(t.Context(), departed(imageNamespace, "frankfurt by somebody-else"), client.DryRunAll), "another namespace's ConfigMap is nobody's business")

	// The hub goes on writing the rest, and removes what it has taken up.
	require.NoError(t, adminClient.Create(t.Context(), signed))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), departed(hubNamespace, ""))) })
	hub := clientFor(t, "ot-hub")
	signed.Data = map[string]string{"departed": "[]"}
	require.NoError(t, hub.Update(t.Context(), signed))
	signed.Annotations = nil
	require.NoError(t, hub.Update(t.Context(), signed))

	// Who may edit ConfigMaps takes nothing from the list that way, nor keeps the hub from it.
	writer := clientFor(t, "config-writer")
	const mayNot = denied + "user config-writer may not write off"
	edited := signed.DeepCopy()
	edited.Data = nil
	requireForbidden(t, writer.Update(t.Context(), edited, client.DryRunAll), mayNot)
	frozen := signed.DeepCopy()
	frozen.Immutable = new(true)
	requireForbidden(t, writer.Update(t.Context(), frozen, client.DryRunAll), mayNot)
	requireForbidden(t, writer.Delete(t.Context(), signed, client.DryRunAll), mayNot)
	requireForbidden(t, writer.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(hubNamespace), client.DryRunAll), mayNot)
	labelled := signed.DeepCopy()
	labelled.Labels = map[string]string{"team": "platform"}
	require.NoError(t, writer.Update(t.Context(), labelled, client.DryRunAll))
	other := departed(hubNamespace, "")
	other.Name = "others"
	require.NoError(t, writer.Create(t.Context(), other, client.DryRunAll))
	require.NoError(t, adminClient.Update(t.Context(), edited, client.DryRunAll), "whoever may approve may edit it")
}

// With its namespace the list goes, whoever deletes that. A copy of the policy shows it, since
// all tests share the hub's namespace.
func TestDepartedMembersGoWithTheirNamespace(t *testing.T) {
	const ending = "ending"
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKey{Name: "ot-hub-writeoffs"}, policy))
	policy.ObjectMeta = metav1.ObjectMeta{Name: "ot-hub-writeoffs-ending"}
	policy.Spec.MatchConstraints.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] = ending
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta,
		Spec:       admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}},
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ending}}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ending, Name: "ot-hub-departed"}}
	for _, object := range []client.Object{policy, binding, namespace, list} {
		require.NoError(t, adminClient.Create(t.Context(), object))
	}
	t.Cleanup(func() {
		assert.NoError(t, adminClient.Delete(context.Background(), binding))
		assert.NoError(t, adminClient.Delete(context.Background(), policy))
	})
	cfg := configFor(t, "admin")
	cfg.Impersonate.UserName, cfg.Impersonate.Groups = "system:serviceaccount:kube-system:namespace-controller", []string{"system:serviceaccounts"}
	controller := newClient(t, cfg)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ErrorContains(c, controller.Delete(t.Context(), list, client.DryRunAll), "may not write off")
	}, policyPropagationTimeout, 20*time.Millisecond)

	require.NoError(t, adminClient.Delete(t.Context(), namespace))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NoError(c, controller.Delete(t.Context(), list))
	}, policyPropagationTimeout, 20*time.Millisecond)
}
