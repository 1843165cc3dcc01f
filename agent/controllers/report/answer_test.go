package report

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const namespace = "ot-agent"

// fakeMember is the cluster of a Reconciler: its caches change between any two reads, its
// events come later, and its API server may refuse writes.
type fakeMember struct {
	client.Client // stores the reports
	t             require.TestingT
	draws         *rapid.T // nil: nothing is random
	r             *Reconciler

	// stamp rises with every change; an image has the stamp of its last one.
	stamp         int32
	images        map[types.NamespacedName]int32
	pendingEvents []types.NamespacedName
	plan          *v1alpha1.PlanVersion
	pruned        map[types.NamespacedName]v1alpha1.ReportedPrune
	uids          int
	quiet         bool // nothing changes, and no write is refused
	answers       int
	// seenPlans is the state of the cache at the first read of a report that found a new
	// plan acknowledged.
	seenPlans map[v1alpha1.PlanVersion]cacheState
	lastPlan  *v1alpha1.PlanVersion
	firstRead bool
	// elapsed is how long the process has been running; granted is the ledger's grant.
	elapsed time.Duration
	granted *v1alpha1.LedgerGrant
	policy  map[string]string
	// beforeWrite is called before an object is written, refusePage before a page is.
	beforeWrite func()
	refusePage  func() error
	// storesRefused: the page is stored all the same.
	storesRefused bool
}

type cacheState struct {
	stamp  int32
	images map[types.NamespacedName]int32
}

func newFakeMember(t require.TestingT, images int) *fakeMember {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	m := &fakeMember{
		Client: fake.NewClientBuilder().WithScheme(scheme).Build(), t: t,
		images: map[types.NamespacedName]int32{}, seenPlans: map[v1alpha1.PlanVersion]cacheState{},
	}
	for n := range images {
		m.stamp++
		m.images[imageKey(n)] = m.stamp
	}
	if images > 100 { // more pages than are rewritten at a time
		for n := range 16 {
			page := &v1alpha1.ClusterReport{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("page-%04b", n), UID: types.UID(fmt.Sprintf("page-%d", n))},
				ClusterUID: "cluster", Sequence: 1, Page: &v1alpha1.ReportPage{},
			}
			require.NoError(t, m.Client.Create(context.Background(), page))
		}
	}
	m.startProcess()
	return m
}

// startProcess has another process report.
func (m *fakeMember) startProcess() {
	m.r = &Reconciler{
		Client: m, Live: m.Client, Kinds: apidiscovery.NewKindTracker(nil), Metrics: metrics.NewReport(prometheus.NewRegistry()), Namespace: namespace,
		ClusterUID:   func(context.Context) (types.UID, error) { return "cluster", nil },
		PlanResults:  func() map[types.NamespacedName]v1alpha1.PlanItemReport { return nil },
		PrunedImages: func() map[types.NamespacedName]v1alpha1.ReportedPrune { return m.pruned },
		PruneNonce:   func() string { return "" },
		ImageFields:  func() []string { return nil },
		PlanFields:   func() []string { return nil },
		Queue:        ledger.NewQueue(), Policy: func() *policy.Policy { return nil },
		Interval: time.Second, Heartbeat: time.Hour, Grants: grant.NewRequestTracker("boot"), Elapsed: func() time.Duration { return m.elapsed },
		changes: newChangeTracker(), stored: map[string]*storedObject{},
	}
	m.pendingEvents = nil
}

func imageKey(n int) types.NamespacedName {
	return types.NamespacedName{Namespace: "lab", Name: fmt.Sprintf("image-%d", n)}
}

func imageAt(key types.NamespacedName, stamp int32) v1alpha1.VMDiskImage {
	return v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: types.UID(key.Name)},
		Status:     v1alpha1.VMDiskImageStatus{Attempts: stamp},
	}
}

// drawChance is true once in n times.
func (m *fakeMember) drawChance(n int, what string) bool {
	return m.draws != nil && !m.quiet && rapid.IntRange(1, n).Draw(m.draws, what) == n
}

