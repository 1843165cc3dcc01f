package vm

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What others keep has no label of an image, so the namespace decides whether it is cloned: that
// of the chart's value, whatever the pin says.
func TestAdoptedSourceExists(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, snapshotv1.AddToScheme(scheme))
	claim := func(namespace, name string, phase corev1.PersistentVolumeClaimPhase, annotations map[string]string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
		}
	}
	r := &Reconciler{DataSourceNamespaces: []string{"os"}, Live: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		claim("os", "fedora", corev1.ClaimBound, nil),
		claim("os", "pending", corev1.ClaimPending, nil),
		claim("os", "filling", corev1.ClaimBound, map[string]string{"cdi.kubevirt.io/storage.pod.phase": "Running"}),
		claim("payroll", "fedora", corev1.ClaimBound, nil),
		&snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "os", Name: "fedora"},
			Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true), BoundVolumeSnapshotContentName: ptr.To("content")},
		},
		&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "os", Name: "unready"}},
	).Build()}
	key := v1alpha1.ImageKey{Namespace: "ns", Name: "image", UID: "uid"}
	for name, tt := range map[string]struct {
		pin  v1alpha1.PinnedImage
		want bool
	}{
		"claim":                               {v1alpha1.PinnedImage{SourceNamespace: "os", PersistentVolumeClaim: "fedora"}, true},
		"snapshot":                            {v1alpha1.PinnedImage{SourceNamespace: "os", VolumeSnapshot: "fedora"}, true},
		"pending claim":                       {v1alpha1.PinnedImage{SourceNamespace: "os", PersistentVolumeClaim: "pending"}, false},
		"claim that is filled":                {v1alpha1.PinnedImage{SourceNamespace: "os", PersistentVolumeClaim: "filling"}, false},
		"missing claim":                       {v1alpha1.PinnedImage{SourceNamespace: "os", PersistentVolumeClaim: "gone"}, false},
		"unready snapshot":                    {v1alpha1.PinnedImage{SourceNamespace: "os", VolumeSnapshot: "unready"}, false},
		"claim of a namespace not allowed":    {v1alpha1.PinnedImage{SourceNamespace: "payroll", PersistentVolumeClaim: "fedora"}, false},
		"claim without a namespace of others": {v1alpha1.PinnedImage{PersistentVolumeClaim: "fedora"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tt.pin.ImageKey = key
			exists, err := r.sourceExists(t.Context(), r.Live, &tt.pin)
			require.NoError(t, err)
			assert.Equal(t, tt.want, exists)
		})
	}
}
