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

	"github.com/pelotech/ot-fleet/api/readapi"
)

const testPath = "/fleet/v1/members"

// newLeases stores the Leases of the election and of the replicas.
func newLeases(t *testing.T, holder string, replicas ...readapi.ReplicaAddress) client.Client {
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

// newForwarder returns the Forwarder of a replica that is not elected.
func newForwarder(live client.Reader) *Forwarder {
	return &Forwarder{Elected: make(chan struct{}), Leader: &readapi.LeaderLocator{Live: live, Namespace: "hub"}}
}

// newOtherReplica starts a replica with its own certificate; asked handles its requests.
func newOtherReplica(t *testing.T, asked func(http.ResponseWriter, *http.Request)) (served readapi.ReplicaAddress) {
	t.Helper()
	certificate, err := NewCertificate("127.0.0.1")
	require.NoError(t, err)
	return newOtherReplicaShowing(t, certificate, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }, asked)
}

// newOtherReplicaShowing starts a replica that serves the certificates of shown, and publishes
// certificate.
func newOtherReplicaShowing(t *testing.T, certificate *tls.Certificate, shown func(*tls.ClientHelloInfo) (*tls.Certificate, error), asked func(http.ResponseWriter, *http.Request)) (served readapi.ReplicaAddress) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(asked))
	server.TLS = &tls.Config{GetCertificate: shown, MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	// The bound address differs from the advertised one.
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	return readapi.NewReplicaAddress("other", "127.0.0.1", ":"+port, readapi.Fingerprint(certificate.Leaf))
}

func failOnRequest(t *testing.T) func(http.ResponseWriter, *http.Request) {
	return func(_ http.ResponseWriter, request *http.Request) {
		t.Errorf("it was asked for %s with Authorization %q", request.URL, request.Header.Get("Authorization"))
	}
}

// stripCredential removes the credential from a request, as authentication does.
func stripCredential(*rest.Config, *http.Client) (server.Filter, error) {
	return func(_ logr.Logger, handler http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			request.Header.Del("Authorization")
			handler.ServeHTTP(w, request)
		}), nil
	}, nil
}

// readResponse is a response with its body read.
type readResponse struct {
	status int
	header http.Header
}

// sendThrough sends a request of an authenticated caller through a Forwarder.
func sendThrough(t *testing.T, f *Forwarder, request func(*http.Request)) (readResponse, string) {
	t.Helper()
	filter, err := KeepCredential(stripCredential)(nil, nil)
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
	return readResponse{response.StatusCode, response.Header}, string(body)
}

func requireUnavailable(t *testing.T, response readResponse, body, says string) {
	t.Helper()
	assert.Equal(t, http.StatusServiceUnavailable, response.status)
	assert.NotEmpty(t, response.header.Get("Retry-After"))
	assert.Contains(t, body, says)
}

func TestLeaderAnswersItself(t *testing.T) {
	f := newForwarder(newLeases(t, "other", newOtherReplica(t, failOnRequest(t))))
	elected := make(chan struct{})
	close(elected)
	f.Elected = elected
	// Also a forwarded request.
	_, body := sendThrough(t, f, func(r *http.Request) { r.Header.Set(forwardedHeader, "true") })
	assert.Equal(t, "here", body)
}

func TestForwardsToLeader(t *testing.T) {
	var asked *http.Request
	to := newOtherReplica(t, func(w http.ResponseWriter, request *http.Request) {
		asked = request
		w.Header().Set("Content-Disposition", "attachment")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "there")
	})
	response, body := sendThrough(t, newForwarder(newLeases(t, "other", readapi.ReplicaAddress{Process: "third"}, to)), nil)
	assert.Equal(t, "there", body)
	assert.Equal(t, http.StatusTeapot, response.status)
	assert.Equal(t, "attachment", response.header.Get("Content-Disposition"))
	require.NotNil(t, asked)
	assert.Equal(t, testPath, asked.URL.Path)
	assert.Equal(t, "limit=2&after=a%2Fb", asked.URL.RawQuery)
	assert.Equal(t, "Bearer reader", asked.Header.Get("Authorization"))
	assert.NotEmpty(t, asked.Header.Get(forwardedHeader))
}

// streamThrough returns the body of an answer that arrives while it is being written.
func streamThrough(t *testing.T, f *Forwarder) io.Reader {
	t.Helper()
	server := httptest.NewServer(f.Wrap(http.NotFoundHandler()))
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+testPath, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response.Body
}