// injectChanges makes the changes that may happen between two reads.
func (m *fakeMember) injectChanges() {
	if m.drawChance(3, "images change") {
		for range rapid.SampledFrom([]int{1, 1, 40}).Draw(m.draws, "how many") {
			m.changeImage(imageKey(rapid.IntRange(0, 320).Draw(m.draws, "image")), m.drawChance(4, "deleted"))
		}
	}
	if m.drawChance(4, "a plan is acknowledged") {
		m.acknowledgePlan()
	}
	if m.drawChance(3, "events come") {
		m.deliverEvents()
	}
	if m.drawChance(12, "a page is edited") {
		m.editPage()
	}
}

func (m *fakeMember) changeImage(key types.NamespacedName, deleted bool) {
	m.stamp++
	if deleted {
		delete(m.images, key)
	} else {
		m.images[key] = m.stamp
	}
	m.pendingEvents = append(m.pendingEvents, key)
}

func (m *fakeMember) acknowledgePlan() {
	next := v1alpha1.PlanVersion{Epoch: 1, Sequence: 1, Hash: "a"}
	if m.plan != nil {
		next = *m.plan
		next.Sequence++
		if m.drawChance(6, "of another hub") {
			next.Sequence, next.Hash = m.plan.Sequence, m.plan.Hash+"x"
		}
	}
	m.plan = &next
}

func (m *fakeMember) deliverEvents() {
	for _, key := range m.pendingEvents {
		img := imageAt(key, m.images[key])
		if _, exists := m.images[key]; exists {
			m.r.changes.imageChanged(&img)
		} else {
			m.r.changes.imageDeleted(&img)
		}
	}
	m.pendingEvents = nil
}

// editPage removes an image from a page, with an event.
func (m *fakeMember) editPage() {
	var list v1alpha1.ClusterReportList
	require.NoError(m.t, m.Client.List(context.Background(), &list))
	for i := range list.Items {
		if page := &list.Items[i]; page.Page != nil && len(page.Page.Images) > 0 {
			page.Page.Images = page.Page.Images[1:]
			require.NoError(m.t, m.Client.Update(context.Background(), page))
			m.r.changes.objectChanged(page.Name, page.ResourceVersion)
			return
		}
	}
}

var errAPIServerDown = errors.New("the API server does not answer")

func (m *fakeMember) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	m.injectChanges()
	switch obj := obj.(type) {
	case *v1alpha1.SyncLedger:
		first := m.firstRead
		m.firstRead = false
		if m.plan == nil {
			return nil
		}
		plan := *m.plan
		obj.Status = &v1alpha1.SyncLedgerStatus{Plan: &plan, Grant: m.granted, Policy: m.policy}
		if first && (m.lastPlan == nil || *m.lastPlan != plan) {
			m.seenPlans[plan], m.lastPlan = cacheState{m.stamp, maps.Clone(m.images)}, &plan
		}
		return nil
	case *v1alpha1.VMDiskImage:
		if m.drawChance(60, "an image cannot be read") {
			return errAPIServerDown
		}
		stamp, exists := m.images[key]
		if !exists {
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("vmdiskimages").GroupResource(), key.Name)
		}
		*obj = imageAt(key, stamp)
		return nil
	}
	return fmt.Errorf("unexpected read of %T", obj)
}

func (m *fakeMember) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	m.injectChanges()
	if m.drawChance(20, "images cannot be listed") {
		return errAPIServerDown
	}
	images := list.(*v1alpha1.VMDiskImageList)
	for key, stamp := range m.images {
		images.Items = append(images.Items, imageAt(key, stamp))
	}
	return nil
}

func (m *fakeMember) drawWriteError(obj client.Object) error {
	if m.beforeWrite != nil {
		m.beforeWrite()
	}
	page := obj.(*v1alpha1.ClusterReport).Page != nil
	switch {
	case page && m.refusePage != nil:
		return m.refusePage()
	case page && m.drawChance(8, "a page is refused"):
		return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ClusterReport").GroupKind(), obj.GetName(), nil)
	case page && m.drawChance(8, "a webhook fails"):
		return apierrors.NewInternalError(errors.New("failed calling webhook"))
	case m.drawChance(12, "a write fails"):
		return errAPIServerDown
	default:
		return nil
	}
}

