//go:build linux

// Package dashboard_test opens the dashboard in a browser, over played fleets and over a real hub
// with real agents. Any error in the console, violation of the Content-Security-Policy, failed
// request or request to another origin that a test has not announced fails it.
package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
)

// chromium is shared by all tests: each of its pages has its own cookies.
var chromium *browser.Browser

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(func() int {
		var err error
		chromium, err = browser.Start()
		if errors.Is(err, browser.ErrNotInstalled) {
			fmt.Println("SKIP: the dashboard is not looked at:", err)
			return 0
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer chromium.Stop()
		defer stopHub()
		return m.Run()
	}())
}

// page is one of the dashboard's pages.
type page struct {
	name, path string
	// command: the page prints a command of kubectl ot that says the same.
	command bool
}

// pages are all pages, with the objects of the scenarios Healthy and Burning.
var pages = []page{
	{"fleet", "/", true},
	{"transfers", "/transfers", true},
	{"rollouts", "/rollouts", true},
	{"rollout", "/rollouts/ubuntu", true},
	{"clusters", "/clusters", true},
	{"cluster", "/clusters/bergen", true},
	{"images", "/images", true},
	{"image", "/images/ubuntu", true},
	{"cleanup", "/cleanup", true},
	{"report", "/cleanup/autumn?others=1", true},
	{"policy", "/policy", true},
	{"profile", "/profile", true},
	{"notfound", "/nowhere", false},
}

// played is a dashboard over a played fleet.
type played struct {
	*playedfleet.Fleet
	origin string
	clock  *playedClock
	faults *faults
}

// playedClock stands until it is moved.
type playedClock struct{ now atomic.Int64 }

func newPlayedClock() *playedClock {
	c := &playedClock{}
	c.now.Store(playedfleet.Epoch.UnixNano())
	return c
}

func (c *playedClock) read() time.Time { return time.Unix(0, c.now.Load()).UTC() }

// advance moves the fleet.
func (p *played) advance(by time.Duration) {
	p.clock.now.Add(int64(by))
	p.Play()
}

var (
	standingMutex sync.Mutex
	standing      = map[string]*played{}
)

// openStanding returns the dashboard of a scenario that stands still. Tests share it and must not
// change it. The large one is the dearest, in CPU time: tests that open it take the same turn.
func openStanding(t *testing.T, scenario string) *played {
	t.Helper()
	standingMutex.Lock()
	defer standingMutex.Unlock()
	if standing[scenario] == nil {
		standing[scenario] = startPlayed(t, scenario, "")
	}
	return standing[scenario]
}

// openOwn returns a dashboard of a scenario that the test may change.
func openOwn(t *testing.T, scenario, user string) *played {
	t.Helper()
	p := startPlayed(t, scenario, user)
	return p
}

func startPlayed(t *testing.T, scenario, user string) *played {
	t.Helper()
	clock := newPlayedClock()
	f, err := playedfleet.New(playedfleet.Options{Scenario: scenario, Seed: 1, Now: clock.read})
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(nil)
	p := &played{Fleet: f, origin: "http://" + server.Listener.Addr().String(), clock: clock, faults: newFaults()}
	server.Config.Handler = p.faults.wrap(f.Handler(playedfleet.HandlerOptions{Origin: p.origin, User: user}))
	server.Start()
	// It serves until the process ends: other tests may use it.
	return p
}

// options of a page of this dashboard.
func (p *played) options() browser.Options {
	return browser.Options{Origin: p.origin, Now: p.clock.read()}
}

// faults go wrong between browser and dashboard.
type faults struct {
	mu sync.Mutex
	// answer answers instead of the dashboard; it returns false for what passes.
	answer func(http.ResponseWriter, *http.Request) bool
	// cut is closed to end all streams.
	cut chan struct{}
}

func newFaults() *faults { return &faults{cut: make(chan struct{})} }

func (f *faults) set(answer func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// cutStreams ends all open streams.
func (f *faults) cutStreams() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.cut)
	f.cut = make(chan struct{})
}

func (f *faults) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		f.mu.Lock()
		answer, cut := f.answer, f.cut
		f.mu.Unlock()
		if answer != nil && answer(w, request) {
			return
		}
		if request.URL.Path != "/fleet/v1/events" {
			next.ServeHTTP(w, request)
			return
		}
		ctx, cancel := contextUntil(request.Context(), cut)
		defer cancel()
		next.ServeHTTP(w, request.WithContext(ctx))
	})
}

// contextUntil returns a context that ends with a channel, too.
func contextUntil(parent context.Context, ended <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		select {
		case <-ended:
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, cancel
}
