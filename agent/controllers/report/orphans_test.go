package report

import (
	"context"
	"errors"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// orphanFixture is a Reconciler with a cache that may differ from its API server. It counts
// lists of the cache and reads of the API server.
type orphanFixture struct {
	*Reconciler
	cached, live client.WithWatch
	lists, reads int
	liveError    error // returned by live reads
}

func newOrphanFixture(t *testing.T) *orphanFixture {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	l := &orphanFixture{}
	l.cached = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			l.lists++
			return c.List(ctx, list, opts...)
		},
	}).Build()
	l.live = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			l.reads++
			if l.liveError != nil {
				return l.liveError
			}
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("orphans must not be listed live")
		},
	}).Build()
	served := apidiscovery.NewKindTracker(meta.NewDefaultRESTMapper(nil))
	require.NoError(t, served.Start(t.Context()))
	l.Reconciler = &Reconciler{
		Client: l.cached, Live: l.live, Kinds: served, Metrics: metrics.NewReport(prometheus.NewRegistry()),
		Namespace: namespace, Heartbeat: time.Hour, changes: newChangeTracker(),
	}
	return l
}

func (l *orphanFixture) createClaim(t *testing.T, img string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "lab", Name: "of-" + img, Labels: map[string]string{v1alpha1.LabelImageUID: img},
		Annotations: map[string]string{v1alpha1.AnnotationImageName: img},
	}}
	require.NoError(t, l.cached.Create(t.Context(), claim))
	l.changes.isOrphanedChild(claim)
	return claim
}

func newImageWithUID(uid string) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: uid, UID: types.UID(uid)}}
}

func TestOrphanIsConfirmedByLiveRead(t *testing.T) {
	l := newOrphanFixture(t)
	require.NoError(t, l.live.Create(t.Context(), newImageWithUID("young")))
	l.createClaim(t, "young") // the cache does not show its image yet
	assert.False(t, l.refreshOrphans(t.Context()))
	assert.Zero(t, l.orphans.found.Count)
	assert.Equal(t, 1, l.reads)

	require.NoError(t, l.live.Delete(t.Context(), newImageWithUID("young")))
	other := newImageWithUID("young")
	other.UID = "another"
	require.NoError(t, l.live.Create(t.Context(), other))
	l.refreshOrphans(t.Context())
	assert.Equal(t, int32(1), l.orphans.found.Count, "suspects are searched again without an event")
	assert.Equal(t, 2, l.reads)
}

// Known orphans cause no lists when the storage of existing images changes, and no live
// reads with a heartbeat.
func TestOrphanSearchReadsLittle(t *testing.T) {
	l := newOrphanFixture(t)
	existing := newImageWithUID("existing")
	require.NoError(t, l.cached.Create(t.Context(), existing))
	l.changes.imageChanged(existing)
	l.createClaim(t, "gone")
	l.refreshOrphans(t.Context())
	require.Equal(t, int32(1), l.orphans.found.Count)

	reads, lists := l.reads, l.lists
	claim := l.createClaim(t, "existing")
	l.refreshOrphans(t.Context())
	assert.Equal(t, lists, l.lists)
	l.Heartbeat = 0
	l.refreshOrphans(t.Context())
	assert.Greater(t, l.lists, lists)
	assert.Equal(t, int32(1), l.orphans.found.Count)
	assert.Equal(t, reads, l.reads)

	l.Heartbeat = time.Hour
	require.NoError(t, l.cached.Delete(t.Context(), existing))
	l.changes.imageDeleted(existing)
	l.refreshOrphans(t.Context())
	assert.Equal(t, int32(2), l.orphans.found.Count)
	assert.True(t, l.changes.isOrphanedChild(claim))
}

func TestLiveReadsAreBounded(t *testing.T) {
	const many = 2*maxLiveImageReads + 1
	l := newOrphanFixture(t)
	for n := range many {
		l.createClaim(t, fmt.Sprintf("gone-%02d", n))
	}
	for _, want := range []int{maxLiveImageReads, 2 * maxLiveImageReads} {
		assert.True(t, l.refreshOrphans(t.Context()))
		assert.Equal(t, int32(want), l.orphans.found.Count)
		assert.Equal(t, want, l.reads)
	}
	assert.False(t, l.refreshOrphans(t.Context()))
	assert.Equal(t, int32(many), l.orphans.found.Count)
	assert.Equal(t, many, l.reads)
}

// The former result stays while the API server is down, and is searched again later.
func TestOrphansAreKeptWhileAPIServerIsDown(t *testing.T) {
	l := newOrphanFixture(t)
	l.createClaim(t, "gone")
	l.refreshOrphans(t.Context())
	require.Equal(t, int32(1), l.orphans.found.Count)
	l.createClaim(t, "unknown")
	l.liveError = errAPIServerDown
	assert.False(t, l.refreshOrphans(t.Context()))
	assert.Equal(t, int32(1), l.orphans.found.Count)
	l.liveError, l.Heartbeat = nil, 0
	l.refreshOrphans(t.Context())
	assert.Equal(t, int32(2), l.orphans.found.Count)
}

// No image can have an invalid name, so none is read live.
func TestOrphanWithoutImageName(t *testing.T) {
	l := newOrphanFixture(t)
	claim := l.createClaim(t, "nobody")
	claim.Annotations[v1alpha1.AnnotationImageName] = "No Name"
	require.NoError(t, l.cached.Update(t.Context(), claim))
	l.refreshOrphans(t.Context())
	assert.Equal(t, int32(1), l.orphans.found.Count)
	assert.Zero(t, l.reads)
}
