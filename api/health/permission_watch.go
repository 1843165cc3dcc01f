package health

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// permissionRecheckDelay is the delay between two reviews while the API server refuses
// requests.
const permissionRecheckDelay = 5 * time.Second

// PermissionWatch notices permissions that are removed while a program runs. It reviews
// the permissions after the API server has refused a request, unless an admission policy did,
// and then until none is missing. It is a Runnable of a manager.
type PermissionWatch struct {
	// Config sends the reviews, with or without WrapTransport.
	Config   *rest.Config
	Required []Permission
	Program  string
	// OnChange is called when the message changes.
	OnChange func()

	refused chan struct{}
	message atomic.Pointer[string]
}

// NewPermissionWatch returns a watch for a program that starts with all permissions.
func NewPermissionWatch(cfg *rest.Config, needed []Permission, program string) *PermissionWatch {
	return &PermissionWatch{Config: cfg, Required: needed, Program: program, OnChange: func() {}, refused: make(chan struct{}, 1)}
}

// WrapTransport returns a transport that notices refused requests.
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
	if err == nil && response.StatusCode == http.StatusForbidden && !isAdmissionRefusal(response) {
		select {
		case t.refused <- struct{}{}:
		default:
		}
	}
	return response, err
}

// maxPeekedBytes is how much of a refusal is read before its reader gets it.
const maxPeekedBytes = 4 << 10

// isAdmissionRefusal reports whether a ValidatingAdmissionPolicy refused a request, which says
// nothing about permissions: those of the agent's own chart refuse some of its trials.
func isAdmissionRefusal(response *http.Response) bool {
	start, err := io.ReadAll(io.LimitReader(response.Body, maxPeekedBytes))
	response.Body = &peekedBody{Reader: io.MultiReader(bytes.NewReader(start), response.Body), Closer: response.Body}
	return err == nil && bytes.Contains(start, []byte("is forbidden: ValidatingAdmissionPolicy '"))
}

type peekedBody struct {
	io.Reader
	io.Closer
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t watchedTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// NeedLeaderElection returns false: each replica checks its own permissions.
func (w *PermissionWatch) NeedLeaderElection() bool { return false }

// Start reviews permissions until ctx ends.
func (w *PermissionWatch) Start(ctx context.Context) error {
	var recheck <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.refused:
		case <-recheck:
		}
		recheck = nil
		missing, err := MissingPermissions(ctx, w.Config, w.Required)
		if err != nil {
			log.FromContext(ctx).Error(err, "Failed to review permissions; retrying")
		} else {
			w.setMessage(ctx, FormatMissing(missing, w.Program))
		}
		if err != nil || len(missing) > 0 {
			recheck = time.After(permissionRecheckDelay)
			continue
		}
		// Admission may refuse many requests in a row; do not review after each.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(permissionRecheckDelay):
		}
	}
}

func (w *PermissionWatch) setMessage(ctx context.Context, message string) {
	before := w.message.Swap(&message)
	if ptr.Deref(before, "") == message {
		return
	}
	if message != "" {
		log.FromContext(ctx).Error(errors.New(message), "Permissions are missing; requests that need them fail until they are granted")
	} else {
		log.FromContext(ctx).Info("All permissions are granted again")
	}
	w.OnChange()
}

// MissingMessage says which permissions are missing and what to do; empty if none is
// known to be.
func (w *PermissionWatch) MissingMessage() string { return ptr.Deref(w.message.Load(), "") }

// Check implements healthz.Checker.
func (w *PermissionWatch) Check(*http.Request) error {
	if message := w.MissingMessage(); message != "" {
		return errors.New(message)
	}
	return nil
}
