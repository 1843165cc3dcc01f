//go:build linux

package dashboard_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// The elected replica is killed while the page is open. What was known stays, and the page says that
// it may be out of date. It goes on by itself once another replica is elected: the session is that of
// every replica, and nothing is loaded again.
func TestElectedReplicaIsKilled(t *testing.T) {
	f := openHub(t)
	elected, other := f.electedAndOther(t)
	f.serveBy(other)
	t.Cleanup(func() { f.serveBy(elected) })
	p := f.openSignedIn(t, anna, "/clusters")
	p.AwaitText(t, bergen)
	browser.Evaluate[bool](t, p, "(window.sameDocument = true)")
	p.Announce("503 /", "502 /", "/fleet/v1/events")
	f.replicas[elected].Kill()
	p.AwaitTrue(t, "document.querySelector('.banner') !== null")
	assert.Contains(t, p.Text(t), bergen, "what was known was removed")
	require.NoError(t, program.DeleteHubLease(t.Context(), f))
	p.AwaitTrue(t, "document.querySelector('.banner') === null")
	assert.True(t, browser.Evaluate[bool](t, p, "window.sameDocument === true"), "the page was loaded again")

	// It hears of changes again.
	img := f.createWaiting(t, "after-failover")
	p.Click(t, "link", "Rollouts")
	p.AwaitText(t, "after-failover")
	f.awaitImage(t, img, "still waiting", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Reason == v1alpha1.ReasonAwaitingApproval })
	require.NoError(t, f.startReplica(context.WithoutCancel(t.Context()), elected))
}
