package web

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// download is a file that is streamed.
type download struct {
	contentType, name string
	write             func(io.Writer) error
}

// csvColumns are the columns of a PruneReport's rows.
var csvColumns = []struct {
	name  string
	value func(*readapi.PruneRow) string
}{
	{"cluster", func(r *readapi.PruneRow) string { return r.Cluster }},
	{"clusterUID", func(r *readapi.PruneRow) string { return string(r.ClusterUID) }},
	{"verdict", func(r *readapi.PruneRow) string { return string(r.Verdict) }},
	{"reason", func(r *readapi.PruneRow) string { return r.Reason }},
	{"detail", func(r *readapi.PruneRow) string { return r.Detail }},
	{"kind", func(r *readapi.PruneRow) string { return r.Kind }},
	{"namespace", func(r *readapi.PruneRow) string { return r.Namespace }},
	{"name", func(r *readapi.PruneRow) string { return r.Name }},
	{"uid", func(r *readapi.PruneRow) string { return string(r.UID) }},
	{"revision", func(r *readapi.PruneRow) string { return r.Revision }},
	{"phase", func(r *readapi.PruneRow) string { return string(r.Phase) }},
	{"origin", func(r *readapi.PruneRow) string { return string(r.Origin) }},
	{"declaredBy", func(r *readapi.PruneRow) string { return r.DeclaredBy }},
	{"image", func(r *readapi.PruneRow) string { return r.Image }},
	{"imageUID", func(r *readapi.PruneRow) string { return string(r.ImageUID) }},
	{"bytes", func(r *readapi.PruneRow) string {
		if r.Bytes == nil {
			return ""
		}
		return strconv.FormatInt(*r.Bytes, 10)
	}},
	{"unreferencedSince", func(r *readapi.PruneRow) string { return formatTime(r.UnreferencedSince) }},
	{"observedAt", func(r *readapi.PruneRow) string { return formatTime(r.ObservedAt) }},
}

func formatTime(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// formulaPrefixes make spreadsheets run a cell as a formula.
const formulaPrefixes = "=+-@\t\r\n＝＋－＠"

// escapeCell prevents formulas: users of a member choose the names in a report.
func escapeCell(text string) string {
	if first, _ := utf8.DecodeRuneInString(text); text != "" && strings.ContainsRune(formulaPrefixes, first) {
		return "'" + text
	}
	return text
}

// downloadCSV returns a report as CSV. It verifies all pages before the first byte, so that
// an incomplete report gets an error message, and again while sending: a change in between
// aborts the download.
func (a *API) downloadCSV(ctx context.Context, report *v1alpha1.PruneReport, filter rowFilter) (any, error) {
	pages, err := a.verifyPages(ctx, report)
	if err != nil {
		return nil, err
	}
	write := func(to io.Writer) error {
		w := csv.NewWriter(to)
		line := make([]string, len(csvColumns))
		for i, column := range csvColumns {
			line[i] = column.name
		}
		if err := w.Write(line); err != nil {
			return err
		}
		for n := range pages {
			if !pages[n].mayInclude(filter.cluster) {
				continue
			}
			page, err := a.readPage(ctx, report, n)
			if err != nil {
				return err
			}
			if pageDigest(report, page) != pages[n].digest {
				return reportChanged(report)
			}
			for i := range page {
				for row := range eachRow(&page[i]) {
					if !filter.matches(&row) {
						continue
					}
					for i, column := range csvColumns {
						line[i] = escapeCell(column.value(&row))
					}
					if err := w.Write(line); err != nil {
						return err
					}
				}
			}
			if w.Flush(); w.Error() != nil {
				return w.Error()
			}
		}
		w.Flush()
		return w.Error()
	}
	return download{contentType: "text/csv; charset=utf-8", name: fmt.Sprintf("%s-%s.csv", report.Name, report.Status.Digest), write: write}, nil
}
