package web

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// kindImage is the Kind of a row about an image.
const kindImage = "VMDiskImage"

// reasonOmitted is the Reason of a row that counts orphans without rows.
const reasonOmitted = "Omitted"

// eachRow iterates over the rows of a part of a cluster.
func eachRow(c *v1alpha1.ReportedCluster) iter.Seq[readapi.PruneRow] {
	return func(yield func(readapi.PruneRow) bool) {
		newRow := func(verdict readapi.Verdict) readapi.PruneRow {
			return readapi.PruneRow{Cluster: c.Cluster, ClusterUID: c.ClusterUID, Verdict: verdict, ObservedAt: c.ObservedAt}
		}
		if c.Unknown != "" {
			r := newRow(readapi.VerdictUnknown)
			r.Reason, r.Detail = c.Unknown, c.Message
			if !yield(r) {
				return
			}
		}
		for i := range c.Candidates {
			img := &c.Candidates[i]
			r := newRow(readapi.VerdictCandidate)
			r.Kind, r.Namespace, r.Name, r.UID, r.Revision = kindImage, img.Namespace, img.Name, img.UID, img.Revision
			r.Phase, r.Origin, r.DeclaredBy, r.Bytes, r.UnreferencedSince = img.Phase, img.Origin, img.DeclaredBy, &img.Bytes, img.UnreferencedSince
			if !yield(r) {
				return
			}
		}
		for i := range c.Kept {
			for _, name := range c.Kept[i].Images {
				r := newRow(readapi.VerdictKept)
				r.Reason, r.Detail, r.Kind = string(c.Kept[i].Reason), c.Kept[i].Detail, kindImage
				r.Namespace, r.Name, _ = strings.Cut(name, "/")
				if !yield(r) {
					return
				}
			}
		}
		for i := range c.Orphans {
			o := &c.Orphans[i]
			r := newRow(readapi.VerdictOrphan)
			r.Kind, r.Namespace, r.Name, r.Image, r.ImageUID, r.Bytes = o.Kind, o.Namespace, o.Name, o.Image, o.ImageUID, &o.Bytes
			if !yield(r) {
				return
			}
		}
		if c.OmittedOrphans > 0 {
			r := newRow(readapi.VerdictOrphan)
			r.Reason, r.Detail, r.Bytes = reasonOmitted, notListed(c.OmittedOrphans), &c.OmittedOrphanBytes
			yield(r)
		}
	}
}

func notListed(n int32) string {
	if n == 1 {
		return "1 more is not listed"
	}
	return fmt.Sprintf("%d more are not listed", n)
}

// rowFilter selects rows; empty fields select all.
type rowFilter struct {
	cluster string
	verdict readapi.Verdict
}

func (f rowFilter) matches(r *readapi.PruneRow) bool {
	return (f.cluster == "" || r.Cluster == f.cluster) && (f.verdict == "" || r.Verdict == f.verdict)
}

func (a *API) listPruneRows(request *http.Request) (any, error) {
	query := request.URL.Query()
	filter := rowFilter{query.Get("cluster"), readapi.Verdict(query.Get("verdict"))}
	if filter.verdict != "" && !slices.Contains(readapi.Verdicts(), filter.verdict) {
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("verdict=%s: must be one of %s", filter.verdict, joinValues(readapi.Verdicts()))}
	}
	format := query.Get("format")
	isCSV := format == "csv"
	limit, err := parseLimit(request)
	switch {
	case err != nil:
		return nil, err
	case format != "" && format != "json" && !isCSV:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("format=%s: must be json or csv", format)}
	case isCSV && (query.Has("limit") || query.Has("after")):
		return nil, httpError{http.StatusBadRequest, "limit and after need format=json: format=csv returns all rows"}
	}
	report, err := a.getCompleteReport(request.Context(), query.Get("report"))
	if err != nil {
		return nil, err
	}
	if err := a.checkCovers(request.Context(), report, filter.cluster); err != nil {
		return nil, err
	}
	if isCSV {
		return a.downloadCSV(request.Context(), report, filter)
	}
	from, err := parseCursor(query.Get("after"), report.Status.Digest)
	if err != nil {
		return nil, err
	}
	return a.listRowsAfter(request.Context(), report, filter, from, limit)
}

