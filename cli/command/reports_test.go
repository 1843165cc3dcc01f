package command

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// newReadAPI answers requests by their path and query: with an answer as JSON, with 404 for nil.
func newReadAPI(t *testing.T, answer func(request *http.Request) any) (*environment, *connect.Cluster) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		a := answer(request)
		if a == nil {
			w.WriteHeader(http.StatusNotFound)
			a = map[string]string{"error": "it is not there"}
		}
		assert.NoError(t, json.NewEncoder(w).Encode(a))
	}))
	t.Cleanup(server.Close)
	e, _, _ := newTestEnvironment("")
	e.Flags = connect.NewFlags()
	e.ReadAPI = server.URL
	return e, &connect.Cluster{Config: &rest.Config{BearerToken: "token"}}
}

// TestWhereShowsWhatWaitsForAPerson: an image that is planned and absent has no source, by which those that
// clusters have are found.
func TestWhereShowsWhatWaitsForAPerson(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Status.Versions = []v1alpha1.VersionStatus{{Version: "2.1.0", Namespace: "images", Image: "ubuntu-2.1.0", Template: &img.Spec.Template}}
	planned := &readapi.ImageClusters{Total: 1, Clusters: []readapi.ImageCluster{{Cluster: "lab", Versions: []readapi.VersionInCluster{{
		Version: "2.1.0", State: readapi.ImagePlanned,
		Reported: &v1alpha1.ReportedImage{Namespace: "images", Name: "ubuntu-2.1.0", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing}},
	}}}}}
	has := func(cluster string, phase v1alpha1.Phase) *readapi.ImageDetail {
		return &readapi.ImageDetail{PerMember: []readapi.ImageInMember{{Member: cluster, Entries: []readapi.ImageEntry{{Namespace: "images", Name: "ubuntu-2.1.0", Phase: phase}}}}}
	}
	waits := map[string]rollout.InIt{"2.1.0": {Reason: v1alpha1.ReasonNamespaceMissing}}
	for name, test := range map[string]struct {
		detail              *readapi.ImageDetail
		planned             *readapi.ImageClusters
		wantBergen, wantLab map[string]rollout.InIt
	}{
		"no cluster has it":    {planned: planned, wantBergen: map[string]rollout.InIt{}, wantLab: waits},
		"another has it":       {detail: has("bergen", v1alpha1.PhaseSucceeded), planned: planned, wantBergen: map[string]rollout.InIt{"2.1.0": {Phase: v1alpha1.PhaseSucceeded}}, wantLab: waits},
		"it is created by now": {detail: has("lab", v1alpha1.PhaseQueued), planned: planned, wantBergen: map[string]rollout.InIt{}, wantLab: map[string]rollout.InIt{"2.1.0": {Phase: v1alpha1.PhaseQueued}}},
		"nothing is planned":   {planned: &readapi.ImageClusters{}, wantBergen: map[string]rollout.InIt{}, wantLab: map[string]rollout.InIt{}},
	} {
		t.Run(name, func(t *testing.T) {
			e, hub := newReadAPI(t, func(request *http.Request) any {
				switch query := request.URL.Query(); {
				case request.URL.Path == "/fleet/v1/images/clusters" && query.Get("name") == "ubuntu" && query.Get("state") == string(readapi.ImagePlanned):
					return test.planned
				case request.URL.Path == "/fleet/v1/images/detail" && test.detail != nil:
					return test.detail
				default:
					return nil
				}
			})
			where, err := rollout.NewWhere(img)
			require.NoError(t, err)
			for _, cluster := range []string{"bergen", "lab"} {
				where.Add(&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: cluster}}, true)
			}
			require.NoError(t, e.gatherWhere(t.Context(), hub, where, img))
			assert.Equal(t, test.wantBergen, where.Clusters[0].Has)
			assert.Equal(t, test.wantLab, where.Clusters[1].Has)
		})
	}
}

// TestPreloadGoesOnWithNewMembers: the hub lists a member before its read API knows it, and only
// administrators may read reports.
func TestPreloadGoesOnWithNewMembers(t *testing.T) {
	e, hub := newReadAPI(t, func(*http.Request) any { return nil })
	forbidden := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, ok := list.(*v1alpha1.ClusterReportList); ok {
			return apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "clusterreports"}, "", nil)
		}
		return c.List(ctx, list, options...)
	}}
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "new-1", Labels: map[string]string{"region": "nordics"}}}
	hub.Client = fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(apitest.FleetDiskImage("ubuntu").Obj(), member).WithInterceptorFuncs(forbidden).Build()
	images, targets, err := e.gatherPreload(t.Context(), hub, []string{"ubuntu"}, "region=nordics")
	require.NoError(t, err)
	require.Len(t, targets, 1)
	assert.Equal(t, "new-1", targets[0].Member.Name)
	assert.Empty(t, targets[0].Reported)
	_, unread, err := e.gatherForecast(t.Context(), hub, images, targets)
	require.NoError(t, err)
	assert.Empty(t, unread)
	assert.Nil(t, targets[0].Activity)
}
