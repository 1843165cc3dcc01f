//go:build linux

package relay_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/relay"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (b *box) wantPlan(epoch, sequence int64, concurrency string) {
	b.Helper()
	spec := b.copyOfPlan().Spec
	assert.Equal(b, []int64{epoch, sequence}, []int64{spec.Epoch, spec.Sequence})
	assert.Equal(b, concurrency, spec.Policy["concurrency"])
}

func TestPlanAndGrantGoDown(t *testing.T) {
	b := newBox(t)
	r := b.relay()
	assert.Equal(t, relay.Down{}, b.down(r), "nothing on the hub")

	plan := b.plans(1, 1, "one", "3")
	plan.Spec.Images = []v1alpha1.PlannedImage{{Namespace: "images", Name: "debian", Spec: v1alpha1.VMDiskImageSpec{SourceType: "url", URL: "https://example.com/a"}}}
	require.NoError(t, hub.Update(t.Context(), plan))
	grant := &v1alpha1.TransferGrant{ObjectMeta: in(b.hubNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: 1, Unlimited: true}}
	b.create(hub, grant)
	assert.Equal(t, relay.Down{Carried: []string{"ClusterPlan", "TransferGrant"}}, b.down(r))
	b.wantWrites(0, 2)
	assert.Equal(t, plan.Spec, b.copyOfPlan().Spec)

	forgetful := r
	forgetful.Seen = nil
	for _, r := range []relay.Relay{r, forgetful} {
		assert.Equal(t, relay.Down{}, b.down(r))
		b.wantWrites(0, 0)
	}

	b.plans(1, 2, "two", "5")
	assert.Equal(t, []string{"ClusterPlan"}, b.down(r).Carried)
	b.wantPlan(1, 2, "5")

	edited := b.copyOfPlan()
	edited.Spec.Policy["concurrency"] = "99"
	require.NoError(t, member.Update(t.Context(), edited))
	assert.Equal(t, []string{"ClusterPlan"}, b.down(r).Carried, "somebody edited the copy")
	b.wantPlan(1, 2, "5")

	require.NoError(t, member.Delete(t.Context(), b.copyOfPlan()))
	assert.Equal(t, []string{"ClusterPlan"}, b.down(r).Carried, "somebody deleted the copy")
	b.wantPlan(1, 2, "5")

	stale := r
	stale.Hub.Cached = b.frozen(hub, b.hubNamespace)
	require.NoError(t, hub.Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: in(b.hubNamespace, v1alpha1.MailboxName)}))
	b.forget()
	assert.Empty(t, b.down(r))
	b.wantPlan(1, 2, "5")
	require.NoError(t, member.Delete(t.Context(), b.copyOfPlan()))
	assert.Empty(t, b.down(stale), "a cache brings nothing back that was deleted")
	b.wantWrites(0, 0)
}

func TestHubRestored(t *testing.T) {
	b := newBox(t)
	r := b.relay()
	b.plans(1, 5, "five", "5")
	b.down(r)
	b.forget()
	require.NoError(t, hub.Delete(t.Context(), b.plans(1, 2, "two", "2")))
	b.plans(1, 2, "two", "2")
	for range 2 {
		down := b.down(r)
		assert.Equal(t, relay.Down{Ahead: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 5, Hash: "five"}}, down)
	}
	b.wantWrites(0, 0)
	b.wantPlan(1, 5, "5")

	b.plans(2, 1, "new", "5")
	assert.Equal(t, relay.Down{Carried: []string{"ClusterPlan"}}, b.down(r))
	b.wantPlan(2, 1, "5")
}

func TestCacheThatIsBehindIsNotTakenForARestore(t *testing.T) {
	b := newBox(t)
	stale, r := b.relay(), b.relay()
	b.plans(1, 1, "one", "1")
	stale.Hub.Cached = b.frozen(hub, b.hubNamespace)
	b.plans(1, 2, "two", "2")
	b.down(r)
	assert.Equal(t, relay.Down{}, b.down(stale))
	b.wantPlan(1, 2, "2")
}

