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
	// What the plan says and who holds the image, by the cache and by a live read.
	cached, live               image.PlannedState
	cachedHolders, liveHolders []image.Holder
	// beforeDelete is called right before the image is deleted.
	beforeDelete func(client.Client)
}

// newPruneFixture reconciles the image until only its deletion is left. Its import has
// failed, so that it needs no storage.
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
	kinds := apidiscovery.NewKindTracker(meta.NewDefaultRESTMapper(nil))
	require.NoError(t, kinds.Start(t.Context()))
	queue, defaults := ledger.NewQueue(), policy.Default()
	p.Reconciler = &Reconciler{
		Client: c, Live: c, Events: p.events, Queue: queue, Kinds: kinds, Metrics: metrics.New(p.registry, queue), Preflight: preflight.New(preflight.NewClusterReader(c), func() policy.PreflightAllow { return nil }),
		Policy: func() *policy.Policy { return &defaults }, PolicyKnown: func() bool { return true }, Opening: func() *policy.Opening { return nil },
		ListHolders: func(_ context.Context, _ *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
			if live {
				return p.liveHolders, nil
			}
			return p.cachedHolders, nil
		},
		PlannedState: func(_ context.Context, _ types.NamespacedName, live bool) (image.PlannedState, error) {
			if live {
				return p.live, nil
			}
			return p.cached, nil
		},
		Namespace: "ot-agent",
		arrivals:  arrivalTracker{queue: queue, reader: c, byUID: map[types.UID]arrivalRecord{}},
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

// interceptDelete checks the UID precondition, which the fake client does not.
func (p *pruneFixture) interceptDelete(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
	if p.beforeDelete != nil {
		p.beforeDelete(c)
	}
	var o client.DeleteOptions
	o.ApplyOptions(opts)
	require.NotNil(p.t, o.Preconditions)
	require.NotNil(p.t, o.Preconditions.UID)
	if _, isImage := obj.(*v1alpha1.VMDiskImage); isImage && p.getImage().UID != *o.Preconditions.UID {
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

// drainEvents returns the events since the last call.
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
	events := p.drainEvents()
	assert.Contains(t, events, "Normal Pruned ")
	assert.Contains(t, events, "ImagePrune with UID prune")
	assert.InDelta(t, 1, p.metricValue("ot_agent_images_pruned_total", ""), 0)
}

func TestPruneIsSkippedWhenStateChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		change     func(*pruneFixture)
		wantReason string
	}{
		"another leader writes the status": {change: func(p *pruneFixture) {
			p.beforeDelete = func(c client.Client) {
				img := p.getImage()
				img.Status.Prune = &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneReferenced}
				require.NoError(t, c.Status().Update(t.Context(), img))
			}
		}, wantReason: v1alpha1.PruneReferenced},
		"the image becomes a planned one": {change: func(p *pruneFixture) {
			p.beforeDelete = func(c client.Client) {
				img := p.getImage()
				img.Labels = map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue}
				require.NoError(t, c.Update(t.Context(), img))
			}
		}},
		"a VirtualMachine that the cache does not show": {change: func(p *pruneFixture) {
			p.liveHolders = []image.Holder{{Name: "ns/vm"}}
		}, wantReason: v1alpha1.PruneReferenced},
		"a plan that the cache does not show": {change: func(p *pruneFixture) {
			undone := *p.live.Prune
			undone.Undo = true
			p.live.Prune = &undone
		}, wantReason: v1alpha1.PruneUndoAsked},
		"a plan that is refused meanwhile": {change: func(p *pruneFixture) {
			p.live = image.PlannedState{Keep: true, Unknown: true}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			tt.change(p)
			p.mustReconcile()
			img := p.getImage()
			assert.Nil(t, img.DeletionTimestamp)
			assert.Equal(t, tt.wantReason, img.Status.Prune.Reason)
			assert.NotContains(t, p.drainEvents(), "Pruned")
			assert.Zero(t, p.metricValue("ot_agent_images_pruned_total", ""))
		})
	}
}

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
				func(img *v1alpha1.VMDiskImage) { img.UID = "former" },
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

// The plan is read even for an image that nothing can delete.
func TestPruneOfHeldImageIsSkipped(t *testing.T) {
	p := newPruneFixture(t)
	next := *p.cached.Prune
	next.UID = "next"
	p.cached.Prune, p.live.Prune = &next, &next
	p.cachedHolders = []image.Holder{{Name: "ns/vm"}}
	p.liveHolders = p.cachedHolders
	p.mustReconcile()
	img := p.getImage()
	assert.Equal(t, types.UID("next"), img.Status.Prune.UID)
	assert.Equal(t, v1alpha1.PruneSkipped, img.Status.Prune.State)
	assert.Equal(t, v1alpha1.PhaseFailed, img.Status.Phase)
	events := p.drainEvents()
	assert.Contains(t, events, "PruneSkipped")
	assert.Contains(t, events, "ns/vm")
	assert.InDelta(t, 1, p.metricValue("ot_agent_prunes_skipped_total", v1alpha1.PruneReferenced), 0)
	assert.Zero(t, p.metricValue("ot_agent_prunes_skipped_total", v1alpha1.PruneChanged))
	p.cachedHolders = append(p.cachedHolders, image.Holder{Name: "ns/other"})
	p.mustReconcile()
	require.EqualValues(t, 2, p.getImage().Status.References.Count)
	assert.Empty(t, p.drainEvents(), "the event is emitted once")
}
