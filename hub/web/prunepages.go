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

// verifiedPage is what is remembered of a page that is a part of its report.
type verifiedPage struct {
	digest      string
	first, last string // clusters that it tells of, by name
}

// mayInclude tells whether a page can say something of a cluster; all, where none is
// named.
func (p *verifiedPage) mayInclude(cluster string) bool {
	return cluster == "" || p.first <= cluster && cluster <= p.last
}

func pageDigest(report *v1alpha1.PruneReport, page []v1alpha1.ReportedCluster) string {
	return prune.Digest(report.UID, [][]v1alpha1.ReportedCluster{page})
}

// reportKey is which report, and as what it was reviewed.
type reportKey struct {
	uid    types.UID
	digest string
}

// maxVerifiedReports is of how many reports it is remembered that they are as they were.
const maxVerifiedReports = 16

// verifiedReports are those of the reports that were read last. A report does not change: who
// reads it in parts does not have all of it read for each.
type verifiedReports struct {
	mu    sync.Mutex
	known map[reportKey][]verifiedPage
	order []reportKey
}

func (p *verifiedReports) get(report *v1alpha1.PruneReport) ([]verifiedPage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	proven, known := p.known[reportKey{report.UID, report.Status.Digest}]
	return proven, known
}

func (p *verifiedReports) add(report *v1alpha1.PruneReport, proven []verifiedPage) {
	key := reportKey{report.UID, report.Status.Digest}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[reportKey][]verifiedPage{}
	}
	if _, known := p.known[key]; !known {
		p.order = append(p.order, key)
	}
	p.known[key] = proven
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

// verifiedPages are the pages of a report, each of which is known to be a part of it.
func (a *API) verifiedPages(ctx context.Context, report *v1alpha1.PruneReport) ([]verifiedPage, error) {
	if proven, known := a.verified.get(report); known {
		return proven, nil
	}
	return a.verifyPages(ctx, report)
}

// verifyPages reads all pages of a report, one after the other, for they may be more than
// there is memory for, and sees whether they are what was reviewed.
func (a *API) verifyPages(ctx context.Context, report *v1alpha1.PruneReport) ([]verifiedPage, error) {
	sum := prune.NewDigester(report.UID)
	proven := make([]verifiedPage, 0, max(0, report.Status.Pages))
	for n := range int(report.Status.Pages) {
		page, err := a.readPage(ctx, report, n)
		if err != nil {
			return nil, err
		}
		sum.AddPage(page)
		proof := verifiedPage{digest: pageDigest(report, page)}
		if len(page) > 0 {
			proof.first, proof.last = page[0].Cluster, page[len(page)-1].Cluster
		}
		proven = append(proven, proof)
	}
	if sum.Digest() != report.Status.Digest {
		a.verified.forget(report)
		return nil, reportChanged(report)
	}
	a.verified.add(report, proven)
	return proven, nil
}

// readPage reads a page where it is stored: no cache holds them.
func (a *API) readPage(ctx context.Context, report *v1alpha1.PruneReport, n int) ([]v1alpha1.ReportedCluster, error) {
	page := &v1alpha1.PruneReportPage{}
	name := prune.PageName(report.Name, report.Status.Digest, n)
	err := a.Live.Get(ctx, client.ObjectKey{Name: name}, page)
	switch {
	case apierrors.IsNotFound(err):
		a.verified.forget(report)
		return nil, httpError{http.StatusGone, fmt.Sprintf("PruneReport %s is not whole any more: PruneReportPage %s is missing. Make another PruneReport", report.Name, name)}
	case err != nil:
		return nil, fmt.Errorf("reading PruneReportPage %s: %w", name, err)
	}
	return page.Clusters, nil
}

func reportChanged(report *v1alpha1.PruneReport) error {
	return httpError{http.StatusGone, fmt.Sprintf("PruneReport %s is not what it was: its pages are not those of digest %s. Make another PruneReport", report.Name, report.Status.Digest)}
}
