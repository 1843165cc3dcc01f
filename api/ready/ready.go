// Package ready tells whether a program gets at what it works on, for the probe of its
// readiness. None of it asks anything: what is told is what requests have met that were
// made anyway. The probe of liveness knows nothing of this: to end a program does not
// bring back an API server.
package ready

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

	"github.com/pelotech/ot-fleet/api/rights"
)

// grace is how long an API server may be away unnoticed: one that is restarted, or
// changes its leader, is to make no replica unready.
const grace = 30 * time.Second

// Contact is what is known of an API server from the requests to it.
type Contact struct {
	now func() time.Time

	mu sync.Mutex
	// since is the time of the first request, after all that were answered, that was not;
	// fault is what the last one of them met.
	since time.Time
	fault error
}

// NewContact returns a Contact with an API server that nothing is known of.
func NewContact() *Contact { return &Contact{now: time.Now} }

// Wrap looks at what a transport is answered.
func (c *Contact) Wrap(next http.RoundTripper) http.RoundTripper { return noticed{next, c} }

type noticed struct {
	http.RoundTripper
	contact *Contact
}

// RoundTrip implements http.RoundTripper.
func (t noticed) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	switch {
	case errors.Is(err, context.Canceled): // by this program
	case err != nil:
		t.contact.missed(err)
	case response.StatusCode == http.StatusBadGateway || response.StatusCode == http.StatusServiceUnavailable || response.StatusCode == http.StatusGatewayTimeout:
		// A balancer's word for an API server that is not there.
		t.contact.missed(fmt.Errorf("%s %s: %s", request.Method, request.URL.Path, response.Status))
	default:
		t.contact.answered()
	}
	return response, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t noticed) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (c *Contact) missed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault = err; c.since.IsZero() {
		c.since = c.now()
	}
}

func (c *Contact) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.fault = time.Time{}, nil
}

// Check is for a probe of readiness.
func (c *Contact) Check(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return nil
	}
	if away := c.now().Sub(c.since); away > grace {
		return fmt.Errorf("the API server has not answered for %s: %w", away.Round(time.Second), c.fault)
	}
	return nil
}

// synced is how long a probe waits for caches.
const synced = 100 * time.Millisecond

// Caches is for a probe of readiness: caches have what they are to have. One that nobody
// reads has it at once, as that of a replica which waits for its Lease.
func Caches(caches map[string]func(context.Context) bool) healthz.Checker {
	return func(request *http.Request) error {
		for name, wait := range caches {
			ctx, cancel := context.WithTimeout(request.Context(), synced)
			done := wait(ctx)
			cancel()
			if !done {
				return fmt.Errorf("the cache of %s has not been filled yet", name)
			}
		}
		return nil
	}
}

// Add has a manager's probe of readiness look at all of this.
func Add(mgr ctrl.Manager, contact *Contact, lacks *rights.Watch, caches map[string]func(context.Context) bool) error {
	for name, check := range map[string]healthz.Checker{"api-server": contact.Check, "rights": lacks.Check, "caches": Caches(caches)} {
		if err := mgr.AddReadyzCheck(name, Told(mgr.GetLogger().WithName("readyz").WithName(name), check)); err != nil {
			return err
		}
	}
	return nil
}

// Told logs when a check fails, and when it does no more: the server of probes keeps to
// itself what its checks say.
func Told(log logr.Logger, check healthz.Checker) healthz.Checker {
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
