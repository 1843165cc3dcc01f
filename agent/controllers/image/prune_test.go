package image

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pruneFixture is a controller with an image whose prune is due.
type pruneFixture struct {
	*Reconciler
	t        *testing.T
	registry *prometheus.Registry
	events   *events.FakeRecorder
	img      *v1alpha1.VMDiskImage
	// cached and live are what the plan says, and who holds the image.
	cached, live               image.PlannedState
	cachedHolders, liveHolders []image.Holder
	// beforeDelete happens right before the image is deleted.
	beforeDelete func(client.Client)
}

// newPruneFixture brings the status of the image up to date: what is left to do is to
// delete it. It has failed, so that no storage is needed.
func newPruneFixture(t *testing.T) *pruneFixture {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	b := apitest.Image("ns/a").WithFinalizer()
	past := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	img := b.WithStatus(v1alpha1.VMDiskImageStatus{
		ObservedGeneration: 1, LastAttempt: 1, References: v1alpha1.References{UnreferencedSince: &past},
		Prune: &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePending, Until: &past, Message: "is deleted"},
	}).WithRevisions(v1alpha1.RevisionStatus{
		Revision: b.Obj().Spec.Revision(), Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeFailed,
		Failure: &v1alpha1.Failure{Reason: v1alpha1.ReasonNotFound, Message: "404", Time: past},
	}).Obj()
	p := &pruneFixture{t: t, registry: prometheus.NewRegistry(), events: events.NewFakeRecorder(20), img: img}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(img).WithStatusSubresource(img).
		WithIndex(&corev1.PersistentVolumeClaim{}, image.ImageUIDIndex, indexImageUID).WithIndex(&corev1.Pod{}, image.ImageUIDIndex, indexImageUID).
		WithInterceptorFuncs(interceptor.Funcs{Delete: p.interceptDelete}).Build()
	served := apidiscovery.NewKindTracker(meta.NewDefaultRESTMapper(nil))
	require.NoError(t, served.Start(t.Context()))
	index, rules := ledger.NewQueue(), policy.Default()
	p.Reconciler = &Reconciler{
		Client: c, Live: c, Events: p.events, Queue: index, Kinds: served, Metrics: metrics.New(p.registry, index), Preflight: preflight.New(),
		Policy: func() *policy.Policy { return &rules }, PolicyKnown: func() bool { return true },
		ListHolders: func(_ context.Context, _ *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
			if live {
				return p.liveHolders, nil
			}
			return p.cachedHolders, nil
		},
		Wish: func(_ context.Context, _ types.NamespacedName, live bool) (image.PlannedState, error) {
			if live {
				return p.live, nil
			}
			return p.cached, nil
		},
		Namespace: "ot-agent",
		arrivals:  arrivalTracker{index: index, reader: c, byUID: map[types.UID]arrivalRecord{}},
	}
	p.cached = image.PlannedState{Keep: true, Unknown: true}
	p.mustReconcile()
	p.cached = image.PlannedState{Prune: &v1alpha1.PlannedPrune{
		Namespace: "ns", Name: "a", ImageUID: img.UID, Revision: img.Spec.Revision(), UID: "prune",
		UnreferencedSince: time.Now().Add(time.Hour).Unix(), Others: true,
	}}
	p.live = p.cached
	require.Equal(t, v1alpha1.PhasePrunePending, p.getImage().Status.Phase)
	p.drainEvents()
	return p
}

// interceptDelete minds what the API server does: the UID too.
func (p *pruneFixture) interceptDelete(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
	if p.beforeDelete != nil {
		p.beforeDelete(c)
	}
	var o client.DeleteOptions
	o.ApplyOptions(opts)
	require.NotNil(p.t, o.Preconditions)
	require.NotNil(p.t, o.Preconditions.UID)
	if now := p.getImage(); now.UID != *o.Preconditions.UID {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("vmdiskimages").GroupResource(), obj.GetName(), assert.AnError)
	}
	return c.Delete(ctx, obj, opts...)
}

func (p *pruneFixture) mustReconcile() ctrl.Result {
	result, err := p.Reconcile(p.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)})
	require.NoError(p.t, err)
	return result
}

func (p *pruneFixture) getImage() *v1alpha1.VMDiskImage {
	img := &v1alpha1.VMDiskImage{}
	require.NoError(p.t, p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(p.img), img))
	return img
}

// drainEvents are the events since it was asked last.
func (p *pruneFixture) drainEvents() (all string) {
	for {
		select {
		case e := <-p.events.Events:
			all += e + "\n"
		default:
			return all
		}
	}
}

func (p *pruneFixture) metricValue(metric, label string) float64 {
	families, err := p.registry.Gather()
	require.NoError(p.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == metric && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue()
			}
		}
	}
	require.Fail(p.t, "no such metric", metric)
	return 0
}

