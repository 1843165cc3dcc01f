//go:build linux

package chart_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
)

// renderPods are the Pods that a chart brings, that of `helm test` among them.
func renderPods(t *testing.T, name string, values map[string]any) []*corev1.Pod {
	t.Helper()
	rendered, err := chart.Render(t.Context(), chartPaths[name], name, "ot-system", values)
	require.NoError(t, err)
	tests, err := chart.RenderTests(t.Context(), chartPaths[name], name, "ot-system", values)
	require.NoError(t, err)
	var pods []*corev1.Pod
	for _, object := range append(rendered, tests...) {
		content, templated, err := unstructured.NestedMap(object.Object, "spec", "template")
		require.NoError(t, err)
		if object.GetKind() == "Pod" {
			content = object.Object
		} else if !templated {
			continue
		}
		pod := &corev1.Pod{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(content, pod))
		pod.Name = object.GetName()
		pods = append(pods, pod)
	}
	require.Len(t, pods, 2, "of the Deployment, and of the test")
	return pods
}

// The API server judges the Pods itself where Pod Security is restricted.
func TestAPIServerAcceptsPodsUnderRestrictedPodSecurity(t *testing.T) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "vital"}, Value: 1}
	require.NoError(t, adminClient.Create(t.Context(), class))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), class)) })
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	require.NoError(t, adminClient.Create(t.Context(), namespace))

	for name := range chartPaths {
		for variant, values := range map[string]map[string]any{"as it comes": nil, "with everything": loadAllValues(t, name)} {
			for _, pod := range renderPods(t, name, values) {
				pod.Namespace = namespace.Name
				require.NoError(t, adminClient.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), "%s: %s", pod.Name, variant)

				for why, test := range map[string]struct {
					change func(*corev1.PodSpec, *corev1.SecurityContext)
					want   string
				}{
					"privileged": {func(_ *corev1.PodSpec, c *corev1.SecurityContext) {
						c.Privileged, c.AllowPrivilegeEscalation = ptr.To(true), nil
					}, "privileged"},
					"with more than it has": {func(_ *corev1.PodSpec, c *corev1.SecurityContext) { c.AllowPrivilegeEscalation = nil }, "allowPrivilegeEscalation != false"},
					"with capabilities":     {func(_ *corev1.PodSpec, c *corev1.SecurityContext) { c.Capabilities = nil }, "unrestricted capabilities"},
					"as root":               {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.SecurityContext.RunAsNonRoot = nil }, "runAsNonRoot != true"},
					"with all system calls": {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.SecurityContext.SeccompProfile = nil }, "seccompProfile"},
					"in the node's network": {func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostNetwork = true }, "host namespaces"},
				} {
					changed := pod.DeepCopy()
					test.change(&changed.Spec, changed.Spec.Containers[0].SecurityContext)
					err := adminClient.Create(t.Context(), changed, client.DryRunAll)
					require.ErrorContains(t, err, `violates PodSecurity "restricted:latest"`, "%s %s", pod.Name, why)
					require.ErrorContains(t, err, test.want, "%s %s", pod.Name, why)
				}
			}
		}
	}
}
