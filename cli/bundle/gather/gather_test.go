package gather

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/cli/bundle"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// The newest lines of a log are kept, not the first ones.
func TestTailKeepsTheEnd(t *testing.T) {
	end := &tail{size: 100}
	for i := range 1000 {
		_, err := fmt.Fprintf(end, "line %d\n", i)
		require.NoError(t, err)
	}
	assert.Len(t, end.String(), 100)
	assert.True(t, strings.HasSuffix(end.String(), "line 998\nline 999\n"))
	short := &tail{size: 100}
	_, err := short.Write([]byte("a"))
	require.NoError(t, err)
	assert.Equal(t, "a", short.String())
}

// serveImages serves VMDiskImages, each of some bytes, in pages as asked for.
func serveImages(t *testing.T, count, bytes int) *connect.Cluster {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","groups":[{"name":"pelotech.ot","versions":[{"groupVersion":"pelotech.ot/v1alpha1","version":"v1alpha1"}]}]}`))
		case "/apis/pelotech.ot/v1alpha1":
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","groupVersion":"pelotech.ot/v1alpha1","resources":[{"name":"vmdiskimages","kind":"VMDiskImage","namespaced":true}]}`))
		default:
			var first, limit int
			_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &first)
			_, err := fmt.Sscan(r.URL.Query().Get("limit"), &limit)
			assert.NoError(t, err, "each list is bounded")
			var items []map[string]any
			for i := first; i < min(count, first+limit); i++ {
				items = append(items, map[string]any{
					"apiVersion": "pelotech.ot/v1alpha1", "kind": "VMDiskImage", "metadata": map[string]any{"name": fmt.Sprintf("i%06d", i)},
					"spec": map[string]any{"overlay": strings.Repeat("x", bytes)},
				})
			}
			metadata := map[string]any{}
			if first+limit < count {
				metadata["continue"] = fmt.Sprint(first + limit)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "pelotech.ot/v1alpha1", "kind": "VMDiskImageList", "metadata": metadata, "items": items})
		}
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	c, err := client.NewWithWatch(config, client.Options{Scheme: connect.Scheme})
	require.NoError(t, err)
	return &connect.Cluster{Context: "frankfurt", Config: config, Client: c}
}

func TestKindsAreReadInPages(t *testing.T) {
	g := New(Options{Now: time.Now})
	g.list(t.Context(), serveImages(t, 3*pageSize+1, 10), "hub", kindList{version: own, kind: "VMDiskImage"})
	b, err := g.Finish()
	require.NoError(t, err)
	require.Len(t, b.Files, 1)
	assert.Equal(t, 3*pageSize+1, strings.Count(string(b.Files[0].Content), "kind: VMDiskImage\n"))
	assert.Empty(t, b.Unread)
}

// What has no room is told, and not kept in memory.
func TestKindsAreBounded(t *testing.T) {
	const size = 256 << 10
	g := New(Options{Now: time.Now})
	g.list(t.Context(), serveImages(t, 2*bundle.MaxFileBytes/size, size), "hub", kindList{version: own, kind: "VMDiskImage"})
	kept := len(g.objects["hub/vmdiskimages.yaml"])
	assert.Positive(t, kept)
	assert.LessOrEqual(t, kept, bundle.MaxFileBytes/size)
	require.Len(t, g.bundle.Unread, 1)
	assert.Contains(t, g.bundle.Unread[0].Why, fmt.Sprintf("only the first %d objects", kept))
}
