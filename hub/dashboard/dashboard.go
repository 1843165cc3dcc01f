package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/ui"
)

const (
	// retryAfter is when to try again while the API server does not answer.
	retryAfter = 2 * time.Second
	// maxKnownTokens bounds the tokens that are known to be accepted; others count as attempts.
	maxKnownTokens = 4096
)

// readHeaders are all that the read API gets of a request, beside the credential.
var readHeaders = []string{"Accept", "Accept-Encoding", "If-None-Match", "Last-Event-Id", "User-Agent"}

// Options describe a dashboard.
type Options struct {
	// APIServer reaches the hub's API server with the hub's own rights.
	APIServer *rest.Config
	Access    *Access
	Keys      *KeyStore
	// Hosts are the names by which browsers reach the dashboard, by any port.
	Hosts []string
	// Reads are the handlers of the read API by path.
	Reads   map[string]http.Handler
	Metrics *metrics.Dashboard
	// App says where the app runs.
	App ui.Options
}

// dashboard answers browsers.
type dashboard struct {
	Options
	// anonymous reaches the API server with no credential at all.
	anonymous *rest.Config
	reads     *http.ServeMux
	limit     signInLimit
	// known are tokens that the API server has accepted: they count as no attempt.
	known *lru.Cache[[sha256.Size]byte, struct{}]
}

// NewHandler returns the handler of a dashboard.
func NewHandler(o Options) (http.Handler, error) {
	known, err := lru.New[[sha256.Size]byte, struct{}](maxKnownTokens)
	if err != nil {
		return nil, err
	}
	d := &dashboard{Options: o, anonymous: rest.AnonymousClientConfig(o.APIServer), reads: http.NewServeMux(), known: known}
	for path, handler := range o.Reads {
		d.reads.Handle(path, handler)
	}
	o.App.Origin, o.App.Caller = knownHosts(o.Hosts).origin, d.callerOf
	o.App.Reads, o.App.Auth = http.HandlerFunc(d.serveRead), http.HandlerFunc(d.serveAuth)
	o.App.Mode = func(request *http.Request) ui.Mode { return signInFrom(request.Context()).mode }
	app := ui.NewHandler(o.App)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		app.ServeHTTP(w, request.WithContext(context.WithValue(request.Context(), signInKey{}, &signIn{})))
	}), nil
}

// knownHosts are lower-case names.
type knownHosts []string

// origin returns the origin of a Host header; false for a host that is not the dashboard's own.
func (k knownHosts) origin(host string) (string, bool) {
	host = strings.ToLower(host)
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ""
	}
	if port == "443" {
		host = strings.TrimSuffix(host, ":443") // browsers leave it out of Origin
	}
	for _, known := range k {
		if name == known {
			return "https://" + host, true
		}
	}
	return "", false
}

// signIn is by which token a request acts, and whose it is.
type signIn struct {
	token string
	mode  ui.Mode
	user  user.Info
}

type signInKey struct{}

func signInFrom(ctx context.Context) *signIn {
	s, _ := ctx.Value(signInKey{}).(*signIn)
	return s
}

// callerOf returns whom a request acts for: the token in Authorization, which a proxy puts there,
// wins over that in the cookies. The API server judges the token before anything else is done for it,
// and again with each request to it.
func (d *dashboard) callerOf(request *http.Request) (*ui.Caller, error) {
	mode := ui.ModeProxy
	token, err := bearerToken(request.Header)
	end, hasEnd := tokenEnd(token)
	if err == nil && token == "" {
		mode, hasEnd = ui.ModeToken, true
		token, end, err = d.Keys.openCookies(request, time.Now())
	}
	switch {
	case errors.Is(err, errSeveralHeaders):
		return nil, err
	case errors.Is(err, errNoKeys):
		return nil, describeRefusal(request, err)
	case err != nil: // no cookie, or none that can be read
		return nil, ui.ErrSignedOut
	case !isToken(token), hasEnd && !time.Now().Before(end): // reviews are remembered for longer
		return nil, errNotAccepted
	}
	of, err := d.identify(request, token, mode == ui.ModeProxy)
	if err != nil {
		return nil, describeRefusal(request, err)
	}
	s := signInFrom(request.Context())
	s.token, s.mode, s.user = token, mode, of
	cfg := rest.CopyConfig(d.anonymous)
	cfg.BearerToken = token
	sum := sha256.Sum256([]byte(token))
	caller, err := ui.NewCaller(cfg, hex.EncodeToString(sum[:]))
	if err == nil && hasEnd {
		caller.ExpiresAt = &metav1.Time{Time: end}
	}
	return caller, err
}