func TestPruneDeletesImage(t *testing.T) {
	p := newPruneFixture(t)
	p.mustReconcile()
	assert.NotNil(t, p.getImage().DeletionTimestamp)
	told := p.drainEvents()
	assert.Contains(t, told, "Normal Pruned ")
	assert.Contains(t, told, "ImagePrune with UID prune")
	assert.InDelta(t, 1, p.metricValue("ot_agent_images_pruned_total", ""), 0)
}

// TestPruneIsSkippedWhenStateChanges has somebody be quicker than the agent.
func TestPruneIsSkippedWhenStateChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		happens    func(*pruneFixture)
		wantReason string
	}{
		"another leader writes its status": {happens: func(p *pruneFixture) {
			p.beforeDelete = func(c client.Client) {
				img := p.getImage()
				img.Status.Prune = &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneReferenced}
				require.NoError(t, c.Status().Update(t.Context(), img))
			}
		}, wantReason: v1alpha1.PruneReferenced},
		"somebody hands it over": {happens: func(p *pruneFixture) {
			p.beforeDelete = func(c client.Client) {
				img := p.getImage()
				img.Labels = map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue}
				require.NoError(t, c.Update(t.Context(), img))
			}
		}},
		"a machine that the cache does not show": {happens: func(p *pruneFixture) {
			p.liveHolders = []image.Holder{{Name: "ns/vm"}}
		}, wantReason: v1alpha1.PruneReferenced},
		"a plan that the cache does not show": {happens: func(p *pruneFixture) {
			undone := *p.live.Prune
			undone.Undo = true
			p.live.Prune = &undone
		}, wantReason: v1alpha1.PruneUndoAsked},
		"a plan that is refused by now": {happens: func(p *pruneFixture) {
			p.live = image.PlannedState{Keep: true, Unknown: true}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			tt.happens(p)
			p.mustReconcile()
			now := p.getImage()
			assert.Nil(t, now.DeletionTimestamp)
			assert.Equal(t, tt.wantReason, now.Status.Prune.Reason)
			assert.NotContains(t, p.drainEvents(), "Pruned")
			assert.Zero(t, p.metricValue("ot_agent_images_pruned_total", ""))
		})
	}
}

// TestDeleteIsRefusedForAnotherVersion: the same holds of what the plan retires, and of what has
// outlived its spec's time.
func TestDeleteIsRefusedForAnotherVersion(t *testing.T) {
	for name, d := range map[string]image.Decision{
		"pruned":       {Pruned: true},
		"retired":      {ExpiredByPlan: true},
		"unreferenced": {},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			decided := p.getImage()
			decided.Spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Minute}
			for _, change := range []func(*v1alpha1.VMDiskImage){
				func(img *v1alpha1.VMDiskImage) { img.ResourceVersion = "1" },
				func(img *v1alpha1.VMDiskImage) { img.UID = "of-one-before" },
			} {
				other := decided.DeepCopy()
				change(other)
				assert.True(t, apierrors.IsConflict(p.deleteUnreferenced(t.Context(), other, d)))
				assert.Nil(t, p.getImage().DeletionTimestamp)
				assert.Empty(t, p.drainEvents())
			}
			require.NoError(t, p.deleteUnreferenced(t.Context(), decided, d))
			assert.NotNil(t, p.getImage().DeletionTimestamp)
			assert.NotEmpty(t, p.drainEvents())
		})
	}
}

// TestPruneOfHeldImageIsSkipped: the plan is asked also for what nothing can delete.
func TestPruneOfHeldImageIsSkipped(t *testing.T) {
	p := newPruneFixture(t)
	asked := *p.cached.Prune
	asked.UID = "next"
	p.cached.Prune, p.live.Prune = &asked, &asked
	p.cachedHolders = []image.Holder{{Name: "ns/vm"}}
	p.liveHolders = p.cachedHolders
	p.mustReconcile()
	now := p.getImage()
	assert.Equal(t, types.UID("next"), now.Status.Prune.UID)
	assert.Equal(t, v1alpha1.PruneSkipped, now.Status.Prune.State)
	assert.Equal(t, v1alpha1.PhaseFailed, now.Status.Phase)
	told := p.drainEvents()
	assert.Contains(t, told, "PruneSkipped")
	assert.Contains(t, told, "ns/vm")
	assert.InDelta(t, 1, p.metricValue("ot_agent_prunes_skipped_total", v1alpha1.PruneReferenced), 0)
	assert.Zero(t, p.metricValue("ot_agent_prunes_skipped_total", v1alpha1.PruneChanged))
	p.cachedHolders = append(p.cachedHolders, image.Holder{Name: "ns/other"})
	p.mustReconcile()
	require.EqualValues(t, 2, p.getImage().Status.References.Count)
	assert.Empty(t, p.drainEvents(), "once")
}
