package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/history"
)

const (
	defaultPoints   = 144
	maxPoints       = 1440
	defaultLines    = 20
	maxHistoryLines = 200
	// maxHistoryValues bounds lines × points × series.
	maxHistoryValues = 200_000
)

func (a *API) getHistory(request *http.Request) (any, error) {
	query := request.URL.Query()
	q := history.Query{By: query.Get("by"), Series: splitNames(query.Get("series")), Clusters: splitNames(query.Get("clusters"))}
	var err error
	if q.Window, err = parseWindow(query.Get("window")); err != nil {
		return nil, err
	}
	if q.Points, err = parseCount("points", query.Get("points"), defaultPoints, maxPoints); err != nil {
		return nil, err
	}
	if q.Limit, err = parseCount("limit", query.Get("limit"), defaultLines, maxHistoryLines); err != nil {
		return nil, err
	}
	if q.By == "" {
		q.By = readapi.ByFleet
	}
	if q.Series == nil {
		q.Series = history.SeriesNames()
	}
	by := []string{readapi.ByFleet, readapi.BySource, readapi.ByCluster}
	switch {
	case !slices.Contains(by, q.By):
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("by=%s: must be one of %s", v1alpha1.Truncate(q.By, maxKeyBytes), strings.Join(by, ", "))}
	case q.Clusters != nil && q.By != readapi.ByCluster:
		return nil, httpError{http.StatusBadRequest, "clusters need by=" + readapi.ByCluster}
	case q.Limit*q.Points*len(q.Series) > maxHistoryValues:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("limit × points × series is %d, and may be %d: ask for fewer points, or fewer lines", q.Limit*q.Points*len(q.Series), maxHistoryValues)}
	}
	for i, name := range q.Series {
		if !slices.Contains(history.SeriesNames(), name) || slices.Contains(q.Series[:i], name) {
			return nil, httpError{http.StatusBadRequest, fmt.Sprintf("series=%s: must be of %s, each once", v1alpha1.Truncate(query.Get("series"), maxKeyBytes), strings.Join(history.SeriesNames(), ", "))}
		}
	}
	for _, name := range q.Clusters {
		if _, known := a.Index.Totals(name); !known {
			return nil, notFound("MemberCluster", name)
		}
	}
	return a.History().BuildAnswer(q, a.now()), nil
}

func parseWindow(text string) (time.Duration, error) {
	if text == "" {
		return history.Window, nil
	}
	window, err := time.ParseDuration(text)
	if err != nil || window < history.Step || window > history.Window {
		return 0, httpError{http.StatusBadRequest, fmt.Sprintf("window=%s: must be a duration from %s to %s, such as 6h", v1alpha1.Truncate(text, maxKeyBytes), history.Step, history.Window)}
	}
	return window, nil
}

func parseCount(name, text string, initial, most int) (int, error) {
	if text == "" {
		return initial, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, httpError{http.StatusBadRequest, fmt.Sprintf("%s=%s: must be a number from 1 to %d", name, v1alpha1.Truncate(text, maxKeyBytes), most)}
	}
	return n, nil
}