// serveRead answers what the user of the token may read. The elected replica, which a request may be
// forwarded to, judges the token again.
func (d *dashboard) serveRead(w http.ResponseWriter, request *http.Request) {
	s := signInFrom(request.Context())
	// Invariant: the API server is asked about paths that there are, and about the root for all
	// others: a caller cannot make up ever new questions.
	path := readapi.Root
	if _, pattern := d.reads.Handler(request); pattern != "" {
		path = pattern
	}
	if err := d.checkRead(request, s.user, request.Method, path); err != nil {
		ui.WriteError(w, describeRefusal(request, err))
		return
	}
	header := http.Header{"Authorization": {"Bearer " + s.token}}
	for _, name := range readHeaders {
		if values := request.Header.Values(name); len(values) > 0 {
			header[name] = values
		}
	}
	request = request.Clone(request.Context())
	request.Header = header
	d.reads.ServeHTTP(w, request)
}

// refusedRead is a user without the right to read.
type refusedRead struct{ user, method, path string }

func (r *refusedRead) Error() string {
	return fmt.Sprintf("%s may not %s %s: that takes ClusterRole ot-hub-reader, by a ClusterRoleBinding", r.user, strings.ToLower(r.method), r.path)
}

// limited is an attempt that has to wait.
type limited struct{ wait time.Duration }

func (*limited) Error() string { return "too many sign-ins failed: wait a moment" }

// RetryAfter implements ui.Delayed.
func (l *limited) RetryAfter() time.Duration { return l.wait }

// unavailable is an API server that does not answer.
type unavailable struct{}

func (unavailable) Error() string {
	return "the API server does not answer who you are and what you may read: try again"
}

// RetryAfter implements ui.Delayed.
func (unavailable) RetryAfter() time.Duration { return retryAfter }

// identify returns the user of a token. Where it may be a guess, those that are not accepted are
// limited. One from the cookies is none: it was accepted before this hub sealed it.
func (d *dashboard) identify(request *http.Request, token string, mayBeGuess bool) (user.Info, error) {
	key := sha256.Sum256([]byte(token))
	end := func(bool) {}
	if mayBeGuess && !d.known.Contains(key) {
		var wait time.Duration
		if end, wait = d.limit.beginAttempt(request.RemoteAddr, key, time.Now()); wait > 0 {
			return nil, &limited{wait}
		}
	}
	of, err := d.Access.userOf(request.Context(), token)
	switch {
	case errors.Is(err, errNotAccepted):
		d.known.Remove(key)
	case err == nil:
		d.known.Add(key, struct{}{})
	}
	end(!errors.Is(err, errNotAccepted)) // that the API server does not answer is no failure of this person
	return of, err
}

// checkRead returns a refusedRead, or an error where the API server does not answer.
func (d *dashboard) checkRead(request *http.Request, of user.Info, method, path string) error {
	allowed, err := d.Access.mayRead(request.Context(), of, method, path)
	if err == nil && !allowed {
		err = &refusedRead{of.GetName(), method, path}
	}
	return err
}

// describeRefusal returns an error with its status for a person.
func describeRefusal(request *http.Request, err error) error {
	var refused *refusedRead
	var tooMany *limited
	switch {
	case errors.Is(err, errNotAccepted):
		return ui.WithStatus(http.StatusUnauthorized, err)
	case errors.As(err, &refused):
		return ui.WithStatus(http.StatusForbidden, err)
	case errors.As(err, &tooMany):
		return ui.WithStatus(http.StatusTooManyRequests, err)
	default:
		log.FromContext(request.Context()).V(1).Info("Failed to ask the API server about a caller of the dashboard", "path", request.URL.Path, "error", err.Error())
		return ui.WithStatus(http.StatusServiceUnavailable, unavailable{})
	}
}
