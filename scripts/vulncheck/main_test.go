package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckDatabase(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/good/index/db.json" {
			http.Error(w, "none", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("{}"))
	}))
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	t.Cleanup(server.Close)
	for name, tc := range map[string]struct{ database, wantError string }{
		"answers":        {server.URL + "/good/", ""},
		"a folder":       {"file:///anywhere", ""},
		"has no index":   {server.URL + "/other", "404 Not Found"},
		"unreachable":    {closed.URL, "connection refused"},
		"not an address": {"::", "missing protocol scheme"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkDatabase(t.Context(), tc.database)
			if tc.wantError == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.wantError)
		})
	}
}
