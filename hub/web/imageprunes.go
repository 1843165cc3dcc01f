package web

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxNamed is how many images and clusters that an ImagePrune names are listed.
const maxNamed = 50

// listPrunes lists the ImagePrunes, or those of one report, those that are active or over, or one by
// its name.
func (a *API) listPrunes(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	query := request.URL.Query()
	name, report := query.Get("name"), query.Get("report")
	keyOf, err := parsePruneOrder(query.Get("sort"), func(p *v1alpha1.ImagePrune) (string, int64) { return p.Name, p.CreationTimestamp.Unix() })
	if err != nil {
		return nil, err
	}
	active, err := parseChoice(request, "active", "true", "false")
	if err != nil {
		return nil, err
	}
	var stored v1alpha1.ImagePruneList
	if err := a.list(request.Context(), &stored); err != nil {
		return nil, err
	}
	all := make([]*v1alpha1.ImagePrune, 0, len(stored.Items))
	for i := range stored.Items {
		p := &stored.Items[i]
		if (name == "" || p.Name == name) && (report == "" || p.Spec.ReportRef.Name == report) && (active == "" || (active == "true") != p.Status.Phase.IsFinal()) {
			all = append(all, p)
		}
	}
	if name != "" && len(all) == 0 {
		return nil, notFound("ImagePrune", name)
	}
	slices.SortFunc(all, func(a, b *v1alpha1.ImagePrune) int { return strings.Compare(keyOf(a), keyOf(b)) })
	page, next := pageAfter(all, query.Get("after"), limit, keyOf)
	list := readapi.PruneProgressList{Prunes: make([]readapi.PruneProgress, len(page)), Next: next}
	for i, p := range page {
		list.Prunes[i] = newPruneProgress(p)
	}
	return list, nil
}

// parsePruneOrder returns what a list is sorted by: the names, or the times, the newest first.
func parsePruneOrder[T any](sort string, of func(T) (name string, unixTime int64)) (keyOf func(T) string, err error) {
	switch sort {
	case "", "name":
		return func(item T) string { name, _ := of(item); return name }, nil
	case "newest":
		return func(item T) string {
			name, at := of(item)
			return fmt.Sprintf("%019d/%s", math.MaxInt64-max(0, at), name)
		}, nil
	}
	return nil, httpError{http.StatusBadRequest, fmt.Sprintf("sort=%s: must be name or newest", v1alpha1.Truncate(sort, maxKeyBytes))}
}

func newPruneProgress(p *v1alpha1.ImagePrune) readapi.PruneProgress {
	spec, st := &p.Spec, &p.Status
	return readapi.PruneProgress{
		Name: p.Name, CreatedAt: p.CreationTimestamp, Report: spec.ReportRef.Name, Digest: spec.ReportRef.Digest,
		Images: spec.Images[:min(len(spec.Images), maxNamed)], ImagesTotal: len(spec.Images),
		Clusters: spec.Clusters[:min(len(spec.Clusters), maxNamed)], ClustersTotal: len(spec.Clusters),
		IncludeOthers: spec.IncludeOthers, ApprovedBy: spec.ApprovedBy, Undo: spec.Undo, UndoWindowSeconds: int64(spec.UndoWindowOrDefault().Seconds()),
		Phase: st.Phase, Reason: st.Reason, Message: st.Message, StartedAt: st.StartedAt, FinishedAt: st.FinishedAt, PendingUntil: st.PendingUntil,
		InClusters: st.Clusters, Targets: st.Targets, Bytes: st.Bytes, PrunedBytes: st.PrunedBytes, Skipped: st.Skipped,
	}
}
