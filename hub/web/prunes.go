package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func targetKey(t readapi.PruneTarget) string { return t.Cluster + "/" + t.Namespace + "/" + t.Name }

func (a *API) listPruneReports(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	query := request.URL.Query()
	name := query.Get("name")
	keyOf, err := parsePruneOrder(query.Get("sort"), func(r *v1alpha1.PruneReport) (string, int64) { return r.Name, r.CreationTimestamp.Unix() })
	if err != nil {
		return nil, err
	}
	var stored v1alpha1.PruneReportList
	if err := a.Members.List(request.Context(), &stored, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing PruneReports: %w", err)
	}
	// The list belongs to the cache and must not be sorted in place.
	all := make([]*v1alpha1.PruneReport, 0, len(stored.Items))
	for i := range stored.Items {
		if name == "" || stored.Items[i].Name == name {
			all = append(all, &stored.Items[i])
		}
	}
	if name != "" && len(all) == 0 {
		return nil, notFound("PruneReport", name)
	}
	slices.SortFunc(all, func(a, b *v1alpha1.PruneReport) int { return strings.Compare(keyOf(a), keyOf(b)) })
	page, next := pageAfter(all, query.Get("after"), limit, keyOf)
	list := readapi.PruneReportList{Reports: make([]readapi.PruneReport, len(page)), Next: next}
	for i, r := range page {
		st := &r.Status
		list.Reports[i] = readapi.PruneReport{
			Name: r.Name, Schedule: r.Spec.Schedule, Phase: st.Phase, Reason: st.Reason, Message: st.Message,
			LastReport: st.LastReport, NextScheduleTime: st.NextScheduleTime, StartedAt: st.StartedAt, CompletedAt: st.CompletedAt,
			Digest: st.Digest, Clusters: st.Clusters, UnknownClusters: st.UnknownClusters,
			Candidates: st.Candidates, Others: st.Others, Undeclared: st.Undeclared, Kept: st.Kept, Orphans: st.Orphans,
		}
	}
	return list, nil
}

func (a *API) listPruneTargets(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	query := request.URL.Query()
	name, state := query.Get("prune"), v1alpha1.PruneState(query.Get("state"))
	switch {
	case name == "":
		return nil, httpError{http.StatusBadRequest, "prune is required: the name of an ImagePrune"}
	case state != "" && !slices.Contains(v1alpha1.PruneStates(), state):
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("state=%s: must be one of %s", state, joinValues(v1alpha1.PruneStates()))}
	}
	targets, found, err := a.PruneTargets(request.Context(), name)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, notFound("ImagePrune", name)
	}
	targets = slices.DeleteFunc(targets, func(t readapi.PruneTarget) bool { return state != "" && t.State != state })
	slices.SortFunc(targets, func(a, b readapi.PruneTarget) int { return strings.Compare(targetKey(a), targetKey(b)) })
	page, next := pageAfter(targets, query.Get("after"), limit, targetKey)
	if page == nil {
		page = []readapi.PruneTarget{}
	}
	return readapi.PruneTargets{Targets: page, Next: next}, nil
}
