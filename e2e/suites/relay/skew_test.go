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

	"github.com/pelotech/ot-fleet/api/apitest/mailboxtest"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// removeFields removes fields of a CRD until upgrade is called or the test ends.
func removeFields(t *testing.T, definition string, fields ...string) (upgrade func()) {
	t.Helper()
	newest, err := plane.RemoveFields(t.Context(), definition, fields...)
	require.NoError(t, err)
	upgrade = sync.OnceFunc(func() { require.NoError(t, newest(context.Background())) })
	t.Cleanup(upgrade)
	return upgrade
}

// listCopies returns the resourceVersions of all copies.
func listCopies(b *mailboxtest.Mailbox) map[string]string {
	b.Helper()
	found := map[string]string{}
	var plans v1alpha1.ClusterPlanList
	require.NoError(b, b.Member.List(b.Context(), &plans, client.InNamespace(b.AgentNamespace)))
	for _, item := range plans.Items {
		found["plan"] = item.ResourceVersion
	}
	var reports v1alpha1.ClusterReportList
	require.NoError(b, b.Hub.List(b.Context(), &reports, client.InNamespace(b.HubNamespace)))
	for _, item := range reports.Items {
		found[item.Name] = item.ResourceVersion
	}
	return found
}

// TestPlanForMemberWithOlderCRDs syncs plans of this release to a member with the
// previous release's CRDs, whose API server drops unknown fields.
func TestPlanForMemberWithOlderCRDs(t *testing.T) {
	b := mailboxtest.New(t, mailboxtest.NewClient(t), server)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	upgrade := removeFields(t, "clusterplans.pelotech.ot", "spec.images.plannedAt")
	a.WriteRoot()
	plan := b.WritePlan(1, 1, "one", "3")
	plan.Spec.Images = []v1alpha1.PlannedImage{{
		Namespace: "images", Name: "debian", PlannedAt: &metav1.Time{Time: time.Unix(1, 0)},
		Spec: v1alpha1.VMDiskImageSpec{SourceType: "url", URL: "https://example.com/a"},
	}}
	require.NoError(t, b.Hub.Update(t.Context(), plan))
	require.NoError(t, b.Hub.Get(t.Context(), client.ObjectKeyFromObject(plan), plan)) // quantities as they are decoded
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.MustDown(r), "what was just written was not read yet")
	less := plan.DeepCopy()
	less.Spec.Images[0].PlannedAt = nil
	wantLess := func() { t.Helper(); assert.Equal(t, less.Spec, b.GetPlanCopy().Spec, "all but what is not known") }
	wantLess()
	b.RequireWrites(0, 1)

	dropped := []string{"ClusterPlan.spec.images.plannedAt"}
	rounds := func(r mailbox.Relay) {
		t.Helper()
		before := listCopies(b)
		for range 5 {
			assert.Equal(t, mailbox.DownResult{DroppedFields: dropped}, b.MustDown(r))
			a.WriteRoot()
		}
		b.RequireWrites(0, 0)
		assert.Equal(t, before, listCopies(b))
	}
	rounds(r)
	restarted := b.NewRelay()
	assert.Equal(t, []string{"ClusterPlan"}, b.MustDown(restarted).Written, "it cannot know better")
	b.RequireWrites(0, 1)
	wantLess()
	rounds(restarted)

	edited := b.GetPlanCopy()
	edited.Spec.Policy["concurrency"] = "99"
	require.NoError(t, b.Member.Update(t.Context(), edited))
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.MustDown(restarted), "somebody edited the copy")
	wantLess()
	assert.Empty(t, b.GetPlanCopy().ManagedFields)
	b.RequireWrites(0, 1)
	rounds(restarted)

	// The agent's chart upgrades the CRDs first and then restarts the agent.
	upgrade()
	a.Boot = "the upgraded agent's"
	a.WriteRoot()
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.MustDown(restarted))
	assert.Equal(t, plan.Spec, b.GetPlanCopy().Spec)
	b.RequireWrites(0, 1)
	dropped = nil
	rounds(restarted)
}

// TestReportForHubWithOlderCRDs syncs reports of the next release's agent to a hub with
// this release's CRDs.
func TestReportForHubWithOlderCRDs(t *testing.T) {
	b := mailboxtest.New(t, server, mailboxtest.NewClient(t))
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	upgrade := removeFields(t, "clusterreports.pelotech.ot", "root.orphanCount", "page.images.syncedAt")
	a.Orphans = 3
	a.WritePage("page-0", "")
	a.WritePage("page-1", "")
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.MustUp(r))
	b.RequireWrites(3, 0)
	wantLess := func() {
		t.Helper()
		want := b.ListReports(b.Member, b.AgentNamespace)
		want[v1alpha1.MailboxName].Root.OrphanCount = 0
		for _, page := range []string{"page-0", "page-1"} {
			for i := range want[page].Page.Images {
				want[page].Page.Images[i].SyncedAt = nil
			}
		}
		assert.Equal(t, want, b.ListReports(b.Hub, b.HubNamespace), "all but what is not known")
	}
	wantLess()

	rounds := func(r mailbox.Relay) {
		t.Helper()
		before := listCopies(b)
		for range 5 {
			assert.Equal(t, mailbox.UpResult{}, b.MustUp(r))
		}
		b.RequireWrites(0, 0)
		assert.Equal(t, before, listCopies(b))
	}
	rounds(r)
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r), "a heartbeat rewrites no page")
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, server.Get(t.Context(), client.ObjectKey{Namespace: b.HubNamespace, Name: v1alpha1.MailboxName}, root))
	assert.Empty(t, root.ManagedFields)
	a.WritePage("page-1", "changed")
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.MustUp(r))
	wantLess()
	b.RequireWrites(3, 0)
	rounds(r)

	restarted := b.NewRelay()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.MustUp(restarted), "it cannot know better")
	b.RequireWrites(3, 0)
	wantLess()
	rounds(restarted)

	// An upgraded hub restarts and gives pull-mode agents a new challenge, which resets what they
	// remember.
	upgrade()
	upgraded := b.NewRelay()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.MustUp(upgraded))
	b.RequireSameReports()
	b.RequireWrites(3, 0)
	rounds(upgraded)
}
