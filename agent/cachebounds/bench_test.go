package cachebounds

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// typicalObjects are of an import, as the API server sends them.
func typicalObjects() []client.Object {
	metadata := metav1.ObjectMeta{
		Namespace: "workspaces", Name: "ubuntu-24-04-0d4f7c1a-1", UID: "0d4f7c1a-5a4e-4e0b-9d43-6a1e6f6b2c11", ResourceVersion: "123456789",
		Labels: map[string]string{
			v1alpha1.LabelImageUID: "0d4f7c1a-5a4e-4e0b-9d43-6a1e6f6b2c12", v1alpha1.LabelRevision: "a1b2c3d4", v1alpha1.LabelAttempt: "1",
			"app": "containerized-data-importer", "app.kubernetes.io/managed-by": "cdi-controller", "app.kubernetes.io/component": "storage", "cdi.kubevirt.io": "importer",
		},
		Annotations: map[string]string{
			v1alpha1.AnnotationImageName: "ubuntu-24-04", "cdi.kubevirt.io/storage.pod.phase": "Running", "cdi.kubevirt.io/storage.condition.running": "true",
			"cdi.kubevirt.io/storage.condition.running.message": "", "cdi.kubevirt.io/storage.condition.running.reason": "Pod is running",
			"cdi.kubevirt.io/storage.contentType": "kubevirt", "cdi.kubevirt.io/storage.import.endpoint": "https://images.example.com/ubuntu-24-04.qcow2",
			"kubectl.kubernetes.io/last-applied-configuration": `{"apiVersion":"v1"}`,
		},
		Finalizers:      []string{"kubernetes.io/pvc-protection"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "ubuntu-24-04-0d4f7c1a-1", UID: "0d4f", Controller: ptr.To(true)}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "cdi-controller"}},
	}
	img := apitest.Image("workspaces/ubuntu-24-04").Obj()
	img.ObjectMeta = metadata
	pod := apitest.Pod("workspaces/importer").Phase(corev1.PodRunning).Running().Obj()
	pod.ObjectMeta = metadata
	for i := range 5 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("volume-", i)})
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "Ready", Status: corev1.ConditionTrue, Reason: "ContainersReady"})
	}
	pod.Spec.Containers = []corev1.Container{{Name: "importer", Image: "cdi-importer"}}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
	dv := apitest.DataVolume("workspaces/ubuntu").Phase(cdiv1.ImportInProgress).Progress("42.0%").
		Condition(cdiv1.DataVolumeBound, corev1.ConditionFalse, "Pending", "PVC ubuntu Pending").
		Condition(cdiv1.DataVolumeReady, corev1.ConditionFalse, "TransferRunning", "").
		Condition(cdiv1.DataVolumeRunning, corev1.ConditionTrue, "Pod is running", "").Obj()
	dv.ObjectMeta = metadata
	dv.Spec = cdiv1.DataVolumeSpec{
		Source:  &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://images.example.com/ubuntu-24-04.qcow2"}},
		Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}
	return []client.Object{
		img, pod, dv,
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metadata,
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("fast"), VolumeName: "pvc-0d4f",
				Resources: corev1.VolumeResourceRequirements{Requests: size}, DataSourceRef: &corev1.TypedObjectReference{Kind: "VolumeImportSource", Name: "volume-import-source-0d4f"},
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		},
	}
}

// BenchmarkTrim shows the cost of each event of an object.
func BenchmarkTrim(b *testing.B) {
	for _, o := range typicalObjects() {
		b.Run(fmt.Sprintf("%T", o), func(b *testing.B) {
			b.ReportAllocs()
			copies := make([]client.Object, b.N)
			for i := range copies {
				copies[i] = o.DeepCopyObject().(client.Object)
			}
			b.ResetTimer()
			for _, o := range copies {
				_, err := Trim(o)
				require.NoError(b, err)
			}
		})
	}
}
