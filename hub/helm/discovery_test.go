package helm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/transport"
)

// kindServer serves the lists of kinds that servers without aggregated discovery have.
type kindServer struct {
	versions int
	// name is before the number of each version.
	name string
	// version answers a request for the kinds of one version.
	version http.HandlerFunc

	requests, current, most atomic.Int32
}

func (s *kindServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	if now := s.current.Add(1); now > s.most.Load() {
		s.most.Store(now)
	}
	defer s.current.Add(-1)
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api":
		_, _ = io.WriteString(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case "/apis":
		group := metav1.APIGroup{Name: "a"}
		for i := range s.versions {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: fmt.Sprintf("a/v%s%d", s.name, i), Version: fmt.Sprintf("v%s%d", s.name, i)})
		}
		_ = json.NewEncoder(w).Encode(metav1.APIGroupList{Groups: []metav1.APIGroup{group}})
	default:
		s.version(w, r)
	}
}

func writeKinds(w http.ResponseWriter, r *http.Request) {
	_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
		GroupVersion: strings.TrimPrefix(r.URL.Path, "/apis/"), APIResources: []metav1.APIResource{{Name: "things", Kind: "Thing"}},
	})
}

// discoveryOf returns what Helm discovers kinds with.
func discoveryOf(ctx context.Context, t *testing.T, handler http.Handler) discovery.CachedDiscoveryInterface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	member, err := NewMember(ctx, &rest.Config{Host: server.URL}, Options{Namespace: "ot-agent", RequestTimeout: 10 * time.Second, Fence: func() error { return nil }})
	require.NoError(t, err)
	t.Cleanup(member.Close)
	found, err := member.ToDiscoveryClient()
	require.NoError(t, err)
	return found
}

// The server of a member decides how many versions it names, and how much each has.
func TestDiscoveryIsBounded(t *testing.T) {
	t.Parallel()
	large := []byte(`{"kind":"APIResourceList","resources":[{}` + strings.Repeat(",{}", 100_000) + `]}`) // 25 MiB, as they are counted
	for name, tt := range map[string]struct {
		versions     int
		name         string
		version      http.HandlerFunc
		want         string
		wantRequests int32 // at most
	}{
		"more versions than a cluster has": {versions: 50_000, version: writeKinds, want: "versions of groups", wantRequests: 2},
		"versions that are large": {
			versions: maxGroupVersions - 1, version: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(large) },
			want: "together", wantRequests: 8,
		},
		"a name that no version has": {versions: 1, name: strings.Repeat("v", 1<<20), version: writeKinds, want: "a name of more than", wantRequests: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			server := &kindServer{versions: tt.versions, name: tt.name, version: tt.version}
			_, _, err := discoveryOf(ctx, t, server).ServerGroupsAndResources()
			limit := (*transport.LimitError)(nil)
			require.ErrorAs(t, err, &limit)
			assert.Contains(t, limit.Bound, tt.want)
			assert.LessOrEqual(t, server.requests.Load(), tt.wantRequests)
			assert.Equal(t, int32(1), server.most.Load(), "requests at a time")
		})
	}
}

func TestDiscoveryEndsWithItsSession(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("the attempt is over")
	server := &kindServer{versions: maxGroupVersions - 1, version: func(w http.ResponseWriter, r *http.Request) {
		cancel(ended)
		<-r.Context().Done()
	}}
	_, _, err := discoveryOf(ctx, t, server).ServerGroupsAndResources()
	require.Error(t, err)
	assert.LessOrEqual(t, server.requests.Load(), int32(3))
}

// An API service that is down hides no kinds but its own, and what it says is not logged at
// any length.
func TestDiscoveryWithoutOneVersion(t *testing.T) {
	t.Parallel()
	server := &kindServer{versions: 3, version: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/a/v1" {
			http.Error(w, strings.Repeat("down ", 10_000), http.StatusNotFound)
			return
		}
		writeKinds(w, r)
	}}
	found := discoveryOf(t.Context(), t, server)
	for range 2 {
		groups, resources, err := found.ServerGroupsAndResources()
		failed := (*discovery.ErrGroupDiscoveryFailed)(nil)
		require.ErrorAs(t, err, &failed)
		require.Contains(t, failed.Groups, schema.GroupVersion{Group: "a", Version: "v1"})
		assert.Less(t, len(failed.Error()), 1000)
		assert.Len(t, groups, 2)
		assert.Len(t, resources, 3)
	}
	assert.Equal(t, int32(6), server.requests.Load(), "it is read once")
	assert.True(t, found.Fresh())

	one, err := found.ServerResourcesForGroupVersion("a/v2")
	require.NoError(t, err)
	assert.Equal(t, "a/v2", one.GroupVersion)
	_, err = found.ServerResourcesForGroupVersion("a/v1")
	require.ErrorIs(t, err, memory.ErrCacheNotFound)
	list, err := found.ServerGroups()
	require.NoError(t, err)
	assert.Len(t, list.Groups, 2)

	found.Invalidate()
	assert.False(t, found.Fresh())
	_, _, _ = found.ServerGroupsAndResources()
	assert.Equal(t, int32(12), server.requests.Load())
}
