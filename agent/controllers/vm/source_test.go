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

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The agent may clone what authors of machines may not, so it clones only what was made for the image.
func TestSourceExists(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, snapshotv1.AddToScheme(scheme))
	key := v1alpha1.ImageKey{Namespace: "farm", Name: "image", UID: "uid"}
	labels := image.AttemptLabels(key, "rev", 2)
	meta := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "farm", Name: name, Labels: labels}
	}
	claim := func(name string, labels map[string]string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name, labels), Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	snapshot := func(name string, labels map[string]string) *snapshotv1.VolumeSnapshot {
		return &snapshotv1.VolumeSnapshot{
			ObjectMeta: meta(name, labels),
			Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true), BoundVolumeSnapshotContentName: ptr.To("content")},
		}
	}
	r := &Reconciler{Live: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		claim("image-2", labels, corev1.ClaimBound),
		claim("pending", labels, corev1.ClaimPending),
		claim("payroll", nil, corev1.ClaimBound),
		claim("older", image.AttemptLabels(key, "rev", 1), corev1.ClaimBound),
		claim("other", image.AttemptLabels(v1alpha1.ImageKey{UID: "other"}, "rev", 2), corev1.ClaimBound),
		claim("by-attempt", map[string]string{v1alpha1.LabelAttempt: "2", v1alpha1.LabelImageUID: ""}, corev1.ClaimBound),
		snapshot("image-2", labels), snapshot("payroll", nil),
	).Build()}
	for name, tt := range map[string]struct {
		pin  *v1alpha1.PinnedImage
		want bool
	}{
		"nothing pinned":             {nil, false},
		"claim":                      {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, PersistentVolumeClaim: "image-2"}, true},
		"snapshot":                   {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, VolumeSnapshot: "image-2"}, true},
		"pending claim":              {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, PersistentVolumeClaim: "pending"}, false},
		"missing claim":              {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, PersistentVolumeClaim: "gone"}, false},
		"claim without labels":       {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, PersistentVolumeClaim: "payroll"}, false},
		"snapshot without labels":    {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, VolumeSnapshot: "payroll"}, false},
		"claim of another attempt":   {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, PersistentVolumeClaim: "older"}, false},
		"claim of another image":     {&v1alpha1.PinnedImage{ImageKey: key, Attempt: 2, PersistentVolumeClaim: "other"}, false},
		"pin without UID":            {&v1alpha1.PinnedImage{ImageKey: v1alpha1.ImageKey{Namespace: "farm"}, Attempt: 2, PersistentVolumeClaim: "by-attempt"}, false},
		"claim in another namespace": {&v1alpha1.PinnedImage{ImageKey: v1alpha1.ImageKey{Namespace: "ns", UID: "uid"}, Attempt: 2, PersistentVolumeClaim: "image-2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			exists, err := r.sourceExists(t.Context(), r.Live, tt.pin)
			require.NoError(t, err)
			assert.Equal(t, tt.want, exists)
		})
	}
}
