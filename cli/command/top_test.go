package command

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/top"
)

// newViewersHub returns a hub on which the caller has the role ot-fleet-viewer, and so may not list
// ClusterReports. lists counts how often that is tried.
func newViewersHub(lists *int) *connect.Cluster {
	member := func(name string, slots, queued int32) client.Object {
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Status.LastReport, m.Status.SlotsUsed, m.Status.Budget = ptr.To(metav1.Now()), &slots, ptr.To[int32](3)
		m.Status.Images = &v1alpha1.MemberImages{Queued: queued, Failed: 1}
		return m
	}
	list := func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, ok := list.(*v1alpha1.ClusterReportList); ok {
			*lists++
			return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource(), "", nil)
		}
		return c.List(ctx, list, options...)
	}
	c := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(member("bergen", 1, 1), member("kiel", 0, 0), member("oslo", 2, 0)).
		WithInterceptorFuncs(interceptor.Funcs{List: list}).Build()
	return &connect.Cluster{Context: "hub", Config: &rest.Config{}, Client: c}
}

// serveTransfers is a read API with an import of bergen, and more images that wait than a page has.
func serveTransfers(t *testing.T) *connect.ReadAPI {
	var queued []readapi.Transfer
	for i := range transferPage + 1 {
		queued = append(queued, readapi.Transfer{Cluster: "bergen", Namespace: "vmdi-farm", Name: "image-" + strconv.Itoa(i), Position: i + 1})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/fleet/v1/transfers", r.URL.Path)
		answer := readapi.Transfers{Running: []readapi.Transfer{{Cluster: "bergen", Namespace: "vmdi-farm", Name: "win-11"}}, RunningTotal: 1, Queued: queued[:transferPage], QueuedTotal: len(queued)}
		if r.URL.Query().Get("offset") != "" {
			answer.Running, answer.Queued = nil, queued[transferPage:]
		}
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(answer))
	}))
	t.Cleanup(server.Close)
	c, err := readapi.NewClient(server.URL, server.Client())
	require.NoError(t, err)
	return &connect.ReadAPI{Client: c, URL: server.URL, Close: func() {}}
}

// TestTopWithoutReports: roles of chart ot-hub give people no ClusterReports.
func TestTopWithoutReports(t *testing.T) {
	lists := 0
	hub := newViewersHub(&lists)
	e, _, _ := newTestEnvironment("")
	e.api = serveTransfers(t)
	for range 2 {
		s, err := e.gatherActivities(t.Context(), hub, "")
		require.NoError(t, err)
		require.Len(t, s.Clusters, 3)
		assert.Len(t, s.Clusters[0].Listed.Running, 1)
		assert.Len(t, s.Clusters[0].Listed.Queued, transferPage+1)
		assert.Equal(t, &top.Listed{Budget: 3}, s.Clusters[1].Listed)
		assert.Equal(t, v1alpha1.ReasonActivityMissing, s.Clusters[2].Unknown, "it imports, and nothing says what")
		assert.Contains(t, s.Unread, "since you may not list ClusterReports")
	}
	assert.Equal(t, 1, lists, "what is forbidden is not tried at each poll")

	e, _, _ = newTestEnvironment("")
	e.Flags = connect.NewFlags()
	hub.Config.Impersonate.UserName = "anna" // whom the read API does not know
	_, err := e.gatherActivities(t.Context(), hub, "")
	require.ErrorContains(t, err, "you may not list ClusterReports. From the hub's kinds alone, without its read API")
}

// What is shown of no cluster must not pass for what is known of the fleet.
func TestSelectorOfNoClusterIsRefused(t *testing.T) {
	lists := 0
	hub := newViewersHub(&lists)
	e, _, _ := newTestEnvironment("")
	for name, gather := range map[string]func() error{
		"status":  func() error { _, err := e.gatherStatus(t.Context(), hub, "region=nordisc"); return err },
		"top":     func() error { _, err := e.gatherActivities(t.Context(), hub, "region=nordisc"); return err },
		"preload": func() error { _, _, err := e.gatherPreload(t.Context(), hub, nil, "region=nordisc"); return err },
	} {
		require.EqualError(t, gather(), "-l region=nordisc: selects no cluster of the fleet", name)
	}
}
