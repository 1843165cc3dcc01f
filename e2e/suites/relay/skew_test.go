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

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// removeFields removes fields of a CRD until upgrade is called or the test ends.
func removeFields(t *testing.T, plane *controlplane.ControlPlane, definition string, fields ...string) (upgrade func()) {
	t.Helper()
	newest, err := plane.RemoveFields(t.Context(), definition, fields...)
	require.NoError(t, err)
	upgrade = sync.OnceFunc(func() { require.NoError(t, newest(context.Background())) })
	t.Cleanup(upgrade)
	return upgrade
}

// listCopies returns the resourceVersions of all copies.
func (b *mailboxEnd) listCopies() map[string]string {
	b.Helper()
	found := map[string]string{}
	var plans v1alpha1.ClusterPlanList
	require.NoError(b, memberClient.List(b.Context(), &plans, client.InNamespace(b.agentNamespace)))
	for _, item := range plans.Items {
		found["plan"] = item.ResourceVersion
	}
	var reports v1alpha1.ClusterReportList
	require.NoError(b, hubClient.List(b.Context(), &reports, client.InNamespace(b.hubNamespace)))
	for _, item := range reports.Items {
		found[item.Name] = item.ResourceVersion
	}
	return found
}

// TestPlanForMemberWithOlderCRDs syncs plans of this release to a member with the
// previous release's CRDs, whose API server drops unknown fields.
func TestPlanForMemberWithOlderCRDs(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	upgrade := removeFields(t, memberPlane, "clusterplans.pelotech.ot", "spec.images.plannedAt")
	a.writeRoot()
	plan := b.writePlan(1, 1, "one", "3")
	plan.Spec.Images = []v1alpha1.PlannedImage{{
		Namespace: "images", Name: "debian", PlannedAt: &metav1.Time{Time: time.Unix(1, 0)},
		Spec: v1alpha1.VMDiskImageSpec{SourceType: "url", URL: "https://example.com/a"},
	}}
	require.NoError(t, hubClient.Update(t.Context(), plan))
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.mustDown(r), "what was just written was not read yet")
	less := plan.DeepCopy()
	less.Spec.Images[0].PlannedAt = nil
	wantLess := func() { t.Helper(); assert.Equal(t, less.Spec, b.getPlanCopy().Spec, "all but what is not known") }
	wantLess()
	b.requireWrites(0, 1)

	dropped := []string{"ClusterPlan.spec.images.plannedAt"}
	rounds := func(r mailbox.Relay) {
		t.Helper()
		before := b.listCopies()
		for range 5 {
			assert.Equal(t, mailbox.DownResult{DroppedFields: dropped}, b.mustDown(r))
			a.writeRoot()
		}
		b.requireWrites(0, 0)
		assert.Equal(t, before, b.listCopies())
	}
	rounds(r)
	restarted := b.newRelay()
	assert.Equal(t, []string{"ClusterPlan"}, b.mustDown(restarted).Written, "it cannot know better")
	b.requireWrites(0, 1)
	wantLess()
	rounds(restarted)

	edited := b.getPlanCopy()
	edited.Spec.Policy["concurrency"] = "99"
	require.NoError(t, memberClient.Update(t.Context(), edited))
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.mustDown(restarted), "somebody edited the copy")
	wantLess()
	b.requireWrites(0, 1)
	rounds(restarted)

	// The agent's chart upgrades the CRDs first and then restarts the agent.
	upgrade()
	a.boot = "the upgraded agent's"
	a.writeRoot()
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.mustDown(restarted))
	assert.Equal(t, plan.Spec, b.getPlanCopy().Spec)
	b.requireWrites(0, 1)
	dropped = nil
	rounds(restarted)
}

// TestReportForHubWithOlderCRDs syncs reports of the next release's agent to a hub with
// this release's CRDs.
func TestReportForHubWithOlderCRDs(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	upgrade := removeFields(t, hubPlane, "clusterreports.pelotech.ot", "root.orphanCount", "page.images.syncedAt")
	a.orphans = 3
	a.writePage("page-0", "")
	a.writePage("page-1", "")
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.mustUp(r))
	b.requireWrites(3, 0)
	wantLess := func() {
		t.Helper()
		want := b.listReports(memberClient, b.agentNamespace)
		want[v1alpha1.MailboxName].Root.OrphanCount = 0
		for _, page := range []string{"page-0", "page-1"} {
			for i := range want[page].Page.Images {
				want[page].Page.Images[i].SyncedAt = nil
			}
		}
		assert.Equal(t, want, b.listReports(hubClient, b.hubNamespace), "all but what is not known")
	}
	wantLess()

	rounds := func(r mailbox.Relay) {
		t.Helper()
		before := b.listCopies()
		for range 5 {
			assert.Equal(t, mailbox.UpResult{}, b.mustUp(r))
		}
		b.requireWrites(0, 0)
		assert.Equal(t, before, b.listCopies())
	}
	rounds(r)
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r), "a heartbeat rewrites no page")
	a.writePage("page-1", "changed")
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.mustUp(r))
	wantLess()
	b.requireWrites(3, 0)
	rounds(r)

	restarted := b.newRelay()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.mustUp(restarted), "it cannot know better")
	b.requireWrites(3, 0)
	wantLess()
	rounds(restarted)

	// An upgraded hub restarts and gives pull-mode agents a new challenge, which resets what they
	// remember.
	upgrade()
	upgraded := b.newRelay()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.mustUp(upgraded))
	b.requireSameReports()
	b.requireWrites(3, 0)
	rounds(upgraded)
}
