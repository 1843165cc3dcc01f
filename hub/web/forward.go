package web

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=hub-namespace,resources=leases,verbs=list

// forwardedHeader stands on a request that a replica has forwarded.
const forwardedHeader = "Ot-Hub-Forwarded"

// retryAfterSeconds is when whoever was refused for want of an elected replica may try again,
// in seconds.
const retryAfterSeconds = "2"

// Timeouts of a forwarded request. Its answer may take as long as it comes: whoever
// asked ends it, and pings tell a connection that is dead.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 30 * time.Second
	pingAfter     = 10 * time.Second
	pingTimeout   = 5 * time.Second
)

// Forwarder has what is asked of a replica that is not elected answered by the one
// that is: it alone sees the fleet.
//
// A request is forwarded after it was authorized here, with the caller's own
// credential, and authorized there again. So that the credential reaches nobody
// else, the other's certificate has to have the key whose fingerprint its Lease
// tells. A forwarded request is never forwarded again.
type Forwarder struct {
	// Elected is closed when this replica is.
	Elected <-chan struct{}
	// Leader tells where the elected replica serves.
	Leader *LeaderLocator
	// AllowPlainText allows to forward in plain text; never where this replica serves by HTTPS.
	AllowPlainText bool
	// AnswerTimeout ends the wait for the beginning of an answer; by default 30 s.
	AnswerTimeout time.Duration

	mu    sync.Mutex
	route *route
}

// route leads to the replica that was forwarded to last.
type route struct {
	address   ReplicaAddress
	transport *http.Transport
	proxy     http.Handler
}

// Wrap returns a handler that answers here where this replica is elected.
func (f *Forwarder) Wrap(here http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		select {
		case <-f.Elected:
			here.ServeHTTP(w, request)
			return
		default:
		}
		if err := f.forward(w, request); err != nil {
			writeUnavailable(w, err)
		}
	})
}

func (f *Forwarder) forward(w http.ResponseWriter, request *http.Request) error {
	if request.Header.Get(forwardedHeader) != "" {
		return errors.New("this replica of the hub is not elected, and another took it for the one that is")
	}
	to, err := f.Leader.Locate(request.Context())
	if err != nil {
		return err
	}
	r, err := f.routeTo(to)
	if err != nil {
		return err
	}
	r.proxy.ServeHTTP(w, request)
	return nil
}

func writeUnavailable(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", retryAfterSeconds)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error() + ": try again"}) // who asked is gone
}

func (f *Forwarder) routeTo(to ReplicaAddress) (*route, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.route != nil && f.route.address == to {
		return f.route, nil
	}
	r, err := f.newRoute(to)
	if err != nil {
		return nil, err
	}
	if f.route != nil {
		f.route.transport.CloseIdleConnections()
	}
	f.route = r
	return r, nil
}

var errWrongCertificate = errors.New("it shows another certificate than its Lease tells")

func (f *Forwarder) newRoute(to ReplicaAddress) (*route, error) {
	target, err := url.Parse(to.URL)
	if err != nil || target.Host == "" || target.User != nil || target.Path+target.RawQuery+target.Fragment != "" {
		return nil, fmt.Errorf("the Lease of the elected replica of the hub tells no address that one can ask, but %q", to.URL)
	}
	pinned := target.Scheme == "https" && to.Fingerprint != ""
	if plain := f.AllowPlainText && target.Scheme == "http"; !pinned && !plain {
		return nil, fmt.Errorf("the elected replica of the hub serves at %s without a certificate that is known, and nobody's credential is sent there", to.URL)
	}
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			ServerName:         replicaName,
			InsecureSkipVerify: true, //nolint:gosec // it is signed by itself, and told by its fingerprint
			VerifyConnection: func(state tls.ConnectionState) error {
				if len(state.PeerCertificates) == 0 || Fingerprint(state.PeerCertificates[0]) != to.Fingerprint {
					return errWrongCertificate
				}
				return nil
			},
		},
	}
	if f.AnswerTimeout > 0 {
		t.ResponseHeaderTimeout = f.AnswerTimeout
	}
	proxy := &httputil.ReverseProxy{
		Transport: t,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set(forwardedHeader, "true")
			if credential := callerCredential(r.In); credential != "" {
				r.Out.Header.Set("Authorization", credential)
			}
		},
		// A long answer is passed on as it comes.
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode == http.StatusServiceUnavailable {
				f.Leader.Invalidate() // it may not be elected any more
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, request *http.Request, err error) {
			f.Leader.Invalidate()
			logf.FromContext(request.Context()).V(1).Info("Forwarding a reader to the elected replica", "to", to.URL, "error", err.Error())
			writeUnavailable(w, fmt.Errorf("the elected replica of the hub does not answer at %s: %w", to.URL, err))
		},
		ErrorLog: log.New(io.Discard, "", 0), // answers that break off: who asked knows
	}
	return &route{address: to, transport: t, proxy: proxy}, nil
}
