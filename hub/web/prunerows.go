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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Verdict is what a PruneReport says of what a row is about.
type Verdict string

// Verdicts of rows.
const (
	// VerdictCandidate: the image could go.
	VerdictCandidate Verdict = "candidate"
	// VerdictKept: the image stays, for the reason that the row gives.
	VerdictKept Verdict = "kept"
	// VerdictOrphan: storage that belongs to no image.
	VerdictOrphan Verdict = "orphan"
	// VerdictUnknown: nothing is said of the cluster.
	VerdictUnknown Verdict = "unknown"
)

var allVerdicts = []Verdict{VerdictCandidate, VerdictKept, VerdictOrphan, VerdictUnknown}

// PruneRows are a part of what a PruneReport says, by cluster. Next is what to pass
// as after to get on; empty at the end.
type PruneRows struct {
	Report string     `json:"report"`
	Digest string     `json:"digest"`
	Rows   []PruneRow `json:"rows"`
	Next   string     `json:"next,omitempty"`
}

// PruneRow is what a PruneReport says of one image, one object of storage, or one
// cluster that is unknown. What is not known is not there.
type PruneRow struct {
	Cluster    string    `json:"cluster"`
	ClusterUID types.UID `json:"clusterUID,omitempty"`
	Verdict    Verdict   `json:"verdict"`
	// Reason for which an image is kept, or a cluster is unknown. Detail says more.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Kind is VMDiskImage, or that of an orphan; empty for a cluster.
	Kind      string               `json:"kind,omitempty"`
	Namespace string               `json:"namespace,omitempty"`
	Name      string               `json:"name,omitempty"`
	UID       types.UID            `json:"uid,omitempty"`
	Revision  string               `json:"revision,omitempty"`
	Phase     v1alpha1.Phase       `json:"phase,omitempty"`
	Origin    v1alpha1.ImageOrigin `json:"origin,omitempty"`
	// DeclaredBy is the FleetDiskImage that an image is a version of.
	DeclaredBy string `json:"declaredBy,omitempty"`
	// Image and ImageUID are those that an orphan was made for.
	Image    string    `json:"image,omitempty"`
	ImageUID types.UID `json:"imageUID,omitempty"`
	// Bytes are not known one by one of images that are kept.
	Bytes             *int64       `json:"bytes,omitempty"`
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// ObservedAt is when the cluster told, by its own clock.
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
}

// kindImage of a row that is about an image.
const kindImage = "VMDiskImage"

// reasonOmitted of a row that stands for orphans which no row tells of.
const reasonOmitted = "Omitted"

// eachRow are all that a part of a cluster says.
func eachRow(c *v1alpha1.ReportedCluster) iter.Seq[PruneRow] {
	return func(yield func(PruneRow) bool) {
		row := func(verdict Verdict) PruneRow {
			return PruneRow{Cluster: c.Cluster, ClusterUID: c.ClusterUID, Verdict: verdict, ObservedAt: c.ObservedAt}
		}
		if c.Unknown != "" {
			r := row(VerdictUnknown)
			r.Reason, r.Detail = c.Unknown, c.Message
			if !yield(r) {
				return
			}
		}
		for i := range c.Candidates {
			img := &c.Candidates[i]
			r := row(VerdictCandidate)
			r.Kind, r.Namespace, r.Name, r.UID, r.Revision = kindImage, img.Namespace, img.Name, img.UID, img.Revision
			r.Phase, r.Origin, r.DeclaredBy, r.Bytes, r.UnreferencedSince = img.Phase, img.Origin, img.DeclaredBy, &img.Bytes, img.UnreferencedSince
			if !yield(r) {
				return
			}
		}
		for i := range c.Kept {
			for _, name := range c.Kept[i].Images {
				r := row(VerdictKept)
				r.Reason, r.Detail, r.Kind = string(c.Kept[i].Reason), c.Kept[i].Detail, kindImage
				r.Namespace, r.Name, _ = strings.Cut(name, "/")
				if !yield(r) {
					return
				}
			}
		}
		for i := range c.Orphans {
			o := &c.Orphans[i]
			r := row(VerdictOrphan)
			r.Kind, r.Namespace, r.Name, r.Image, r.ImageUID, r.Bytes = o.Kind, o.Namespace, o.Name, o.Image, o.ImageUID, &o.Bytes
			if !yield(r) {
				return
			}
		}
		if c.OmittedOrphans > 0 {
			r := row(VerdictOrphan)
			r.Reason, r.Detail, r.Bytes = reasonOmitted, fmt.Sprintf("%d more are not listed", c.OmittedOrphans), &c.OmittedOrphanBytes
			yield(r)
		}
	}
}

