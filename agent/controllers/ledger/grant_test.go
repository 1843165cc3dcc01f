package ledger

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/guard"
	"github.com/pelotech/ot-fleet/agent/identity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/once"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	namespace = "ot-agent"
	lasts     = time.Minute
)

// mailbox is a cache that shows what is stored.
type mailbox struct {
	cache.Cache
	client.Client
}

func (m mailbox) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return m.Client.Get(ctx, key, obj, opts...)
}

func (m mailbox) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return m.Client.List(ctx, list, opts...)
}

// limitedMember is a ledger's controller under a plan that has it go by grants.
type limitedMember struct {
	*Reconciler
	t       *testing.T
	elapsed time.Duration
	pokes   int
	// onRead happens when an image is read: the ledger has been read by then, and is
	// written later.
	onRead func()
}

func newLimited(t *testing.T, safe int32, images ...*v1alpha1.VMDiskImage) *limitedMember {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	p := policy.Default()
	p.Concurrency, p.Limited, p.Safe, p.AttemptTimeout = 4, true, safe, time.Hour
	p.Sources = policy.Sources{{Name: "cdn", Hosts: []string{"cdn.example.com"}}}
	m := &limitedMember{t: t}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster"}},
		&v1alpha1.ClusterPlan{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName},
			Spec:       v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "cluster", Policy: p.Data()},
		},
	}
	for _, img := range images {
		objects = append(objects, img)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.SyncLedger{}, &v1alpha1.VMDiskImage{}).
		WithIndex(&cdiv1.DataVolume{}, image.UnfinishedIndex, func(client.Object) []string { return []string{image.Unfinished} }).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, is := obj.(*v1alpha1.VMDiskImage); is && m.onRead != nil {
				m.onRead()
			}
			return c.Get(ctx, key, obj, opts...)
		}}).Build()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(image.DataVolumeKind, meta.RESTScopeNamespace)
	served := kinds.New(mapper)
	served.WhenServed(image.DataVolumeKind, func(context.Context) error { return nil })
	require.NoError(t, served.Start(t.Context()))
	index := queue.NewIndex()
	m.Reconciler = &Reconciler{
		Client: c, Live: c, Events: events.NewFakeRecorder(100), Index: index, Kinds: served, Metrics: metrics.New(prometheus.NewRegistry(), index),
		Policy: &Policy{}, Mailbox: mailbox{Client: c}, Cluster: identity.New(c), Namespace: namespace,
		PolicyKey:      types.NamespacedName{Namespace: "sync-operator", Name: "none"},
		Lacks:          func(context.Context, *v1alpha1.VMDiskImage) (bool, error) { return false, nil },
		RefreshUnready: func(context.Context, ...v1alpha1.ImageKey) {},
		Refresh:        func(context.Context, ...v1alpha1.ImageKey) {},
		PokeReport:     func() { m.pokes++ },
		Hub:            func() *metav1.Condition { return nil },
		Lacking:        func() string { return "" },
		Guarded:        (&guard.Guard{}).Condition,
		OneDownload:    (&once.Watch{}).Condition,
		created:        map[string]time.Time{},
	}
	m.planServed.Store(true)
	m.grantServed.Store(true)
	m.start("boot")
	for i, img := range images {
		m.Index.Set(queue.Item{
			Image: image.KeyOf(img), Revision: img.Spec.Revision(), Standing: queue.Ready, Host: image.HostOf(img.Spec),
			Key: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch), Sequence: int64(i)},
		})
	}
	return m
}

// start is another process.
func (m *limitedMember) start(boot string) {
	m.Grants, m.Elapsed, m.elapsed = grant.New(boot), func() time.Duration { return m.elapsed }, 0
	m.Ages = clock.NewAges(m.Elapsed)
	m.last.Store(nil)
}

func waiting(name, url string) *v1alpha1.VMDiskImage {
	b := apitest.Image("ns/" + name).WithURL(url).WithFinalizer()
	revision := b.Obj().Spec.Revision()
	return b.WithStatus(v1alpha1.VMDiskImageStatus{
		ObservedGeneration: 1, Phase: v1alpha1.PhaseQueued, Revision: revision, Reason: v1alpha1.ReasonWaitingForSlot,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionImported, Status: metav1.ConditionFalse, Reason: string(v1alpha1.ReasonWaitingForSlot)}},
	}).WithRevisions(v1alpha1.RevisionStatus{Revision: revision}).Obj()
}

func several(n int) []*v1alpha1.VMDiskImage {
	images := make([]*v1alpha1.VMDiskImage, n)
	for i := range images {
		images[i] = waiting(fmt.Sprintf("img-%d", i), "https://images.example.com/a")
	}
	return images
}

