//go:build linux

// Package signin_test shows who may do what in the dashboard that the hub serves: with tokens of a
// real API server, which trusts a provider of ID tokens, and by two replicas.
package signin_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/oidc"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/ui"
)

// People, and the groups that their ID tokens name.
const (
	viewer    = "vera@example.com"
	approver  = "anna@example.com"
	stranger  = "sam@example.com"
	readers   = "fleet-readers"
	viewers   = "fleet-viewers"
	approvers = "fleet-approvers"
)

const summaryPath = readapi.Root + "summary"

// shared is the fleet of all tests. A test leaves it with both replicas alive.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	provider *oidc.Provider
	replicas map[string]*program.Hub
}

func TestMain(m *testing.M) {
	provider, err := oidc.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fleet.RunTests(m, fleet.Options{Policy: map[string]string{"concurrency": "2"}, WithoutHub: true, APIServerArgs: provider.APIServerArgs()}, func(ctx context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, provider: provider, replicas: map[string]*program.Hub{}}
		f.OnStop(func() { _ = provider.Stop() })
		for group, role := range map[string]string{readers: "ot-hub-reader", viewers: "ot-fleet-viewer", approvers: "ot-fleet-approver"} {
			if err := f.Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "people-" + group},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
			}); err != nil {
				return err
			}
		}
		for _, name := range []string{"one", "two"} {
			if err := shared.startReplica(ctx, name); err != nil {
				return err
			}
		}
		return provider.AwaitTrusted(ctx, f.Plane.Config())
	})
}

// startReplica starts a replica that serves the dashboard, in place of one of that name.
func (f *testFleet) startReplica(ctx context.Context, name string) error {
	started, err := f.RunHub(ctx, program.Options{UI: true, Log: filepath.Join(f.Plane.Dir(), name+".log"), Args: []string{"--replica-name=" + name}})
	if err != nil {
		return err
	}
	f.replicas[name] = started
	f.OnStop(func() { started.Kill() })
	return nil
}

// electedAndOther return the elected replica, and one that forwards to it.
func (f *testFleet) electedAndOther(t *testing.T) (elected, other *program.Hub) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		elected, other = nil, nil
		for _, r := range f.replicas {
			is, err := r.IsElected(t.Context())
			switch {
			case err != nil:
			case is:
				elected = r
			default:
				other = r
			}
		}
		return elected != nil && other != nil
	}), "no replica is elected; logs are in %s", f.Plane.Dir())
	b := newBrowser(t)
	b.awaitServed(t, elected)
	b.awaitServed(t, other)
	return elected, other
}

// issueToken issues an ID token that lives for an hour.
func (f *testFleet) issueToken(t *testing.T, user string, groups ...string) string {
	t.Helper()
	token, err := f.provider.Token(user, time.Hour, groups...)
	require.NoError(t, err)
	return token
}

// browser keeps cookies, and sends what a page of the dashboard sends.
type browser struct {
	http.Client
	// authorization is set as a proxy would; empty for none.
	authorization string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} //nolint:gosec // it is self-signed
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{Client: http.Client{Transport: transport, Jar: jar}}
}

// answer is the status and body of a response.
type answer struct {
	status int
	body   string
	header http.Header
}

func (b *browser) send(t *testing.T, method, origin, path, contentType, body string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, origin+path, bytes.NewBufferString(body))
	require.NoError(t, err)
	if method != http.MethodGet {
		request.Header.Set(ui.WriteHeader, "1")
		request.Header.Set("Origin", origin)
		request.Header.Set("Sec-Fetch-Site", "same-origin")
		request.Header.Set("Content-Type", contentType)
	}
	if b.authorization != "" {
		request.Header.Set("Authorization", "Bearer "+b.authorization)
	}
	response, err := b.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return answer{response.StatusCode, string(text), response.Header}
}

// get reads a path; while a replica starts, again.
func (b *browser) get(t *testing.T, origin, path string) (a answer) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		a = b.send(t, http.MethodGet, origin, path, "", "")
		return a.status != http.StatusServiceUnavailable
	}), "%s%s: %s", origin, path, &a.body)
	return a
}

func (b *browser) login(t *testing.T, origin, token string) answer {
	t.Helper()
	body, err := json.Marshal(map[string]string{"token": token})
	require.NoError(t, err)
	return b.send(t, http.MethodPost, origin, "/auth/login", "application/json", string(body))
}

// whoAmI returns who a browser is signed in as.
func (b *browser) whoAmI(t *testing.T, origin string) (me ui.Me) {
	t.Helper()
	a := b.get(t, origin, "/auth/me")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &me))
	return me
}

func requireSignedIn(t *testing.T, a answer) {
	t.Helper()
	require.Equal(t, http.StatusNoContent, a.status, a.body)
}

// errorOf returns the sentence of an answer that is an error.
func errorOf(t *testing.T, a answer) string {
	t.Helper()
	var e readapi.ErrorAnswer
	require.NoError(t, json.Unmarshal([]byte(a.body), &e), a.body)
	return e.Error
}
