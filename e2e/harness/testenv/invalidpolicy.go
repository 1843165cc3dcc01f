//go:build linux

package testenv

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// AdmitInvalidPolicy lets a test store values in the existing policy ConfigMap that a chart's
// admission policy refuses, as they are stored in clusters from before that policy. chart is
// ot-agent or ot-hub.
func AdmitInvalidPolicy(t *testing.T, c client.Client, chart string) {
	t.Helper()
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: chart + "-policy-values"}}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(binding), binding))
	require.NoError(t, c.Delete(t.Context(), binding))
	t.Cleanup(func() {
		again := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}, Spec: binding.Spec}
		assert.NoError(t, c.Create(context.WithoutCancel(t.Context()), again))
	})
	invalid := client.RawPatch(types.MergePatchType, []byte(`{"data":{"stallTimeout":"never"}}`))
	require.True(t, AwaitCondition(t, func() bool {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: program.PolicyNamespace, Name: program.PolicyName}}
		return c.Patch(t.Context(), cm, invalid, client.DryRunAll) == nil
	}), "invalid policies are still refused")
}
