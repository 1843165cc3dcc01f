package playedfleet

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// contentSecurityPolicy is that of the dashboard's server.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the read API, the files of the app, and who is signed in.
func (f *Fleet) Handler(files fs.FS) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range f.Handlers() {
		mux.Handle(pattern, handler)
	}
	mux.HandleFunc("GET /auth/me", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(playedMe) // the caller is gone
	})
	mux.HandleFunc("/k8s/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotImplemented)
		_ = json.NewEncoder(w).Encode(readapi.ErrorAnswer{Error: "the played fleet has no API server: open the dashboard of make up"})
	})
	app := http.FileServerFS(files)
	mux.HandleFunc("/", func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Security-Policy", contentSecurityPolicy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !strings.Contains(path.Base(request.URL.Path), ".") {
			request = request.Clone(request.Context())
			request.URL.Path = "/"
		}
		app.ServeHTTP(w, request)
	})
	return mux
}

type playedPermission struct {
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
	Allowed  bool   `json:"allowed"`
	Role     string `json:"role,omitempty"`
}

var playedMe = map[string]any{
	"user": "anna@example.com", "groups": []string{"platform-leads", "system:authenticated"}, "mode": "token", "signOut": true, "hubVersion": "v0.3.0",
	"policyNamespace": policyKey.Namespace, "policyName": policyKey.Name, "canSignOut": true, "hubNamespace": "ot-hub",
	"may": []playedPermission{
		{"get", "fleet", true, "ot-hub-reader"},
		{"approve", "fleetdiskimages", true, "ot-fleet-approver"},
		{"update", "fleetdiskimages", true, "ot-fleet-author"},
		{"create", "prunereports", true, "ot-fleet-author"},
		{"approve", "imageprunes", true, "ot-fleet-pruner"},
		{"update", "imageprunes", true, "ot-fleet-approver"},
		{"delete", "imageprunes", true, "ot-fleet-pruner"},
		{"update", "memberclusters", false, ""},
		{"update", "configmaps", true, ""},
		{"create", "configmaps", true, ""},
	},
}
