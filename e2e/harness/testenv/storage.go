//go:build linux

package testenv

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// CreateStorageClasses creates a StorageClass and a VolumeSnapshotClass for the simulated CSI
// driver.
func (s *Env) CreateStorageClasses(t *testing.T, storage, snapshots string) {
	t.Helper()
	driver := simulator.ClassCSI + ".pelotech.ot"
	s.Create(t,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: storage}, Provisioner: driver},
		&snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: snapshots}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete},
	)
	s.SetClaimProperties(t, storage)
}

// SetClaimProperties sets the claim properties in CDI's StorageProfile of a StorageClass, as CDI
// does for drivers that it knows.
func (s *Env) SetClaimProperties(t *testing.T, storage string) {
	t.Helper()
	s.setClaimProperties(t, storage, cdiv1.ClaimPropertySet{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
	})
}

// ClearClaimProperties undoes SetClaimProperties.
func (s *Env) ClearClaimProperties(t *testing.T, storage string) {
	t.Helper()
	s.setClaimProperties(t, storage)
}

func (s *Env) setClaimProperties(t *testing.T, storage string, sets ...cdiv1.ClaimPropertySet) {
	t.Helper()
	require.True(t, AwaitCondition(t, func() bool {
		profile := &cdiv1.StorageProfile{}
		if s.Client().Get(t.Context(), client.ObjectKey{Name: storage}, profile) != nil {
			return false
		}
		profile.Spec.ClaimPropertySets = sets
		return s.Client().Update(t.Context(), profile) == nil
	}))
}

// CreateLimitRange creates LimitRange "limits" with the most that one object may request.
func (s *Env) CreateLimitRange(t *testing.T, namespace string, kind corev1.LimitType, name corev1.ResourceName, most string) *corev1.LimitRange {
	t.Helper()
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: kind, Max: corev1.ResourceList{name: resource.MustParse(most)},
	}}}}
	s.Create(t, limits)
	return limits
}
