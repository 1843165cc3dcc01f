package web

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const testPath = "/fleet/v1/members"

// leases are those that the election and the replicas keep.
func leases(t *testing.T, holder string, replicas ...Served) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "hub", Name: "ot-hub"}}
	if holder != "" {
		lease.Spec.HolderIdentity = ptr.To(holder)
	}
	objects := []client.Object{lease}
	for i, r := range replicas {
		objects = append(objects, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "hub", Name: fmt.Sprintf("ot-hub-replica-%d", i), Annotations: r.Annotations()},
		})
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// notElected answers as a replica does that is not.
func notElected(live client.Reader) *Forwarder {
	return &Forwarder{Elected: make(chan struct{}), Others: &Electorate{Live: live, Namespace: "hub", Lease: "ot-hub", Prefix: "ot-hub-replica-"}}
}

// other is a replica that serves with a certificate of its own; asked is told each
// request.
func other(t *testing.T, asked func(http.ResponseWriter, *http.Request)) (served Served) {
	t.Helper()
	certificate, err := NewCertificate("127.0.0.1")
	require.NoError(t, err)
	return otherShows(t, certificate, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }, asked)
}

// otherShows is another replica, which shows certificates as it likes and tells of its own.
func otherShows(t *testing.T, certificate *tls.Certificate, shown func(*tls.ClientHelloInfo) (*tls.Certificate, error), asked func(http.ResponseWriter, *http.Request)) (served Served) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(asked))
	server.TLS = &tls.Config{GetCertificate: shown, MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	// What it is bound to is not where it is reached.
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	return ServedAt("other", "127.0.0.1", ":"+port, Fingerprint(certificate.Leaf))
}

func nobodyAsked(t *testing.T) func(http.ResponseWriter, *http.Request) {
	return func(_ http.ResponseWriter, request *http.Request) {
		t.Errorf("it was asked for %s with Authorization %q", request.URL, request.Header.Get("Authorization"))
	}
}

// authenticated takes the credential out of a request, as the API server's own
// authentication does.
func authenticated(*rest.Config, *http.Client) (server.Filter, error) {
	return func(_ logr.Logger, handler http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			request.Header.Del("Authorization")
			handler.ServeHTTP(w, request)
		}), nil
	}, nil
}

// answered is an answer that was read to its end.
type answered struct {
	status int
	header http.Header
}

// through asks a Forwarder, over a connection, as a caller that was authenticated.
func through(t *testing.T, f *Forwarder, request func(*http.Request)) (answered, string) {
	t.Helper()
	filter, err := KeepCredential(authenticated)(nil, nil)
	require.NoError(t, err)
	handler, err := filter(logr.Discard(), f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })))
	require.NoError(t, err)
	served := httptest.NewServer(handler)
	t.Cleanup(served.Close)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, served.URL+testPath+"?limit=2&after=a%2Fb", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer reader")
	if request != nil {
		request(r)
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return answered{response.StatusCode, response.Header}, string(body)
}

func wantUnavailable(t *testing.T, response answered, body, says string) {
	t.Helper()
	assert.Equal(t, http.StatusServiceUnavailable, response.status)
	assert.NotEmpty(t, response.header.Get("Retry-After"))
	assert.Contains(t, body, says)
}

func TestElectedAnswersItself(t *testing.T) {
	f := notElected(leases(t, "other", other(t, nobodyAsked(t))))
	elected := make(chan struct{})
	close(elected)
	f.Elected = elected
	// Also what another replica has forwarded.
	_, body := through(t, f, func(r *http.Request) { r.Header.Set(forwarded, "true") })
	assert.Equal(t, "here", body)
}

func TestForwarded(t *testing.T) {
	var asked *http.Request
	to := other(t, func(w http.ResponseWriter, request *http.Request) {
		asked = request
		w.Header().Set("Content-Disposition", "attachment")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "there")
	})
	response, body := through(t, notElected(leases(t, "other", Served{Process: "third"}, to)), nil)
	assert.Equal(t, "there", body)
	assert.Equal(t, http.StatusTeapot, response.status)
	assert.Equal(t, "attachment", response.header.Get("Content-Disposition"))
	require.NotNil(t, asked)
	assert.Equal(t, testPath, asked.URL.Path)
	assert.Equal(t, "limit=2&after=a%2Fb", asked.URL.RawQuery)
	assert.Equal(t, "Bearer reader", asked.Header.Get("Authorization"))
	assert.NotEmpty(t, asked.Header.Get(forwarded))
}

