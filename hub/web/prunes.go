package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PruneReportList is a page of PruneReports, by name. Next is the after of the next page;
// empty at the end.
type PruneReportList struct {
	Reports []PruneReport `json:"reports"`
	Next    string        `json:"next,omitempty"`
}

// PruneReport is the summary of a PruneReport's status.
type PruneReport struct {
	Name string `json:"name"`
	// Schedule is set where it creates reports and is none itself.
	Schedule string                    `json:"schedule,omitempty"`
	Phase    v1alpha1.PruneReportPhase `json:"phase,omitempty"`
	Reason   string                    `json:"reason,omitempty"`
	Message  string                    `json:"message,omitempty"`
	// LastReport and NextScheduleTime of a schedule.
	LastReport       string                    `json:"lastReport,omitempty"`
	NextScheduleTime *metav1.Time              `json:"nextScheduleTime,omitempty"`
	StartedAt        *metav1.Time              `json:"startedAt,omitempty"`
	CompletedAt      *metav1.Time              `json:"completedAt,omitempty"`
	Digest           string                    `json:"digest,omitempty"`
	Clusters         v1alpha1.AnswerCounts     `json:"clusters"`
	UnknownClusters  []v1alpha1.UnknownCluster `json:"unknownClusters,omitempty"`
	Candidates       v1alpha1.PruneTotal       `json:"candidates"`
	Others           v1alpha1.PruneTotal       `json:"others"`
	Undeclared       v1alpha1.PruneTotal       `json:"undeclared"`
	Kept             []v1alpha1.KeptTotal      `json:"kept,omitempty"`
	Orphans          v1alpha1.PruneTotal       `json:"orphans"`
}

// PruneTargets is a page of the targets of an ImagePrune, by cluster, namespace and name.
// Next is the after of the next page; empty at the end.
type PruneTargets struct {
	Targets []PruneTarget `json:"targets"`
	Next    string        `json:"next,omitempty"`
}

// PruneTarget is the progress of one target.
type PruneTarget struct {
	Cluster   string              `json:"cluster"`
	Namespace string              `json:"namespace"`
	Name      string              `json:"name"`
	UID       types.UID           `json:"uid"`
	Revision  string              `json:"revision,omitempty"`
	Bytes     int64               `json:"bytes"`
	State     v1alpha1.PruneState `json:"state"`
	Reason    string              `json:"reason,omitempty"`
	Message   string              `json:"message,omitempty"`
	// Until is the end of its undo window, by its cluster's clock.
	Until *metav1.Time `json:"until,omitempty"`
}

func (t PruneTarget) sortKey() string { return t.Cluster + "/" + t.Namespace + "/" + t.Name }

func (a *API) listPruneReports(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	var stored v1alpha1.PruneReportList
	if err := a.Members.List(request.Context(), &stored, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing PruneReports: %w", err)
	}
	// The list belongs to the cache and must not be sorted in place.
	all := make([]*v1alpha1.PruneReport, len(stored.Items))
	for i := range stored.Items {
		all[i] = &stored.Items[i]
	}
	slices.SortFunc(all, func(a, b *v1alpha1.PruneReport) int { return strings.Compare(a.Name, b.Name) })
	page, next := pageAfter(all, request.URL.Query().Get("after"), limit, func(r *v1alpha1.PruneReport) string { return r.Name })
	list := PruneReportList{Reports: make([]PruneReport, len(page)), Next: next}
	for i, r := range page {
		st := &r.Status
		list.Reports[i] = PruneReport{
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
	targets = slices.DeleteFunc(targets, func(t PruneTarget) bool { return state != "" && t.State != state })
	slices.SortFunc(targets, func(a, b PruneTarget) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	page, next := pageAfter(targets, query.Get("after"), limit, PruneTarget.sortKey)
	if page == nil {
		page = []PruneTarget{}
	}
	return PruneTargets{Targets: page, Next: next}, nil
}
