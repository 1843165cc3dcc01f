package image

import (
	"errors"
	"fmt"
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

// set remembers an error; nil forgets.
func (r *refusals) set(uid types.UID, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.byUID, uid)
		delete(r.failingSince, uid)
		return
	}
	if last, known := r.byUID[uid]; known && time.Since(last.at) < refusalHold {
		return
	}
	if r.byUID == nil {
		r.byUID = map[types.UID]refusal{}
	}
	r.byUID[uid] = refusal{err.Error(), time.Now()}
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

// recordChildRefusal remembers why a request for an object of an image is refused, which its status
// shows, until all such requests of a decision go through (apply), or nothing fails. A conflict is
// shown once it lasts, as where a webhook denies with its code, or somebody writes the object as
// often as the agent. What may pass by itself, as a timeout, is shown once it has lasted for refusalHold.
func (r *Reconciler) recordChildRefusal(img *v1alpha1.VMDiskImage, err error, conflictLasts bool) {
	var child *childError
	switch {
	case err == nil:
		r.childRefusals.set(img.UID, nil)
	case !errors.As(err, &child):
	case r.childRefusals.lasts(img.UID), conflictLasts, apierrors.IsForbidden(child.err), apierrors.IsInvalid(child.err), apierrors.IsBadRequest(child.err):
		r.childRefusals.set(img.UID, child)
	}
}
