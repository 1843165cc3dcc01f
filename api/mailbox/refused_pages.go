package mailbox

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// refusedPageDelay is the wait before a page or root that the hub's API server has refused is sent
// again unchanged: every other change of the report leads to a sync, too.
const refusedPageDelay = time.Minute

// refusedPage is a page or root that the hub's API server has refused.
type refusedPage struct {
	version objectVersion
	until   time.Time
	err     error
}

// findRefusal returns why a page or root is not sent; nil to send it.
func (e *EqualCopies) findRefusal(page metav1.Object, now time.Time) error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if refused, ok := e.refusedPages[page.GetName()]; ok && refused.version == versionOf(page) && now.Before(refused.until) {
		return refused.err
	}
	return nil
}

// recordRefusal records that a page or root was refused.
func (e *EqualCopies) recordRefusal(page metav1.Object, err error, now time.Time) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.refusedPages) >= v1alpha1.MaxReportPages { // a member may name others in each report
		e.refusedPages = nil
	}
	if e.refusedPages == nil {
		e.refusedPages = map[string]refusedPage{}
	}
	e.refusedPages[page.GetName()] = refusedPage{versionOf(page), now.Add(refusedPageDelay), err}
}

// setRootRefused records whether the hub's API server refuses the root, and returns whether it did so
// before.
func (e *EqualCopies) setRootRefused(refused bool) (before bool) {
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	before, e.rootRefused = e.rootRefused, refused
	return before
}