func (m *fakeMember) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	refusal := m.drawWriteError(obj)
	if refusal != nil && !m.storesRefused {
		return refusal
	}
	m.uids++
	obj.SetUID(types.UID(fmt.Sprint(m.uids)))
	obj.SetResourceVersion("")
	err := m.Client.Create(ctx, obj, opts...)
	if refusal != nil {
		return refusal
	}
	m.checkReport(obj, err)
	return err
}

func (m *fakeMember) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	refusal := m.drawWriteError(obj)
	if refusal != nil && !m.storesRefused {
		return refusal
	}
	err := m.Client.Update(ctx, obj, opts...)
	if refusal != nil {
		return refusal
	}
	m.checkReport(obj, err)
	return err
}

// checkReport checks a written root and its pages, as the hub reads them.
func (m *fakeMember) checkReport(obj client.Object, err error) {
	root := obj.(*v1alpha1.ClusterReport).Root
	if err != nil || root == nil || root.AnsweredPlan == nil || root.AnsweredPlan.Epoch == 0 {
		return
	}
	m.answers++
	state, seen := m.seenPlans[*root.AnsweredPlan]
	require.True(m.t, seen, "the answered plan was never acknowledged")
	shown := map[types.NamespacedName]int32{}
	for _, ref := range root.Pages {
		page := &v1alpha1.ClusterReport{}
		require.NoError(m.t, m.Client.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: ref.Name}, page))
		require.Equal(m.t, ref.Sequence, page.Sequence)
		for _, img := range page.Page.Images {
			shown[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}] = img.Attempts
		}
	}
	for key, stamp := range state.images {
		if at, isShown := shown[key]; isShown {
			require.GreaterOrEqual(m.t, at, stamp, "%s is shown as it was before plan %+v", key, root.AnsweredPlan)
		} else if now, exists := m.images[key]; exists {
			require.Greater(m.t, now, stamp, "%s is not shown and is as when plan %+v was seen", key, root.AnsweredPlan)
		}
	}
	for key, stamp := range shown {
		if _, existed := state.images[key]; !existed {
			require.Greater(m.t, stamp, state.stamp, "%s was gone when plan %+v was seen", key, root.AnsweredPlan)
		}
	}
}

func (m *fakeMember) writeReport(ctx context.Context) (bool, error) {
	m.firstRead = true
	return m.r.writeReport(ctx)
}

// reportUntilDone reports until nothing is left.
func (m *fakeMember) reportUntilDone(ctx context.Context) {
	m.quiet = true
	for key := range maps.Clone(m.images) {
		m.changeImage(key, false)
	}
	for _, o := range m.r.stored {
		o.refusedUntil = o.refusedUntil.Add(-mailbox.RefusedPageDelay) // it is tried again
	}
	m.deliverEvents()
	for range 100 {
		more, err := m.writeReport(ctx)
		if err == nil && !more {
			break
		}
	}
}

// Whatever changes between the reads and writes of a report, the plan that its root answers
// was acknowledged before the images got the state that the listed pages show. Once nothing
// changes, it is the acknowledged plan.
func TestAnsweredPlanIsNoOlderThanItsPages(t *testing.T) {
	answers := 0
	rapid.Check(t, func(t *rapid.T) {
		ctx := log.IntoContext(context.Background(), log.Log)
		m := newFakeMember(t, rapid.SampledFrom([]int{0, 30, 300}).Draw(t, "images"))
		m.draws = t
		for range rapid.IntRange(1, 12).Draw(t, "reports") {
			m.injectChanges()
			_, _ = m.writeReport(ctx)
			if m.drawChance(3, "failures last") {
				for _, o := range m.r.stored {
					if !o.failingSince.IsZero() {
						o.failingSince = o.failingSince.Add(-mailbox.LastingFailure)
					}
				}
			}
			switch {
			case m.drawChance(15, "restart"):
				m.startProcess()
			case m.plan != nil && m.plan.Sequence > 1 && m.drawChance(15, "the plan goes back"):
				m.plan.Sequence--
			}
		}
		m.reportUntilDone(ctx)
		root := &v1alpha1.ClusterReport{}
		require.NoError(t, m.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, root))
		require.Equal(t, m.plan, root.Root.AnsweredPlan)
		require.Equal(t, m.plan, root.Root.Plan)
		answers += m.answers
	})
	require.Positive(t, answers)
}