// A long response reaches the caller while it is being written.
func TestForwardedAnswerIsStreamed(t *testing.T) {
	read := make(chan struct{})
	to := newOtherReplica(t, func(w http.ResponseWriter, request *http.Request) {
		_, _ = io.WriteString(w, "first ")
		w.(http.Flusher).Flush()
		select {
		case <-read:
			_, _ = io.WriteString(w, "second")
		case <-request.Context().Done():
		}
	})
	answer := streamThrough(t, newForwarder(newLeases(t, "other", to)))
	first := make([]byte, len("first "))
	_, err := io.ReadFull(answer, first)
	require.NoError(t, err)
	close(read)
	rest, err := io.ReadAll(answer)
	require.NoError(t, err)
	assert.Equal(t, "second", string(rest))
}

// A response that is aborted there is aborted here.
func TestBrokenForwardIsAborted(t *testing.T) {
	to := newOtherReplica(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	answer := streamThrough(t, newForwarder(newLeases(t, "other", to)))
	_, err := io.ReadAll(answer)
	assert.Error(t, err)
}

// A server that took over the leader's address gets no credential.
func TestUnknownCertificateIsRefused(t *testing.T) {
	to := newOtherReplica(t, failOnRequest(t))
	certificate, err := NewCertificate("127.0.0.1")
	require.NoError(t, err)
	to.Fingerprint = readapi.Fingerprint(certificate.Leaf)
	response, body := sendThrough(t, newForwarder(newLeases(t, "other", to)), nil)
	requireUnavailable(t, response, body, readapi.ErrWrongCertificate.Error())
}

// A leader without TLS gets no credential either.
func TestPlainTextIsRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(failOnRequest(t)))
	t.Cleanup(server.Close)
	response, body := sendThrough(t, newForwarder(newLeases(t, "other", readapi.ReplicaAddress{Process: "other", URL: server.URL})), nil)
	requireUnavailable(t, response, body, "without a known certificate")
	response, body = sendThrough(t, newForwarder(newLeases(t, "other", readapi.ReplicaAddress{Process: "other", URL: strings.Replace(server.URL, "http:", "https:", 1)})), nil)
	requireUnavailable(t, response, body, "without a known certificate")
}

func TestPlainTextWhereAllowed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") }))
	t.Cleanup(server.Close)
	f := newForwarder(newLeases(t, "other", readapi.NewReplicaAddress("other", "127.0.0.1", server.Listener.Addr().String(), "")))
	f.AllowPlainText = true
	_, body := sendThrough(t, f, nil)
	assert.Equal(t, "there", body)
}

func TestForwardedOnlyOnce(t *testing.T) {
	f := newForwarder(newLeases(t, "other", newOtherReplica(t, failOnRequest(t))))
	response, body := sendThrough(t, f, func(r *http.Request) { r.Header.Set(forwardedHeader, "true") })
	requireUnavailable(t, response, body, "another replica forwarded to it")
}

// Two replicas that take each other for the leader stop after one forward.
func TestForwardLoopIsRefused(t *testing.T) {
	asked := 0
	var first http.Handler
	to := newOtherReplica(t, func(w http.ResponseWriter, request *http.Request) {
		if asked++; asked > 10 {
			panic(http.ErrAbortHandler)
		}
		first.ServeHTTP(w, request)
	})
	f := newForwarder(newLeases(t, "other", to))
	first = f.Wrap(http.NotFoundHandler())
	response, body := sendThrough(t, f, nil)
	requireUnavailable(t, response, body, "another replica forwarded to it")
	assert.Equal(t, 1, asked)
}

