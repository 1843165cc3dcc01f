package image

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// refusalHold is how long a refusal is shown in the words that it had first: each change is a write,
// whose event has the request repeated at once.
const refusalHold = trigger.MaxRetryDelay

// refusals remembers why the API server refused a request for an object of an image.
type refusals struct {
	mu    sync.Mutex
	byUID map[types.UID]refusal
	// failingSince is since when requests for objects of an image fail.
	failingSince map[types.UID]time.Time
}

type refusal struct {
	text string
	at   time.Time
}

func (r *refusals) get(uid types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byUID[uid].text
}

// set remembers an error; nil forgets. It reports whether the words are new.
func (r *refusals) set(uid types.UID, err error) (isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.byUID, uid)
		delete(r.failingSince, uid)
		return false
	}
	last, known := r.byUID[uid]
	if known && time.Since(last.at) < refusalHold {
		return false
	}
	if r.byUID == nil {
		r.byUID = map[types.UID]refusal{}
	}
	r.byUID[uid] = refusal{err.Error(), time.Now()}
	return last.text != err.Error()
}

// lasts records that a request failed. It reports whether requests have failed for refusalHold, none of
// which went through.
func (r *refusals) lasts(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, known := r.failingSince[uid]
	if !known {
		if r.failingSince == nil {
			r.failingSince = map[types.UID]time.Time{}
		}
		since = time.Now()
		r.failingSince[uid] = since
	}
	return time.Since(since) >= refusalHold
}

// childError: a request for an object of an image failed.
type childError struct {
	verb string
	kind image.ObjectKind
	name string
	err  error
}

func (e *childError) Error() string {
	return fmt.Sprintf("the API server refuses to %s %s %s: %v", e.verb, e.kind, e.name, e.err)
}

func (e *childError) Unwrap() error { return e.err }

// isRefused reports whether the API server refuses a request for its content.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// joinChildErrors puts conflicts first. Invariant: a conflict that lasts is counted as one, whatever
// else is refused beside it (trigger.ConflictTracker).
func joinChildErrors(errs []error) error {
	slices.SortStableFunc(errs, func(a, b error) int {
		switch isA, isB := apierrors.IsConflict(a), apierrors.IsConflict(b); {
		case isA == isB:
			return 0
		case isA:
			return -1
		default:
			return 1
		}
	})
	return errors.Join(errs...)
}

// listChildErrors returns those that an error wraps.
func listChildErrors(err error) (all []*childError) {
	if joined, isJoined := err.(interface{ Unwrap() []error }); isJoined {
		for _, wrapped := range joined.Unwrap() {
			all = append(all, listChildErrors(wrapped)...)
		}
		return all
	}
	if child, isChild := err.(*childError); isChild { //nolint:errorlint // each level is walked
		return []*childError{child}
	}
	if wrapped := errors.Unwrap(err); wrapped != nil {
		return listChildErrors(wrapped)
	}
	return nil
}

// maxNamedChildren bounds how many refused requests a status names.
const maxNamedChildren = 4

// joinRefusals returns the refusal of several requests: the cause is that of the first which is refused
// for its content, since the conflict of others may pass.
func joinRefusals(children []*childError) error {
	first := children[max(0, slices.IndexFunc(children, func(c *childError) bool { return isRefused(c.err) }))]
	var others []string
	for _, c := range children {
		if c != first {
			others = append(others, fmt.Sprintf("to %s %s %s", c.verb, c.kind, c.name))
		}
	}
	if len(others) == 0 {
		return first
	}
	if more := len(others) - maxNamedChildren; more > 0 {
		others = append(others[:maxNamedChildren], fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("the API server refuses to %s %s %s (and %s): %w", first.verb, first.kind, first.name, strings.Join(others, ", "), first.err)
}

// recordChildRefusal remembers why a request for an object of an image is refused, which its status
// shows, until all such requests of a decision go through (apply), or nothing fails. A conflict is
// shown once it lasts, for example when a webhook denies with 409, or somebody writes the object as
// often as the agent. What may pass by itself, as a timeout, is shown once it has lasted for refusalHold.
func (r *Reconciler) recordChildRefusal(img *v1alpha1.VMDiskImage, err error, conflictLasts bool) {
	if err == nil {
		r.childRefusals.set(img.UID, nil)
		return
	}
	children := listChildErrors(err)
	if len(children) == 0 {
		return
	}
	lasts := r.childRefusals.lasts(img.UID)
	refused := slices.DeleteFunc(children, func(c *childError) bool {
		return !lasts && !isRefused(c.err) && (!conflictLasts || !apierrors.IsConflict(c.err))
	})
	if len(refused) > 0 {
		r.childRefusals.set(img.UID, joinRefusals(refused))
	}
}
