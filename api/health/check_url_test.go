package health_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/health"
)

func TestCheckURL(t *testing.T) {
	asked := ""
	serves := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		asked = request.Header.Get("Authorization")
		if asked == "Bearer refused" {
			http.Error(w, "who is that", http.StatusForbidden)
		}
	}))
	t.Cleanup(serves.Close)

	for name, test := range map[string]struct {
		url, token string
		wantAsked  string
		wantErr    string
	}{
		"served":        {url: serves.URL, token: "mine\n", wantAsked: "Bearer mine"},
		"no token":      {url: serves.URL},
		"refused":       {url: serves.URL, token: "refused", wantAsked: "Bearer refused", wantErr: "403 Forbidden: who is that"},
		"nobody there":  {url: "http://127.0.0.1:1", wantErr: "refused"},
		"not a URL":     {url: "://", wantErr: "requesting ://"},
		"not by HTTP":   {url: "ftp://127.0.0.1", wantErr: "unsupported protocol"},
		"no such page":  {url: "http://127.0.0.1:1/none", wantErr: "/none"},
		"another token": {url: serves.URL, token: "other", wantAsked: "Bearer other"},
	} {
		t.Run(name, func(t *testing.T) {
			asked = ""
			file := filepath.Join(t.TempDir(), "token")
			if test.token != "" {
				require.NoError(t, os.WriteFile(file, []byte(test.token), 0o600))
			}
			err := health.CheckURL(t.Context(), test.url, file)
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, test.wantAsked, asked)
		})
	}
}