func (m *limitedMember) reconcile() ctrl.Result {
	m.t.Helper()
	result, err := m.Reconcile(m.t.Context(), ctrl.Request{})
	require.NoError(m.t, err)
	return result
}

func (m *limitedMember) status() *v1alpha1.SyncLedgerStatus {
	m.t.Helper()
	l := &v1alpha1.SyncLedger{}
	require.NoError(m.t, m.Client.Get(m.t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.LedgerName}, l))
	require.NotNil(m.t, l.Status)
	return l.Status
}

func (m *limitedMember) running() (names []string) {
	for _, slot := range m.status().Slots {
		names = append(names, slot.Image.Name)
	}
	return names
}

func (m *limitedMember) granted() *metav1.Condition {
	return meta.FindStatusCondition(m.status().Conditions, v1alpha1.ConditionGranted)
}

// give has the hub grant what was asked for with a nonce.
func (m *limitedMember) give(sequence int64, nonce string, slots int32, sources ...v1alpha1.SourceGrant) {
	m.t.Helper()
	g := &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}}
	if sequence > 1 {
		require.NoError(m.t, m.Client.Get(m.t.Context(), client.ObjectKeyFromObject(g), g))
	}
	g.Spec = v1alpha1.TransferGrantSpec{ClusterUID: "cluster", Sequence: sequence, Limits: &v1alpha1.TransferLimits{
		Slots: slots, Sources: sources, Nonce: nonce, DurationSeconds: int32(lasts / time.Second),
	}}
	if sequence > 1 {
		require.NoError(m.t, m.Client.Update(m.t.Context(), g))
		return
	}
	require.NoError(m.t, m.Client.Create(m.t.Context(), g))
}

func TestLedgerUnderGrants(t *testing.T) {
	m := newLimited(t, 1, several(6)...)
	m.reconcile()
	assert.Equal(t, []string{"img-0"}, m.running(), "the safe share needs no grant")
	assert.Equal(t, v1alpha1.ReasonAwaitingGrant, m.granted().Reason)
	assert.Equal(t, int32(4), m.Grants.Wanted().Wanted, "the policy's concurrency")
	assert.Positive(t, m.pokes, "the report is to ask")
	assert.Equal(t, v1alpha1.ReasonWaitingForFleet, m.Index.Withheld(several(6)[1].UID))
	assert.Empty(t, m.Index.Withheld(several(6)[5].UID), "it waits for the policy's slots")

	nonce := m.Grants.Ask(0)
	m.give(1, nonce, 3)
	result := m.reconcile()
	assert.Equal(t, []string{"img-0", "img-1", "img-2"}, m.running())
	assert.Equal(t, int32(3), m.status().Budget)
	assert.Equal(t, &v1alpha1.TakenGrant{BootID: "boot", Sequence: 1, Slots: 3}, m.status().Grant)
	assert.Equal(t, v1alpha1.ReasonGrantInForce, m.granted().Reason)
	assert.LessOrEqual(t, result.RequeueAfter, lasts, "it looks again when the grant ends")

	m.give(2, nonce, 2)
	m.reconcile()
	assert.Equal(t, int32(2), m.status().Budget, "a smaller one takes the place of a larger")
	assert.Len(t, m.running(), 3, "and stops nothing")

	m.elapsed = lasts
	m.reconcile()
	assert.Equal(t, int32(1), m.status().Budget)
	assert.Equal(t, &v1alpha1.TakenGrant{BootID: "boot", Sequence: 2}, m.status().Grant)
	assert.Equal(t, v1alpha1.ReasonGrantEnded, m.granted().Reason)
	assert.Contains(t, meta.FindStatusCondition(m.status().Conditions, v1alpha1.ConditionWithinBudget).Message, "3 imports run and the fleet-wide budget allows 1")
}

// TestGrantEndsBeforeTheLedgerIsWritten: the process is paused between its look at the
// clock and the write.
func TestGrantEndsBeforeTheLedgerIsWritten(t *testing.T) {
	m := newLimited(t, 0, several(2)...)
	m.reconcile()
	m.give(1, m.Grants.Ask(0), 2)
	m.onRead = func() { m.elapsed = lasts }
	m.reconcile()
	assert.Empty(t, m.running())
	assert.Zero(t, m.status().Budget)
	assert.Equal(t, v1alpha1.ReasonGrantEnded, m.granted().Reason)
}