func TestPlanForAnotherClusterIsNotCarried(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	a.uid = "another"
	a.root()
	b.plans(1, 1, "one", "1")
	assert.Equal(t, relay.Down{Another: "another"}, b.down(r))
	b.wantWrites(0, 0)
	a.uid = cluster
	a.root()
	assert.Equal(t, []string{"ClusterPlan"}, b.down(r).Carried)
}

// TestCopyForTheClusterOfBefore has the member rebuilt, and its objects restored
// without what its agent acknowledged.
func TestCopyForTheClusterOfBefore(t *testing.T) {
	b := newBox(t)
	newAgent(b).root()
	const before types.UID = "before"
	b.create(member, &v1alpha1.ClusterPlan{ObjectMeta: in(b.agentNamespace, v1alpha1.MailboxName), Spec: v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 9, Hash: "nine"}, ClusterUID: before, Policy: map[string]string{"concurrency": "9"},
	}})
	b.create(member, &v1alpha1.TransferGrant{ObjectMeta: in(b.agentNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: before, Sequence: 9, Unlimited: true}})
	b.plans(1, 1, "one", "1")
	b.create(hub, &v1alpha1.TransferGrant{ObjectMeta: in(b.hubNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: 1, Unlimited: true}})
	assert.Equal(t, relay.Down{Carried: []string{"ClusterPlan", "TransferGrant"}}, b.down(b.relay()))
	b.wantPlan(1, 1, "1")
	assert.Equal(t, cluster, b.copyOfPlan().Spec.ClusterUID)
}

func TestRelayThatWakesUpLateWritesNoOlderPlan(t *testing.T) {
	for name, first := range map[string]bool{"the first plan": true, "a later plan": false} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			late, r := b.relay(), b.relay()
			b.plans(1, 1, "one", "1")
			if !first {
				b.down(r)
				b.plans(1, 2, "two", "2")
			}
			var reached <-chan struct{}
			var release func()
			late.Member.Live, reached, release = paused(member)
			ended := make(chan error, 1)
			go func() {
				_, err := late.Down(t.Context())
				ended <- err
			}()
			<-reached
			b.plans(1, 3, "three", "3")
			b.down(r)
			release()
			err := <-ended
			require.Truef(t, apierrors.IsConflict(err), "%v", err)
			b.wantPlan(1, 3, "3")
			assert.Equal(t, relay.Down{}, b.down(late), "called again, it finds nothing to do")
		})
	}
}

func TestMissingNamespacesAreSaid(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	b.plans(1, 1, "one", "1")
	a.root()
	noMember, noHub := r, r
	noMember.Member.Namespace = "nowhere"
	_, err := noMember.Down(t.Context())
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, `creating ClusterPlan nowhere/default in the member (namespace or kind are missing there: install chart ot-agent, or correct agentNamespace of the MemberCluster): namespaces "nowhere" not found`)
	up, err := noMember.Up(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, relay.Up{Missing: true}, up)

	noHub.Hub.Namespace = "nowhere"
	_, err = noHub.Up(t.Context(), "")
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, `creating ClusterReport nowhere/default on the hub (namespace or kind are missing there): namespaces "nowhere" not found`)
	assert.Equal(t, relay.Down{}, b.down(noHub))
}

func TestGrantOfTheMemberThatIsAhead(t *testing.T) {
	b := newBox(t)
	grant := func(c client.Client, namespace string, sequence int64) {
		b.create(c, &v1alpha1.TransferGrant{ObjectMeta: in(namespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: sequence, Unlimited: true}})
	}
	grant(hub, b.hubNamespace, 2)
	grant(member, b.agentNamespace, 7)
	want := int64(7)
	assert.Equal(t, relay.Down{AheadGrant: &want}, b.down(b.relay()))
	b.wantWrites(0, 0)
}