// rowFilter is which rows are asked for.
type rowFilter struct {
	cluster string
	verdict Verdict
}

func (f rowFilter) matches(r *PruneRow) bool {
	return (f.cluster == "" || r.Cluster == f.cluster) && (f.verdict == "" || r.Verdict == f.verdict)
}

func (a *API) listPruneRows(request *http.Request) (any, error) {
	query := request.URL.Query()
	filter := rowFilter{query.Get("cluster"), Verdict(query.Get("verdict"))}
	if filter.verdict != "" && !slices.Contains(allVerdicts, filter.verdict) {
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("verdict=%s: give one of %s", filter.verdict, joinValues(allVerdicts))}
	}
	format := query.Get("format")
	whole := format == "csv"
	most, err := parseLimit(request)
	switch {
	case err != nil:
		return nil, err
	case format != "" && format != "json" && !whole:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("format=%s: give json or csv", format)}
	case whole && (query.Has("limit") || query.Has("after")):
		return nil, httpError{http.StatusBadRequest, "limit and after go with format=json: format=csv gives all rows at once"}
	}
	report, err := a.getCompleteReport(request.Context(), query.Get("report"))
	if err != nil {
		return nil, err
	}
	if whole {
		return a.downloadCSV(request.Context(), report, filter)
	}
	from, err := parseCursor(query.Get("after"), report.Status.Digest)
	if err != nil {
		return nil, err
	}
	return a.listRowsAfter(request.Context(), report, filter, from, most)
}

// getCompleteReport is a PruneReport that has rows to be read.
func (a *API) getCompleteReport(ctx context.Context, name string) (*v1alpha1.PruneReport, error) {
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "name the PruneReport: report=… as /fleet/v1/prunereports lists it"}
	}
	report := &v1alpha1.PruneReport{}
	err := a.Members.Get(ctx, client.ObjectKey{Name: name}, report)
	st := &report.Status
	switch {
	case apierrors.IsNotFound(err):
		return nil, httpError{http.StatusNotFound, fmt.Sprintf("there is no PruneReport %s", name)}
	case err != nil:
		return nil, fmt.Errorf("reading PruneReport %s: %w", name, err)
	case report.Spec.Schedule != "" && st.LastReport != "":
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s makes reports by its schedule, and is none itself: its last is %s", name, st.LastReport)}
	case report.Spec.Schedule != "":
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s makes reports by its schedule, and has made none yet", name)}
	case st.Phase == v1alpha1.PruneReportFailed:
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s could not be made: %s", name, st.Message)}
	case st.Phase != v1alpha1.PruneReportComplete:
		return nil, httpError{http.StatusConflict, fmt.Sprintf("PruneReport %s is not complete yet: %d of %d clusters have answered. Try again, or wait: kubectl wait prunereport/%s --for=condition=%s",
			name, st.Clusters.Answered, st.Clusters.Total, name, v1alpha1.ConditionFinished)}
	}
	return report, nil
}

// listRowsAfter answers with a part of a report. Each page is read anew, and is what it
// was when all of them were seen to be the report's.
func (a *API) listRowsAfter(ctx context.Context, report *v1alpha1.PruneReport, filter rowFilter, from cursor, most int) (any, error) {
	proven, err := a.verifiedPages(ctx, report)
	if err != nil {
		return nil, err
	}
	answer := PruneRows{Report: report.Name, Digest: report.Status.Digest, Rows: []PruneRow{}}
	var last cursor
	for n := from.page; n < len(proven); n++ {
		if !proven[n].mayInclude(filter.cluster) {
			continue
		}
		page, err := a.readPage(ctx, report, n)
		if err != nil {
			return nil, err
		}
		if pageDigest(report, page) != proven[n].digest {
			a.verified.forget(report)
			return nil, reportChanged(report)
		}
		at := 0
		for i := range page {
			for row := range eachRow(&page[i]) {
				at++ // a cursor names the row that follows it
				if n == from.page && at <= from.row || !filter.matches(&row) {
					continue
				}
				if len(answer.Rows) == most {
					answer.Next = last.format(report.Status.Digest)
					return answer, nil
				}
				answer.Rows, last = append(answer.Rows, row), cursor{n, at}
			}
		}
	}
	return answer, nil
}

// cursor is a place in a report: so many rows of a page have been given.
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
			return c, httpError{http.StatusConflict, "the report is another one than when after was given: begin anew, without it"}
		default:
			return cursor{int(page), int(row)}, nil
		}
	}
	return c, httpError{http.StatusBadRequest, fmt.Sprintf("after=%s: give what the answer before said as next", text)}
}
