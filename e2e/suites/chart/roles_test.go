//go:build linux

package chart_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestUserRolesAggregateToClusterRoles(t *testing.T) {
	const none = ""
	for name, test := range map[string]struct {
		values                             map[string]any
		imageViewer, vmAuthor, imageAuthor string
	}{
		"by default":      {map[string]any{}, "view", "edit", none},
		"images too":      {map[string]any{"imagesToEdit": true}, "view", "edit", "edit"},
		"not at all":      {map[string]any{"aggregate": false}, none, none, none},
		"not even images": {map[string]any{"aggregate": false, "imagesToEdit": true}, none, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			rendered := renderChart(t, "ot-system", map[string]any{"roles": test.values})
			for role, want := range map[string]string{"ot-viewer": none, "ot-image-viewer": test.imageViewer, "ot-vm-author": test.vmAuthor, "ot-image-author": test.imageAuthor} {
				got := none
				for label, value := range rendered["ClusterRole "+role].GetLabels() {
					if to, ok := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); ok && value == "true" {
						got += to
					}
				}
				assert.Equal(t, want, got, role)
			}
		})
	}
}

// Passwords can stand in a VirtualMachine, and view reads no Secrets either.
func TestViewRoleCannotReadVMs(t *testing.T) {
	for name, role := range renderChart(t, "ot-system", nil) {
		if role.GetLabels()["rbac.authorization.k8s.io/aggregate-to-view"] != "true" {
			continue
		}
		rules, _, err := unstructured.NestedSlice(role.Object, "rules")
		require.NoError(t, err)
		for _, entry := range rules {
			assert.Equal(t, []any{"vmdiskimages"}, entry.(map[string]any)["resources"], name)
		}
	}
}

func TestUserRolesWriteNoStatus(t *testing.T) {
	rendered := renderChart(t, "ot-system", nil)
	for _, role := range []string{"ot-viewer", "ot-image-viewer", "ot-vm-author", "ot-image-author"} {
		rules, _, err := unstructured.NestedSlice(rendered["ClusterRole "+role].Object, "rules")
		require.NoError(t, err)
		for _, entry := range rules {
			for _, resource := range entry.(map[string]any)["resources"].([]any) {
				assert.NotContains(t, resource, "/", role)
			}
		}
	}
}

func TestImageNamespacesCanBeProtected(t *testing.T) {
	for key := range renderChart(t, "ot-system", nil) {
		require.NotContains(t, key, "ot-agent-keep-images", "it is offered, not imposed")
	}
	for key, object := range renderChart(t, "ot-system", map[string]any{"keepImages": map[string]any{"enabled": true}}) {
		if strings.HasSuffix(key, " ot-agent-keep-images") {
			awaitCreated(t, object)
		}
	}
	kept := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "kept-", Labels: map[string]string{"pelotech.ot/keep-images": "true"}}}
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-", Labels: map[string]string{"pelotech.ot/keep-images": "false"}}}
	require.NoError(t, adminClient.Create(t.Context(), kept))
	require.NoError(t, adminClient.Create(t.Context(), other))

	says := "namespace " + kept.Name + " holds disk images that VirtualMachines of all namespaces may use, and its deletion would take them from under these. " +
		"If that is wanted, remove its label first: kubectl label namespace " + kept.Name + " pelotech.ot/keep-images-"
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		assert.ErrorContains(check, adminClient.Delete(t.Context(), kept.DeepCopy(), client.DryRunAll), says)
	}, policyPropagationTimeout, 20*time.Millisecond)
	err := adminClient.Delete(t.Context(), kept.DeepCopy(), client.GracePeriodSeconds(0))
	require.ErrorContains(t, err, says)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)

	require.NoError(t, adminClient.Delete(t.Context(), other))
	require.NoError(t, adminClient.Patch(t.Context(), kept, newMergePatch(`{"metadata":{"labels":{"pelotech.ot/keep-images":null}}}`)))
	require.NoError(t, adminClient.Delete(t.Context(), kept))
}
