//go:build linux

package relay_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (b *mailboxEnd) requirePlan(epoch, sequence int64, concurrency string) {
	b.Helper()
	spec := b.getPlanCopy().Spec
	assert.Equal(b, []int64{epoch, sequence}, []int64{spec.Epoch, spec.Sequence})
	assert.Equal(b, concurrency, spec.Policy["concurrency"])
}

func TestPlanAndGrantAreCopiedDown(t *testing.T) {
	b := newMailbox(t)
	r := b.newRelay()
	assert.Equal(t, mailbox.DownResult{}, b.mustDown(r), "nothing on the hub")

	plan := b.writePlan(1, 1, "one", "3")
	plan.Spec.Images = []v1alpha1.PlannedImage{{Namespace: "images", Name: "debian", Spec: v1alpha1.VMDiskImageSpec{SourceType: "url", URL: "https://example.com/a"}}}
	require.NoError(t, hubClient.Update(t.Context(), plan))
	grant := &v1alpha1.TransferGrant{ObjectMeta: objectMeta(b.hubNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: 1, Unlimited: true}}
	b.createObject(hubClient, grant)
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan", "TransferGrant"}}, b.mustDown(r))
	b.requireWrites(0, 2)
	assert.Equal(t, plan.Spec, b.getPlanCopy().Spec)

	forgetful := r
	forgetful.Copies = nil
	for _, r := range []mailbox.Relay{r, forgetful} {
		assert.Equal(t, mailbox.DownResult{}, b.mustDown(r))
		b.requireWrites(0, 0)
	}

	b.writePlan(1, 2, "two", "5")
	assert.Equal(t, []string{"ClusterPlan"}, b.mustDown(r).Written)
	b.requirePlan(1, 2, "5")
	assert.Empty(t, b.getPlanCopy().ManagedFields)

	edited := b.getPlanCopy()
	edited.Spec.Policy["concurrency"] = "99"
	require.NoError(t, memberClient.Update(t.Context(), edited))
	assert.Equal(t, []string{"ClusterPlan"}, b.mustDown(r).Written, "somebody edited the copy")
	b.requirePlan(1, 2, "5")

	require.NoError(t, memberClient.Delete(t.Context(), b.getPlanCopy()))
	assert.Equal(t, []string{"ClusterPlan"}, b.mustDown(r).Written, "somebody deleted the copy")
	b.requirePlan(1, 2, "5")

	stale := r
	stale.Hub.Cached = b.frozenReader(hubClient, b.hubNamespace)
	require.NoError(t, hubClient.Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: objectMeta(b.hubNamespace, v1alpha1.MailboxName)}))
	b.resetCounts()
	assert.Empty(t, b.mustDown(r))
	b.requirePlan(1, 2, "5")
	require.NoError(t, memberClient.Delete(t.Context(), b.getPlanCopy()))
	assert.Empty(t, b.mustDown(stale), "a cache brings nothing back that was deleted")
	b.requireWrites(0, 0)
}

func TestHubRestored(t *testing.T) {
	b := newMailbox(t)
	r := b.newRelay()
	b.writePlan(1, 5, "five", "5")
	b.mustDown(r)
	b.resetCounts()
	require.NoError(t, hubClient.Delete(t.Context(), b.writePlan(1, 2, "two", "2")))
	b.writePlan(1, 2, "two", "2")
	for range 2 {
		down := b.mustDown(r)
		assert.Equal(t, mailbox.DownResult{NewerPlan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 5, Hash: "five"}}, down)
	}
	b.requireWrites(0, 0)
	b.requirePlan(1, 5, "5")

	b.writePlan(2, 1, "new", "5")
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.mustDown(r))
	b.requirePlan(2, 1, "5")
}

func TestStaleCacheIsNotARestore(t *testing.T) {
	b := newMailbox(t)
	stale, r := b.newRelay(), b.newRelay()
	b.writePlan(1, 1, "one", "1")
	stale.Hub.Cached = b.frozenReader(hubClient, b.hubNamespace)
	b.writePlan(1, 2, "two", "2")
	b.mustDown(r)
	assert.Equal(t, mailbox.DownResult{}, b.mustDown(stale))
	b.requirePlan(1, 2, "2")
}

