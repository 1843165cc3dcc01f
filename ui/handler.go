// Package ui is the dashboard: its app, and the handler that the hub and kubectl ot dashboard
// serve it by, with reads of the read API, and writes that reach the API server with the caller's
// own credential alone.
package ui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxBodyBytes bounds the body of a request.
	maxBodyBytes = 64 << 10
	// maxHeaderBytes bounds the headers of a request; tokens with many groups are large.
	maxHeaderBytes = 64 << 10
	// maxErrorBytes bounds a message.
	maxErrorBytes = 1024

	// maxConcurrentStreams bounds the requests of one connection; a page has some ten at a time.
	maxConcurrentStreams = 64

	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	// answerTimeout bounds how long an answer may take to be made, and to be read.
	answerTimeout = 30 * time.Second
)

// WriteHeader must be 1 in each request that may change something: pages of other sites cannot
// send it.
const WriteHeader = "Ot-Fleet"

// Caller is whom a request acts for.
type Caller struct {
	// Server is the address of the API server, and Transport sends requests there with the
	// caller's own credential, and no other.
	Server    *url.URL
	Transport http.RoundTripper
	// Key is another one for each credential: what was found out about a caller is remembered
	// by it.
	Key string
	// ExpiresAt is when the credential or the session ends; nil where that is not known.
	ExpiresAt *metav1.Time
}

// NewCaller returns the Caller whose credential config has.
func NewCaller(config *rest.Config, key string) (*Caller, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	return &Caller{Server: server, Transport: transport, Key: key}, nil
}

type callerKey struct{}

// CallerFrom returns whom a request of Options.Reads acts for.
func CallerFrom(ctx context.Context) *Caller {
	caller, _ := ctx.Value(callerKey{}).(*Caller)
	return caller
}

// ErrSignedOut is the error of Options.Caller for a request without a credential.
var ErrSignedOut = errors.New("nobody is signed in: sign in, or open the dashboard by the address that was printed last")

// Options of a Handler.
type Options struct {
	// Origin returns the origin of the app by the Host header of a request, as
	// https://ot.example.com; false for a host that is not its own, as after DNS rebinding.
	Origin func(host string) (origin string, known bool)
	// Caller returns whom a request acts for. An error is answered with 401.
	Caller func(*http.Request) (*Caller, error)
	// Reads answers below /fleet/v1/. It authorizes the caller itself; CallerFrom has them.
	Reads http.Handler
	// Auth answers below /auth/, except /auth/me.
	Auth http.Handler
	// MayRead reports whether the caller may read the read API. nil: the API server says so.
	MayRead func(context.Context, *Caller) (bool, error)

	// Version is that of the program that serves the dashboard; HubVersion that of the hub, empty
	// where it is not known.
	Version, HubVersion string
	// HubNamespace is where the hub runs.
	HubNamespace string
	// Policy is the ConfigMap of the fleet's policy.
	Policy types.NamespacedName
	// Context is the kubeconfig's context of the hub, for commands that the app prints.
	Context string
	// Kubeconfig is the file of --kubeconfig that has the context, for the same commands.
	Kubeconfig string
	// Mode says how the caller of a request is signed in.
	Mode func(*http.Request) Mode
}

// Handler serves the app, the read API and the API server's answers under one origin.
//
// Invariant: a request acts with the caller's own credential, or not at all. Nothing of a
// request but a method, a name and a body of closed kinds reaches the API server.
type Handler struct {
	Options
	identities identityCache
	requests   *requestLimit
}

// NewHandler returns a Handler.
func NewHandler(o Options) *Handler { return &Handler{Options: o, requests: newRequestLimit()} }

// Origins returns a function for Options.Origin that knows these origins.
func Origins(origins ...string) func(host string) (string, bool) {
	byHost := make(map[string]string, len(origins))
	for _, origin := range origins {
		if _, host, ok := strings.Cut(origin, "://"); ok {
			byHost[host] = origin
		}
	}
	return func(host string) (string, bool) {
		origin, known := byHost[strings.ToLower(host)]
		return origin, known
	}
}

// NewServer returns a server of a handler, with bounds. Its answers have no timeout of their
// own: streams go on. It logs nothing of connections that fail: strangers make them.
func NewServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxConcurrentStreams}}
}

// refusal is an answer that is an error.
type refusal struct {
	status int
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }

func (r *refusal) Unwrap() error { return r.err }

func newRefusal(status int, message string) error { return &refusal{status, errors.New(message)} }

// WithStatus returns an error that WriteError answers with a status; others are a bad gateway.
func WithStatus(status int, err error) error { return &refusal{status, err} }

