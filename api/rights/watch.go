package rights

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// pause between two looks, where the API server goes on refusing.
const pause = 5 * time.Second

// Watch tells of rights that are taken away while a program runs. It asks after the API
// server has refused something, which admission may have done as well, and then until
// nothing is lacking. It is a Runnable of a manager.
type Watch struct {
	// Config, wrapped by Wrap or not, asks.
	Config  *rest.Config
	Needed  []Right
	Program string
	// Changed is called when another text is told.
	Changed func()

	refused chan struct{}
	text    atomic.Pointer[string]
}

// NewWatch returns a Watch for a program that has all that it needs.
func NewWatch(cfg *rest.Config, needed []Right, program string) *Watch {
	return &Watch{Config: cfg, Needed: needed, Program: program, Changed: func() {}, refused: make(chan struct{}, 1)}
}

// Wrap looks at what a transport is answered.
func (w *Watch) Wrap(next http.RoundTripper) http.RoundTripper { return watched{next, w.refused} }

type watched struct {
	http.RoundTripper
	refused chan<- struct{}
}

// RoundTrip implements http.RoundTripper.
func (t watched) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusForbidden {
		select {
		case t.refused <- struct{}{}:
		default:
		}
	}
	return response, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t watched) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// NeedLeaderElection is false: each replica tells of itself.
func (w *Watch) NeedLeaderElection() bool { return false }

// Start asks until ctx ends.
func (w *Watch) Start(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.refused:
		case <-again:
		}
		again = nil
		missing, err := Lacking(ctx, w.Config, w.Needed)
		if err != nil {
			log.FromContext(ctx).Error(err, "Not knowing whether all rights are there")
		} else {
			w.tell(ctx, Text(missing, w.Program))
		}
		if err != nil || len(missing) > 0 {
			again = time.After(pause)
			continue
		}
		// What admission refuses, it may go on refusing.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (w *Watch) tell(ctx context.Context, text string) {
	before := w.text.Swap(&text)
	if ptr.Deref(before, "") == text {
		return
	}
	if text != "" {
		log.FromContext(ctx).Error(errors.New(text), "The API server refuses what this program has to do")
	} else {
		log.FromContext(ctx).Info("All rights are there again")
	}
	w.Changed()
}

// Lacks says which rights are lacking, and what to do; nothing where none is known to.
func (w *Watch) Lacks() string { return ptr.Deref(w.text.Load(), "") }

// Check is for a probe of readiness.
func (w *Watch) Check(*http.Request) error {
	if text := w.Lacks(); text != "" {
		return errors.New(text)
	}
	return nil
}
