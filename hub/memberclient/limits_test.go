package memberclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// emptyMailbox answers as an API server with an empty mailbox.
func emptyMailbox(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Query().Get("watch") == "true":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/default"):
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
	default:
		kind := map[string]string{"clusterplans": "ClusterPlanList", "transfergrants": "TransferGrantList", "clusterreports": "ClusterReportList"}[path.Base(r.URL.Path)]
		_, _ = io.WriteString(w, `{"apiVersion":"pelotech.ot/v1alpha1","kind":"`+kind+`","metadata":{"resourceVersion":"5"},"items":[]}`)
	}
}

// A member that exceeds a limit is cut off, says so, and is left alone for a while; the
// other one does not notice.
func TestMemberOverLimitsIsCutOff(t *testing.T) {
	var attempts atomic.Int32
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/clusterreports") {
			attempts.Add(1)
			w.Header().Set("Content-Encoding", "gzip")
		}
		emptyMailbox(w, r)
	}))
	defer hostile.Close()
	defer hostile.CloseClientConnections()
	honest := httptest.NewServer(http.HandlerFunc(emptyMailbox))
	defer honest.Close()
	defer honest.CloseClientConnections()

	var failures atomic.Int32
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		failures.Add(1)
		http.Error(w, "", http.StatusInternalServerError)
	}))
	defer failing.Close()

	changes := make(chan string, 1000)
	p := New(Options{ProbeInterval: 50 * time.Millisecond})
	p.OnChange(func(name string) { changes <- name })
	p.SetTarget("honest", Target{Config: &rest.Config{Host: honest.URL}, Namespace: "ot-agent", ConfigVersion: "1"})
	p.SetTarget("failing", Target{Config: &rest.Config{Host: failing.URL}, Namespace: "ot-agent", ConfigVersion: "1"})
	p.SetTarget("hostile", Target{Config: &rest.Config{Host: hostile.URL}, Namespace: "ot-agent", ConfigVersion: "1"})
	go func() { _ = p.Runnable(ignoreEngaged{}).Start(t.Context()) }()

	await := func(name string, done func(State) bool) State {
		for deadline := time.After(time.Minute); ; {
			if s := p.State(name); done(s) {
				return s
			}
			select {
			case <-changes:
			case <-deadline:
				require.Fail(t, "it does not happen", "%s: %+v", name, p.State(name))
			}
		}
	}
	since := await("honest", func(s State) bool { return s.Reachable }).Since
	state := await("hostile", func(s State) bool { return s.Known })
	require.Equal(t, v1alpha1.ReasonOverLimits, state.Reason)
	require.Contains(t, state.Message, "GET /apis/pelotech.ot/v1alpha1/namespaces/ot-agent/clusterreports is compressed")
	require.Contains(t, state.Message, "Check which server answers")

	// It is tried again, and less often than one that only fails.
	require.Eventually(t, func() bool { return attempts.Load() > 1 && failures.Load() >= 20 }, time.Minute, time.Millisecond)
	require.Less(t, attempts.Load(), failures.Load()/2)
	require.Equal(t, since, p.State("honest").Since, "the other one does not notice")
}

// ignoreEngaged implements multicluster.Aware.
type ignoreEngaged struct{}

// Engage implements multicluster.Aware.
func (ignoreEngaged) Engage(_ context.Context, _ multicluster.ClusterName, _ cluster.Cluster) error {
	return nil
}
