package web

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// verifiedPage remembers a page that was verified as a part of its report.
type verifiedPage struct {
	digest      string
	first, last string // the first and last cluster on it, by name
}

// mayInclude reports whether a page can have rows of a cluster; an empty name means any.
func (p *verifiedPage) mayInclude(cluster string) bool {
	return cluster == "" || p.first <= cluster && cluster <= p.last
}

func pageDigest(report *v1alpha1.PruneReport, page []v1alpha1.ReportedCluster) string {
	return prune.PageDigest(report.UID, page)
}

// reportKey is a report and its reviewed digest.
type reportKey struct {
	uid    types.UID
	digest string
}

// maxVerifiedReports bounds how many reports stay verified.
const maxVerifiedReports = 16

// verifiedReports remembers the pages of the last read reports. Reports do not change, so
// reading one page by page does not read all of it each time.
type verifiedReports struct {
	mu    sync.Mutex
	known map[reportKey][]verifiedPage
	order []reportKey
}

func (p *verifiedReports) get(report *v1alpha1.PruneReport) ([]verifiedPage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pages, known := p.known[reportKey{report.UID, report.Status.Digest}]
	return pages, known
}

func (p *verifiedReports) add(report *v1alpha1.PruneReport, pages []verifiedPage) {
	key := reportKey{report.UID, report.Status.Digest}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[reportKey][]verifiedPage{}
	}
	if _, known := p.known[key]; !known {
		p.order = append(p.order, key)
	}
	p.known[key] = pages
	for len(p.order) > maxVerifiedReports {
		delete(p.known, p.order[0])
		p.order = p.order[1:]
	}
}

func (p *verifiedReports) forget(report *v1alpha1.PruneReport) {
	key := reportKey{report.UID, report.Status.Digest}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, key)
	p.order = slices.DeleteFunc(p.order, func(k reportKey) bool { return k == key })
}

// verifiedPages returns the pages of a report, verifying them where that was not done.
func (a *API) verifiedPages(ctx context.Context, report *v1alpha1.PruneReport) ([]verifiedPage, error) {
	if pages, known := a.verified.get(report); known {
		return pages, nil
	}
	return a.verifyPages(ctx, report)
}

// verifyPages compares all pages of a report with its digest. It reads one after the other:
// together they may exceed the memory.
func (a *API) verifyPages(ctx context.Context, report *v1alpha1.PruneReport) ([]verifiedPage, error) {
	digester := prune.NewDigester(report.UID)
	pages := make([]verifiedPage, 0, max(0, report.Status.Pages))
	for n := range int(report.Status.Pages) {
		page, err := a.readPage(ctx, report, n)
		if err != nil {
			return nil, err
		}
		digester.AddPage(page)
		verified := verifiedPage{digest: pageDigest(report, page)}
		if len(page) > 0 {
			verified.first, verified.last = page[0].Cluster, page[len(page)-1].Cluster
		}
		pages = append(pages, verified)
	}
	if digester.Digest() != report.Status.Digest {
		a.verified.forget(report)
		return nil, reportChanged(report)
	}
	a.verified.add(report, pages)
	return pages, nil
}

// readPage reads a page live.
func (a *API) readPage(ctx context.Context, report *v1alpha1.PruneReport, n int) ([]v1alpha1.ReportedCluster, error) {
	page := &v1alpha1.PruneReportPage{}
	name := prune.PageName(report.Name, report.Status.Digest, n)
	err := a.Live.Get(ctx, client.ObjectKey{Name: name}, page)
	switch {
	case apierrors.IsNotFound(err):
		a.verified.forget(report)
		return nil, httpError{http.StatusGone, fmt.Sprintf("PruneReport %s is incomplete: PruneReportPage %s is missing. Create another PruneReport", report.Name, name)}
	case err != nil:
		return nil, fmt.Errorf("reading PruneReportPage %s: %w", name, err)
	}
	return page.Clusters, nil
}

func reportChanged(report *v1alpha1.PruneReport) error {
	return httpError{http.StatusGone, fmt.Sprintf("PruneReport %s was changed: its pages do not match digest %s. Create another PruneReport", report.Name, report.Status.Digest)}
}
