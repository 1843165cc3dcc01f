// Package health tells whether a program gets at what it works on, for the probe of its
// readiness. None of it asks anything: what is told is what requests have met that were
// made anyway. The probe of liveness knows nothing of this: to end a program does not
// bring back an API server.
package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// unreachableGrace is how long an API server may be away unnoticed: one that is restarted, or
// changes its leader, is to make no replica unready.
const unreachableGrace = 30 * time.Second

// APIServerMonitor is what is known of an API server from the requests to it.
type APIServerMonitor struct {
	now func() time.Time

	mu sync.Mutex
	// failingSince is the time of the first request, after all that were answered, that was not;
	// fault is what the last one of them met.
	failingSince time.Time
	lastError    error
}

// NewAPIServerMonitor returns a Contact with an API server that nothing is known of.
func NewAPIServerMonitor() *APIServerMonitor { return &APIServerMonitor{now: time.Now} }

// WrapTransport looks at what a transport is answered.
func (c *APIServerMonitor) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return monitoredTransport{next, c}
}

type monitoredTransport struct {
	http.RoundTripper
	monitor *APIServerMonitor
}

// RoundTrip implements http.RoundTripper.
func (t monitoredTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	switch {
	case errors.Is(err, context.Canceled): // by this program
	case err != nil:
		t.monitor.recordFailure(err)
	case response.StatusCode == http.StatusBadGateway || response.StatusCode == http.StatusServiceUnavailable || response.StatusCode == http.StatusGatewayTimeout:
		// A balancer's word for an API server that is not there.
		t.monitor.recordFailure(fmt.Errorf("%s %s: %s", request.Method, request.URL.Path, response.Status))
	default:
		t.monitor.recordAnswer()
	}
	return response, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t monitoredTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (c *APIServerMonitor) recordFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastError = err; c.failingSince.IsZero() {
		c.failingSince = c.now()
	}
}

func (c *APIServerMonitor) recordAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failingSince, c.lastError = time.Time{}, nil
}

// Check is for a probe of readiness.
func (c *APIServerMonitor) Check(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failingSince.IsZero() {
		return nil
	}
	if away := c.now().Sub(c.failingSince); away > unreachableGrace {
		return fmt.Errorf("the API server has not answered for %s: %w", away.Round(time.Second), c.lastError)
	}
	return nil
}

// cacheSyncTimeout is how long a probe waits for caches.
const cacheSyncTimeout = 100 * time.Millisecond

// CachesSynced is for a probe of readiness: caches have what they are to have. One that nobody
// reads has it at once, as that of a replica which waits for its Lease.
func CachesSynced(caches map[string]func(context.Context) bool) healthz.Checker {
	return func(request *http.Request) error {
		for name, wait := range caches {
			ctx, cancel := context.WithTimeout(request.Context(), cacheSyncTimeout)
			done := wait(ctx)
			cancel()
			if !done {
				return fmt.Errorf("the cache of %s has not been filled yet", name)
			}
		}
		return nil
	}
}

// AddReadyChecks has a manager's probe of readiness look at all of this.
func AddReadyChecks(mgr ctrl.Manager, contact *APIServerMonitor, lacks *PermissionWatch, caches map[string]func(context.Context) bool) error {
	for name, check := range map[string]healthz.Checker{"api-server": contact.Check, "rights": lacks.Check, "caches": CachesSynced(caches)} {
		if err := mgr.AddReadyzCheck(name, LogTransitions(mgr.GetLogger().WithName("readyz").WithName(name), check)); err != nil {
			return err
		}
	}
	return nil
}

// LogTransitions logs when a check fails, and when it does no more: the server of probes keeps to
// itself what its checks say.
func LogTransitions(log logr.Logger, check healthz.Checker) healthz.Checker {
	var mu sync.Mutex
	failing := false
	return func(request *http.Request) error {
		err := check(request)
		mu.Lock()
		defer mu.Unlock()
		if now := err != nil; now != failing {
			failing = now
			if now {
				log.Info("Not ready", "because", err.Error())
			} else {
				log.Info("Ready again")
			}
		}
		return err
	}
}