// A long answer reaches who asked while it is still being written.
func TestForwardedAsItComes(t *testing.T) {
	read := make(chan struct{})
	to := other(t, func(w http.ResponseWriter, request *http.Request) {
		_, _ = io.WriteString(w, "first ")
		w.(http.Flusher).Flush()
		select {
		case <-read:
			_, _ = io.WriteString(w, "second")
		case <-request.Context().Done():
		}
	})
	server := httptest.NewServer(notElected(leases(t, "other", to)).Wrap(http.NotFoundHandler()))
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+testPath, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	first := make([]byte, len("first "))
	_, err = io.ReadFull(response.Body, first)
	require.NoError(t, err)
	close(read)
	rest, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	assert.Equal(t, "second", string(rest))
}

// An answer that breaks off there breaks off here: it is not taken for all there is.
func TestForwardedBreaksOff(t *testing.T) {
	to := other(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	server := httptest.NewServer(notElected(leases(t, "other", to)).Wrap(http.NotFoundHandler()))
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+testPath, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	_, err = io.ReadAll(response.Body)
	assert.Error(t, err)
}

// Whoever has taken the address of the elected replica is shown no credential.
func TestOtherCertificateIsRefused(t *testing.T) {
	to := other(t, nobodyAsked(t))
	certificate, err := NewCertificate("127.0.0.1")
	require.NoError(t, err)
	to.Key = Fingerprint(certificate.Leaf)
	response, body := through(t, notElected(leases(t, "other", to)), nil)
	wantUnavailable(t, response, body, errOtherKey.Error())
}

// Nor whoever makes it serve without one.
func TestPlainTextIsRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(nobodyAsked(t)))
	t.Cleanup(server.Close)
	response, body := through(t, notElected(leases(t, "other", Served{Process: "other", URL: server.URL})), nil)
	wantUnavailable(t, response, body, "without a certificate that is known")
	response, body = through(t, notElected(leases(t, "other", Served{Process: "other", URL: strings.Replace(server.URL, "http:", "https:", 1)})), nil)
	wantUnavailable(t, response, body, "without a certificate that is known")
}

func TestPlainText(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") }))
	t.Cleanup(server.Close)
	f := notElected(leases(t, "other", ServedAt("other", "127.0.0.1", server.Listener.Addr().String(), "")))
	f.Plain = true
	_, body := through(t, f, nil)
	assert.Equal(t, "there", body)
}

func TestForwardedOnceOnly(t *testing.T) {
	f := notElected(leases(t, "other", other(t, nobodyAsked(t))))
	response, body := through(t, f, func(r *http.Request) { r.Header.Set(forwarded, "true") })
	wantUnavailable(t, response, body, "another took it for the one that is")
}

// Two replicas each of which takes the other for the elected one ask no further.
func TestForwardedInACircle(t *testing.T) {
	asked := 0
	var first http.Handler
	to := other(t, func(w http.ResponseWriter, request *http.Request) {
		if asked++; asked > 10 {
			panic(http.ErrAbortHandler)
		}
		first.ServeHTTP(w, request)
	})
	f := notElected(leases(t, "other", to))
	first = f.Wrap(http.NotFoundHandler())
	response, body := through(t, f, nil)
	wantUnavailable(t, response, body, "another took it for the one that is")
	assert.Equal(t, 1, asked)
}

