package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

// maxSearchBytes bounds what a list is searched for.
const maxSearchBytes = 128

func (a *API) listTransfers(request *http.Request) (any, error) {
	query := request.URL.Query()
	q := answers.TransferQuery{Cluster: query.Get("cluster"), Source: query.Get("source")}
	var err error
	if q.Limit, err = parseLimit(request); err != nil {
		return nil, err
	}
	if q.Offset, err = parseOffset(request); err != nil {
		return nil, err
	}
	if q.State, err = parseChoice(request, "state", readapi.TransferRunning, readapi.TransferQueued); err != nil {
		return nil, err
	}
	if q.Sort, err = parseChoice(request, "sort", readapi.TransferOrders()...); err != nil {
		return nil, err
	}
	if q.Search, err = parseSearch(request, "search"); err != nil {
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

// parseChoice returns a parameter that is one of a closed set; empty if it is not given.
func parseChoice(request *http.Request, name string, choices ...string) (string, error) {
	text := request.URL.Query().Get(name)
	if text != "" && !slices.Contains(choices, text) {
		return "", httpError{http.StatusBadRequest, fmt.Sprintf("%s=%s: must be one of %s", name, v1alpha1.Truncate(text, maxKeyBytes), strings.Join(choices, ", "))}
	}
	return text, nil
}

// parseSearch returns what a list is searched for; empty if it is not given.
func parseSearch(request *http.Request, name string) (string, error) {
	text := request.URL.Query().Get(name)
	if len(text) > maxSearchBytes {
		return "", httpError{http.StatusBadRequest, fmt.Sprintf("%s has %d bytes, and may have %d: give a part of a name", name, len(text), maxSearchBytes)}
	}
	return text, nil
}

// maxOffset bounds how far a list is paged through.
const maxOffset = 1_000_000

func parseOffset(request *http.Request) (int, error) {
	text := request.URL.Query().Get("offset")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxOffset {
		return 0, httpError{http.StatusBadRequest, fmt.Sprintf("offset=%s: must be a number from 0 to %d", v1alpha1.Truncate(text, maxKeyBytes), maxOffset)}
	}
	return n, nil
}
