package mailbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var always = Recheck{Up: true, Down: true}

// countedSide is one side of a mailbox that counts its live requests.
type countedSide struct {
	Side
	store client.WithWatch
	asked []string
	// refuses is the name of an object whose writes are refused.
	refuses string
}

func (s *countedSide) refuseWrite(o client.Object) error {
	if o.GetName() == s.refuses {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterReport"}, o.GetName(), nil)
	}
	return nil
}

func newCountedSide(t *testing.T, namespace string) *countedSide {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	s := &countedSide{store: fake.NewClientBuilder().WithScheme(scheme).Build()}
	s.Side = Side{Cached: s.store, Namespace: namespace, Live: interceptor.NewClient(s.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			s.asked = append(s.asked, "get")
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			s.asked = append(s.asked, "list")
			return c.List(ctx, list, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			s.asked = append(s.asked, "create")
			if err := s.refuseWrite(o); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			s.asked = append(s.asked, "update")
			if err := s.refuseWrite(o); err != nil {
				return err
			}
			return c.Update(ctx, o, options...)
		},
	})}
	return s
}

// takeAsked returns the live requests since the last call.
func (s *countedSide) takeAsked() []string {
	asked := s.asked
	s.asked = nil
	return asked
}

// TestUnchangedCopiesAreNotRead: a heartbeat costs one write on the hub, or none where it is
// spared, and nothing in the member; a sync without any change costs nothing.
func TestUnchangedCopiesAreNotRead(t *testing.T) {
	hub, member := newCountedSide(t, "ot-member-a"), newCountedSide(t, "ot-agent")
	named := func(side *countedSide, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: side.Namespace, Name: name}
	}
	root := &v1alpha1.ClusterReport{ObjectMeta: named(member, v1alpha1.MailboxName), ClusterUID: "a", Sequence: 1, Root: &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page"}}}}
	plan := &v1alpha1.ClusterPlan{ObjectMeta: named(hub, v1alpha1.MailboxName), Spec: v1alpha1.ClusterPlanSpec{ClusterUID: "a", PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}}}
	require.NoError(t, member.store.Create(t.Context(), root))
	require.NoError(t, member.store.Create(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: named(member, "page"), ClusterUID: "a", Sequence: 1, Page: &v1alpha1.ReportPage{}}))
	require.NoError(t, hub.store.Create(t.Context(), plan))
	require.NoError(t, hub.store.Create(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: named(hub, v1alpha1.MailboxName), Spec: v1alpha1.TransferGrantSpec{ClusterUID: "a", Sequence: 1}}))

	relay := Relay{Hub: hub.Side, Member: member.Side, Copies: &EqualCopies{}, Recheck: always}
	sync := func() (UpResult, DownResult) {
		t.Helper()
		up, err := relay.SyncUp(t.Context(), "a")
		require.NoError(t, err)
		down, err := relay.SyncDown(t.Context())
		require.NoError(t, err)
		return up, down
	}
	sync()
	hub.takeAsked()
	member.takeAsked()
	relay.Recheck = Recheck{}

	up, down := sync()
	assert.Equal(t, UpResult{RootSequence: 1}, up)
	assert.Equal(t, DownResult{}, down)
	assert.Empty(t, hub.takeAsked())
	assert.Empty(t, member.takeAsked())

	root.Sequence = 2
	require.NoError(t, member.store.Update(t.Context(), root))
	up, _ = sync()
	assert.Equal(t, UpResult{Written: 1, RootSequence: 2}, up)
	assert.Equal(t, []string{"update"}, hub.takeAsked())
	assert.Empty(t, member.takeAsked())

	// Spared heartbeats say of the copy what they would have been.
	copied := &v1alpha1.ClusterReport{}
	readCopy := func() *v1alpha1.ClusterReport {
		t.Helper()
		require.NoError(t, hub.store.Get(t.Context(), client.ObjectKey{Namespace: hub.Namespace, Name: v1alpha1.MailboxName}, copied))
		return copied
	}
	version := readCopy().ResourceVersion
	relay.SpareHeartbeats = true
	for root.Sequence = 3; root.Sequence < 5; root.Sequence++ {
		root.Root.ObservedAt = metav1.Unix(root.Sequence, 0)
		require.NoError(t, member.store.Update(t.Context(), root))
		up, _ = sync()
		assert.Equal(t, UpResult{RootSequence: root.Sequence, Heartbeat: &Heartbeat{CopyVersion: version, Sequence: root.Sequence, ObservedAt: root.Root.ObservedAt}}, up)
		assert.Empty(t, hub.takeAsked())
		applied := up.Heartbeat.ApplyTo(readCopy())
		assert.Equal(t, []any{root.Sequence, root.Root}, []any{applied.Sequence, applied.Root})
		assert.Equal(t, int64(2), copied.Sequence)
	}
	up, err := relay.SyncUp(t.Context(), "b")
	require.NoError(t, err)
	assert.Equal(t, UpResult{OtherCluster: "a"}, up, "it is known to be another cluster")
	relay.Recheck = always
	up, _ = sync()
	assert.Equal(t, UpResult{Written: 1, RootSequence: 4}, up, "a recheck copies it")
	relay.Recheck = Recheck{}
	root.Sequence, root.Root.BootID = 6, "restarted"
	require.NoError(t, member.store.Update(t.Context(), root))
	up, _ = sync()
	assert.Equal(t, UpResult{Written: 1, RootSequence: 6}, up, "it says more than its time")
	readCopy().Root.BootID = "by hand"
	require.NoError(t, hub.store.Update(t.Context(), copied))
	root.Sequence = 7
	require.NoError(t, member.store.Update(t.Context(), root))
	up, _ = sync()
	assert.Equal(t, UpResult{Written: 1, RootSequence: 7}, up, "somebody has changed the copy")
	assert.Equal(t, "restarted", readCopy().Root.BootID)

	// A plan that somebody changed in the member is seen by the watch, and replaced.
	copiedPlan := &v1alpha1.ClusterPlan{}
	require.NoError(t, member.store.Get(t.Context(), client.ObjectKey{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, copiedPlan))
	copiedPlan.Spec.Policy = map[string]string{"concurrency": "100"}
	require.NoError(t, member.store.Update(t.Context(), copiedPlan))
	_, down = sync()
	assert.Equal(t, []string{"ClusterPlan"}, down.Written)

	// A cache that does not show a change of the copy hides it only until a recheck.
	plans, reports := &v1alpha1.ClusterPlanList{}, &v1alpha1.ClusterReportList{}
	require.NoError(t, member.store.List(t.Context(), plans))
	require.NoError(t, member.store.List(t.Context(), reports))
	relay.Member.Cached = fake.NewClientBuilder().WithScheme(member.store.Scheme()).WithLists(plans, reports).Build()
	require.NoError(t, member.store.Get(t.Context(), client.ObjectKeyFromObject(copiedPlan), copiedPlan))
	copiedPlan.Spec.Policy = map[string]string{"concurrency": "100"}
	require.NoError(t, member.store.Update(t.Context(), copiedPlan))
	down, err = relay.SyncDown(t.Context())
	require.NoError(t, err)
	assert.Empty(t, down.Written)
	relay.Recheck = always
	down, err = relay.SyncDown(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"ClusterPlan"}, down.Written)
}

