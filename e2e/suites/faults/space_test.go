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

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// awaitCapacityRefresh waits until no slot is given by what the storage told before.
func awaitCapacityRefresh(t *testing.T) {
	t.Helper()
	since := time.Now()
	require.True(t, testenv.Await(t, func() bool { return time.Since(since) > capacity.MaxAgeAtAdmission }))
}

// awaitNoSpaceMessage waits until an image says that there is no room for it, and returns
// what it says.
func awaitNoSpaceMessage(t *testing.T, img *v1alpha1.VMDiskImage) string {
	t.Helper()
	got := testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonInsufficientStorage))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	return got.Status.Message
}

// TestStorageCapacityIsRespected has a driver tell of a pool that is too small for one of
// two images, and then that it has grown.
func TestStorageCapacityIsRespected(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	class := "space-" + ns
	testScene.CreateStorageClasses(t, class, class)
	pool := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: ns, Name: "pool"},
		StorageClassName: class, NodeTopology: &metav1.LabelSelector{}, MaximumVolumeSize: ptr.To(resource.MustParse("4Gi")),
	}
	testScene.Create(t, pool)
	awaitCapacityRefresh(t)
	large, small := testScene.NewImage(ns, "large", "/ok/200ms/a"), testScene.NewImage(ns, "small", "/ok/200ms/b")
	large.Spec.StorageClass, small.Spec.StorageClass = class, class
	large.Spec.DiskSize = resource.MustParse("5Gi")
	testScene.Create(t, large, small)
	message := awaitNoSpaceMessage(t, large)
	assert.Contains(t, message, "needs a volume of 5Gi")
	assert.Contains(t, message, "StorageClass "+class+" has room for is 4Gi")
	awaitSucceeded(t, small)
	awaitNoSpaceMessage(t, large)
	assert.Equal(t, []types.UID{small.UID}, history().StartOrder(), "it takes no slot and holds up nobody")
	assert.Zero(t, history().Attempts(large.UID))

	testScene.Update(t, pool, func() { pool.MaximumVolumeSize = ptr.To(resource.MustParse("5Gi")) })
	got := awaitSucceeded(t, large)
	assert.EqualValues(t, 1, got.Status.Attempts)
	assert.Equal(t, 1, history().Attempts(large.UID))
}

// TestQuotaCapacityIsRespected does the same with a quota, of which an HTTP import takes
// twice the disk.
func TestQuotaCapacityIsRespected(t *testing.T) {
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
			testScene.SetPolicy(t, newPolicy("concurrency", "1"))
			history := observeTest(t)
			ns := createHomeNamespace(t)
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}}
			testScene.Create(t, quota)
			// There is no quota controller here: what is enforced is what the status says.
			allow := func(hard string) {
				quota.Status.Hard = corev1.ResourceList{tt.name: resource.MustParse(hard)}
				quota.Status.Used = corev1.ResourceList{tt.name: resource.MustParse("0")}
				require.NoError(t, testScene.Client().Status().Update(t.Context(), quota))
				awaitCapacityRefresh(t)
			}
			allow(tt.few)
			img := testScene.NewImage(ns, "image", "/ok/200ms/a")
			passes := testScene.NewImage(createHomeNamespace(t), "passes", "/ok/0s/a")
			testScene.Create(t, img, passes)
			message := awaitNoSpaceMessage(t, img)
			assert.Contains(t, message, tt.want)
			assert.Contains(t, message, "ResourceQuota "+ns+"/quota has "+tt.few+" left of "+tt.few)
			awaitSucceeded(t, passes)
			awaitNoSpaceMessage(t, img)
			assert.Zero(t, history().Attempts(img.UID))

			allow(tt.all)
			awaitSucceeded(t, img)
			assert.Equal(t, 1, history().Attempts(img.UID))
		})
	}
}

// TestQuotaSharedByTwoImages has a quota with room for either of two images, and not
// for both: the second is passed when the first has taken it.
func TestQuotaSharedByTwoImages(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}}
	testScene.Create(t, quota)
	quota.Status.Hard = corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("3500Mi")}
	quota.Status.Used = corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("0")}
	require.NoError(t, testScene.Client().Status().Update(t.Context(), quota))
	awaitCapacityRefresh(t)

	// The first is imported for longer than what is known of the room may be old.
	first, second := testScene.NewImage(ns, "first", "/ok/15s/a"), testScene.NewImage(ns, "second", "/ok/200ms/b")
	testScene.Create(t, first)
	awaitImporting(t, first)
	testScene.Create(t, second)
	next := testScene.NewImage(createHomeNamespace(t), "next", "/ok/200ms/c")
	testScene.Create(t, next)
	awaitSucceeded(t, first)
	awaitNoSpaceMessage(t, second)
	awaitSucceeded(t, next)
	assert.Zero(t, history().Attempts(second.UID))

	require.NoError(t, testScene.Client().Delete(t.Context(), quota))
	awaitSucceeded(t, second)
	assert.Equal(t, 1, history().Attempts(second.UID))
}
