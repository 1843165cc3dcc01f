//go:build linux

package testenv

import (
	"context"
	"strings"
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

// AdmitInvalidPolicy lets a test store values in the existing policy ConfigMap that the charts'
// admission policies refuse, as they are stored in clusters from before those policies. The
// hub's cluster may have the agent's chart, too.
func AdmitInvalidPolicy(t *testing.T, c client.Client) {
	t.Helper()
	var bindings admissionregistrationv1.ValidatingAdmissionPolicyBindingList
	require.NoError(t, c.List(t.Context(), &bindings))
	for _, binding := range bindings.Items {
		if !strings.HasSuffix(binding.Name, "-policy-values") {
			continue
		}
		require.NoError(t, c.Delete(t.Context(), &binding))
		t.Cleanup(func() {
			again := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}, Spec: binding.Spec}
			assert.NoError(t, c.Create(context.WithoutCancel(t.Context()), again))
		})
	}
	invalid := client.RawPatch(types.MergePatchType, []byte(`{"data":{"stallTimeout":"never"}}`))
	var refused error
	AwaitCondition(t, func() bool {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: program.PolicyNamespace, Name: program.PolicyName}}
		refused = c.Patch(t.Context(), cm, invalid, client.DryRunAll)
		return refused == nil
	})
	require.NoError(t, refused, "invalid policies are still refused")
}
