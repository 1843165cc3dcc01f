//go:build linux

package rollout_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestRolloutWaitsForMemberThatKnowsItsFields has a member whose CustomResourceDefinition is older:
// its API server would drop the headers, and the download would fail without them.
func TestRolloutWaitsForMemberThatKnowsItsFields(t *testing.T) {
	testenv.RunInTurn(t, 2)
	t.Parallel()
	const field = "extraHeaders"
	older := shared.Members[frankfurt].Client()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	require.NoError(t, older.Get(t.Context(), client.ObjectKey{Name: "vmdiskimages.pelotech.ot"}, crd))
	newer := crd.DeepCopy()
	// setSpec replaces the spec of the CustomResourceDefinition.
	setSpec := func(ctx context.Context, of *unstructured.Unstructured) error {
		text, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": of.Object["spec"]}})
		if err != nil {
			return err
		}
		return older.Patch(ctx, newer.DeepCopy(), client.RawPatch(types.JSONPatchType, text))
	}
	removeField(t, crd, field)
	knows := func(cluster string) bool {
		report := &v1alpha1.ClusterReport{}
		require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + cluster, Name: v1alpha1.MailboxName}, report))
		return slices.Contains(report.Root.ImageFields, field)
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return knows(frankfurt) && knows(bergen) }), "agents report what they know")
	require.NoError(t, setSpec(t.Context(), crd))
	restored := false
	t.Cleanup(func() {
		if !restored {
			assert.NoError(t, setSpec(context.Background(), newer))
		}
	})
	require.True(t, testenv.AwaitCondition(t, func() bool { return !knows(frankfurt) }), "what the cluster stores counts")

	img := shared.newFleetImage("headers", bergen, frankfurt)
	img.Spec.Template.ExtraHeaders = []string{"X-Tenant: blue"}
	shared.createFleetImage(t, img)
	waits := shared.awaitFleetImage(t, img, "one waits", func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Clusters.Succeeded == 1 && img.Status.Reason == v1alpha1.ReasonFieldsUnknown
	})
	requireAllConditions(t, waits)
	require.Len(t, waits.Status.Blocked, 1)
	assert.Equal(t, []string{frankfurt, v1alpha1.ReasonFieldsUnknown}, []string{waits.Status.Blocked[0].Cluster, waits.Status.Blocked[0].Reason})
	assert.Contains(t, waits.Status.Blocked[0].Message, "does not know spec.template's "+field)
	key := client.ObjectKey{Namespace: namespace, Name: img.ImageNameForVersion("1")}
	created := &v1alpha1.VMDiskImage{}
	assert.True(t, apierrors.IsNotFound(older.Get(t.Context(), key, created)), "it has not begun")

	require.NoError(t, setSpec(t.Context(), newer))
	restored = true
	shared.awaitFleetImage(t, img, "done", hasReason(v1alpha1.RolloutSucceeded, v1alpha1.ReasonRolledOut))
	require.NoError(t, older.Get(t.Context(), key, created))
	assert.Equal(t, img.Spec.Template.ExtraHeaders, created.Spec.ExtraHeaders)
}

// removeField removes a field of spec from a CustomResourceDefinition, and the rules about it.
func removeField(t *testing.T, crd *unstructured.Unstructured, field string) {
	t.Helper()
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	require.NoError(t, err)
	version := versions[0].(map[string]any)
	path := []string{"schema", "openAPIV3Schema", "properties", "spec"}
	spec, found, err := unstructured.NestedMap(version, path...)
	require.True(t, err == nil && found, err)
	unstructured.RemoveNestedField(spec, "properties", field)
	spec["x-kubernetes-validations"] = slices.DeleteFunc(spec["x-kubernetes-validations"].([]any), func(rule any) bool {
		return strings.Contains(rule.(map[string]any)["rule"].(string), "self."+field)
	})
	require.NoError(t, unstructured.SetNestedMap(version, spec, path...))
	require.NoError(t, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
}
