package mailbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pagePass is one sync of the pages that a root lists.
type pagePass struct {
	Relay
	source  memberReport
	copies  map[string]*metav1.PartialObjectMetadata
	written int
	// refusals are why pages that are refused stay on the hub as they are, failures why others do
	// whose failures last, and failed are those of them that were tried.
	refusals, failures []error
	failed             []failedPage
	// failedFor is how long the requests took that failed.
	failedFor time.Duration
}

// failedPage is a page that could not be copied, and why.
type failedPage struct {
	page *v1alpha1.ClusterReport
	err  error
}

// syncPages copies the listed pages. One that does not exist, or is from another cluster than the
// root, is skipped.
//
// Invariant: a page that the hub's API server refuses, or whose copying goes on failing there in
// whatever way, as by a webhook that is down or does not answer, keeps neither the others nor the root
// from being copied: otherwise the member would fall silent. Whether anything can be written, the
// root's own write tells.
func (p *pagePass) syncPages(ctx context.Context) error {
	p.Copies.forgetFailures(p.source.root.Root.Pages)
	for _, ref := range p.source.root.Root.Pages {
		page := p.source.pages[ref.Name]
		if page == nil || page.ClusterUID != p.source.root.ClusterUID {
			continue
		}
		if err := p.Copies.findRefusal(page, time.Now()); err != nil {
			p.refusals = append(p.refusals, err)
			continue
		}
		if p.failedFor >= MaxFailedPageTime {
			p.failures = append(p.failures, &PageError{fmt.Sprintf("ClusterReport %s/%s is not copied: others failed for too long", p.Hub.Namespace, page.Name)})
			continue
		}
		if err := p.syncPage(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// syncPage copies one page. The error is one that the report waits for.
func (p *pagePass) syncPage(ctx context.Context, page *v1alpha1.ClusterReport) error {
	began := time.Now()
	written, err := p.syncPart(ctx, page, p.copies[page.Name], func(live *v1alpha1.ClusterReport) bool {
		return live.Page != nil && live.ClusterUID == p.source.root.ClusterUID
	})
	if written {
		p.written++
	}
	switch {
	case err == nil:
		p.Copies.recordSuccess(page)
		return nil
	case ctx.Err() != nil, errors.As(err, new(*MemberError)):
		return err
	case IsRefused(err):
		p.Copies.recordRefusal(page, err, time.Now())
		p.refusals = append(p.refusals, err)
	case !p.Copies.recordFailure(page, began, time.Now()):
		return err
	default:
		err = &PageError{err.Error()}
		p.failed, p.failures = append(p.failed, failedPage{page, err}), append(p.failures, err)
	}
	p.failedFor += time.Since(began)
	return nil
}

// confirmFailures delays the next try of the pages that failed, and returns why pages stay as they
// are. It is called once the hub has answered about the root, or has nothing to take of it: an API
// server that takes nothing says nothing about the pages.
func (p *pagePass) confirmFailures() []error {
	for _, f := range p.failed {
		p.Copies.recordRefusal(f.page, f.err, time.Now())
	}
	return append(p.refusals, p.failures...)
}

// syncPart copies a page or the activity. If it is read again and is no longer valid, it
// is skipped.
func (r Relay) syncPart(ctx context.Context, part *v1alpha1.ClusterReport, copied *metav1.PartialObjectMetadata, valid func(live *v1alpha1.ClusterReport) bool) (written bool, err error) {
	if copied != nil && r.Copies.isEqual(reportKind.name, part, copied) {
		return false, nil
	}
	target, exists, _, err := r.readCopy(ctx, part, copied)
	if err != nil {
		return false, err
	}
	diff := reportKind.compareObjects(part, target, exists, r.Copies)
	next := decidePage(diff)
	if next == rereadSource {
		var found bool
		part, found, err = readObject(ctx, r.Member.Live, reportKind, r.Member, inMember, part.Name)
		if err != nil || !found || !valid(part) {
			return false, err
		}
		diff = reportKind.compareObjects(part, target, exists, r.Copies)
		diff.sourceLive = true
		next = decidePage(diff)
	}
	if next == overwriteCopy {
		if target, err = writeCopy(ctx, reportKind, r.Hub, onHub, part, target, exists); err != nil {
			return false, err
		}
	}
	r.Copies.recordEqual(reportKind.name, part, target)
	return next == overwriteCopy, nil
}
