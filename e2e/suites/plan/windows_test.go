//go:build linux

package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// windowAt is open for the shortest time from a minute of the clock on.
func windowAt(opens time.Time) string {
	return fmt.Sprintf("{cron: %q, duration: %s, concurrency: 1}", fmt.Sprintf("%d %d * * *", opens.Minute(), opens.Hour()), policy.MinWindowDuration)
}

// TestWindowEndsNothing wants what runs when a window closes to run on, nothing to start
// outside of it, and the images that wait to say when the next one opens, and to go on then.
// Windows open and close at whole minutes. What has to be seen before one opens or closes is seen
// while that is hours away: then the policy moves it to 30 to 90 seconds from now.
func TestWindowEndsNothing(t *testing.T) {
	testenv.RunInTurn(t, 1)
	soon := func() time.Time {
		return time.Now().UTC().Add(30 * time.Second).Truncate(time.Minute).Add(time.Minute)
	}
	setWindows := func(windows ...string) {
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "0", "windows", "["+strings.Join(windows, ", ")+"]"))
	}
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1"))
	o := env.StartObserver(t)
	require.NoError(t, o.MarkPolicyAcknowledged(t.Context()))
	ns := env.CreateHomeNamespace(t)
	running := env.NewImage(ns, "running", "/hang/a")
	env.Create(t, running)
	dataVolume := env.AwaitImporting(t, running).UID
	waiting := env.NewImage(ns, "waiting", "/ok/200ms/a")
	env.Create(t, waiting)
	env.AwaitImage(t, waiting, testenv.HasReason(v1alpha1.ReasonWaitingForSlot))

	closes := soon()
	later := closes.Add(6 * time.Hour)
	setWindows(windowAt(closes.Add(-policy.MinWindowDuration)), windowAt(later))
	awaitTime(t, closes)
	got := env.AwaitImage(t, waiting, testenv.HasReason(v1alpha1.ReasonWaitingForWindow))
	require.NotNil(t, got.Status.OpensAt)
	assert.True(t, got.Status.OpensAt.Equal(&metav1.Time{Time: later}), "%s, not %s", got.Status.OpensAt, later)
	assert.Contains(t, got.Status.Message, later.Format(time.RFC3339))
	require.NotNil(t, env.Ledger(t).Status.InForce)
	assert.Zero(t, env.Ledger(t).Status.Budget)
	assert.Equal(t, dataVolume, env.AwaitImporting(t, running).UID, "what runs runs on")

	require.NoError(t, env.Client().Delete(t.Context(), running))
	env.AwaitGone(t, running.DeepCopy())
	reopens := soon()
	setWindows(windowAt(reopens))
	awaitTime(t, reopens)
	got = env.AwaitSucceeded(t, waiting)
	assert.Nil(t, got.Status.OpensAt)
	assert.False(t, got.Status.Revisions[0].StartedAt.Time.Before(reopens), "nothing starts in the slot that is freed")
	h := testenv.History(t, o)
	assert.LessOrEqual(t, h.MaxRunning(), 1)
	assert.Len(t, h.Creations(), 2)
}

// awaitTime waits for an edge of a window.
func awaitTime(t *testing.T, at time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
