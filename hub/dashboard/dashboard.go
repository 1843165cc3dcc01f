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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/ui"
)

// retryAfterSeconds is the Retry-After while the API server does not answer.
const retryAfterSeconds = "2"

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
}

// NewHandler returns the handler of a dashboard.
func NewHandler(o Options) http.Handler {
	d := &dashboard{Options: o, anonymous: rest.AnonymousClientConfig(o.APIServer), reads: http.NewServeMux()}
	for path, handler := range o.Reads {
		d.reads.Handle(path, handler)
	}
	o.App.Origin, o.App.Caller = knownHosts(o.Hosts).origin, d.callerOf
	o.App.Reads, o.App.Auth = http.HandlerFunc(d.serveRead), http.HandlerFunc(d.serveAuth)
	o.App.Mode = func(request *http.Request) ui.Mode { return signInFrom(request.Context()).mode }
	app := ui.NewHandler(o.App)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		app.ServeHTTP(w, request.WithContext(context.WithValue(request.Context(), signInKey{}, &signIn{})))
	})
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

// signIn is by which token a request acts.
type signIn struct {
	token string
	mode  ui.Mode
}

type signInKey struct{}

func signInFrom(ctx context.Context) *signIn {
	s, _ := ctx.Value(signInKey{}).(*signIn)
	return s
}

// callerOf returns whom a request acts for: the token in Authorization, which a proxy puts there,
// wins over that in the cookies. The API server judges the token, with each request to it.
func (d *dashboard) callerOf(request *http.Request) (*ui.Caller, error) {
	mode := ui.ModeProxy
	token, err := bearerToken(request.Header)
	end, hasEnd := tokenEnd(token)
	if err == nil && token == "" {
		mode, hasEnd = ui.ModeToken, true
		token, end, err = d.Keys.openCookies(request, time.Now())
	}
	switch {
	case errors.Is(err, errNoCookie), errors.Is(err, errUnreadable), errors.Is(err, errCookieEnded):
		return nil, ui.ErrSignedOut
	case err != nil:
		return nil, err
	case !isToken(token), hasEnd && !time.Now().Before(end): // reviews are remembered for longer
		return nil, errNotAccepted
	}
	s := signInFrom(request.Context())
	s.token, s.mode = token, mode
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
	token := signInFrom(request.Context()).token
	if err := d.checkRead(request.Context(), token, request.Method, request.URL.Path); err != nil {
		writeRefusal(w, request, err)
		return
	}
	header := http.Header{"Authorization": {"Bearer " + token}}
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

// checkRead returns errNotAccepted, a refusedRead, or an error where the API server does not answer.
func (d *dashboard) checkRead(ctx context.Context, token, method, path string) error {
	of, err := d.Access.userOf(ctx, token)
	if err != nil {
		return err
	}
	allowed, err := d.Access.mayRead(ctx, of, method, path)
	if err == nil && !allowed {
		err = &refusedRead{of.GetName(), method, path}
	}
	return err
}

// writeRefusal answers with an error of checkRead.
func writeRefusal(w http.ResponseWriter, request *http.Request, err error) {
	var refused *refusedRead
	switch {
	case errors.Is(err, errNotAccepted):
		writeError(w, http.StatusUnauthorized, err.Error())
	case errors.As(err, &refused):
		writeError(w, http.StatusForbidden, err.Error())
	default:
		log.FromContext(request.Context()).V(1).Info("Failed to ask the API server about a caller of the dashboard", "path", request.URL.Path, "error", err.Error())
		w.Header().Set("Retry-After", retryAfterSeconds)
		writeError(w, http.StatusServiceUnavailable, "the API server does not answer who you are and what you may read: try again")
	}
}

// maxMessageBytes bounds a message: names of users are as long as their tokens say.
const maxMessageBytes = 1024

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, readapi.ErrorAnswer{Error: v1alpha1.SanitizeText(message, maxMessageBytes)})
}