// TestAnotherProcessHasWrittenTheLedger: what was asked for before is given up, on
// either side.
func TestAnotherProcessHasWrittenTheLedger(t *testing.T) {
	m := newLimited(t, 0, several(2)...)
	m.reconcile()
	old, sent := m.Grants, m.Grants.Ask(0)
	m.give(1, sent, 2)

	m.start("toob")
	m.reconcile()
	assert.Empty(t, m.running(), "the grant is another process's")
	assert.Equal(t, &v1alpha1.TakenGrant{BootID: "toob", Sequence: 1}, m.status().Grant)

	m.Grants = old
	m.last.Store(nil)
	m.reconcile()
	assert.Empty(t, m.running(), "the hub may have been told that it is not gone by")
	assert.Equal(t, "boot/2", m.Grants.Ask(0))
}

func TestSourceGroups(t *testing.T) {
	images := []*v1alpha1.VMDiskImage{
		waiting("img-0", "https://cdn.example.com/a"), waiting("img-1", "https://cdn.example.com/b"),
		waiting("img-2", "https://cdn.example.com/c"), waiting("img-3", "https://images.example.com/a"),
	}
	m := newLimited(t, 1, images...)
	m.reconcile()
	assert.Equal(t, []string{"img-3"}, m.running(), "the safe share is for what is of no group")
	assert.Equal(t, v1alpha1.ReasonWaitingForSource, m.Index.Withheld(images[0].UID))
	assert.Equal(t, []v1alpha1.SourceDemand{{Name: "cdn", Wanted: 3}}, m.Grants.Wanted().Sources)

	m.give(1, m.Grants.Ask(0), 4, v1alpha1.SourceGrant{Name: "cdn", Slots: 2})
	m.reconcile()
	assert.Equal(t, []string{"img-3", "img-0", "img-1"}, m.running())
	assert.Equal(t, v1alpha1.ReasonWaitingForSource, m.Index.Withheld(images[2].UID))
	assert.Equal(t, []v1alpha1.SourceDemand{{Name: "cdn", Running: 2, Wanted: 3}}, m.Grants.Wanted().Sources)
}

// TestAGroupWithoutRoomHoldsUpNobody: also where only one more can be admitted.
func TestAGroupWithoutRoomHoldsUpNobody(t *testing.T) {
	images := []*v1alpha1.VMDiskImage{
		waiting("img-0", "https://cdn.example.com/a"), waiting("img-1", "https://cdn.example.com/b"), waiting("img-2", "https://images.example.com/c"),
	}
	m := newLimited(t, 0, images...)
	m.reconcile()
	cdn := v1alpha1.SourceGrant{Name: "cdn", Slots: 1}
	m.give(1, m.Grants.Ask(0), 1, cdn)
	m.reconcile()
	assert.Equal(t, []string{"img-0"}, m.running())
	m.Index.Remove(images[0].UID) // as its status tells
	m.give(2, m.Grants.Ask(0), 2, cdn)
	m.reconcile()
	assert.Equal(t, []string{"img-0", "img-2"}, m.running())
}

// TestLateSlot: a slot that is older than an attempt may be gets no DataVolume any
// more, whoever leads.
func TestLateSlot(t *testing.T) {
	m := newLimited(t, 1, several(1)...)
	m.reconcile()
	dv := &cdiv1.DataVolume{}
	key := types.NamespacedName{Namespace: "ns", Name: m.status().Slots[0].DataVolume}
	require.NoError(t, m.Client.Get(t.Context(), key, dv))
	require.NoError(t, m.Client.Delete(t.Context(), dv))
	l := &v1alpha1.SyncLedger{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.LedgerName}, l))
	l.Status.Slots[0].StartedAt = metav1.NewTime(time.Now().Add(-time.Hour))
	require.NoError(t, m.Client.Status().Update(t.Context(), l))

	m.start("toob")
	m.created = map[string]time.Time{}
	m.reconcile()
	require.Error(t, m.Client.Get(t.Context(), key, dv))
	img := &v1alpha1.VMDiskImage{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
	require.NotNil(t, img.Status.Revisions[0].Failure)
	assert.Equal(t, v1alpha1.ReasonTimeout, img.Status.Revisions[0].Failure.Reason)
}

// TestAClockThatIsPutBackMakesNoSlotYounger: the ledger's time says that the slot was
// just given, and this process knows better.
func TestAClockThatIsPutBackMakesNoSlotYounger(t *testing.T) {
	m := newLimited(t, 1, several(1)...)
	m.reconcile()
	dv := &cdiv1.DataVolume{}
	key := types.NamespacedName{Namespace: "ns", Name: m.status().Slots[0].DataVolume}
	require.NoError(t, m.Client.Get(t.Context(), key, dv))
	require.NoError(t, m.Client.Delete(t.Context(), dv))
	m.created = map[string]time.Time{}
	m.elapsed = 24 * time.Hour
	m.reconcile()
	require.Error(t, m.Client.Get(t.Context(), key, dv))
}
