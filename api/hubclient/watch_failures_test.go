package hubclient

import (
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestWatchFailures(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	broken, expired := errors.New("connection reset"), apierrors.NewResourceExpired("too old")
	unreachable := &url.Error{Op: "Get", URL: "https://member", Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
	type failure struct {
		kind  string
		err   error
		after time.Duration
	}
	for name, tt := range map[string]struct {
		unsynced bool
		failures []failure
		want     bool
	}{
		"the first before the sync": {unsynced: true, failures: []failure{{"a", broken, 0}}, want: true},
		"three of one kind":         {failures: []failure{{"a", broken, 0}, {"a", broken, 1}, {"a", broken, 1}}, want: true},
		"two of each kind, as when an API server restarts": {failures: []failure{
			{"a", broken, 0}, {"b", broken, 0}, {"c", broken, 0}, {"a", broken, 1}, {"b", broken, 1}, {"c", broken, 1},
		}},
		"three of one kind among others": {failures: []failure{
			{"a", broken, 0}, {"b", broken, 0}, {"a", broken, 1}, {"b", broken, 1}, {"b", broken, 1},
		}, want: true},
		"an outage":                     {failures: []failure{{"a", unreachable, 0}, {"a", unreachable, 1}, {"a", unreachable, 1}, {"a", unreachable, 1}}},
		"an outage before the sync":     {unsynced: true, failures: []failure{{"a", unreachable, 0}}, want: true},
		"three, seldom":                 {failures: []failure{{"a", broken, 0}, {"a", broken, 2 * failureWindow}, {"a", broken, 2 * failureWindow}}},
		"an expired watch":              {failures: []failure{{"a", expired, 0}, {"a", broken, 1}, {"a", broken, 1}}},
		"an expired list of a sync":     {unsynced: true, failures: []failure{{"a", expired, 0}}},
		"everything is always expired":  {failures: []failure{{"a", expired, 0}, {"a", expired, 1}, {"a", expired, 1}, {"a", expired, 1}}, want: true},
		"an expired watch now and then": {failures: []failure{{"a", expired, 0}, {"a", expired, 2 * failureWindow}, {"a", expired, 2 * failureWindow}, {"a", expired, 2 * failureWindow}}},
	} {
		t.Run(name, func(t *testing.T) {
			kinds := map[string]*watchFailures{}
			now, got := begin, false
			for i, failed := range tt.failures {
				now = now.Add(failed.after)
				if kinds[failed.kind] == nil {
					kinds[failed.kind] = &watchFailures{started: !tt.unsynced}
				}
				got = kinds[failed.kind].add(failed.err, now)
				assert.False(t, got && i < len(tt.failures)-1, "failure %d", i)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// The watches of a connection count their failures by themselves.
func TestRestartOfAPIServerKeepsConnection(t *testing.T) {
	c := &Connection{watchErrors: make(chan error, 1)}
	watches := map[string]*mailboxWatch{}
	for _, like := range []client.Object{&v1alpha1.ClusterReport{}, &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
		w, err := c.newWatch(like)
		require.NoError(t, err)
		w.setStarted(nil)
		watches[w.kind.Kind] = w
	}
	fail := func(kind string) { watches[kind].reportFailure(t.Context(), errors.New("connection refused")) }
	for range maxWatchFailures - 1 {
		fail("ClusterReport")
		fail("ClusterPlan")
		fail("TransferGrant")
	}
	assert.Empty(t, c.watchErrors)
	fail("ClusterPlan")
	assert.Len(t, c.watchErrors, 1)
}
