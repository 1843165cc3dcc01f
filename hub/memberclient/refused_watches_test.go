package memberclient

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// refuseWatch answers as an API server whose RBAC lacks verb watch.
func refuseWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"cannot watch `+path.Base(r.URL.Path)+`"}`)
}

// A member that serves everything but watches is not reached and lost again with each attempt, and its
// state names the same kind each time, though the watches of all kinds fail at once.
func TestMemberWithoutWatchesStaysUnreachable(t *testing.T) {
	for name, tt := range map[string]struct {
		watch       http.HandlerFunc
		options     Options
		attempts    int32
		wantReached int
		wantReason  string
		wantMessage string
	}{
		"refused": {
			refuseWatch, Options{ProbeInterval: 50 * time.Millisecond}, 12, 0,
			v1alpha1.ReasonUnauthorized, "the credential lacks a permission: cannot watch clusterplans: grant it the permissions of ServiceAccount ot-hub of chart ot-agent",
		},
		// The first connection cannot be known to be of no use.
		"accepted and ended": {
			func(http.ResponseWriter, *http.Request) {}, Options{}, 6, 1,
			v1alpha1.ReasonUnreachable, "its lists and watches fail: its API server's answer is of no use: a watch ends at once: check that its API server runs and is reachable from the hub, and that the kubeconfig has the right address",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var watches atomic.Int32
			enough := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch isWatch := r.URL.Query().Get("watch") == "true"; {
				case isWatch:
					tt.watch(w, r)
				default:
					emptyMailbox(w, r)
					return
				}
				if path.Base(r.URL.Path) == "clusterplans" && watches.Add(1) == tt.attempts {
					close(enough)
				}
			}))
			defer server.Close()
			defer server.CloseClientConnections()

			states := make(chan State, 1000)
			p := New(tt.options)
			p.OnChange(func(name string) { states <- p.State(name) })
			p.SetTarget("edge", Target{Config: &rest.Config{Host: server.URL}, Namespace: "ot-agent", ConfigVersion: "1"})
			go func() { _ = p.Runnable(ignoreEngaged{}).Start(t.Context()) }()
			select {
			case <-enough:
			case <-time.After(2 * time.Minute):
				require.Fail(t, "it is not tried again")
			}
			reached, last := 0, State{}
			for len(states) > 0 {
				s := <-states
				switch {
				case s.Reachable && !last.Reachable:
					reached++
				case s.Known && !s.Reachable:
					assert.Equal(t, tt.wantReason, s.Reason)
					assert.Equal(t, tt.wantMessage, s.Message)
				}
				last = s
			}
			assert.Equal(t, tt.wantReached, reached)
			assert.True(t, last.Known && !last.Reachable, "%+v", last)
		})
	}
}