// Readers see the given certificate, which may change; a forwarding replica sees the one in
// the Lease.
func TestForwardIgnoresGivenCertificate(t *testing.T) {
	own, err := NewCertificate("127.0.0.1")
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	certificate, key, err := cert.GenerateSelfSignedCertKey("hub.example", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	given, err := certwatcher.New(certFile, keyFile)
	require.NoError(t, err)
	shown := SelectCertificate(own, given)
	to := newOtherReplicaShowing(t, own, shown, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") })
	response, body := sendThrough(t, newForwarder(newLeases(t, "other", to)), nil)
	assert.Equal(t, http.StatusOK, response.status)
	assert.Equal(t, "there", body)

	for _, name := range []string{"", "hub.example"} {
		seen, err := shown(&tls.ClientHelloInfo{ServerName: name})
		require.NoError(t, err)
		assert.Contains(t, seen.Leaf.DNSNames, "hub.example", "asked for %q", name)
	}
}

func TestNoLeaderToForwardTo(t *testing.T) {
	certificate, err := NewCertificate("")
	require.NoError(t, err)
	key := readapi.Fingerprint(certificate.Leaf)
	const free = "127.0.0.1:1" // a port that no process is given by chance
	for name, c := range map[string]struct {
		holder string
		lease  readapi.ReplicaAddress
		want   string
	}{
		"no leader":       {"", readapi.NewReplicaAddress("other", "127.0.0.1", free, key), readapi.ErrNoLeader.Error()},
		"no Lease":        {"gone", readapi.NewReplicaAddress("other", "127.0.0.1", free, key), readapi.ErrNoAddress.Error()},
		"no address":      {"other", readapi.NewReplicaAddress("other", "", free, key), readapi.ErrNoAddress.Error()},
		"no fixed port":   {"other", readapi.NewReplicaAddress("other", "127.0.0.1", "127.0.0.1:0", key), readapi.ErrNoAddress.Error()},
		"no server":       {"other", readapi.NewReplicaAddress("other", "127.0.0.1", "0", key), readapi.ErrNoAddress.Error()},
		"no URL":          {"other", readapi.ReplicaAddress{Process: "other", URL: "nowhere", Fingerprint: key}, "invalid address"},
		"nothing listens": {"other", readapi.NewReplicaAddress("other", "127.0.0.1", free, key), "does not answer"},
		"no response":     {"other", newOtherReplica(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newForwarder(newLeases(t, c.holder, c.lease))
			f.AnswerTimeout = 100 * time.Millisecond
			response, body := sendThrough(t, f, nil)
			requireUnavailable(t, response, body, c.want)
		})
	}
}

// A failure invalidates the cached leader.
func TestForwardsToNewLeader(t *testing.T) {
	before := newOtherReplica(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	after := newOtherReplica(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "next") })
	after.Process = "next"
	live := newLeases(t, "other", before, after)
	f := newForwarder(live)
	response, _ := sendThrough(t, f, nil)
	assert.Equal(t, http.StatusServiceUnavailable, response.status)
	lease := &coordinationv1.Lease{}
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, live.Get(ctx, client.ObjectKey{Namespace: "hub", Name: "ot-hub"}, lease))
	lease.Spec.HolderIdentity = ptr.To("next")
	require.NoError(t, live.Update(ctx, lease))
	_, body := sendThrough(t, f, nil)
	assert.Equal(t, "next", body)
}

// The right to create Leases gives no access to callers' credentials.
func TestForgedLeasesAreRefused(t *testing.T) {
	real := readapi.ReplicaAddress{Replica: "0", Process: "one", URL: "https://127.0.0.1:1", Fingerprint: "key"}
	forged := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "hub", Name: "a-forged", Annotations: readapi.ReplicaAddress{Process: "one", URL: "https://127.0.0.1:2", Fingerprint: "other"}.Annotations()}}
	live := newLeases(t, "one", real)
	require.NoError(t, live.Create(t.Context(), forged))
	electorate := &readapi.LeaderLocator{Live: live, Namespace: "hub"}
	to, err := electorate.Locate(t.Context())
	require.NoError(t, err)
	assert.Equal(t, real, to, "the Lease of no replica is ignored")

	forged.ObjectMeta.Name, forged.ResourceVersion = "ot-hub-replica-", ""
	require.NoError(t, live.Create(t.Context(), forged))
	electorate.Invalidate()
	_, err = electorate.Locate(t.Context())
	require.ErrorIs(t, err, readapi.ErrSeveralAddresses)

	for _, url := range []string{"https://user:password@127.0.0.1:1", "https://127.0.0.1:1/another", "https://127.0.0.1:1?to=another", "https://127.0.0.1:1#x", "ftp://127.0.0.1", "https:"} {
		_, err := (&Forwarder{}).newRoute(readapi.ReplicaAddress{URL: url, Fingerprint: "key"})
		assert.Error(t, err, url)
	}
}

func TestNewReplicaAddress(t *testing.T) {
	assert.Equal(t, "https://10.0.0.7:8080", readapi.NewReplicaAddress("p", "10.0.0.7", ":8080", "key").URL)
	assert.Equal(t, "https://[fd00::7]:8080", readapi.NewReplicaAddress("p", "fd00::7", ":8080", "key").URL)
	assert.Equal(t, map[string]string{"pelotech.ot/process": "p", "pelotech.ot/read-api": "http://10.0.0.7:8080"}, readapi.NewReplicaAddress("p", "10.0.0.7", ":8080", "").Annotations())
}
