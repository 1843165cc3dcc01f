package web

import (
	"fmt"
	"net/http"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func (a *API) explainImage(request *http.Request) (any, error) {
	query := request.URL.Query()
	cluster, namespace, name := query.Get("cluster"), query.Get("namespace"), query.Get("name")
	if cluster == "" || namespace == "" || name == "" {
		return nil, httpError{http.StatusBadRequest, "cluster, namespace and name are required: a member, and the namespace and name of a VMDiskImage there"}
	}
	m, err := a.readMember(request.Context(), cluster)
	if err != nil {
		return nil, err
	}
	m.Namespace, m.Name = namespace, name
	if m.Image, err = a.findImage(request, cluster, m.Namespace, m.Name); err != nil {
		return nil, err
	}
	if m.Image == nil && m.Unknown == "" {
		return nil, httpError{http.StatusNotFound, fmt.Sprintf("member %s reports no VMDiskImage %s/%s, and no plan of it: the hub's FleetDiskImages say what it will get",
			cluster, v1alpha1.Truncate(m.Namespace, maxKeyBytes), v1alpha1.Truncate(m.Name, maxKeyBytes))}
	}
	return answers.ExplainImage(m), nil
}

// findImage returns an image as a member reports it; nil for none.
func (a *API) findImage(request *http.Request, cluster, namespace, name string) (*v1alpha1.ReportedImage, error) {
	page, found := a.Index.PageOf(cluster, namespace, name)
	if !found {
		return nil, nil
	}
	images, _, err := a.Pages.Page(request.Context(), cluster, page)
	if err != nil {
		return nil, err
	}
	for i := range images {
		// The page may be newer than the index, which has no image that was pruned.
		if images[i].Namespace == namespace && images[i].Name == name && !images[i].IsPruned() {
			return &redactImages(images[i : i+1])[0], nil
		}
	}
	return nil, nil // gone since
}