// getCompleteReport returns a PruneReport with rows.
func (a *API) getCompleteReport(ctx context.Context, name string) (*v1alpha1.PruneReport, error) {
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "report is required: a name from /fleet/v1/prunereports"}
	}
	report := &v1alpha1.PruneReport{}
	err := a.Members.Get(ctx, client.ObjectKey{Name: name}, report)
	st := &report.Status
	switch {
	case apierrors.IsNotFound(err):
		return nil, notFound("PruneReport", name)
	case err != nil:
		return nil, fmt.Errorf("reading PruneReport %s: %w", name, err)
	case report.Spec.Schedule != "" && st.LastReport != "":
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s is a schedule: its last report is %s", name, st.LastReport)}
	case report.Spec.Schedule != "":
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s is a schedule without a report yet", name)}
	case st.Phase == v1alpha1.PruneReportFailed:
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s failed: %s", name, st.Message)}
	case st.Phase != v1alpha1.PruneReportComplete:
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s is not complete yet: %d of %d clusters have answered. Try again, or wait: %s",
			name, st.Clusters.Answered, st.Clusters.Total, shellword.FormatCommand("kubectl wait %s --for=condition=%s", "prunereport/"+name, v1alpha1.ConditionReady))}
	}
	return report, nil
}

// checkCovers refuses a cluster that a report does not have: no rows would mean that
// nothing can be pruned there. An empty name means all.
func (a *API) checkCovers(ctx context.Context, report *v1alpha1.PruneReport, cluster string) error {
	if cluster == "" {
		return nil
	}
	pages, err := a.verifiedPages(ctx, report)
	if err != nil {
		return err
	}
	for n := range pages {
		if !pages[n].mayInclude(cluster) {
			continue
		}
		page, err := a.readPage(ctx, report, n)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(page, func(c v1alpha1.ReportedCluster) bool { return c.Cluster == cluster }) {
			return nil
		}
	}
	return httpError{http.StatusNotFound, fmt.Sprintf("PruneReport %s does not cover a cluster %s: take one of its placement, or another report", report.Name, v1alpha1.Truncate(cluster, maxKeyBytes))}
}

// listRowsAfter returns a page of rows. Each PruneReportPage is read again, and must be as
// it was when it was verified.
func (a *API) listRowsAfter(ctx context.Context, report *v1alpha1.PruneReport, filter rowFilter, from cursor, limit int) (any, error) {
	pages, err := a.verifiedPages(ctx, report)
	if err != nil {
		return nil, err
	}
	answer := readapi.PruneRows{Report: report.Name, Digest: report.Status.Digest, Rows: []readapi.PruneRow{}}
	var last cursor
	for n := from.page; n < len(pages); n++ {
		if !pages[n].mayInclude(filter.cluster) {
			continue
		}
		page, err := a.readPage(ctx, report, n)
		if err != nil {
			return nil, err
		}
		if pageDigest(report, page) != pages[n].digest {
			a.verified.forget(report)
			return nil, reportChanged(report)
		}
		at := 0
		for i := range page {
			for row := range eachRow(&page[i]) {
				at++ // a cursor counts the rows that were returned
				if n == from.page && at <= from.row || !filter.matches(&row) {
					continue
				}
				if len(answer.Rows) == limit {
					answer.Next = last.format(report.Status.Digest)
					return answer, nil
				}
				answer.Rows, last = append(answer.Rows, row), cursor{n, at}
			}
		}
	}
	return answer, nil
}

// cursor is a position in a report: row rows of a page were returned.
type cursor struct{ page, row int }

func (c cursor) format(digest string) string { return fmt.Sprintf("%s-%d-%d", digest, c.page, c.row) }

func parseCursor(text, digest string) (c cursor, err error) {
	if text == "" {
		return c, nil
	}
	if parts := strings.Split(text, "-"); len(parts) == 3 {
		page, pageErr := strconv.ParseUint(parts[1], 10, 31)
		row, rowErr := strconv.ParseUint(parts[2], 10, 31)
		switch {
		case pageErr != nil || rowErr != nil:
		case parts[0] != digest:
			return c, httpError{http.StatusConflict, "the report has changed since: start again without after"}
		default:
			return cursor{int(page), int(row)}, nil
		}
	}
	return c, httpError{http.StatusBadRequest, fmt.Sprintf("after=%s: must be the next of the former response", text)}
}
