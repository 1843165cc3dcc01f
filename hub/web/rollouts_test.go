package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	api.RolloutView = func(image string) (rollout.View, bool) {
		img := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithWave("canary").Obj()
		revision := img.Spec.Template.Revision()
		cluster := func(name, wave string, phase v1alpha1.Phase) rollout.Cluster {
			c := rollout.Cluster{Name: name, Labels: map[string]string{"wave": wave}, OnlineSince: apitest.Epoch}
			if phase != "" {
				c.PlannedDigest, c.PlannedRevision, c.PlannedAt = img.Spec.Template.SourceDigest(), revision, apitest.Epoch
				c.Report = rollout.Report{Exists: true, Revision: revision, Phase: phase, ItemState: v1alpha1.PlanItemApplied}
			}
			return c
		}
		oslo := cluster("oslo", "canary", v1alpha1.PhaseFailed)
		oslo.Report.Reason, oslo.Report.Message = "NotFound", "404"
		clusters := []rollout.Cluster{cluster("aarhus", "", ""), cluster("bergen", "canary", v1alpha1.PhaseSucceeded), cluster("lund", "", ""), oslo}
		return rollout.View{Image: img, Clusters: clusters, Now: apitest.Epoch.Add(time.Hour)}, image == "ubuntu"
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
		"&offset=3":                      {names: []string{"oslo"}},
		"&offset=9":                      {names: []string{}},
		"&offset=1&limit=1&after=bergen": {names: []string{"oslo"}},
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
	require.Len(t, list.Clusters, 1)
	require.NotNil(t, list.Clusters[0].StartedAt)
	assert.Equal(t, apitest.Epoch.UTC(), list.Clusters[0].StartedAt.UTC())
	list.Clusters[0].StartedAt = nil
	assert.Equal(t, []readapi.RolloutCluster{{Cluster: "oslo", Wave: "canary", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: "404"}}, list.Clusters)
	getJSON(t, newRolloutAPI(t), http.MethodGet, "/fleet/v1/rollouts/clusters?name=ubuntu&wave=canary&limit=1", &list)
	assert.Equal(t, 2, list.Total)
	assert.Equal(t, "bergen", list.Next)
}

// The size of the download is what clusters say that have the version, not what one of them
// says. Few are asked, and what one of them does not say is unknown.
func TestReachIsOfDownloadsThatWere(t *testing.T) {
	disk := apitest.FleetDiskImage("ubuntu").Obj().Spec.Template.DiskSize.Value()
	const unreadable = -1
	for name, tt := range map[string]struct {
		sizes     []int64 // of members that have the version
		want      int64
		wantRead  int
		wantUpper bool
	}{
		"the median":                       {[]int64{2 << 20, 1 << 50, 3 << 20}, 3 << 20, 3, false},
		"nobody has it":                    {nil, disk, 0, true},
		"the disk's size is no download's": {[]int64{disk, disk, disk}, disk, 3, true},
		"some know the size":               {[]int64{disk, disk, 2 << 20}, 2 << 20, 3, false},
		"more than the disk":               {[]int64{1 << 50}, disk, 1, true},
		"an unreadable report":             {[]int64{unreadable, 2 << 20}, 2 << 20, 2, false},
		"unreadable reports alone":         {[]int64{unreadable, unreadable}, disk, 2, true},
		"many without a size":              {make([]int64, 4*maxAskedMembers), disk, maxAskedMembers, true},
		"many unreadable reports":          {slices.Repeat([]int64{unreadable}, 4*maxAskedMembers), disk, maxAskedMembers, true},
		"many with the disk's size":        {slices.Repeat([]int64{disk}, 4*maxAskedMembers), disk, maxAskedMembers, true},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithWave("canary").Obj()
			img.Spec.Rollout.Waves[0].RequireApproval = true
			v := rollout.View{Image: img, Now: apitest.Epoch}
			images := []v1alpha1.ReportedImage{{Namespace: img.Spec.TargetNamespace, Name: "ubuntu-1.0.0", UID: "u", Phase: v1alpha1.PhaseSucceeded}}
			pages := &pagesBySize{image: images[0], sizes: map[string]int64{}}
			f := newTestFleet(t, "lund")
			f.API.Pages = pages
			for i, size := range tt.sizes {
				c := rollout.Cluster{Name: fmt.Sprintf("cluster-%02d", i), Labels: map[string]string{"wave": "canary"}, OnlineSince: apitest.Epoch}
				c.PlannedDigest, c.PlannedRevision = img.Spec.Template.SourceDigest(), img.Spec.Template.Revision()
				c.Report = rollout.Report{Exists: true, Revision: c.PlannedRevision, Phase: v1alpha1.PhaseSucceeded, ItemState: v1alpha1.PlanItemApplied}
				v.Clusters = append(v.Clusters, c)
				pages.sizes[c.Name] = size
				f.API.Index.AddMember(c.Name)
				setReport(f.API.Index, c.Name, 1, images)
			}
			v.Clusters = append(v.Clusters, rollout.Cluster{Name: "lund", Labels: map[string]string{"wave": "canary"}, OnlineSince: apitest.Epoch})
			f.API.RolloutView = func(string) (rollout.View, bool) { return v, true }
			var reach readapi.RolloutReach
			require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/rollouts/reach?name=ubuntu&wave=canary", &reach))
			assert.Equal(t, tt.want, reach.EachBytes)
			assert.Equal(t, tt.wantUpper, reach.AtMost)
			assert.Equal(t, tt.wantRead, pages.read)
			assert.Equal(t, int32(1), reach.Clusters)
			assert.Equal(t, []readapi.NamedReach{{Cluster: "lund"}}, reach.Named)
		})
	}
}

