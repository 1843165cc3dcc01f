package hubclient

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Connections that began at different times are probed together.
func TestProbesAreAligned(t *testing.T) {
	for name, test := range map[string]struct {
		align     bool
		wantTick  time.Duration // the time between two probes is a multiple of it
		wantBelow time.Duration
	}{
		"of many servers": {true, 2 * time.Second, 12 * time.Second},
		"of one":          {false, 1, 11*time.Second + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var first time.Time
				for range 20 {
					o := Options{AlignProbes: test.align}
					o.SetDefaults()
					delay := o.untilProbe(o.ProbeInterval)
					require.GreaterOrEqual(t, delay, o.ProbeInterval)
					require.Less(t, delay, test.wantBelow)
					probeAt := time.Now().Add(delay)
					if first.IsZero() {
						first = probeAt
					}
					require.Zero(t, probeAt.Sub(first)%test.wantTick)
					<-time.After(730 * time.Millisecond)
				}
			})
		})
	}
}

// Only a root that a watch delivers stands for a probe: a page is no sign that the report is current, and a
// list says nothing of watches.
func TestEventsOfTheRootAreNoted(t *testing.T) {
	reports := cachedKind{v1alpha1.GroupVersion.WithKind("ClusterReport"), true}
	plans := cachedKind{v1alpha1.GroupVersion.WithKind("ClusterPlan"), false}
	root := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}}
	page := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "page"}}
	plan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}}
	for name, test := range map[string]struct {
		event func(*mailboxCache)
		want  bool
	}{
		"a changed root":  {func(m *mailboxCache) { m.set(reports, keptObject{root, 1}) }, true},
		"a deleted root":  {func(m *mailboxCache) { m.remove(reports, root) }, true},
		"a changed page":  {func(m *mailboxCache) { m.set(reports, keptObject{page, 1}) }, false},
		"a deleted page":  {func(m *mailboxCache) { m.remove(reports, page) }, false},
		"a changed plan":  {func(m *mailboxCache) { m.set(plans, keptObject{plan, 1}) }, false},
		"a list of roots": {func(m *mailboxCache) { m.setAll(reports, []keptObject{{root, 1}}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMailboxCache("ot-agent")
				m.addKind(reports)
				m.addKind(plans)
				require.Greater(t, m.sinceRootEvent(), time.Hour)
				test.event(m)
				<-time.After(3 * time.Second)
				require.Equal(t, test.want, m.sinceRootEvent() == 3*time.Second)
				require.Equal(t, !test.want, m.sinceRootEvent() > time.Hour)
			})
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
