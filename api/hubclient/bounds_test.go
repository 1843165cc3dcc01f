package hubclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const reportsPath = "/apis/pelotech.ot/v1alpha1/namespaces/ot-agent/clusterreports"

// reportPage returns a page as JSON. more is put in before its images.
func reportPage(name, more string, images int) string {
	image := `{"namespace":"n","name":"i","references":0}`
	return fmt.Sprintf(`{"apiVersion":"pelotech.ot/v1alpha1","kind":"ClusterReport","metadata":{"name":%q,"namespace":"ot-agent","resourceVersion":"5"%s},`+
		`"clusterUID":"u","sequence":1,"page":{"images":[%s]}}`, name, more, strings.TrimSuffix(strings.Repeat(image+",", images), ","))
}

func reportList(continueWith string, items ...string) string {
	return fmt.Sprintf(`{"apiVersion":"pelotech.ot/v1alpha1","kind":"ClusterReportList","metadata":{"resourceVersion":"5","continue":%q},"items":[%s]}`,
		continueWith, strings.Join(items, ","))
}

// scriptedServer answers lists and watches of reports, and reads of the root; everything else
// exists and is empty.
type scriptedServer struct {
	list, watch, get http.HandlerFunc
}

func (s scriptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	watch := r.URL.Query().Get("watch") == "true"
	switch {
	case r.URL.Path == reportsPath && watch && s.watch != nil:
		s.watch(w, r)
	case r.URL.Path == reportsPath && !watch && s.list != nil:
		s.list(w, r)
	case watch:
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/default") && s.get != nil:
		s.get(w, r)
	case strings.HasSuffix(r.URL.Path, "/default"):
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
	default:
		_, _ = io.WriteString(w, strings.ReplaceAll(reportList(""), "ClusterReport", "ClusterPlan"))
	}
}

// connectTo returns a connection to server, which is closed at the end of the test: after its
// context, with which watches end. One that still runs would connect again.
func connectTo(t *testing.T, server http.Handler) *Connection {
	t.Helper()
	listening := httptest.NewUnstartedServer(server)
	listening.EnableHTTP2 = true
	listening.StartTLS()
	c, err := New(Endpoint{
		Config: &rest.Config{Host: listening.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, Token: &Token{}, Namespace: "ot-agent",
		Report: &v1alpha1.ClusterReport{}, Watched: []client.Object{&v1alpha1.ClusterReport{}, &v1alpha1.ClusterPlan{}},
	}, Options{ProbeInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(); listening.CloseClientConnections(); listening.Close() })
	return c
}

// run connects until the connection breaks, and returns why.
func run(t *testing.T, c *Connection) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		return err
	}
	err := c.WaitUntilBroken(ctx, nil)
	require.NoError(t, ctx.Err(), "nothing broke it")
	return err
}

func writeText(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// writeEvents writes one event after the other, as next makes them.
func writeEvents(next func(i int) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; r.Context().Err() == nil; i++ {
			if _, err := fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", next(i)); err != nil {
				return
			}
		}
	}
}