// A certificate that is given, and may change, is shown to readers; the replica that
// forwards is shown the one that the Lease tells of.
func TestForwardedPastAGivenCertificate(t *testing.T) {
	own, err := NewCertificate("127.0.0.1")
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	certificate, key, err := cert.GenerateSelfSignedCertKey("hub.example", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	given, err := certwatcher.New(certFile, keyFile)
	require.NoError(t, err)
	shown := Shown(own, given)
	to := otherShows(t, own, shown, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") })
	response, body := through(t, notElected(leases(t, "other", to)), nil)
	assert.Equal(t, http.StatusOK, response.status)
	assert.Equal(t, "there", body)

	for _, name := range []string{"", "hub.example"} {
		seen, err := shown(&tls.ClientHelloInfo{ServerName: name})
		require.NoError(t, err)
		assert.Contains(t, seen.Leaf.DNSNames, "hub.example", "asked for %q", name)
	}
}

func TestNobodyToForwardTo(t *testing.T) {
	certificate, err := NewCertificate("")
	require.NoError(t, err)
	key := Fingerprint(certificate.Leaf)
	const free = "127.0.0.1:1" // a port that no process is given by chance
	for name, c := range map[string]struct {
		holder string
		lease  Served
		want   string
	}{
		"nobody is elected":         {"", ServedAt("other", "127.0.0.1", free, key), errNobody.Error()},
		"it has no Lease":           {"gone", ServedAt("other", "127.0.0.1", free, key), errSilent.Error()},
		"it tells no address":       {"other", ServedAt("other", "", free, key), errSilent.Error()},
		"it is bound to any port":   {"other", ServedAt("other", "127.0.0.1", "127.0.0.1:0", key), errSilent.Error()},
		"it serves nowhere":         {"other", ServedAt("other", "127.0.0.1", "0", key), errSilent.Error()},
		"what it tells is no URL":   {"other", Served{Process: "other", URL: "nowhere", Key: key}, "no address"},
		"nobody listens there":      {"other", ServedAt("other", "127.0.0.1", free, key), "does not answer"},
		"it listens, and is silent": {"other", other(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			f := notElected(leases(t, c.holder, c.lease))
			f.AnswerTimeout = 100 * time.Millisecond
			response, body := through(t, f, nil)
			wantUnavailable(t, response, body, c.want)
		})
	}
}

// After a failure the Leases are looked at anew: another one may be elected.
func TestForwardedToTheNextOne(t *testing.T) {
	before := other(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	after := other(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "next") })
	after.Process = "next"
	live := leases(t, "other", before, after)
	f := notElected(live)
	response, _ := through(t, f, nil)
	assert.Equal(t, http.StatusServiceUnavailable, response.status)
	lease := &coordinationv1.Lease{}
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, live.Get(ctx, client.ObjectKey{Namespace: "hub", Name: "ot-hub"}, lease))
	lease.Spec.HolderIdentity = ptr.To("next")
	require.NoError(t, live.Update(ctx, lease))
	_, body := through(t, f, nil)
	assert.Equal(t, "next", body)
}

// Whoever may only add Leases gets nobody's credential, nor has one path answered by
// another.
func TestForgedLeases(t *testing.T) {
	real := Served{Process: "one", URL: "https://127.0.0.1:1", Key: "key"}
	forged := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "hub", Name: "a-forged", Annotations: Served{Process: "one", URL: "https://127.0.0.1:2", Key: "other"}.Annotations()}}
	live := leases(t, "one", real)
	require.NoError(t, live.Create(t.Context(), forged))
	electorate := &Electorate{Live: live, Namespace: "hub", Lease: "ot-hub", Prefix: "ot-hub-replica-"}
	to, err := electorate.Elected(t.Context())
	require.NoError(t, err)
	assert.Equal(t, real, to, "it is no replica's")

	forged.ObjectMeta.Name, forged.ResourceVersion = "ot-hub-replica-", ""
	require.NoError(t, live.Create(t.Context(), forged))
	electorate.Forget()
	_, err = electorate.Elected(t.Context())
	require.ErrorIs(t, err, errSeveral)

	for _, url := range []string{"https://user:password@127.0.0.1:1", "https://127.0.0.1:1/another", "https://127.0.0.1:1?to=another", "https://127.0.0.1:1#x", "ftp://127.0.0.1", "https:"} {
		_, err := (&Forwarder{}).newRoute(Served{URL: url, Key: "key"})
		assert.Error(t, err, url)
	}
}

func TestServedAt(t *testing.T) {
	assert.Equal(t, "https://10.0.0.7:8080", ServedAt("p", "10.0.0.7", ":8080", "key").URL)
	assert.Equal(t, "https://[fd00::7]:8080", ServedAt("p", "fd00::7", ":8080", "key").URL)
	assert.Equal(t, map[string]string{"pelotech.ot/process": "p", "pelotech.ot/read-api": "http://10.0.0.7:8080"}, ServedAt("p", "10.0.0.7", ":8080", "").Annotations())
}
