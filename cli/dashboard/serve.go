package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/ui"
)

// discardLog has no words of strangers on the person's terminal.
var discardLog = log.New(io.Discard, "", 0)

// Options say what is served.
type Options struct {
	// Port to listen on; 0 for any.
	Port int
	// Caller reaches the API server by the kubeconfig.
	Caller *ui.Caller
	Reads  *ReadAPI

	Version, HubVersion, HubNamespace, Context string
	// Kubeconfig is the file of --kubeconfig; empty for none.
	Kubeconfig string
	Policy     types.NamespacedName
	// SameUser reports whether a connection is from a process of the person; nil where this
	// machine cannot tell.
	SameUser func(net.Conn) bool
}

// Dashboard is a dashboard that listens.
type Dashboard struct {
	*Sessions
	listener net.Listener
	server   *http.Server
	origin   string
}

// Listen listens on this machine alone.
func Listen(o Options) (*Dashboard, error) {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)))
	if err != nil {
		return nil, fmt.Errorf("--port %d: %w", o.Port, err)
	}
	d := &Dashboard{Sessions: NewSessions(), listener: listener, origin: "http://" + listener.Addr().String()}
	handler := ui.NewHandler(ui.Options{
		Origin: ui.Origins(d.origin),
		Caller: func(request *http.Request) (*ui.Caller, error) {
			if !d.isSignedIn(request) {
				return nil, ui.ErrSignedOut
			}
			return o.Caller, nil
		},
		Reads: o.Reads.Handler(), Auth: d.Sessions, MayRead: o.Reads.MayRead, Mode: func(*http.Request) ui.Mode { return ui.ModeLocal },
		Version: o.Version, HubVersion: o.HubVersion, HubNamespace: o.HubNamespace, Policy: o.Policy, Context: o.Context, Kubeconfig: o.Kubeconfig,
	})
	d.server = ui.NewServer(refuseOtherUsers(handler))
	d.server.ErrorLog = discardLog
	if o.SameUser != nil {
		d.server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, otherUserKey{}, !o.SameUser(conn))
		}
	}
	return d, nil
}

type otherUserKey struct{}

// errOtherUser is the answer to a connection of another user of this machine. Ports of
// 127.0.0.1 and the cookies of their pages are for all of them.
var errOtherUser = errors.New("this dashboard acts as another user of this machine: run kubectl ot dashboard yourself")

func refuseOtherUsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if other, _ := request.Context().Value(otherUserKey{}).(bool); other {
			ui.SetSecurityHeaders(w.Header())
			ui.WriteError(w, ui.WithStatus(http.StatusForbidden, errOtherUser))
			return
		}
		next.ServeHTTP(w, request)
	})
}

// NewURL returns an address that one browser can open, once. What follows # is not sent, and in no
// log.
func (d *Dashboard) NewURL() string { return d.origin + "/#key=" + d.NewKey() }

// ServeUntil serves until ctx ends. Streams that are open then end at once.
func (d *Dashboard) ServeUntil(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = d.server.Close() })
	defer stop()
	if err := d.server.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the dashboard: %w", err)
	}
	return ctx.Err()
}
