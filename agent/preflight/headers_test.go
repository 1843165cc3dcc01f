package preflight_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// tenantServer has the image for requests with all headers that CDI would send, and for no other.
func tenantServer(t *testing.T) (url string, methods *[]string) {
	t.Helper()
	methods = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*methods = append(*methods, r.Method)
		switch {
		case r.URL.Path == "/never", r.Header.Get("X-Tenant") != "blue" || r.Header.Get("Authorization") != "Bearer s3cr3t",
			r.URL.Path == "/get" && r.Method == http.MethodHead:
			w.WriteHeader(http.StatusForbidden)
		default:
			w.Header().Set("Content-Length", "4711")
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, methods
}

func TestHeadersAreSent(t *testing.T) {
	url, _ := tenantServer(t)
	secrets := map[types.NamespacedName]map[string][]byte{
		{Namespace: "ns", Name: "token"}: {"a": []byte("Authorization: Bearer s3cr3t")},
		{Namespace: "ns", Name: "large"}: {"a": []byte("Authorization: Bearer s3cr3t"), "b": []byte("X-Key: " + strings.Repeat("v", 8<<10))},
		{Namespace: "ns", Name: "wrong"}: {"a": []byte("Authorization: Bearer s3cr3t\n")},
	}
	for name, tt := range map[string]struct {
		path, headers, secrets string
		wantSize               int64
		wantRefused            bool
	}{
		"all":                      {"/a", "X-Tenant: blue", "token", 4711, false},
		"all, where HEAD fails":    {"/get", "X-Tenant: blue", "token", 4711, false},
		"too few":                  {"/a", "X-Tenant: blue", "", 0, true},
		"none":                     {"/a", "", "", 0, true},
		"all, and refused":         {"/never", "X-Tenant: blue", "token", 0, true},
		"of a Secret that is gone": {"/never", "X-Tenant: blue", "gone", 0, false},
		"that are too large":       {"/never", "X-Tenant: blue", "large", 0, false},
		"of another namespace":     {"/never", "X-Tenant: blue", "elsewhere", 0, false},
		"that cannot be sent":      {"/never", "X-Tenant: blue", "wrong", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProber()
			p.SetSecrets(func(key types.NamespacedName) (map[string][]byte, error) {
				if data, ok := secrets[key]; ok {
					return data, nil
				}
				return nil, errors.New("not found")
			})
			source := newSource("uid", url+tt.path)
			source.Headers, source.HeaderSecrets = tt.headers, tt.secrets
			result := probeAndWait(t, p, source)
			assert.True(t, result.Known)
			assert.Equal(t, tt.wantSize, result.Size)
			require.Equal(t, tt.wantRefused, result.Refused != nil)
			if tt.wantRefused {
				assert.Equal(t, v1alpha1.ReasonForbidden, result.Refused.Reason)
				assert.False(t, strings.Contains(result.Refused.Message, "s3cr3t") || strings.Contains(result.Refused.Message, "blue"), result.Refused.Message)
			}
		})
	}
}

func TestChangedHeadersAreAnotherSource(t *testing.T) {
	url, methods := tenantServer(t)
	p := newProber()
	source := newSource("uid", url)
	require.NotNil(t, probeAndWait(t, p, source).Refused)
	changed, secret := source, source
	changed.Headers, secret.HeaderSecrets = "X-Tenant: blue", "token"
	for _, other := range []preflight.Source{changed, secret} {
		assert.False(t, p.CachedResult(other).Known)
	}
	assert.Equal(t, []string{http.MethodHead, http.MethodGet}, *methods)
}