// An answer of a request that ends is remembered for nobody.
func TestReachFailsWhereTheRequestEnds(t *testing.T) {
	f := newTestFleet(t, "aarhus")
	img := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithWave("canary").Obj()
	image := v1alpha1.ReportedImage{Namespace: img.Spec.TargetNamespace, Name: "ubuntu-1.0.0", UID: "u", Phase: v1alpha1.PhaseSucceeded}
	setReport(f.API.Index, "aarhus", 2, []v1alpha1.ReportedImage{image})
	f.API.Pages = &pagesBySize{image: image, sizes: map[string]int64{"aarhus": -1}}
	report := rollout.Report{Exists: true, Phase: v1alpha1.PhaseSucceeded}
	v := &rollout.View{Image: img, Now: apitest.Epoch, Clusters: []rollout.Cluster{{Name: "aarhus", Report: report}}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.API.downloadBytes(httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil), v)
	require.Error(t, err)
	_, err = f.API.downloadBytes(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), v)
	require.NoError(t, err)
}

// pagesBySize counts the reads of pages; one with a negative size cannot be read.
type pagesBySize struct {
	image v1alpha1.ReportedImage
	sizes map[string]int64
	read  int
}

func (p *pagesBySize) Page(_ context.Context, member, _ string) ([]v1alpha1.ReportedImage, bool, error) {
	p.read++
	image := p.image
	if image.DownloadBytes = p.sizes[member]; image.DownloadBytes < 0 {
		return nil, false, errors.New("unreadable")
	}
	return []v1alpha1.ReportedImage{image}, true, nil
}

// GitOps controllers write their own values again: people are told before they change them.
func TestRolloutOwners(t *testing.T) {
	api := newRolloutAPI(t)
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "images", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
	img.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kustomize-controller", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "pelotech.ot/v1alpha1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:rollout":{"f:paused":{}}}}`)}},
		{Manager: "kubectl-ot", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "pelotech.ot/v1alpha1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:approvals":{}}}`)}},
	}
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	api.Live = fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithObjects(img).Build()
	var owners readapi.RolloutOwners
	require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/rollouts/owners?name=ubuntu", &owners))
	assert.Equal(t, readapi.RolloutOwners{Paused: "Flux (Kustomization flux-system/images)"}, owners)
	assert.Equal(t, http.StatusNotFound, getJSON(t, api, http.MethodGet, "/fleet/v1/rollouts/owners?name=none", nil))
	assert.Equal(t, http.StatusBadRequest, getJSON(t, api, http.MethodGet, "/fleet/v1/rollouts/owners", nil))
}

func TestRolloutIsDescribed(t *testing.T) {
	var d readapi.RolloutDetail
	require.Equal(t, http.StatusOK, getJSON(t, newRolloutAPI(t), http.MethodGet, "/fleet/v1/rollouts/detail?name=ubuntu", &d))
	assert.Equal(t, "ubuntu", d.Name)
	assert.Equal(t, int64(2), d.Generation)
	assert.Equal(t, "ubuntu-1.0.0", d.Image)
}

func TestRolloutRequestsAreValidated(t *testing.T) {
	for target, want := range map[string]int{
		"/fleet/v1/rollouts?limit=0":                         http.StatusBadRequest,
		"/fleet/v1/rollouts?offset=-1":                       http.StatusBadRequest,
		"/fleet/v1/rollouts?sort=colour":                     http.StatusBadRequest,
		"/fleet/v1/rollouts?order=up":                        http.StatusBadRequest,
		"/fleet/v1/rollouts?phase=Lost":                      http.StatusBadRequest,
		"/fleet/v1/rollouts?sort=phase&after=b":              http.StatusBadRequest,
		"/fleet/v1/rollouts/detail":                          http.StatusBadRequest,
		"/fleet/v1/rollouts/detail?name=nothing":             http.StatusNotFound,
		"/fleet/v1/rollouts/reach?name=ubuntu":               http.StatusBadRequest,
		"/fleet/v1/rollouts/reach?name=ubuntu&wave=none":     http.StatusNotFound,
		"/fleet/v1/rollouts/reach?name=nothing&wave=none":    http.StatusNotFound,
		"/fleet/v1/rollouts/clusters":                        http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters?name=ubuntu&state=Lost": http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters?name=nothing":           http.StatusNotFound,
	} {
		var answer map[string]string
		assert.Equal(t, want, getJSON(t, newRolloutAPI(t), http.MethodGet, target, &answer), target)
		assert.NotEmpty(t, answer["error"], target)
	}
}
