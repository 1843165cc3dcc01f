package web

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func newRolloutAPI(t *testing.T) *API {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	api := newTestAPI(true)
	api.Members = fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithStatus(v1alpha1.FleetDiskImageStatus{
			ObservedGeneration: 2, Phase: v1alpha1.RolloutProgressing, Clusters: v1alpha1.ClusterCounts{Total: 4, Succeeded: 3},
		}).Obj(),
		apitest.FleetDiskImage("debian").WithVersion("2.0.0").WithGeneration(2).WithStatus(v1alpha1.FleetDiskImageStatus{ObservedGeneration: 1}).Obj(),
		apitest.FleetDiskImage("windows").WithGeneration(1).Obj(),
	).Build()
	api.PlacedClusters = func(image string) ([]rollout.PlacedCluster, bool) {
		return []rollout.PlacedCluster{
			{Cluster: "bergen", Wave: "canary", State: v1alpha1.ClusterSucceeded, Started: true},
			{Cluster: "oslo", Wave: "canary", State: v1alpha1.ClusterFailed, Started: true, Reason: "NotFound", Message: "404"},
			{Cluster: "aarhus", Wave: "rest", State: v1alpha1.ClusterToApply},
			{Cluster: "lund", Wave: "rest", State: v1alpha1.ClusterToApply},
		}, image == "ubuntu"
	}
	return api
}

func TestRolloutsArePaged(t *testing.T) {
	var all []readapi.Rollout
	for after := ""; ; {
		var list readapi.RolloutList
		require.Equal(t, http.StatusOK, getJSON(t, newRolloutAPI(t), http.MethodGet, "/fleet/v1/rollouts?limit=2&after="+after, &list))
		all = append(all, list.Rollouts...)
		if after = list.Next; after == "" {
			break
		}
	}
	assert.Equal(t, []readapi.Rollout{
		{Name: "debian", Version: "2.0.0"},
		{Name: "ubuntu", Version: "1.0.0", Observed: true, Phase: v1alpha1.RolloutProgressing, Clusters: v1alpha1.ClusterCounts{Total: 4, Succeeded: 3}},
		{Name: "windows", Version: "1.0.0"},
	}, all)
}

func TestRolloutClustersAreListed(t *testing.T) {
	for query, want := range map[string]struct {
		names []string
		next  string
	}{
		"":                               {names: []string{"aarhus", "bergen", "lund", "oslo"}},
		"&limit=3":                       {names: []string{"aarhus", "bergen", "lund"}, next: "lund"},
		"&limit=3&after=lund":            {names: []string{"oslo"}},
		"&after=bonn":                    {names: []string{"lund", "oslo"}},
		"&state=ToApply":                 {names: []string{"aarhus", "lund"}},
		"&state=ToApply&limit=1":         {names: []string{"aarhus"}, next: "aarhus"},
		"&state=TimedOut":                {names: []string{}},
		"&state=ToApply&after=lund":      {names: []string{}},
		"&state=Failed&limit=1&after=aa": {names: []string{"oslo"}},
	} {
		var list readapi.RolloutClusters
		require.Equal(t, http.StatusOK, getJSON(t, newRolloutAPI(t), http.MethodGet, "/fleet/v1/rollouts/clusters?name=ubuntu"+query, &list), query)
		names := []string{}
		for _, c := range list.Clusters {
			names = append(names, c.Cluster)
		}
		assert.Equal(t, want.names, names, query)
		assert.Equal(t, want.next, list.Next, query)
	}
	var list readapi.RolloutClusters
	getJSON(t, newRolloutAPI(t), http.MethodGet, "/fleet/v1/rollouts/clusters?name=ubuntu&state=Failed", &list)
	assert.Equal(t, []readapi.RolloutCluster{{Cluster: "oslo", Wave: "canary", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: "404"}}, list.Clusters)
}

func TestRolloutRequestsAreValidated(t *testing.T) {
	for target, want := range map[string]int{
		"/fleet/v1/rollouts?limit=0":                         http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters":                        http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters?name=ubuntu&state=Lost": http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters?name=nothing":           http.StatusNotFound,
	} {
		var answer map[string]string
		assert.Equal(t, want, getJSON(t, newRolloutAPI(t), http.MethodGet, target, &answer), target)
		assert.NotEmpty(t, answer["error"], target)
	}
}