// TestLaggingCacheCostsNoReads: where the hub's cache does not show this process's own write yet,
// the copy is taken as it was written, for maxCacheLag.
func TestLaggingCacheCostsNoReads(t *testing.T) {
	hub, member := newCountedSide(t, "ot-member-a"), newCountedSide(t, "ot-agent")
	root := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, ClusterUID: "a", Sequence: 1, Root: &v1alpha1.ReportRoot{}}
	require.NoError(t, member.store.Create(t.Context(), root))
	relay := Relay{Hub: hub.Side, Member: member.Side, Copies: &EqualCopies{}}
	report := func(sequence int64) (UpResult, []string) {
		t.Helper()
		root.Sequence = sequence
		require.NoError(t, member.store.Update(t.Context(), root))
		hub.takeAsked()
		up, err := relay.SyncUp(t.Context(), "a")
		require.NoError(t, err)
		return up, hub.takeAsked()
	}
	report(2)
	var stale v1alpha1.ClusterReportList
	require.NoError(t, hub.store.List(t.Context(), &stale))
	relay.Hub.Cached = fake.NewClientBuilder().WithScheme(hub.store.Scheme()).WithLists(&stale).Build()

	for sequence := range int64(3) {
		up, asked := report(3 + sequence)
		assert.Equal(t, UpResult{Written: 1, RootSequence: 3 + sequence}, up)
		assert.Equal(t, []string{"update"}, asked)
	}
	relay.SpareHeartbeats = true
	copied := &v1alpha1.ClusterReport{}
	require.NoError(t, hub.store.Get(t.Context(), client.ObjectKey{Namespace: hub.Namespace, Name: v1alpha1.MailboxName}, copied))
	root.Root.ObservedAt = metav1.Unix(6, 0)
	up, asked := report(6)
	assert.Empty(t, asked)
	assert.Equal(t, copied.ResourceVersion, up.Heartbeat.CopyVersion, "heartbeats are of the copy that was written")
	relay.SpareHeartbeats = false

	for key, pair := range relay.Copies.pairs { // a hub that was restored shows the former copy for good
		pair.recordedAt = pair.recordedAt.Add(-maxCacheLag)
		relay.Copies.pairs[key] = pair
	}
	_, asked = report(7)
	assert.Equal(t, []string{"get", "update"}, asked)

	// Somebody else's write is never overwritten unread.
	require.NoError(t, hub.store.Get(t.Context(), client.ObjectKeyFromObject(copied), copied))
	copied.Root.BootID = "by hand"
	require.NoError(t, hub.store.Update(t.Context(), copied))
	root.Sequence = 8
	require.NoError(t, member.store.Update(t.Context(), root))
	_, err := relay.SyncUp(t.Context(), "a")
	assert.True(t, apierrors.IsConflict(err), "%v", err)
}

