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

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/clock"
	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	namespace     = "ot-agent"
	grantDuration = time.Minute
)

// mailboxCache is a cache without lag.
type mailboxCache struct {
	cache.Cache
	client.Client
}

func (m mailboxCache) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return m.Client.Get(ctx, key, obj, opts...)
}

func (m mailboxCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return m.Client.List(ctx, list, opts...)
}

// fleetMember is a ledger's controller under a plan with a fleet-wide budget.
type fleetMember struct {
	*Reconciler
	t              *testing.T
	elapsed        time.Duration
	reportTriggers int
	// beforeRead is called before an image is read: after the ledger is read, and before it
	// is written.
	beforeRead func()
}

func newFleetMember(t *testing.T, safe int32, images ...*v1alpha1.VMDiskImage) *fleetMember {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	p := policy.Default()
	p.Concurrency, p.UsesGrants, p.SafeConcurrency, p.AttemptTimeout = 4, true, safe, time.Hour
	p.Sources = policy.Sources{{Name: "cdn", Hosts: []string{"cdn.example.com"}}}
	m := &fleetMember{t: t}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster"}},
		&v1alpha1.ClusterPlan{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName},
			Spec:       v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "cluster", Policy: p.ToData()},
		},
	}
	for _, img := range images {
		objects = append(objects, img)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.SyncLedger{}, &v1alpha1.VMDiskImage{}).
		WithIndex(&cdiv1.DataVolume{}, image.UnfinishedIndex, func(client.Object) []string { return []string{image.UnfinishedIndexValue} }).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, isImage := obj.(*v1alpha1.VMDiskImage); isImage && m.beforeRead != nil {
				m.beforeRead()
			}
			return c.Get(ctx, key, obj, opts...)
		}}).Build()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(image.DataVolumeGVK, meta.RESTScopeNamespace)
	kinds := apidiscovery.NewKindTracker(mapper)
	kinds.WhenServed(image.DataVolumeGVK, func(context.Context) error { return nil })
	require.NoError(t, kinds.Start(t.Context()))
	queue, cluster, recorder := ledger.NewQueue(), apidiscovery.NewClusterIdentity(c), events.NewFakeRecorder(100)
	inForce := &policycontroller.InForce{}
	m.Reconciler = &Reconciler{
		Client: c, Live: c, Events: recorder, Queue: queue, Kinds: kinds, Metrics: metrics.New(prometheus.NewRegistry(), queue),
		PolicyInForce: inForce, Policy: &policycontroller.Reader{
			Cached: c, Mailbox: c, Live: c, Events: recorder, Cluster: cluster, InForce: inForce, Namespace: namespace,
			ConfigMapKey: types.NamespacedName{Namespace: "sync-operator", Name: "none"}, Now: time.Now,
		},
		Mailbox: mailboxCache{Client: c}, Cluster: cluster, Namespace: namespace, Now: time.Now,
		LacksCapacity:         func(context.Context, *v1alpha1.VMDiskImage) (bool, error) { return false, nil },
		EnqueueUnready:        func(context.Context, ...v1alpha1.ImageKey) {},
		EnqueueImages:         func(...v1alpha1.ImageKey) {},
		EnqueueReport:         func() { m.reportTriggers++ },
		EnqueuePlan:           func() {},
		HubCondition:          func() *metav1.Condition { return nil },
		MissingRights:         func() string { return "" },
		AccountGuardCondition: admissionpolicy.NewAccountGuardPoller(nil, nil).Condition,
		ImportGuardCondition:  admissionpolicy.NewBudgetGuardPoller(nil, "", nil).Condition,
		OneDownloadCondition:  admissionpolicy.NewOneDownloadPoller(nil, nil, nil).Condition,
		createdAt:             map[string]time.Time{},
		unlistedSince:         map[string]time.Time{},
	}
	m.Policy.SetPlanServed()
	m.grantServed.Store(true)
	m.startProcess("boot")
	for i, img := range images {
		m.Queue.Set(ledger.QueuedImage{
			Image: image.KeyOf(img), Revision: img.Spec.Revision(), State: ledger.Admissible, Host: img.Spec.SourceHost(),
			Key: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch), Sequence: int64(i)},
		})
	}
	return m
}

// startProcess replaces the state that a process keeps in memory.
func (m *fleetMember) startProcess(boot string) {
	m.Grants, m.Elapsed, m.elapsed = grant.NewRequestTracker(boot), func() time.Duration { return m.elapsed }, 0
	m.Ages = clock.NewAgeTracker(m.Elapsed)
	m.lastLedger.Store(nil)
}

func queuedImage(name, url string) *v1alpha1.VMDiskImage {
	b := apitest.Image("ns/" + name).WithURL(url).WithFinalizer()
	revision := b.Obj().Spec.Revision()
	return b.WithStatus(v1alpha1.VMDiskImageStatus{
		ObservedGeneration: 1, Phase: v1alpha1.PhaseQueued, Revision: revision, Reason: v1alpha1.ReasonWaitingForSlot,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionImported, Status: metav1.ConditionFalse, Reason: string(v1alpha1.ReasonWaitingForSlot)}},
	}).WithRevisions(v1alpha1.RevisionStatus{Revision: revision}).Obj()
}

