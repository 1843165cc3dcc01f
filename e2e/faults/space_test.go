//go:build linux

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/room"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// aged waits until no slot is given by what the storage told before.
func aged(t *testing.T) {
	t.Helper()
	since := time.Now()
	require.True(t, scene.Await(t, func() bool { return time.Since(since) > room.Fresh }))
}

// lacksRoom waits until an image says that there is no room for it, and returns
// what it says.
func lacksRoom(t *testing.T, img *v1alpha1.VMDiskImage) string {
	t.Helper()
	got := place.Eventually(t, img, scene.Because(v1alpha1.ReasonInsufficientStorage))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	return got.Status.Message
}

// TestNoRoomInTheStorage has a driver tell of a pool that is too small for one of
// two images, and then that it has grown.
func TestNoRoomInTheStorage(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1"))
	history := observed(t)
	ns := home(t)
	class := "space-" + ns
	place.CreateClasses(t, class, class)
	pool := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: ns, Name: "pool"},
		StorageClassName: class, NodeTopology: &metav1.LabelSelector{}, MaximumVolumeSize: ptr.To(resource.MustParse("4Gi")),
	}
	place.Create(t, pool)
	aged(t)
	large, small := place.Image(ns, "large", "/ok/200ms/a"), place.Image(ns, "small", "/ok/200ms/b")
	large.Spec.StorageClass, small.Spec.StorageClass = class, class
	large.Spec.DiskSize = resource.MustParse("5Gi")
	place.Create(t, large, small)
	message := lacksRoom(t, large)
	assert.Contains(t, message, "needs a volume of 5Gi")
	assert.Contains(t, message, "StorageClass "+class+" has room for is 4Gi")
	succeeded(t, small)
	lacksRoom(t, large)
	assert.Equal(t, []types.UID{small.UID}, history().StartOrder(), "it takes no slot and holds up nobody")
	assert.Zero(t, history().Attempts(large.UID))

	place.Change(t, pool, func() { pool.MaximumVolumeSize = ptr.To(resource.MustParse("5Gi")) })
	got := succeeded(t, large)
	assert.EqualValues(t, 1, got.Status.Attempts)
	assert.Equal(t, 1, history().Attempts(large.UID))
}

// TestNoRoomInTheQuota does the same with a quota, of which an HTTP import takes
// twice the disk.
func TestNoRoomInTheQuota(t *testing.T) {
	for _, tt := range []struct {
		name     corev1.ResourceName
		few, all string
		want     string
	}{
		{corev1.ResourceRequestsStorage, "1Gi", "20Gi", "needs 2Gi of requests.storage, with the scratch space of its import"},
		{corev1.ResourcePersistentVolumeClaims, "1", "20", "needs 2 of persistentvolumeclaims"},
		{"sim-csi.storageclass.storage.k8s.io/requests.storage", "500Mi", "20Gi", "of sim-csi.storageclass.storage.k8s.io/requests.storage"},
	} {
		t.Run(string(tt.name), func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1"))
			history := observed(t)
			ns := home(t)
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}}
			place.Create(t, quota)
			// There is no quota controller here: what is enforced is what the status says.
			allow := func(hard string) {
				quota.Status.Hard = corev1.ResourceList{tt.name: resource.MustParse(hard)}
				quota.Status.Used = corev1.ResourceList{tt.name: resource.MustParse("0")}
				require.NoError(t, place.Client().Status().Update(t.Context(), quota))
				aged(t)
			}
			allow(tt.few)
			img := place.Image(ns, "image", "/ok/200ms/a")
			passes := place.Image(home(t), "passes", "/ok/0s/a")
			place.Create(t, img, passes)
			message := lacksRoom(t, img)
			assert.Contains(t, message, tt.want)
			assert.Contains(t, message, "ResourceQuota "+ns+"/quota has "+tt.few+" left of "+tt.few)
			succeeded(t, passes)
			lacksRoom(t, img)
			assert.Zero(t, history().Attempts(img.UID))

			allow(tt.all)
			succeeded(t, img)
			assert.Equal(t, 1, history().Attempts(img.UID))
		})
	}
}

// TestRoomThatOthersTake has a quota with room for either of two images, and not
// for both: the second is passed when the first has taken it.
func TestRoomThatOthersTake(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1"))
	history := observed(t)
	ns := home(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}}
	place.Create(t, quota)
	quota.Status.Hard = corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("3500Mi")}
	quota.Status.Used = corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("0")}
	require.NoError(t, place.Client().Status().Update(t.Context(), quota))
	aged(t)

	// The first is imported for longer than what is known of the room may be old.
	first, second := place.Image(ns, "first", "/ok/15s/a"), place.Image(ns, "second", "/ok/200ms/b")
	place.Create(t, first)
	importing(t, first)
	place.Create(t, second)
	next := place.Image(home(t), "next", "/ok/200ms/c")
	place.Create(t, next)
	succeeded(t, first)
	lacksRoom(t, second)
	succeeded(t, next)
	assert.Zero(t, history().Attempts(second.UID))

	require.NoError(t, place.Client().Delete(t.Context(), quota))
	succeeded(t, second)
	assert.Equal(t, 1, history().Attempts(second.UID))
}
