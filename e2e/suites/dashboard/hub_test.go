//go:build linux

package dashboard_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/oidc"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// The members of the real fleet.
const (
	bergen = "bergen"
	oslo   = "oslo"
)

// People, by what the groups in their ID tokens may do.
const (
	anna  = "anna@example.com"  // everything
	boris = "boris@example.com" // everything, too
	vera  = "vera@example.com"  // read
	sam   = "sam@example.com"   // nothing
)

// realFleet is a hub of two replicas with real agents, whose API server takes ID tokens.
type realFleet struct {
	*fleet.Fleet
	provider *oidc.Provider
	replicas map[string]*program.Hub
	// front is what browsers open: it passes requests on to the replica that serves.
	front  *httptest.Server
	serves atomic.Pointer[url.URL]
	faults *faults
}

var (
	hubOnce   sync.Once
	hub       *realFleet
	errHub    error
	replicaUI = []string{"one", "two"}
)

// openHub returns the real fleet, which the first test starts. Its tests are in files withhub_*, which go
// test runs last: a fleet that waits for the others costs CPU time.
func openHub(t *testing.T) *realFleet {
	t.Helper()
	hubOnce.Do(func() { hub, errHub = startHub(context.WithoutCancel(t.Context())) })
	require.NoError(t, errHub)
	return hub
}

func stopHub() {
	if hub != nil {
		_ = hub.Stop() // the process ends
	}
}

func startHub(ctx context.Context) (*realFleet, error) {
	provider, err := oidc.Start()
	if err != nil {
		return nil, err
	}
	f := &realFleet{provider: provider, replicas: map[string]*program.Hub{}, faults: newFaults()}
	f.Fleet, err = fleet.Start(ctx, fleet.Options{
		Policy: map[string]string{"concurrency": "3", "fleetConcurrency": "4", "retryLimit": "0"}, WithoutHub: true, APIServerArgs: provider.APIServerArgs(),
		Members: []fleet.MemberOptions{
			{Name: bergen, Labels: map[string]string{"wave": "canary"}, ImportDuration: 300 * time.Millisecond},
			{Name: oslo, Labels: map[string]string{"env": "production"}, ImportDuration: 300 * time.Millisecond},
		},
	})
	if err != nil {
		return nil, errors.Join(err, f.Stop(), provider.Stop())
	}
	f.OnStop(func() { _ = provider.Stop() })
	for _, role := range []string{"ot-hub-reader", "ot-fleet-viewer", "ot-fleet-author", "ot-fleet-approver", "ot-fleet-pruner"} {
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: anna}, {APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: boris}}
		if role == "ot-hub-reader" || role == "ot-fleet-viewer" {
			subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: vera})
		}
		if err := f.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: subjects,
		}); err != nil {
			return nil, errors.Join(err, f.Stop())
		}
	}
	for _, name := range replicaUI {
		if err := f.startReplica(ctx, name); err != nil {
			return nil, errors.Join(err, f.Stop())
		}
	}
	f.startFront()
	f.OnStop(f.front.Close)
	return f, errors.Join(provider.AwaitTrusted(ctx, f.Plane.Config()), f.AwaitReady(ctx, bergen, oslo))
}

// startReplica starts a replica that serves the dashboard, in place of one of that name.
func (f *realFleet) startReplica(ctx context.Context, name string) error {
	started, err := f.RunHub(ctx, program.Options{UI: true, Args: []string{"--replica-name=" + name}})
	if err != nil {
		return err
	}
	f.replicas[name] = started
	f.Hub = started
	f.OnStop(func() { started.Kill() })
	return nil
}

// startFront serves one address for all replicas, as a Service does.
func (f *realFleet) startFront() {
	f.serveBy(replicaUI[0])
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(f.serves.Load())
			r.Out.Host = r.In.Host
		},
		FlushInterval: -1,
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // it is in the same process's loopback
	}
	f.front = httptest.NewTLSServer(f.faults.wrap(forward))
}

func (f *realFleet) serveBy(replica string) {
	address, err := url.Parse(f.replicas[replica].UIURL)
	if err != nil {
		panic(err) // of the harness
	}
	f.serves.Store(address)
}

// token returns an ID token of a person.
func (f *realFleet) token(t *testing.T, person string) string {
	t.Helper()
	token, err := f.provider.Token(person, time.Hour)
	require.NoError(t, err)
	return token
}

// openSignedIn opens a path as a person who has pasted a token.
func (f *realFleet) openSignedIn(t *testing.T, person, path string) *browser.Page {
	t.Helper()
	p := chromium.OpenPage(t, browser.Options{Origin: f.front.URL})
	p.Announce("401 /auth/me")
	p.Visit(t, path)
	f.signIn(t, p, person)
	return p
}

func (f *realFleet) signIn(t *testing.T, p *browser.Page, person string) {
	t.Helper()
	p.FillField(t, "textbox", "Bearer token", f.token(t, person))
	p.Click(t, "button", "Sign in")
	p.AwaitNone(t, "button", "Sign in")
	p.AwaitElement(t, "link", person)
}

// electedAndOther return the names of the elected replica, and of one that forwards to it.
func (f *realFleet) electedAndOther(t *testing.T) (elected, other string) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		elected, other = "", ""
		for name, r := range f.replicas {
			is, err := r.IsElected(t.Context())
			switch {
			case err != nil:
			case is:
				elected = name
			default:
				other = name
			}
		}
		return elected != "" && other != ""
	}), "no replica is elected")
	return elected, other
}
