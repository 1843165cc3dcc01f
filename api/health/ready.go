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

// unreachableGrace is how long an API server may be unreachable before the program is
// unready. A restart or leader change of the API server must not make replicas unready.
const unreachableGrace = 30 * time.Second

// APIServerMonitor is a readiness check that observes the requests to an API server and
// sends none itself. It is not for liveness: restarting the program does not bring back
// an API server.
type APIServerMonitor struct {
	now func() time.Time

	mu sync.Mutex
	// failingSince is when the first request after the last answered one failed; zero
	// if the last request was answered. lastError is the newest failure.
	failingSince time.Time
	lastError    error
}

// NewAPIServerMonitor returns a monitor that reports ready until requests fail.
func NewAPIServerMonitor() *APIServerMonitor { return &APIServerMonitor{now: time.Now} }

// WrapTransport returns a transport that records the outcome of each request.
func (m *APIServerMonitor) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return monitoredTransport{next, m}
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
		// A load balancer answers for an API server that is down.
		t.monitor.recordFailure(fmt.Errorf("%s %s: %s", request.Method, request.URL.Path, response.Status))
	default:
		t.monitor.recordAnswer()
	}
	return response, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t monitoredTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (m *APIServerMonitor) recordFailure(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lastError = err; m.failingSince.IsZero() {
		m.failingSince = m.now()
	}
}

func (m *APIServerMonitor) recordAnswer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failingSince, m.lastError = time.Time{}, nil
}

// Check implements healthz.Checker.
func (m *APIServerMonitor) Check(*http.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failingSince.IsZero() {
		return nil
	}
	if failing := m.now().Sub(m.failingSince); failing > unreachableGrace {
		return fmt.Errorf("the API server has not answered for %s: %w", failing.Round(time.Second), m.lastError)
	}
	return nil
}

// cacheSyncTimeout is how long a readiness check waits for a cache.
const cacheSyncTimeout = 100 * time.Millisecond

// CachesSynced returns a readiness check that fails until all caches are synced. A
// cache without informers, as in a replica that is not the leader, is synced at once.
func CachesSynced(caches map[string]func(context.Context) bool) healthz.Checker {
	return func(request *http.Request) error {
		for name, wait := range caches {
			ctx, cancel := context.WithTimeout(request.Context(), cacheSyncTimeout)
			done := wait(ctx)
			cancel()
			if !done {
				return fmt.Errorf("the cache of %s is not synced yet", name)
			}
		}
		return nil
	}
}

// AddReadyChecks adds the API server, permission and cache checks to a manager.
func AddReadyChecks(mgr ctrl.Manager, apiServer *APIServerMonitor, permissions *PermissionWatch, caches map[string]func(context.Context) bool) error {
	for name, check := range map[string]healthz.Checker{"api-server": apiServer.Check, "rights": permissions.Check, "caches": CachesSynced(caches)} {
		if err := mgr.AddReadyzCheck(name, LogTransitions(mgr.GetLogger().WithName("readyz").WithName(name), check)); err != nil {
			return err
		}
	}
	return nil
}

// LogTransitions logs when a check starts to fail and when it passes again, because the
// probe server does not log check errors.
func LogTransitions(log logr.Logger, check healthz.Checker) healthz.Checker {
	var mu sync.Mutex
	failing := false
	return func(request *http.Request) error {
		err := check(request)
		mu.Lock()
		defer mu.Unlock()
		if failed := err != nil; failed != failing {
			failing = failed
			if failed {
				log.Info("Not ready", "error", err.Error())
			} else {
				log.Info("Ready again")
			}
		}
		return err
	}
}
