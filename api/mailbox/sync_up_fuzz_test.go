package mailbox

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Whatever a member reports: the hub has afterwards nothing but the root, the pages that it
// lists, and the activity, as they are in the member and of the root's cluster, and a second
// sync writes nothing.
func FuzzSyncUp(f *testing.F) {
	f.Add([]byte(`{"items": [
		{"metadata": {"name": "default"}, "clusterUID": "u", "sequence": 2, "root": {"pages": [{"name": "page-0", "sequence": 1}, {"name": "page-1", "sequence": 1}]}},
		{"metadata": {"name": "page-0"}, "clusterUID": "u", "sequence": 1, "page": {"images": [{"namespace": "n", "name": "i"}]}},
		{"metadata": {"name": "page-1"}, "clusterUID": "other", "sequence": 1, "page": {}},
		{"metadata": {"name": "page-2"}, "clusterUID": "u", "sequence": 1, "page": {}},
		{"metadata": {"name": "activity"}, "clusterUID": "u", "sequence": 1, "activity": {"bootID": "b", "slots": 1, "active": ["n/i - 1/4 - 5/10 -", "?"]}}]}`))
	scheme := runtime.NewScheme()
	require.NoError(f, v1alpha1.AddToScheme(scheme))
	f.Fuzz(func(t *testing.T, answer []byte) {
		var list v1alpha1.ClusterReportList
		if json.Unmarshal(answer, &list) != nil || len(list.Items) > 16 {
			t.Skip()
		}
		reported := map[string]*v1alpha1.ClusterReport{}
		var objects []client.Object
		for i := range list.Items {
			item := &list.Items[i]
			// An API server has no two objects of one name, nor names that are no path.
			if len(validation.IsDNS1123Subdomain(item.Name)) > 0 || reported[item.Name] != nil {
				continue
			}
			reported[item.Name] = &v1alpha1.ClusterReport{ClusterUID: item.ClusterUID, Sequence: item.Sequence, Root: item.Root, Page: item.Page, Activity: item.Activity}
			reported[item.Name].Name, reported[item.Name].Namespace = item.Name, "ot-agent"
			objects = append(objects, reported[item.Name].DeepCopy())
		}
		member := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
		hub := fake.NewClientBuilder().WithScheme(scheme).Build()
		relay := Relay{
			Hub:    Side{Cached: hub, Live: hub, Namespace: "ot-member-a"},
			Member: Side{Cached: member, Live: member, Namespace: "ot-agent"},
		}
		_, err := relay.SyncUp(t.Context(), "")
		isRefused := errors.As(err, new(ReportError))
		if !isRefused {
			require.NoError(t, err)
		}

		var copies v1alpha1.ClusterReportList
		require.NoError(t, hub.List(t.Context(), &copies))
		if isRefused {
			require.Empty(t, copies.Items)
			return
		}
		root := reported[v1alpha1.MailboxName]
		if root == nil || root.Root == nil {
			require.Empty(t, copies.Items)
			return
		}
		for _, o := range copies.Items {
			require.Equal(t, "ot-member-a", o.Namespace)
			require.True(t, o.Name == v1alpha1.MailboxName || o.Name == v1alpha1.ActivityName || slices.ContainsFunc(root.Root.Pages, func(p v1alpha1.PageRef) bool { return p.Name == o.Name }), "%s is not listed", o.Name)
			source := reported[o.Name]
			require.NotNil(t, source)
			require.Equal(t, root.ClusterUID, o.ClusterUID)
			require.Equal(t, source.Sequence, o.Sequence)
			require.True(t, equality.Semantic.DeepEqual(normalized(t, source).Page, o.Page))
			require.True(t, equality.Semantic.DeepEqual(normalized(t, source).Activity, o.Activity))
		}
		if activity := reported[v1alpha1.ActivityName]; activity != nil && activity.Activity != nil && activity.ClusterUID == root.ClusterUID {
			require.True(t, slices.ContainsFunc(copies.Items, func(o v1alpha1.ClusterReport) bool { return o.Name == v1alpha1.ActivityName }))
		}
		again, err := relay.SyncUp(t.Context(), "")
		require.NoError(t, err)
		require.Zero(t, again.Written)
	})
}

// normalized returns what an API server stores.
func normalized(t *testing.T, r *v1alpha1.ClusterReport) *v1alpha1.ClusterReport {
	t.Helper()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	stored := &v1alpha1.ClusterReport{}
	require.NoError(t, json.Unmarshal(text, stored))
	return stored
}
