package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// maxSelected bounds the names of a selection, as the ImagePrune's schema does.
const maxSelected = 1000

// groupQuery is which candidates of a report are grouped, and how.
type groupQuery struct {
	by              readapi.PruneBy
	spec            v1alpha1.ImagePruneSpec
	unreferencedFor time.Duration
	limit           int
}

func parseGroupQuery(request *http.Request) (q groupQuery, err error) {
	values := request.URL.Query()
	if q.limit, err = parseLimit(request); err != nil {
		return q, err
	}
	q.by = readapi.PruneBy(values.Get("by"))
	if q.by == "" {
		q.by = readapi.PruneByImage
	}
	if !slices.Contains(readapi.PruneBys(), q.by) {
		return q, httpError{http.StatusBadRequest, fmt.Sprintf("by=%s: must be one of %s", q.by, joinValues(readapi.PruneBys()))}
	}
	if q.spec.Images, err = parseNames(values, "images"); err != nil {
		return q, err
	}
	for _, pattern := range q.spec.Images {
		if namespace, name, ok := strings.Cut(pattern, "/"); !ok || namespace == "" || name == "" || strings.ContainsAny(name, `/?[\`) || strings.ContainsAny(namespace, `?[\`) {
			return q, httpError{http.StatusBadRequest, fmt.Sprintf("images=%s: must be namespace/name, where * stands for any characters", v1alpha1.Truncate(pattern, maxKeyBytes))}
		}
	}
	if q.spec.Clusters, err = parseNames(values, "clusters"); err != nil {
		return q, err
	}
	if text := values.Get("includeOthers"); text != "" {
		if q.spec.IncludeOthers, err = strconv.ParseBool(text); err != nil {
			return q, httpError{http.StatusBadRequest, fmt.Sprintf("includeOthers=%s: must be true or false", v1alpha1.Truncate(text, maxKeyBytes))}
		}
	}
	if text := values.Get("unreferencedFor"); text != "" {
		q.unreferencedFor, err = time.ParseDuration(text)
		if err != nil || q.unreferencedFor < 0 {
			return q, httpError{http.StatusBadRequest, fmt.Sprintf("unreferencedFor=%s: must be a duration, as in 168h", v1alpha1.Truncate(text, maxKeyBytes))}
		}
	}
	return q, nil
}

// parseNames returns the names of a parameter, separated by commas; nil for none.
func parseNames(values url.Values, parameter string) ([]string, error) {
	text := values.Get(parameter)
	if text == "" {
		return nil, nil
	}
	names := strings.Split(text, ",")
	switch {
	case len(names) > maxSelected:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("%s has %d names: an ImagePrune takes at most %d", parameter, len(names), maxSelected)}
	case slices.Contains(names, ""):
		return nil, httpError{http.StatusBadRequest, parameter + " has an empty name"}
	}
	return names, nil
}

// groupPruneRows sums up the candidates that an ImagePrune would select. It reads all pages of
// the report, one after the other, and compares them with its digest.
func (a *API) groupPruneRows(request *http.Request) (any, error) {
	q, err := parseGroupQuery(request)
	if err != nil {
		return nil, err
	}
	report, err := a.getCompleteReport(request.Context(), request.URL.Query().Get("report"))
	if err != nil {
		return nil, err
	}
	now := a.now()
	selection, digester := prune.NewSelection(now, q.by, q.spec), prune.NewDigester(report.UID)
	for n := range int(report.Status.Pages) {
		// The few groupings that run at a time must not be those of clients that left.
		if err := request.Context().Err(); err != nil {
			return nil, err
		}
		page, err := a.readPage(request.Context(), report, n)
		if err != nil {
			return nil, err
		}
		digester.AddPage(page)
		selection.Add(page)
	}
	if digester.Digest() != report.Status.Digest {
		return nil, reportChanged(report)
	}
	return newPruneGroups(report, selection, q, now), nil
}

func newPruneGroups(report *v1alpha1.PruneReport, s *prune.Selection, q groupQuery, now time.Time) readapi.PruneGroups {
	answer := readapi.PruneGroups{
		Report: report.Name, Digest: report.Status.Digest, By: q.by, Total: s.Total(), LeftOut: s.LeftOut(), Groups: []readapi.PruneGroup{}, Warnings: s.Warnings(),
	}
	count := func(total *v1alpha1.PruneTotal, g *readapi.PruneGroup) {
		total.Count += int32(g.Images) //nolint:gosec // a report has fewer
		total.Bytes += g.Bytes
	}
	groups := s.Groups()
	for i := range groups {
		g := &groups[i]
		since := g.YoungestUnreferencedSince
		switch {
		case q.unreferencedFor > 0 && (since == nil || now.Sub(since.Time) < q.unreferencedFor):
			count(&answer.TooRecent, g)
			continue
		case len(answer.Groups) == q.limit:
			count(&answer.Omitted, g)
		default:
			answer.Groups = append(answer.Groups, *g)
		}
		answer.GroupsTotal++
	}
	return answer
}