func TestCopiesAreRecheckedFirstAfterFailuresAndRegularly(t *testing.T) {
	failed := errors.New("connection lost")
	copies, confirmed, now := &EqualCopies{}, Findings{ConfirmedSequence: 1}, time.Now()
	assert.Equal(t, always, confirmed.NeedsRecheck(copies, now))
	copies.RecordSync(always, UpResult{}, nil, nil, now)
	assert.Equal(t, Recheck{}, confirmed.NeedsRecheck(copies, now.Add(recheckInterval-1)))
	copies.RecordSync(Recheck{}, UpResult{}, nil, nil, now.Add(time.Minute))
	assert.Equal(t, always, confirmed.NeedsRecheck(copies, now.Add(recheckInterval)), "one that trusted caches does not count")
	copies.RecordSync(Recheck{}, UpResult{}, failed, failed, now.Add(time.Minute))
	assert.Equal(t, always, confirmed.NeedsRecheck(copies, now.Add(time.Minute)))

	copies.RecordSync(always, UpResult{}, nil, failed, now)
	assert.Equal(t, Recheck{Down: true}, confirmed.NeedsRecheck(copies, now), "one direction says nothing of the other")
	copies.RecordSync(Recheck{Down: true}, UpResult{}, failed, nil, now)
	assert.Equal(t, Recheck{Up: true}, confirmed.NeedsRecheck(copies, now))
	copies.RecordSync(Recheck{Up: true}, UpResult{OnlyRefused: true}, failed, nil, now)
	assert.Equal(t, Recheck{}, confirmed.NeedsRecheck(copies, now), "what is refused is so after a recheck too")
}
