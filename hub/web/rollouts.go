package web

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func (a *API) listRollouts(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	var stored v1alpha1.FleetDiskImageList
	if err := a.Members.List(request.Context(), &stored, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing FleetDiskImages: %w", err)
	}
	// The list belongs to the cache and must not be sorted in place.
	all := make([]*v1alpha1.FleetDiskImage, len(stored.Items))
	for i := range stored.Items {
		all[i] = &stored.Items[i]
	}
	slices.SortFunc(all, func(a, b *v1alpha1.FleetDiskImage) int { return strings.Compare(a.Name, b.Name) })
	page, next := pageAfter(all, request.URL.Query().Get("after"), limit, func(img *v1alpha1.FleetDiskImage) string { return img.Name })
	list := readapi.RolloutList{Rollouts: make([]readapi.Rollout, len(page)), Next: next}
	for i, img := range page {
		st := &img.Status
		list.Rollouts[i] = readapi.Rollout{
			Name: img.Name, Version: img.Spec.Version, Observed: st.ObservedGeneration == img.Generation,
			Phase: st.Phase, Reason: st.Reason, Message: st.Message, CurrentWave: st.CurrentWave,
			Clusters: st.Clusters, Waves: st.Waves, Failing: st.Failing, Blocked: st.Blocked, ExpectedAt: st.ExpectedAt, ExpectedReason: st.ExpectedReason,
		}
	}
	return list, nil
}

func (a *API) listRolloutClusters(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	query := request.URL.Query()
	name, state := query.Get("name"), v1alpha1.ClusterState(query.Get("state"))
	switch {
	case name == "":
		return nil, httpError{http.StatusBadRequest, "name is required: a name from /fleet/v1/rollouts"}
	case state != "" && !slices.Contains(v1alpha1.ClusterStates(), state):
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("state=%s: must be one of %s", state, joinValues(v1alpha1.ClusterStates()))}
	}
	placed, found := a.PlacedClusters(name)
	if !found {
		return nil, notFound("FleetDiskImage", name)
	}
	placed = slices.DeleteFunc(placed, func(p rollout.PlacedCluster) bool { return state != "" && p.State != state })
	slices.SortFunc(placed, func(a, b rollout.PlacedCluster) int { return cmp.Compare(a.Cluster, b.Cluster) })
	page, next := pageAfter(placed, query.Get("after"), limit, func(p rollout.PlacedCluster) string { return p.Cluster })
	list := readapi.RolloutClusters{Clusters: make([]readapi.RolloutCluster, len(page)), Next: next}
	for i, p := range page {
		list.Clusters[i] = readapi.RolloutCluster{Cluster: p.Cluster, Wave: p.Wave, State: p.State, Reason: p.Reason, Message: v1alpha1.SanitizeText(p.Message, maxErrorBytes)}
	}
	return list, nil
}

func joinValues[T ~string](states []T) string {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	return strings.Join(names, ", ")
}

// pageAfter returns the items of a sorted list that follow a name, up to limit, and the
// name of the last one where more follow.
func pageAfter[T any](all []T, name string, limit int, nameOf func(T) string) (page []T, next string) {
	from, found := slices.BinarySearchFunc(all, name, func(item T, name string) int { return strings.Compare(nameOf(item), name) })
	if found {
		from++
	}
	to := min(len(all), from+limit)
	if to < len(all) {
		next = nameOf(all[to-1])
	}
	return all[from:to], next
}
