//go:build linux

package chart_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Who writes off what a departed member may be running needs verb approve, and names
// themselves. The hub's own account cannot.
func TestWriteOffsAreSigned(t *testing.T) {
	const denied = "ValidatingAdmissionPolicy 'ot-hub-writeoffs' with binding 'ot-hub-writeoffs' denied request: "
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
}