func TestPlanForOtherClusterIsNotCopied(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	a.uid = "another"
	a.writeRoot()
	b.writePlan(1, 1, "one", "1")
	assert.Equal(t, mailbox.DownResult{OtherCluster: "another"}, b.mustDown(r))
	b.requireWrites(0, 0)
	a.uid = cluster
	a.writeRoot()
	assert.Equal(t, []string{"ClusterPlan"}, b.mustDown(r).Written)
}

// TestPlanCopyOfRebuiltCluster rebuilds the member and restores its objects without its
// agent's acknowledgement.
func TestPlanCopyOfRebuiltCluster(t *testing.T) {
	b := newMailbox(t)
	newReportWriter(b).writeRoot()
	const before types.UID = "before"
	b.createObject(memberClient, &v1alpha1.ClusterPlan{ObjectMeta: objectMeta(b.agentNamespace, v1alpha1.MailboxName), Spec: v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 9, Hash: "nine"}, ClusterUID: before, Policy: map[string]string{"concurrency": "9"},
	}})
	b.createObject(memberClient, &v1alpha1.TransferGrant{ObjectMeta: objectMeta(b.agentNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: before, Sequence: 9, Unlimited: true}})
	b.writePlan(1, 1, "one", "1")
	b.createObject(hubClient, &v1alpha1.TransferGrant{ObjectMeta: objectMeta(b.hubNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: 1, Unlimited: true}})
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan", "TransferGrant"}}, b.mustDown(b.newRelay()))
	b.requirePlan(1, 1, "1")
	assert.Equal(t, cluster, b.getPlanCopy().Spec.ClusterUID)
}

func TestPausedRelayWritesNoOlderPlan(t *testing.T) {
	for name, first := range map[string]bool{"the first plan": true, "a later plan": false} {
		t.Run(name, func(t *testing.T) {
			b := newMailbox(t)
			late, r := b.newRelay(), b.newRelay()
			b.writePlan(1, 1, "one", "1")
			if !first {
				b.mustDown(r)
				b.writePlan(1, 2, "two", "2")
			}
			var reached <-chan struct{}
			var release func()
			late.Member.Live, reached, release = pauseBeforeWrite(memberClient)
			ended := make(chan error, 1)
			go func() {
				_, err := late.SyncDown(t.Context())
				ended <- err
			}()
			<-reached
			b.writePlan(1, 3, "three", "3")
			b.mustDown(r)
			release()
			err := <-ended
			require.Truef(t, apierrors.IsConflict(err), "%v", err)
			b.requirePlan(1, 3, "3")
			assert.Equal(t, mailbox.DownResult{}, b.mustDown(late), "called again, it finds nothing to do")
		})
	}
}

func TestMissingNamespacesAreReported(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	b.writePlan(1, 1, "one", "1")
	a.writeRoot()
	noMember, noHub := r, r
	noMember.Member.Namespace = "nowhere"
	_, err := noMember.SyncDown(t.Context())
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, `creating ClusterPlan nowhere/default in the member (the namespace does not exist there, or the kind is not served: install chart ot-agent, or correct agentNamespace of the MemberCluster): namespaces "nowhere" not found`)
	up, err := noMember.SyncUp(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, up)

	noHub.Hub.Namespace = "nowhere"
	_, err = noHub.SyncUp(t.Context(), "")
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, `creating ClusterReport nowhere/default on the hub (the namespace does not exist there, or the kind is not served): namespaces "nowhere" not found`)
	assert.Equal(t, mailbox.DownResult{}, b.mustDown(noHub))
}

func TestNewerGrantInMember(t *testing.T) {
	b := newMailbox(t)
	grant := func(c client.Client, namespace string, sequence int64) {
		b.createObject(c, &v1alpha1.TransferGrant{ObjectMeta: objectMeta(namespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: sequence, Unlimited: true}})
	}
	grant(hubClient, b.hubNamespace, 2)
	grant(memberClient, b.agentNamespace, 7)
	want := int64(7)
	assert.Equal(t, mailbox.DownResult{NewerGrant: &want}, b.mustDown(b.newRelay()))
	b.requireWrites(0, 0)
}
