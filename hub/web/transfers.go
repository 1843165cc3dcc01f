package web

import (
	"net/http"
	"slices"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func (a *API) listTransfers(request *http.Request) (any, error) {
	query := request.URL.Query()
	q := answers.TransferQuery{Cluster: query.Get("cluster"), Source: query.Get("source")}
	l, err := parseListing(request, readapi.TransferOrders()...)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Offset, q.Search, q.Sort = l.limit, l.offset, l.search, l.sort
	if q.State, err = parseChoice(request, "state", readapi.TransferRunning, readapi.TransferQueued); err != nil {
		return nil, err
	}
	var members v1alpha1.MemberClusterList
	if err := a.list(request.Context(), &members); err != nil {
		return nil, err
	}
	if q.Cluster != "" && !slices.ContainsFunc(members.Items, func(m v1alpha1.MemberCluster) bool { return m.Name == q.Cluster }) {
		return nil, notFound("MemberCluster", q.Cluster)
	}
	grants, err := a.grants(request.Context())
	if err != nil {
		return nil, err
	}
	return answers.ListTransfers(&answers.Moving{
		Members: members.Items, Activities: a.activities(members.Items), Clocks: a.clocks(members.Items, a.now()), Grants: grants,
		Policy: a.Policy(), References: a.Index.References,
	}, q), nil
}
