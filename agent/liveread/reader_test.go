package liveread_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/liveread"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newReader returns a Reader of an API server that serves claims.
func newReader(t *testing.T, handler http.HandlerFunc) *liveread.Reader {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), meta.RESTScopeNamespace)
	scheme := startup.NewScheme(clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme)
	reader, err := liveread.New(&rest.Config{Host: server.URL}, nil, mapper, scheme)
	require.NoError(t, err)
	return reader
}

func metadataList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaimList"})
	return list
}

// newClaim returns the text of a claim with so many annotations.
func newClaim(t *testing.T, name string, annotations int) string {
	o := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationClonedFrom: "image/r/1/claim"}}}
	for i := range annotations {
		o.Annotations[fmt.Sprintf("a%05d", i)] = ""
	}
	text, err := json.Marshal(o)
	require.NoError(t, err)
	return string(text)
}

func TestListsOfLargeObjectsOfOthersTakeTheMemoryOfOne(t *testing.T) {
	const objects = 25
	large := newClaim(t, "x-root", 43_000)
	var before, most uint64
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	reader := newReader(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, `{"kind":"PersistentVolumeClaimList","metadata":{"resourceVersion":"7"},"items":[`)
		for i := range objects {
			if i > 0 {
				_, _ = fmt.Fprint(w, ",")
			}
			_, _ = fmt.Fprint(w, large)
			most = max(most, heap())
		}
		_, _ = fmt.Fprint(w, `]}`)
	})
	before = heap()
	for _, list := range []client.ObjectList{metadataList(), &corev1.PersistentVolumeClaimList{}} {
		most = 0
		require.NoError(t, reader.List(t.Context(), list))
		assert.Equal(t, objects, meta.LenList(list))
		assert.Less(t, most-min(most, before), uint64(30<<20))
		assert.Less(t, heap()-min(heap(), before), uint64(8<<20))
		items, err := meta.ExtractList(list)
		require.NoError(t, err)
		assert.Equal(t, map[string]string{v1alpha1.AnnotationClonedFrom: "image/r/1/claim"}, items[0].(client.Object).GetAnnotations())
	}
}

func TestPagesAreReadToTheirEnd(t *testing.T) {
	var requests []string
	reader := newReader(t, func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.URL.String())
		next := map[string]string{"": "b", "b": "c"}[r.URL.Query().Get("continue")]
		_, _ = fmt.Fprintf(w, `{"kind":"PersistentVolumeClaimList","items":[%s],"unknown":{"a":[]},"metadata":{"continue":%q,"resourceVersion":"7"}}`, newClaim(t, "x", 0), next)
	})
	var list corev1.PersistentVolumeClaimList
	require.NoError(t, reader.List(t.Context(), &list, client.InNamespace("ns"), client.HasLabels{"a/b"}, client.MatchingFields{"metadata.name": "x"}))
	assert.Len(t, list.Items, 3)
	assert.Equal(t, []string{"", "7"}, []string{list.Continue, list.ResourceVersion})
	require.Len(t, requests, 3)
	assert.Equal(t, "/api/v1/namespaces/ns/persistentvolumeclaims?continue=c&fieldSelector=metadata.name%3Dx&labelSelector=a%2Fb&limit=50", requests[2])

	requests = nil
	require.NoError(t, reader.List(t.Context(), &list, client.Limit(500), client.Continue("b")))
	assert.Len(t, list.Items, 1, "items of a former list")
	assert.Equal(t, "c", list.Continue)
	assert.Equal(t, []string{"/api/v1/persistentvolumeclaims?continue=b&limit=50"}, requests)
}

func TestListThatIsNotCompleteIsAnError(t *testing.T) {
	const list = `{"kind":"PersistentVolumeClaimList","metadata":{"resourceVersion":"7"},`
	for name, tt := range map[string]struct {
		body string
		want string
	}{
		"in an item":         {list + `"items":[{"metadata":{"name":"a"}},{"meta`, "unexpected EOF"},
		"after an item":      {list + `"items":[{"metadata":{"name":"a"}}`, "EOF"},
		"after the items":    {list + `"items":[{"metadata":{"name":"a"}}]`, "EOF"},
		"empty":              {``, "EOF"},
		"no list":            {`[]`, "it has [ where { is expected"},
		"items are no list":  {list + `"items":{}}`, "its items begin with {"},
		"an item is no item": {list + `"items":["a"]}`, "cannot unmarshal string"},
		"a proxy's failure": {`{"kind":"Status","metadata":{},"status":"Failure","message":"request timed out","code":500}`,
			`it is a "Status" with resourceVersion "", and no complete PersistentVolumeClaimList`},
		"a list of another kind":   {`{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]}`, `it is a "PodList"`},
		"an empty object":          {`{}`, "no complete"},
		"without items":            {list + `"a":1}`, "no complete"},
		"without resourceVersion":  {`{"kind":"PersistentVolumeClaimList","metadata":{},"items":[]}`, "no complete"},
		"followed by text":         {list + `"items":[]} trailing`, "invalid character"},
		"followed by another list": {list + `"items":[]}{}`, "more than one object"},
	} {
		t.Run(name, func(t *testing.T) {
			reader := newReader(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, tt.body) })
			require.ErrorContains(t, reader.List(t.Context(), metadataList()), tt.want)
			assert.ErrorContains(t, reader.List(t.Context(), &corev1.PersistentVolumeClaimList{}), tt.want)
		})
	}
	for name, body := range map[string]string{
		"nothing": list + `"items":null}` + "\n", "metadata": `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7"},"items":[]}`,
	} {
		t.Run("complete: "+name, func(t *testing.T) {
			reader := newReader(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) })
			require.NoError(t, reader.List(t.Context(), metadataList()))
			assert.Equal(t, name == "metadata", reader.List(t.Context(), &corev1.PersistentVolumeClaimList{}) != nil)
		})
	}
	var dies atomic.Bool
	reader := newReader(t, func(w http.ResponseWriter, _ *http.Request) {
		dies.Store(true)
		_, _ = fmt.Fprint(w, list+`"items":[`+strings.Repeat(" ", 1<<16))
		panic(http.ErrAbortHandler)
	})
	require.Error(t, reader.List(t.Context(), metadataList()))
	assert.True(t, dies.Load())
}

func TestErrorsAreThoseOfTheAPIServer(t *testing.T) {
	reader := newReader(t, func(w http.ResponseWriter, _ *http.Request) {
		status := apierrors.NewResourceExpired("continue token expired").Status()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		assert.NoError(t, json.NewEncoder(w).Encode(status))
	})
	err := reader.List(t.Context(), &corev1.PersistentVolumeClaimList{})
	assert.True(t, apierrors.IsResourceExpired(err), err)
	assert.True(t, meta.IsNoMatchError(reader.List(t.Context(), &cdiv1.DataVolumeList{})))
}