func queuedImages(n int) []*v1alpha1.VMDiskImage {
	images := make([]*v1alpha1.VMDiskImage, n)
	for i := range images {
		images[i] = queuedImage(fmt.Sprintf("img-%d", i), "https://images.example.com/a")
	}
	return images
}

func (m *fleetMember) mustReconcile() ctrl.Result {
	m.t.Helper()
	result, err := m.Reconcile(m.t.Context(), ctrl.Request{})
	require.NoError(m.t, err)
	return result
}

func (m *fleetMember) storedStatus() *v1alpha1.SyncLedgerStatus {
	m.t.Helper()
	l := &v1alpha1.SyncLedger{}
	require.NoError(m.t, m.Client.Get(m.t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.LedgerName}, l))
	require.NotNil(m.t, l.Status)
	return l.Status
}

func (m *fleetMember) namesWithSlots() (names []string) {
	for _, slot := range m.storedStatus().Slots {
		names = append(names, slot.Image.Name)
	}
	return names
}

func (m *fleetMember) findGrantedCondition() *metav1.Condition {
	return meta.FindStatusCondition(m.storedStatus().Conditions, v1alpha1.ConditionGranted)
}

// storeGrant writes the grant that answers the request with this nonce.
func (m *fleetMember) storeGrant(sequence int64, nonce string, slots int32, sources ...v1alpha1.SourceGrant) {
	m.t.Helper()
	g := &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}}
	if sequence > 1 {
		require.NoError(m.t, m.Client.Get(m.t.Context(), client.ObjectKeyFromObject(g), g))
	}
	g.Spec = v1alpha1.TransferGrantSpec{ClusterUID: "cluster", Sequence: sequence, Limits: &v1alpha1.TransferLimits{
		Slots: slots, Sources: sources, Nonce: nonce, DurationSeconds: int32(grantDuration / time.Second),
	}}
	if sequence > 1 {
		require.NoError(m.t, m.Client.Update(m.t.Context(), g))
		return
	}
	require.NoError(m.t, m.Client.Create(m.t.Context(), g))
}

func TestBudgetFollowsGrant(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(6)...)
	m.mustReconcile()
	assert.Equal(t, []string{"img-0"}, m.namesWithSlots(), "the safe share needs no grant")
	assert.Equal(t, v1alpha1.ReasonAwaitingGrant, m.findGrantedCondition().Reason)
	assert.Equal(t, int32(4), m.Grants.Demand().Wanted, "the policy's concurrency")
	assert.Positive(t, m.reportTriggers, "the report is requeued for the request")
	assert.Equal(t, v1alpha1.ReasonWaitingForFleet, m.Queue.WithheldReason(queuedImages(6)[1].UID))
	assert.Empty(t, m.Queue.WithheldReason(queuedImages(6)[5].UID), "beyond the policy's concurrency")

	nonce := m.Grants.RequestNonce(0)
	m.storeGrant(1, nonce, 3)
	result := m.mustReconcile()
	assert.Equal(t, []string{"img-0", "img-1", "img-2"}, m.namesWithSlots())
	assert.Equal(t, int32(3), m.storedStatus().Budget)
	assert.Equal(t, &v1alpha1.LedgerGrant{BootID: "boot", Sequence: 1, Slots: 3}, m.storedStatus().Grant)
	assert.Equal(t, v1alpha1.ReasonGrantInForce, m.findGrantedCondition().Reason)
	assert.LessOrEqual(t, result.RequeueAfter, grantDuration, "requeued when the grant expires")

	m.storeGrant(2, nonce, 2)
	m.mustReconcile()
	assert.Equal(t, int32(2), m.storedStatus().Budget, "a smaller grant replaces a larger one")
	assert.Len(t, m.namesWithSlots(), 3, "running imports are not stopped")

	m.elapsed = grantDuration
	m.mustReconcile()
	assert.Equal(t, int32(1), m.storedStatus().Budget)
	assert.Equal(t, &v1alpha1.LedgerGrant{BootID: "boot", Sequence: 2}, m.storedStatus().Grant)
	assert.Equal(t, v1alpha1.ReasonGrantEnded, m.findGrantedCondition().Reason)
	assert.Contains(t, meta.FindStatusCondition(m.storedStatus().Conditions, v1alpha1.ConditionWithinBudget).Message, "3 imports run and the fleet-wide budget allows 1")
}

// The process is paused between reading its clock and the write.
func TestGrantExpiresBeforeLedgerWrite(t *testing.T) {
	m := newFleetMember(t, 0, queuedImages(2)...)
	m.mustReconcile()
	m.storeGrant(1, m.Grants.RequestNonce(0), 2)
	m.beforeRead = func() { m.elapsed = grantDuration }
	m.mustReconcile()
	assert.Empty(t, m.namesWithSlots())
	assert.Zero(t, m.storedStatus().Budget)
	assert.Equal(t, v1alpha1.ReasonGrantEnded, m.findGrantedCondition().Reason)
}