// allocatedBy returns how many bytes do allocates.
func allocatedBy(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// Each of these allocates hundreds of megabytes to gigabytes without a bound, or ends
// never. What is allowed is what is allocated in total, not at once.
func TestHostileServerIsCutOff(t *testing.T) {
	bomb := apitest.CompressPadded(strings.TrimSuffix(reportList(""), "]}"), ' ', 1400, "]}")
	require.Less(t, len(bomb), 2<<20)
	large := `,"annotations":{"a":"` + strings.Repeat("x", 5<<20) + `"}`
	var endless atomic.Int64
	for name, tt := range map[string]struct {
		server scriptedServer
		want   string
	}{
		"compressed list": {scriptedServer{list: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		}}, "is compressed"},
		"list of empty values": {scriptedServer{list: writeText(
			strings.Replace(reportList("", reportPage("page-0", "", 1)), `"images":[`, `"images":[`+strings.Repeat("{},", 1<<20), 1))}, "counting 128 bytes for each value"},
		"list without end": {scriptedServer{list: func(w http.ResponseWriter, _ *http.Request) {
			n := endless.Add(1)
			_, _ = io.WriteString(w, reportList("more", reportPage(fmt.Sprintf("page-%d", n), "", 1), reportPage(fmt.Sprintf("page-%d-b", n), "", 1)))
		}}, "makes more than 512 objects"},
		"list of large objects without end": {scriptedServer{list: func(w http.ResponseWriter, _ *http.Request) {
			n := endless.Add(1)
			_, _ = io.WriteString(w, reportList("more", reportPage(fmt.Sprintf("page-%d", n), `,"annotations":{"a":"`+strings.Repeat("x", 2<<20)+`"}`, 1)))
		}}, "makes more than 48 MiB"},
		"large managed fields": {scriptedServer{list: writeText(
			reportList("", reportPage("page-0", `,"managedFields":[{"fieldsV1":`+strings.Repeat(`{"f:a":`, 1<<17)+"{}"+strings.Repeat("}", 1<<17)+`}]`, 1)))}, "counting 128 bytes for each value"},
		"large object": {scriptedServer{list: writeText(reportList("", reportPage("page-0", large, 1)))}, "has an object of more than 4 MiB"},
		"large object of a watch": {scriptedServer{list: writeText(reportList("")), watch: writeEvents(func(int) string {
			return reportPage("page-0", large, 1)
		})}, "has an object of more than 4 MiB"},
		"watch of many objects": {scriptedServer{list: writeText(reportList("")), watch: writeEvents(func(i int) string {
			return reportPage(fmt.Sprintf("page-%d", i), "", 1)
		})}, "makes more than 512 objects"},
		"watch of large objects": {scriptedServer{list: writeText(reportList("")), watch: writeEvents(func(i int) string {
			return reportPage(fmt.Sprintf("page-%d", i), `,"annotations":{"a":"`+strings.Repeat("x", 3<<20)+`"}`, 1)
		})}, "in the mailbox"},
		"watch that floods": {scriptedServer{list: writeText(reportList("")), watch: writeEvents(func(int) string {
			return reportPage("page-0", "", 1)
		})}, "has too many events"},
		"endless event": {scriptedServer{list: writeText(reportList("")), watch: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"a":"`)
			for {
				if _, err := io.WriteString(w, strings.Repeat("{", 1<<16)); err != nil {
					return
				}
			}
		}}, "has an event larger than 12 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			c := connectTo(t, tt.server)
			var err error
			allocated := allocatedBy(func() { err = run(t, c) })
			kind, message := ClassifyError(err)
			require.Equal(t, LimitFailure, kind, "%v", err)
			assert.Contains(t, message, tt.want)
			assert.Less(t, allocated, int64(12*v1alpha1.MaxMailboxBytes), "server included")
			t.Logf("%d MiB allocated, with the server's: %s", allocated>>20, message)
		})
	}
}

// A report as large as an agent may write, and the churn of one that is rewritten, are
// within all bounds.
func TestFullReportIsWithinBounds(t *testing.T) {
	var page atomic.Int64
	full := func(i int) string {
		return reportPage(fmt.Sprintf("page-%d", i), "", v1alpha1.MaxReportedImages)
	}
	c := connectTo(t, scriptedServer{
		list: func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "8", r.URL.Query().Get("limit"))
			assert.Empty(t, r.URL.Query().Get("resourceVersion"))
			var items []string
			for range 8 {
				items = append(items, full(int(page.Add(1))))
			}
			next := "more"
			if page.Load() >= v1alpha1.MaxReportPages {
				next = ""
			}
			_, _ = io.WriteString(w, reportList(next, items...))
		},
		watch: func(w http.ResponseWriter, r *http.Request) {
			for i := range 40 {
				_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", full(i+1))
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	})
	require.NoError(t, c.Start(t.Context()))
	var all v1alpha1.ClusterReportList
	require.NoError(t, c.GetCache().List(t.Context(), &all))
	require.Len(t, all.Items, v1alpha1.MaxReportPages)
	require.Empty(t, c.exceededLimits)
}
