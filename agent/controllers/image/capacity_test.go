package image

import (
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func newFakeClient(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, cdiv1.AddToScheme(scheme))
	require.NoError(t, snapshotv1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func newStorageClass(name string, second int64, annotations ...string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0), Annotations: map[string]string{}}}
	for _, a := range annotations {
		c.Annotations[a] = "true"
	}
	return c
}

func TestFindDefaultStorageClass(t *testing.T) {
	off := newStorageClass("off", 9)
	off.Annotations[capacity.AnnotationDefaultClass] = "false"
	for _, tt := range []struct {
		name    string
		classes []client.Object
		want    string
	}{
		{"none", nil, ""},
		{"none that is one", []client.Object{newStorageClass("a", 1), off}, ""},
		{"one", []client.Object{newStorageClass("a", 2), newStorageClass("b", 1, capacity.AnnotationDefaultClass)}, "b"},
		{"the youngest of two", []client.Object{newStorageClass("a", 1, capacity.AnnotationDefaultClass), newStorageClass("b", 2, capacity.AnnotationDefaultClass)}, "b"},
		{"the first by name of two of one age", []client.Object{newStorageClass("b", 1, capacity.AnnotationDefaultClass), newStorageClass("a", 1, capacity.AnnotationDefaultClass)}, "a"},
		{"KubeVirt's before any other", []client.Object{newStorageClass("a", 9, capacity.AnnotationDefaultClass), newStorageClass("b", 1, capacity.AnnotationDefaultVirtClass)}, "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := (&Reconciler{Client: newFakeClient(t, tt.classes...)}).findDefaultStorageClass(t.Context())
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

// An image that lacks capacity is requeued, and waits for capacity until there is enough.
func TestLacksCapacity(t *testing.T) {
	pool := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: "pool"}, StorageClassName: "csi",
		NodeTopology: &metav1.LabelSelector{}, MaximumVolumeSize: ptr.To(resource.MustParse("1Gi")),
	}
	c := newFakeClient(t, newStorageClass("csi", 1, capacity.AnnotationDefaultClass), pool)
	r := &Reconciler{Client: c, Capacity: capacity.NewReader(c)}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	require.NoError(t, r.triggers.Start(t.Context(), queue))
	large, small := apitest.Image("ns/large").WithDiskSize("2Gi").Obj(), apitest.Image("ns/small").WithDiskSize("1Gi").Obj()
	small.UID = "another"

	lacking, err := r.LacksCapacity(t.Context(), small)
	require.NoError(t, err)
	assert.False(t, lacking)
	assert.Zero(t, queue.Len())

	lacking, err = r.LacksCapacity(t.Context(), large)
	require.NoError(t, err)
	assert.True(t, lacking)
	require.Equal(t, 1, queue.Len())
	request, _ := queue.Get()
	assert.Equal(t, large.Name, request.Name)
	assert.Equal(t, []v1alpha1.ImageKey{image.KeyOf(large)}, r.capacityWaiters.list())

	pool.MaximumVolumeSize = ptr.To(resource.MustParse("2Gi"))
	require.NoError(t, c.Update(t.Context(), pool))
	b, err := r.findCapacityBlocker(t.Context(), large, time.Duration(0))
	require.NoError(t, err)
	assert.Nil(t, b)
	assert.Empty(t, r.capacityWaiters.list())

	lacking, err = (&Reconciler{}).LacksCapacity(t.Context(), large)
	require.NoError(t, err)
	assert.False(t, lacking, "capacity is not checked")
}

// An image that is held up by something else, or by nothing, is not polled for: here its storage
// was made meanwhile.
func TestCapacityWaitEndsWithItsCause(t *testing.T) {
	f := newImportedFixture(t)
	f.capacityWaiters.setWaiting(image.KeyOf(f.img), true)
	_, err := f.decide(t.Context(), f.img)
	require.NoError(t, err)
	assert.Empty(t, f.capacityWaiters.list())

	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonInsufficientStorage, v1alpha1.ReasonStorageProfileIncomplete} {
		f.capacityWaiters.setWaiting(image.KeyOf(f.img), true)
		f.updateCapacityWaiter(&image.View{Image: f.img, Blocker: &image.Blocker{Reason: reason}})
		assert.Len(t, f.capacityWaiters.list(), 1, reason)
	}
}
