package mailbox_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest/mailboxtest"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func newMailbox(t *testing.T) *mailboxtest.Mailbox {
	t.Helper()
	return mailboxtest.New(t, mailboxtest.NewClient(t), mailboxtest.NewClient(t))
}

// pauseBeforeWrite returns a client that stops before its next write until release.
func pauseBeforeWrite(c client.WithWatch) (_ client.Client, reached <-chan struct{}, release func()) {
	at, on := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	stop := func() {
		if once.CompareAndSwap(false, true) {
			close(at)
			<-on
		}
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			stop()
			return c.Create(ctx, object, o...)
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
			stop()
			return c.Update(ctx, object, o...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.DeleteOption) error {
			stop()
			return c.Delete(ctx, object, o...)
		},
	}), at, func() { close(on) }
}

// frozenReader returns a reader of the current state of one end of the mailbox.
func frozenReader(b *mailboxtest.Mailbox, c client.Client, namespace string) client.Reader {
	b.Helper()
	builder := fake.NewClientBuilder().WithScheme(c.Scheme())
	for _, list := range []client.ObjectList{&v1alpha1.ClusterPlanList{}, &v1alpha1.TransferGrantList{}, &v1alpha1.ClusterReportList{}} {
		require.NoError(b, c.List(b.Context(), list, client.InNamespace(namespace)))
		builder = builder.WithLists(list)
	}
	return builder.Build()
}

func requirePlan(b *mailboxtest.Mailbox, epoch, sequence int64, concurrency string) {
	b.Helper()
	spec := b.GetPlanCopy().Spec
	assert.Equal(b, []int64{epoch, sequence}, []int64{spec.Epoch, spec.Sequence})
	assert.Equal(b, concurrency, spec.Policy["concurrency"])
}

func TestPlanAndGrantAreCopiedDown(t *testing.T) {
	b := newMailbox(t)
	r := b.NewRelay()
	assert.Equal(t, mailbox.DownResult{}, b.MustDown(r), "nothing on the hub")

	plan := b.WritePlan(1, 1, "one", "3")
	plan.Spec.Images = []v1alpha1.PlannedImage{{Namespace: "images", Name: "debian", Spec: v1alpha1.VMDiskImageSpec{SourceType: "url", URL: "https://example.com/a"}}}
	require.NoError(t, b.Hub.Update(t.Context(), plan))
	require.NoError(t, b.Hub.Get(t.Context(), client.ObjectKeyFromObject(plan), plan)) // quantities as they are decoded
	grant := &v1alpha1.TransferGrant{ObjectMeta: mailboxtest.ObjectMeta(b.HubNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: mailboxtest.Cluster, Sequence: 1, Unlimited: true}}
	b.CreateObject(b.Hub, grant)
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan", "TransferGrant"}}, b.MustDown(r))
	b.RequireWrites(0, 2)
	assert.Equal(t, plan.Spec, b.GetPlanCopy().Spec)

	forgetful := r
	forgetful.Copies = nil
	for _, r := range []mailbox.Relay{r, forgetful} {
		assert.Equal(t, mailbox.DownResult{}, b.MustDown(r))
		b.RequireWrites(0, 0)
	}

	b.WritePlan(1, 2, "two", "5")
	assert.Equal(t, []string{"ClusterPlan"}, b.MustDown(r).Written)
	requirePlan(b, 1, 2, "5")

	edited := b.GetPlanCopy()
	edited.Spec.Policy["concurrency"] = "99"
	require.NoError(t, b.Member.Update(t.Context(), edited))
	assert.Equal(t, []string{"ClusterPlan"}, b.MustDown(r).Written, "somebody edited the copy")
	requirePlan(b, 1, 2, "5")

	require.NoError(t, b.Member.Delete(t.Context(), b.GetPlanCopy()))
	assert.Equal(t, []string{"ClusterPlan"}, b.MustDown(r).Written, "somebody deleted the copy")
	requirePlan(b, 1, 2, "5")

	stale := r
	stale.Hub.Cached = frozenReader(b, b.Hub, b.HubNamespace)
	require.NoError(t, b.Hub.Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: mailboxtest.ObjectMeta(b.HubNamespace, v1alpha1.MailboxName)}))
	b.ResetCounts()
	assert.Empty(t, b.MustDown(r))
	requirePlan(b, 1, 2, "5")
	require.NoError(t, b.Member.Delete(t.Context(), b.GetPlanCopy()))
	assert.Empty(t, b.MustDown(stale), "a cache brings nothing back that was deleted")
	b.RequireWrites(0, 0)
}

