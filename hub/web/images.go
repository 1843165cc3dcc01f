package web

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func (a *API) listImages(request *http.Request) (any, error) {
	q := answers.ImageQuery{}
	l, err := parseListing(request, readapi.ImageOrders()...)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Offset, q.Search, q.Sort, q.Descending = l.limit, l.offset, l.search, l.sort, l.descending
	list := readapi.ImageList{UnknownMembers: a.Index.UnknownMembers()}
	if after := request.URL.Query().Get("after"); after != "" || isFirstPage(q) {
		if !isFirstPage(q) {
			return nil, httpError{http.StatusBadRequest, "after is a source, and needs the order by source and no search: use offset"}
		}
		list.Images, list.Next = a.Index.Images(q.Limit, after)
		list.Total = a.Index.Stats().Images
		return list, nil
	}
	list.Images, list.Total = answers.ListImages(a.Index.AllImages(), q)
	return list, nil
}

// isFirstPage reports whether a query lists all images by source, from the first one.
func isFirstPage(q answers.ImageQuery) bool {
	return q.Search == "" && (q.Sort == "" || q.Sort == readapi.ImagesBySource) && !q.Descending && q.Offset == 0
}

func (a *API) getImage(request *http.Request) (any, error) {
	detail, err := a.findSource(request)
	if err != nil {
		return nil, err
	}
	offset, err := parseOffset(request)
	if err != nil {
		return nil, err
	}
	limit := len(detail.PerMember) // as before there were pages
	if request.URL.Query().Get("limit") != "" {
		if limit, err = parseLimit(request); err != nil {
			return nil, err
		}
	}
	detail.PerMember = answers.PageOf(detail.PerMember, offset, limit)
	return detail, nil
}

func (a *API) findSource(request *http.Request) (*readapi.ImageDetail, error) {
	source := v1alpha1.RedactSource(request.URL.Query().Get("source"))
	if source == "" {
		return nil, httpError{http.StatusBadRequest, "source is required: " + sourceForm}
	}
	if detail, found := a.Index.Image(source); found {
		return &detail, nil
	}
	sources := a.Index.SourcesWithURL(request.URL.Query().Get("source"))
	switch len(sources) {
	case 0:
		message := fmt.Sprintf("no member reports an image of source %s", v1alpha1.Truncate(source, maxKeyBytes))
		if n := len(a.Index.UnknownMembers()); n > 0 {
			message += fmt.Sprintf("; %d of them are unknown, and may have it", n)
		}
		return nil, httpError{http.StatusNotFound, message + ". Give " + sourceForm}
	case 1:
		detail, found := a.Index.Image(sources[0])
		if !found { // gone since
			return nil, httpError{http.StatusNotFound, fmt.Sprintf("no member reports an image of source %s any more", sources[0])}
		}
		return &detail, nil
	default:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("%d sources have this URL: give one of them in full, such as %q or %q", len(sources), sources[0], sources[1])}
	}
}

// maxFleetImages bounds a page of FleetDiskImages, each of which has up to 20 versions.
const maxFleetImages = 100

func (a *API) listFleetImages(request *http.Request) (any, error) {
	q := answers.FleetImageQuery{Name: request.URL.Query().Get("name")}
	l, err := parseListing(request)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Offset, q.Search = min(l.limit, maxFleetImages), l.offset, l.search
	var stored v1alpha1.FleetDiskImageList
	if err := a.list(request.Context(), &stored); err != nil {
		return nil, err
	}
	page, total := answers.SelectFleetImages(stored.Items, q)
	if q.Name != "" && total == 0 {
		return nil, notFound("FleetDiskImage", q.Name)
	}
	cells, err := a.imageCells(request, page)
	if err != nil {
		return nil, err
	}
	return answers.ListFleetImages(page, total, cells), nil
}

// imageCells returns the versions of FleetDiskImages × all clusters.
func (a *API) imageCells(request *http.Request, images []v1alpha1.FleetDiskImage) (*answers.ImageCells, error) {
	columns, err := a.selectColumns(request.Context(), nil)
	if err != nil {
		return nil, err
	}
	c := &answers.ImageCells{Columns: columns}
	if len(images) > 0 { // no names are all
		names := make([]string, len(images))
		for i := range images {
			names[i] = images[i].Name
		}
		c.Rows = answers.VersionRows(images, names)
	}
	clusters, keys := make([]string, len(columns)), make([][2]string, len(c.Rows))
	for i, m := range columns {
		clusters[i] = m.Name
	}
	for i, row := range c.Rows {
		keys[i] = [2]string{row.Namespace, row.Name}
	}
	c.Cells, c.Unknown = a.Index.CellsOfImages(keys, clusters)
	answers.MarkVersions(c.Rows, c.Cells, images, columns)
	return c, nil
}

// maxImageClusters bounds a page of the clusters of an image: the reports of each are read.
const maxImageClusters = 100

func (a *API) listImageClusters(request *http.Request) (any, error) {
	query := request.URL.Query()
	name := query.Get("name")
	q := answers.ImageClusterQuery{Version: query.Get("version"), Unreferenced: query.Get("unreferenced") == "true"}
	l, err := parseListing(request)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Offset, q.Search = min(l.limit, maxImageClusters), l.offset, l.search
	if _, err = parseChoice(request, "unreferenced", "true", "false"); err != nil {
		return nil, err
	}
	states := make([]string, len(readapi.ImageStates()))
	for i, state := range readapi.ImageStates() {
		states[i] = string(state)
	}
	state, err := parseChoice(request, "state", states...)
	if err != nil {
		return nil, err
	}
	q.State = readapi.ImageState(state)
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "name is required: a name from /fleet/v1/rollouts"}
	}
	var stored v1alpha1.FleetDiskImageList
	if err := a.list(request.Context(), &stored); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(stored.Items, func(img v1alpha1.FleetDiskImage) bool { return img.Name == name })
	if at < 0 {
		return nil, notFound("FleetDiskImage", name)
	}
	cells, err := a.imageCells(request, stored.Items[at:at+1])
	if err != nil {
		return nil, err
	}
	if q.Version != "" && !slices.ContainsFunc(cells.Rows, func(r readapi.MatrixRow) bool { return r.Version == q.Version }) {
		return nil, httpError{http.StatusNotFound, fmt.Sprintf("FleetDiskImage %s remembers no version %s", name, v1alpha1.Truncate(q.Version, maxKeyBytes))}
	}
	page, total := answers.SelectImageClusters(cells, q)
	return answers.ListImageClusters(&stored.Items[at], cells, page, total, func(cluster, namespace, name string) (*v1alpha1.ReportedImage, error) {
		return a.findImage(request, cluster, namespace, name)
	})
}
