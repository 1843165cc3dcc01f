package health

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSendHead(t *testing.T) {
	var method, credential string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method, credential = r.Method, r.Header.Get("Authorization")
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", "42")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "answer")
	send := func(url string) (answer HeadAnswer) {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.NoError(t, SendHead(t.Context(), url, file))
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &answer))
		return answer
	}
	answer := send(server.URL + "/a")
	assert.Equal(t, http.StatusOK, answer.Status)
	assert.Equal(t, int64(42), answer.Bytes)
	assert.Equal(t, http.MethodHead, method)
	assert.Empty(t, credential)
	assert.Equal(t, http.StatusNotFound, send(server.URL+"/gone").Status)
	assert.Contains(t, send("http://127.0.0.1:1/").Error, "refused")
	assert.NotEmpty(t, send("http://a b/").Error)

	unverified := httptest.NewTLSServer(http.NotFoundHandler())
	defer unverified.Close()
	assert.Contains(t, send(unverified.URL).Error, "certificate")

	require.NoError(t, SendHead(t.Context(), server.URL, filepath.Join(t.TempDir(), "none")))
}
