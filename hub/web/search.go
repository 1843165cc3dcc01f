package web

import (
	"net/http"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

// search finds clusters, rollouts, versions and sources by a part of their names.
func (a *API) search(request *http.Request) (any, error) {
	text, err := parseSearch(request, "q")
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, httpError{http.StatusBadRequest, "q is missing: give a part of a name"}
	}
	var members v1alpha1.MemberClusterList
	if err := a.list(request.Context(), &members); err != nil {
		return nil, err
	}
	var images v1alpha1.FleetDiskImageList
	if err := a.list(request.Context(), &images); err != nil {
		return nil, err
	}
	return answers.Search(text, &answers.SearchTerms{Members: members.Items, Images: images.Items, Sources: a.Index.AllSources()}), nil
}