// Delayed is an error that says when to try again.
type Delayed interface {
	error
	RetryAfter() time.Duration
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w = newGuardedWriter(w, request)
	if err := h.handleRequest(w, request); err != nil {
		WriteError(w, err)
	}
}

// WriteError answers with an error as the read API does.
func WriteError(w http.ResponseWriter, err error) {
	status := http.StatusBadGateway
	var r *refusal
	switch {
	case errors.As(err, &r):
		status = r.status
	case errors.Is(err, ErrSignedOut):
		status = http.StatusUnauthorized
	}
	var delayed Delayed
	if errors.As(err, &delayed) {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(delayed.RetryAfter().Seconds()))))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(readapi.ErrorAnswer{Error: v1alpha1.SanitizeText(err.Error(), maxErrorBytes)}) // the caller is gone
}

func (h *Handler) handleRequest(w http.ResponseWriter, request *http.Request) error {
	origin, known := h.Origin(request.Host)
	if !known {
		return newRefusal(http.StatusMisdirectedRequest, "this is not the address of the dashboard: open it by the one it was given to you by")
	}
	path := request.URL.Path
	data := strings.HasPrefix(path, "/fleet/") || strings.HasPrefix(path, "/auth/") || strings.HasPrefix(path, "/k8s/")
	if data && request.URL.EscapedPath() != path {
		return newRefusal(http.StatusBadRequest, "the path has characters that are escaped: names have none")
	}
	if err := checkSite(request, origin, data); err != nil {
		return err
	}
	if err := boundBody(w, request); err != nil {
		return err
	}
	if !data {
		serveAsset(w, request)
		return nil
	}
	if strings.HasPrefix(path, "/auth/") && path != "/auth/me" {
		if h.Auth == nil {
			return newRefusal(http.StatusNotFound, "there is no such path")
		}
		h.Auth.ServeHTTP(w, request)
		return nil
	}
	caller, err := h.Caller(request)
	if err != nil {
		return signedOut(err)
	}
	request = request.WithContext(context.WithValue(request.Context(), callerKey{}, caller))
	removeIdentity(request.Header)
	switch {
	case strings.HasPrefix(path, readapi.Root):
		if request, err = toRead(request); err != nil {
			return err
		}
		w.Header().Set("Cache-Control", "private, no-cache")
		h.Reads.ServeHTTP(w, request)
		return nil
	case path == "/auth/me":
		return h.serveMe(w, request, caller)
	case strings.HasPrefix(path, "/k8s/"):
		return h.serveObject(w, request, caller)
	default:
		return newRefusal(http.StatusNotFound, "there is no such path")
	}
}

// removeIdentity removes what would name somebody else, or is for the dashboard alone.
func removeIdentity(header http.Header) {
	for name := range header {
		if name == "Cookie" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			header.Del(name)
		}
	}
}

func signedOut(err error) error {
	var r *refusal
	if errors.Is(err, ErrSignedOut) || errors.As(err, &r) {
		return err
	}
	return newRefusal(http.StatusUnauthorized, err.Error())
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// checkSite refuses what pages of other sites send: a browser adds Origin and Sec-Fetch-Site
// itself, and asks before it sends a header that forms cannot have.
func checkSite(request *http.Request, origin string, data bool) error {
	site := request.Header.Get("Sec-Fetch-Site")
	if isRead(request.Method) {
		if data && site != "" && site != "same-origin" && site != "none" {
			return newRefusal(http.StatusForbidden, "a page of another site asked for this")
		}
		return nil
	}
	switch {
	case request.Header.Get(WriteHeader) != "1":
		return newRefusal(http.StatusForbidden, "a change needs header "+WriteHeader+": 1, which the dashboard sends")
	case len(request.Header.Values("Origin")) != 1 || request.Header.Get("Origin") != origin:
		return newRefusal(http.StatusForbidden, "a change needs header Origin of the dashboard itself, "+origin)
	case site != "" && site != "same-origin":
		return newRefusal(http.StatusForbidden, "a page of another site asked for this change")
	}
	return nil
}

// boundBody bounds the size of a body and the time to send it.
func boundBody(w http.ResponseWriter, request *http.Request) error {
	if isRead(request.Method) {
		if request.ContentLength != 0 {
			return newRefusal(http.StatusBadRequest, "a request that reads has no body")
		}
		return nil
	}
	// Writers without deadlines are those of tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	if request.ContentLength > maxBodyBytes {
		return tooLarge()
	}
	request.Body = http.MaxBytesReader(w, request.Body, maxBodyBytes)
	return nil
}

func tooLarge() error {
	return newRefusal(http.StatusRequestEntityTooLarge, "the request is larger than 64 KiB")
}
