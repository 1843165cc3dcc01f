package playedfleet

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/ui"
)

// Viewer is the user of a Handler who may read alone.
const Viewer = "victor@example.com"

// HandlerOptions of a Handler.
type HandlerOptions struct {
	// Origin of the dashboard, as http://127.0.0.1:8089.
	Origin string
	// User who is signed in; anna@example.com for none, who may do everything.
	User string
	// Files of the app; those that are built in for nil.
	Files fs.FS
}

// Handler serves the dashboard of the fleet.
func (f *Fleet) Handler(o HandlerOptions) http.Handler {
	if o.User == "" {
		o.User = "anna@example.com"
	}
	reads := http.NewServeMux()
	for pattern, handler := range f.Handlers() {
		reads.Handle(pattern, handler)
	}
	caller := &ui.Caller{
		Server: &url.URL{Scheme: "https", Host: "played.example.com"}, Key: o.User,
		Transport: &apiServer{fleet: f, user: o.User, mayWrite: o.User != Viewer},
	}
	dashboard := ui.NewHandler(ui.Options{
		Origin: ui.Origins(o.Origin), Caller: func(*http.Request) (*ui.Caller, error) { return caller, nil }, Reads: reads,
		Version: agentVersion, HubVersion: agentVersion, HubNamespace: hubNamespace, Policy: types.NamespacedName{Namespace: hubNamespace, Name: policyName},
		Mode: func(*http.Request) ui.Mode { return ui.ModeToken },
	})
	if o.Files == nil {
		return dashboard
	}
	return serveFiles(dashboard, o.Files)
}

// serveFiles replaces the files of the app by others, with the same headers.
func serveFiles(dashboard http.Handler, files fs.FS) http.Handler {
	app := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch first, _, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/"); first {
		case "fleet", "auth", "k8s":
			dashboard.ServeHTTP(w, request)
			return
		}
		builtIn := httptest.NewRecorder()
		dashboard.ServeHTTP(builtIn, httptest.NewRequestWithContext(request.Context(), http.MethodGet, "http://"+request.Host+"/", nil))
		for name, values := range builtIn.Header() {
			if !strings.HasPrefix(name, "Content-") || name == "Content-Security-Policy" {
				w.Header()[name] = values
			}
		}
		w.Header().Del("Etag")
		w.Header().Set("Cache-Control", "no-store")
		if !strings.Contains(path.Base(request.URL.Path), ".") {
			request = request.Clone(request.Context())
			request.URL.Path = "/"
		}
		app.ServeHTTP(w, request)
	})
}
