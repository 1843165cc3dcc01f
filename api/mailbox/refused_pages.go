package mailbox

import (
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What an agent and a relay do about a page that an API server does not take.
const (
	// RefusedPageDelay is the wait before a page that an API server has refused is sent again:
	// nothing says when a quota or a webhook lets it pass, and each change of the report leads to
	// another try.
	RefusedPageDelay = time.Minute
	// LastingFailure is how long the writes of a page may fail before the report does without it.
	LastingFailure = 10 * time.Second
	// MaxFailedPageTime bounds what failing pages take of one report, for example where a webhook does not
	// answer.
	MaxFailedPageTime = 10 * time.Second
)

// PageError says why a page is not copied whose failures last. Retrying it is useless for a while.
type PageError struct{ why string }

func (e *PageError) Error() string { return e.why }

// IsRefused reports whether the API server refuses this object itself, or goes on failing to take
// it, so that retrying is useless.
func IsRefused(err error) bool {
	return errors.As(err, new(*PageError)) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

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
	e.refusedPages[page.GetName()] = refusedPage{versionOf(page), now.Add(RefusedPageDelay), err}
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

// recordFailure records that a page was not copied by a request that began at a time, and reports
// whether the failures last. Pages that have failed since share the lot of the first:
// otherwise each would delay the root for as long.
func (e *EqualCopies) recordFailure(page metav1.Object, began, now time.Time) (lasts bool) {
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failingSince == nil {
		e.failingSince = map[string]time.Time{}
	}
	if _, ok := e.failingSince[page.GetName()]; !ok {
		e.failingSince[page.GetName()] = began
	}
	for _, since := range e.failingSince {
		if now.Sub(since) >= LastingFailure {
			return true
		}
	}
	return false
}

// recordSuccess ends what is known of the failures of a page.
func (e *EqualCopies) recordSuccess(page metav1.Object) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.failingSince, page.GetName())
	delete(e.refusedPages, page.GetName())
}

// forgetFailures forgets the failures of pages that are not listed: they would count as lasting once
// another page fails.
func (e *EqualCopies) forgetFailures(listed []v1alpha1.PageRef) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.failingSince, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(listed, func(ref v1alpha1.PageRef) bool { return ref.Name == name })
	})
}