// readRoot reports once, and returns the stored root.
func (m *fakeMember) readRoot(t *testing.T) *v1alpha1.ReportRoot {
	t.Helper()
	_, err := m.writeReport(t.Context())
	require.NoError(t, err)
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, root))
	return root.Root
}

// A newly acknowledged plan causes a new root, even if no image has changed.
func TestFirstReportAnswersPlan(t *testing.T) {
	m := newFakeMember(t, 300)
	assert.Nil(t, m.readRoot(t).AnsweredPlan, "no plan")
	m.acknowledgePlan()
	assert.Equal(t, m.plan, m.readRoot(t).AnsweredPlan)
	m.acknowledgePlan()
	assert.Equal(t, m.plan, m.readRoot(t).AnsweredPlan)
}

// The former plan is answered until all pages have had their turn.
func TestFormerPlanIsAnsweredUntilPagesAreRewritten(t *testing.T) {
	m := newFakeMember(t, 300)
	m.acknowledgePlan()
	former := *m.plan
	require.Equal(t, &v1alpha1.PlanVersion{}, m.readRoot(t).AnsweredPlan, "no former plan")
	require.Equal(t, &former, m.readRoot(t).AnsweredPlan)
	for key := range m.images {
		m.changeImage(key, false)
	}
	m.acknowledgePlan() // without events of the images
	assert.Equal(t, &former, m.readRoot(t).AnsweredPlan)
	assert.Equal(t, m.plan, m.readRoot(t).AnsweredPlan)
}

// In a cluster that seems to be restored from a backup all pages are rewritten. Until then
// they answer no plan.
func TestPageToBeRewrittenAnswersNoPlan(t *testing.T) {
	m := newFakeMember(t, 300)
	m.acknowledgePlan()
	m.readRoot(t)
	require.Equal(t, m.plan, m.readRoot(t).AnsweredPlan)
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, root))
	root.Root.ObservedAt = metav1.NewTime(time.Now().Add(-24 * time.Hour))
	require.NoError(t, m.Client.Update(t.Context(), root))
	m.startProcess()
	assert.Equal(t, &v1alpha1.PlanVersion{}, m.readRoot(t).AnsweredPlan)
	assert.Equal(t, m.plan, m.readRoot(t).AnsweredPlan)
}

// The results of prunes whose image is gone stay in the report until a new process has read
// the plan.
func TestPrunesSurviveRestart(t *testing.T) {
	gone := types.NamespacedName{Namespace: "lab", Name: "gone"}
	m := newFakeMember(t, 2)
	reported := func() map[string]types.UID {
		m.readRoot(t)
		page := &v1alpha1.ClusterReport{}
		require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "page"}, page))
		prunes := map[string]types.UID{}
		for _, img := range page.Page.Images {
			if img.Prune != nil {
				prunes[img.Name] = img.Prune.ImageUID
			}
		}
		return prunes
	}
	m.pruned = map[types.NamespacedName]v1alpha1.ReportedPrune{
		gone:        {PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned}, ImageUID: "was"},
		imageKey(1): {PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned}, ImageUID: "former"},
	}
	want := map[string]types.UID{"gone": "was", "image-1": "former"}
	assert.Equal(t, want, reported())
	m.pruned = nil // not known yet
	m.startProcess()
	assert.Equal(t, want, reported())
	m.pruned = map[types.NamespacedName]v1alpha1.ReportedPrune{}
	assert.Empty(t, reported())
}
