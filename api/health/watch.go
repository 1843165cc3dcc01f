package health

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

// permissionRecheckDelay between two looks, where the API server goes on refusing.
const permissionRecheckDelay = 5 * time.Second

// PermissionWatch tells of rights that are taken away while a program runs. It asks after the API
// server has refused something, which admission may have done as well, and then until
// nothing is lacking. It is a Runnable of a manager.
type PermissionWatch struct {
	// Config, wrapped by Wrap or not, asks.
	Config   *rest.Config
	Required []Permission
	Program  string
	// OnChange is called when another text is told.
	OnChange func()

	refused chan struct{}
	message atomic.Pointer[string]
}

// NewPermissionWatch returns a Watch for a program that has all that it needs.
func NewPermissionWatch(cfg *rest.Config, needed []Permission, program string) *PermissionWatch {
	return &PermissionWatch{Config: cfg, Required: needed, Program: program, OnChange: func() {}, refused: make(chan struct{}, 1)}
}

// WrapTransport looks at what a transport is answered.
func (w *PermissionWatch) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return watchedTransport{next, w.refused}
}

type watchedTransport struct {
	http.RoundTripper
	refused chan<- struct{}
}

// RoundTrip implements http.RoundTripper.
func (t watchedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
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
func (t watchedTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// NeedLeaderElection is false: each replica tells of itself.
func (w *PermissionWatch) NeedLeaderElection() bool { return false }

// Start asks until ctx ends.
func (w *PermissionWatch) Start(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.refused:
		case <-again:
		}
		again = nil
		missing, err := MissingPermissions(ctx, w.Config, w.Required)
		if err != nil {
			log.FromContext(ctx).Error(err, "Not knowing whether all rights are there")
		} else {
			w.setMessage(ctx, FormatMissing(missing, w.Program))
		}
		if err != nil || len(missing) > 0 {
			again = time.After(permissionRecheckDelay)
			continue
		}
		// What admission refuses, it may go on refusing.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(permissionRecheckDelay):
		}
	}
}

func (w *PermissionWatch) setMessage(ctx context.Context, text string) {
	before := w.message.Swap(&text)
	if ptr.Deref(before, "") == text {
		return
	}
	if text != "" {
		log.FromContext(ctx).Error(errors.New(text), "The API server refuses what this program has to do")
	} else {
		log.FromContext(ctx).Info("All rights are there again")
	}
	w.OnChange()
}

// MissingMessage says which rights are lacking, and what to do; nothing where none is known to.
func (w *PermissionWatch) MissingMessage() string { return ptr.Deref(w.message.Load(), "") }

// Check is for a probe of readiness.
func (w *PermissionWatch) Check(*http.Request) error {
	if text := w.MissingMessage(); text != "" {
		return errors.New(text)
	}
	return nil
}