func TestHubRestored(t *testing.T) {
	b := newMailbox(t)
	r := b.NewRelay()
	b.WritePlan(1, 5, "five", "5")
	b.MustDown(r)
	b.ResetCounts()
	require.NoError(t, b.Hub.Delete(t.Context(), b.WritePlan(1, 2, "two", "2")))
	b.WritePlan(1, 2, "two", "2")
	for range 2 {
		down := b.MustDown(r)
		assert.Equal(t, mailbox.DownResult{NewerPlan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 5, Hash: "five"}}, down)
	}
	b.RequireWrites(0, 0)
	requirePlan(b, 1, 5, "5")

	b.WritePlan(2, 1, "new", "5")
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan"}}, b.MustDown(r))
	requirePlan(b, 2, 1, "5")
}

func TestStaleCacheIsNotARestore(t *testing.T) {
	b := newMailbox(t)
	stale, r := b.NewRelay(), b.NewRelay()
	b.WritePlan(1, 1, "one", "1")
	stale.Hub.Cached = frozenReader(b, b.Hub, b.HubNamespace)
	b.WritePlan(1, 2, "two", "2")
	b.MustDown(r)
	assert.Equal(t, mailbox.DownResult{}, b.MustDown(stale))
	requirePlan(b, 1, 2, "2")
}

func TestPlanForOtherClusterIsNotCopied(t *testing.T) {
	b := newMailbox(t)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	a.UID = "another"
	a.WriteRoot()
	b.WritePlan(1, 1, "one", "1")
	assert.Equal(t, mailbox.DownResult{OtherCluster: "another"}, b.MustDown(r))
	b.RequireWrites(0, 0)
	a.UID = mailboxtest.Cluster
	a.WriteRoot()
	assert.Equal(t, []string{"ClusterPlan"}, b.MustDown(r).Written)
}

// TestPlanCopyOfRebuiltCluster rebuilds the member and restores its objects without its
// agent's acknowledgement.
func TestPlanCopyOfRebuiltCluster(t *testing.T) {
	b := newMailbox(t)
	mailboxtest.NewReportWriter(b).WriteRoot()
	const before types.UID = "before"
	b.CreateObject(b.Member, &v1alpha1.ClusterPlan{ObjectMeta: mailboxtest.ObjectMeta(b.AgentNamespace, v1alpha1.MailboxName), Spec: v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 9, Hash: "nine"}, ClusterUID: before, Policy: map[string]string{"concurrency": "9"},
	}})
	b.CreateObject(b.Member, &v1alpha1.TransferGrant{ObjectMeta: mailboxtest.ObjectMeta(b.AgentNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: before, Sequence: 9, Unlimited: true}})
	b.WritePlan(1, 1, "one", "1")
	b.CreateObject(b.Hub, &v1alpha1.TransferGrant{ObjectMeta: mailboxtest.ObjectMeta(b.HubNamespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: mailboxtest.Cluster, Sequence: 1, Unlimited: true}})
	assert.Equal(t, mailbox.DownResult{Written: []string{"ClusterPlan", "TransferGrant"}}, b.MustDown(b.NewRelay()))
	requirePlan(b, 1, 1, "1")
	assert.Equal(t, mailboxtest.Cluster, b.GetPlanCopy().Spec.ClusterUID)
}

func TestPausedRelayWritesNoOlderPlan(t *testing.T) {
	for name, first := range map[string]bool{"the first plan": true, "a later plan": false} {
		t.Run(name, func(t *testing.T) {
			b := newMailbox(t)
			late, r := b.NewRelay(), b.NewRelay()
			b.WritePlan(1, 1, "one", "1")
			if !first {
				b.MustDown(r)
				b.WritePlan(1, 2, "two", "2")
			}
			var reached <-chan struct{}
			var release func()
			late.Member.Live, reached, release = pauseBeforeWrite(b.Member)
			ended := make(chan error, 1)
			go func() {
				_, err := late.SyncDown(t.Context())
				ended <- err
			}()
			<-reached
			b.WritePlan(1, 3, "three", "3")
			b.MustDown(r)
			release()
			err := <-ended
			require.Truef(t, apierrors.IsConflict(err), "%v", err)
			requirePlan(b, 1, 3, "3")
			assert.Equal(t, mailbox.DownResult{}, b.MustDown(late), "called again, it finds nothing to do")
		})
	}
}

func TestNewerGrantInMember(t *testing.T) {
	b := newMailbox(t)
	grant := func(c client.Client, namespace string, sequence int64) {
		b.CreateObject(c, &v1alpha1.TransferGrant{ObjectMeta: mailboxtest.ObjectMeta(namespace, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: mailboxtest.Cluster, Sequence: sequence, Unlimited: true}})
	}
	grant(b.Hub, b.HubNamespace, 2)
	grant(b.Member, b.AgentNamespace, 7)
	want := int64(7)
	assert.Equal(t, mailbox.DownResult{NewerGrant: &want}, b.MustDown(b.NewRelay()))
	b.RequireWrites(0, 0)
}
