//go:build linux

package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/relay"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
)

// older has an API server not know fields of a kind until upgrade is called, or the test
// ends.
func older(t *testing.T, plane *controlplane.ControlPlane, definition string, fields ...string) (upgrade func()) {
	t.Helper()
	newest, err := plane.Older(t.Context(), definition, fields...)
	require.NoError(t, err)
	upgrade = sync.OnceFunc(func() { require.NoError(t, newest(context.Background())) })
	t.Cleanup(upgrade)
	return upgrade
}

// copies are the resourceVersions of what was carried.
func (b *box) copies() map[string]string {
	b.Helper()
	found := map[string]string{}
	var plans v1alpha1.ClusterPlanList
	require.NoError(b, member.List(b.Context(), &plans, client.InNamespace(b.agentNamespace)))
	for _, item := range plans.Items {
		found["plan"] = item.ResourceVersion
	}
	var reports v1alpha1.ClusterReportList
	require.NoError(b, hub.List(b.Context(), &reports, client.InNamespace(b.hubNamespace)))
	for _, item := range reports.Items {
		found[item.Name] = item.ResourceVersion
	}
	return found
}

// A hub of this release reaches a member whose kinds are of the one before: its API server
// stores plans without what it does not know.
func TestPlanForAMemberOfOlderKinds(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	upgrade := older(t, memberPlane, "clusterplans.pelotech.ot", "spec.images.plannedAt")
	a.root()
	plan := b.plans(1, 1, "one", "3")
	plan.Spec.Images = []v1alpha1.PlannedImage{{
		Namespace: "images", Name: "debian", PlannedAt: &metav1.Time{Time: time.Unix(1, 0)},
		Spec: v1alpha1.VMDiskImageSpec{SourceType: "url", URL: "https://example.com/a"},
	}}
	require.NoError(t, hub.Update(t.Context(), plan))
	assert.Equal(t, relay.Down{Carried: []string{"ClusterPlan"}}, b.down(r), "what was just written was not read yet")
	less := plan.DeepCopy()
	less.Spec.Images[0].PlannedAt = nil
	wantLess := func() { t.Helper(); assert.Equal(t, less.Spec, b.copyOfPlan().Spec, "all but what is not known") }
	wantLess()
	b.wantWrites(0, 1)

	dropped := []string{"ClusterPlan.spec.images.plannedAt"}
	rounds := func(r relay.Relay) {
		t.Helper()
		before := b.copies()
		for range 5 {
			assert.Equal(t, relay.Down{Dropped: dropped}, b.down(r))
			a.root()
		}
		b.wantWrites(0, 0)
		assert.Equal(t, before, b.copies())
	}
	rounds(r)
	restarted := b.relay()
	assert.Equal(t, []string{"ClusterPlan"}, b.down(restarted).Carried, "it cannot know better")
	b.wantWrites(0, 1)
	wantLess()
	rounds(restarted)

	edited := b.copyOfPlan()
	edited.Spec.Policy["concurrency"] = "99"
	require.NoError(t, member.Update(t.Context(), edited))
	assert.Equal(t, relay.Down{Carried: []string{"ClusterPlan"}}, b.down(restarted), "somebody edited the copy")
	wantLess()
	b.wantWrites(0, 1)
	rounds(restarted)

	// The agent's chart brings kinds first, and then starts the agent anew.
	upgrade()
	a.boot = "the upgraded agent's"
	a.root()
	assert.Equal(t, relay.Down{Carried: []string{"ClusterPlan"}}, b.down(restarted))
	assert.Equal(t, plan.Spec, b.copyOfPlan().Spec)
	b.wantWrites(0, 1)
	dropped = nil
	rounds(restarted)
}

// An agent of the next release reports to a hub whose kinds are of this one.
func TestReportForAHubOfOlderKinds(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	upgrade := older(t, hubPlane, "clusterreports.pelotech.ot", "root.orphanCount", "page.images.syncedAt")
	a.orphans = 3
	a.page("page-0", "")
	a.page("page-1", "")
	a.root()
	assert.Equal(t, relay.Up{Carried: 3}, b.up(r))
	b.wantWrites(3, 0)
	wantLess := func() {
		t.Helper()
		want := b.report(member, b.agentNamespace)
		want[v1alpha1.MailboxName].Root.OrphanCount = 0
		for _, page := range []string{"page-0", "page-1"} {
			for i := range want[page].Page.Images {
				want[page].Page.Images[i].SyncedAt = nil
			}
		}
		assert.Equal(t, want, b.report(hub, b.hubNamespace), "all but what is not known")
	}
	wantLess()

	rounds := func(r relay.Relay) {
		t.Helper()
		before := b.copies()
		for range 5 {
			assert.Equal(t, relay.Up{}, b.up(r))
		}
		b.wantWrites(0, 0)
		assert.Equal(t, before, b.copies())
	}
	rounds(r)
	a.root()
	assert.Equal(t, relay.Up{Carried: 1}, b.up(r), "a heartbeat rewrites no page")
	a.page("page-1", "changed")
	a.root()
	assert.Equal(t, relay.Up{Carried: 2}, b.up(r))
	wantLess()
	b.wantWrites(3, 0)
	rounds(r)

	restarted := b.relay()
	assert.Equal(t, relay.Up{Carried: 3}, b.up(restarted), "it cannot know better")
	b.wantWrites(3, 0)
	wantLess()
	rounds(restarted)

	// A hub that is upgraded is started anew, and gives agents that dial in a new challenge,
	// under which they remember nothing.
	upgrade()
	upgraded := b.relay()
	assert.Equal(t, relay.Up{Carried: 3}, b.up(upgraded))
	b.wantSame()
	b.wantWrites(3, 0)
	rounds(upgraded)
}
