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
	type look struct {
		cached    string
		wantProbe bool
	}
	for name, looks := range map[string][]look{
		"nothing delivered":      {{"5", true}, {"5", true}},
		"deleted, then nothing":  {{"", false}, {"", true}, {"", true}},
		"each time":              {{"6", false}, {"7", true}, {"8", false}, {"9", true}},
		"now and then":           {{"6", false}, {"6", true}, {"6", true}, {"7", false}, {"7", true}},
		"between two that asked": {{"5", true}, {"6", false}, {"7", true}, {"7", true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := probeSchedule{seen: "5"}
			for i, l := range looks {
				require.Equal(t, l.wantProbe, s.needsProbe(l.cached), "look %d", i)
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
