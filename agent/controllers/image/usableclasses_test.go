package image

import (
	"context"
	"fmt"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// countingClient counts the reads of VolumeSnapshotClasses.
type countingClient struct {
	client.Client
	reads int
}

func (c *countingClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, ok := obj.(*snapshotv1.VolumeSnapshotClass); ok {
		c.reads++
	}
	return c.Client.Get(ctx, key, obj, opts...)
}

// TestUsableSnapshotClassIsReadOnce shows that what fits is read once for many images, and that
// what does not fit is read each time.
func TestUsableSnapshotClassIsReadOnce(t *testing.T) {
	storage := newStorageClass("storage", 1)
	storage.Provisioner = "a.csi"
	snapshots := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "snapshots"}, Driver: "b.csi"}
	c := &countingClient{Client: newFakeClient(t, storage, snapshots)}
	r := &Reconciler{Client: c, Live: c, Kinds: newKinds(t)}
	findReason := func(name string) v1alpha1.Reason {
		img := apitest.Image("ns/" + name).Obj()
		img.Spec.StorageClass, img.Spec.SnapshotClass = storage.Name, snapshots.Name
		b, err := r.findSnapshotClassBlocker(t.Context(), img, nil)
		require.NoError(t, err)
		if b == nil {
			return ""
		}
		return b.Reason
	}
	for i := range 3 {
		assert.Equal(t, v1alpha1.ReasonSnapshotClassMismatch, findReason(fmt.Sprint("a", i)))
	}
	assert.Equal(t, 3, c.reads)
	snapshots.Driver = storage.Provisioner
	require.NoError(t, c.Update(t.Context(), snapshots))
	for i := range 5 {
		assert.Empty(t, findReason(fmt.Sprint("b", i)), "a class that was corrected is seen at once")
	}
	assert.Equal(t, 4, c.reads)
}
