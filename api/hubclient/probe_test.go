package hubclient

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestWatchStandsForEverySecondProbe(t *testing.T) {
	type look struct{ since, wantWait time.Duration }
	for name, looks := range map[string][]look{
		"nothing delivered":       {{time.Hour, 0}, {time.Hour, 0}},
		"long ago":                {{10, 0}, {20, 0}},
		"a heartbeat in between":  {{4, 6}, {10, 0}, {0, 10}, {10, 0}},
		"all the time":            {{1, 9}, {1, 0}, {1, 9}, {0, 0}, {0, 10}},
		"once, then nothing more": {{9, 1}, {10, 0}, {20, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var s probeSchedule
			for i, l := range looks {
				require.Equal(t, l.wantWait, s.postpone(l.since, 10), "look %d", i)
			}
		})
	}
}

// A watch outlives the credential that it began with.
func TestRevokedCredentialIsSeenBesideAWatchThatDelivers(t *testing.T) {
	root := func(version int) string {
		return strings.Replace(reportPage(v1alpha1.MailboxName, "", 1), `"resourceVersion":"5"`, fmt.Sprintf(`"resourceVersion":"%d"`, version), 1)
	}
	c := connectTo(t, scriptedServer{
		list: writeText(reportList("", root(5))),
		get: func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", r.Header.Get("Accept"))
			w.WriteHeader(http.StatusUnauthorized)
		},
		watch: func(w http.ResponseWriter, r *http.Request) {
			for version := 6; r.Context().Err() == nil; version++ {
				_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", root(version))
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(time.Millisecond):
				}
			}
		},
	})
	require.True(t, apierrors.IsUnauthorized(run(t, c)))
}