func TestGrantIsLostWhenAnotherProcessWritesLedger(t *testing.T) {
	m := newFleetMember(t, 0, queuedImages(2)...)
	m.mustReconcile()
	old, sent := m.Grants, m.Grants.RequestNonce(0)
	m.storeGrant(1, sent, 2)

	m.startProcess("toob")
	m.mustReconcile()
	assert.Empty(t, m.namesWithSlots(), "the grant belongs to another process")
	assert.Equal(t, &v1alpha1.LedgerGrant{BootID: "toob", Sequence: 1}, m.storedStatus().Grant)

	m.Grants = old
	m.lastLedger.Store(nil)
	m.mustReconcile()
	assert.Empty(t, m.namesWithSlots(), "the hub may count the grant as unused")
	assert.Equal(t, "boot/2", m.Grants.RequestNonce(0))
}

func TestSourceGroupBudgets(t *testing.T) {
	images := []*v1alpha1.VMDiskImage{
		queuedImage("img-0", "https://cdn.example.com/a"), queuedImage("img-1", "https://cdn.example.com/b"),
		queuedImage("img-2", "https://cdn.example.com/c"), queuedImage("img-3", "https://images.example.com/a"),
	}
	m := newFleetMember(t, 1, images...)
	m.mustReconcile()
	assert.Equal(t, []string{"img-3"}, m.namesWithSlots(), "the safe share is for imports of no group")
	assert.Equal(t, v1alpha1.ReasonWaitingForSource, m.Queue.WithheldReason(images[0].UID))
	assert.Equal(t, []v1alpha1.SourceDemand{{Name: "cdn", Wanted: 3}}, m.Grants.Demand().Sources)

	m.storeGrant(1, m.Grants.RequestNonce(0), 4, v1alpha1.SourceGrant{Name: "cdn", Slots: 2})
	m.mustReconcile()
	assert.Equal(t, []string{"img-3", "img-0", "img-1"}, m.namesWithSlots())
	assert.Equal(t, v1alpha1.ReasonWaitingForSource, m.Queue.WithheldReason(images[2].UID))
	assert.Equal(t, []v1alpha1.SourceDemand{{Name: "cdn", Running: 2, Wanted: 3}}, m.Grants.Demand().Sources)
}

// Not even if only one more image can be admitted.
func TestFullSourceGroupBlocksNoOthers(t *testing.T) {
	images := []*v1alpha1.VMDiskImage{
		queuedImage("img-0", "https://cdn.example.com/a"), queuedImage("img-1", "https://cdn.example.com/b"), queuedImage("img-2", "https://images.example.com/c"),
	}
	m := newFleetMember(t, 0, images...)
	m.mustReconcile()
	cdn := v1alpha1.SourceGrant{Name: "cdn", Slots: 1}
	m.storeGrant(1, m.Grants.RequestNonce(0), 1, cdn)
	m.mustReconcile()
	assert.Equal(t, []string{"img-0"}, m.namesWithSlots())
	m.Queue.Remove(images[0].UID) // as the handler of its event does
	m.storeGrant(2, m.Grants.RequestNonce(0), 2, cdn)
	m.mustReconcile()
	assert.Equal(t, []string{"img-0", "img-2"}, m.namesWithSlots())
}

// deleteDataVolumeOfSlot deletes the DataVolume of the first slot.
func (m *fleetMember) deleteDataVolumeOfSlot() *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{}
	require.NoError(m.t, m.Client.Get(m.t.Context(), types.NamespacedName{Namespace: "ns", Name: m.storedStatus().Slots[0].DataVolume}, dv))
	require.NoError(m.t, m.Client.Delete(m.t.Context(), dv))
	return dv
}

// A new leader does not create the DataVolume of a slot that is older than attemptTimeout.
func TestOverdueSlotFailsAttempt(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(1)...)
	m.mustReconcile()
	dv := m.deleteDataVolumeOfSlot()
	l := &v1alpha1.SyncLedger{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.LedgerName}, l))
	l.Status.Slots[0].StartedAt = metav1.NewTime(time.Now().Add(-time.Hour))
	require.NoError(t, m.Client.Status().Update(t.Context(), l))

	m.startProcess("toob")
	m.createdAt = map[string]time.Time{}
	m.mustReconcile()
	require.Error(t, m.Client.Get(t.Context(), client.ObjectKeyFromObject(dv), dv))
	img := &v1alpha1.VMDiskImage{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
	require.NotNil(t, img.Status.Revisions[0].Failure)
	assert.Equal(t, v1alpha1.ReasonTimeout, img.Status.Revisions[0].Failure.Reason)
}

// By the wall clock the slot is young; by the clock of this process it is overdue.
func TestClockSetBackMakesNoSlotYounger(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(1)...)
	m.mustReconcile()
	dv := m.deleteDataVolumeOfSlot()
	m.createdAt = map[string]time.Time{}
	m.elapsed = 24 * time.Hour
	m.mustReconcile()
	require.Error(t, m.Client.Get(t.Context(), client.ObjectKeyFromObject(dv), dv))
}
