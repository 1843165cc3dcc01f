package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The guest runs on where KubeVirt's VirtualMachine was left behind with the disk.
func TestOrphanedDiskInUseIsReported(t *testing.T) {
	for _, tt := range []struct{ namespace, uid, want string }{
		{"ns", "machine", "KubeVirt VirtualMachine ns/left"},
		{"ns", "another", ""},
		{"other", "machine", ""},
	} {
		left := &unstructured.Unstructured{}
		left.SetGroupVersionKind(kubevirt.VirtualMachineGVK)
		left.SetNamespace(tt.namespace)
		left.SetName("left")
		left.SetLabels(map[string]string{v1alpha1.LabelMachineUID: tt.uid})
		img := apitest.Image("farm/image").Obj()
		img.UID = "image"
		disk := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "vm-root", Labels: map[string]string{v1alpha1.LabelMachineUID: "machine"},
			Annotations: map[string]string{v1alpha1.AnnotationClonedFrom: "image/r/1/claim"},
		}}
		h := imageHolders{disks: fake.NewClientBuilder().WithObjects(left).Build(), isServed: func(schema.GroupVersionKind) bool { return true }}
		holders, err := h.appendHolder(t.Context(), nil, disk, types.NamespacedName{}, img)
		require.NoError(t, err)
		require.Len(t, holders, 1)
		assert.Equal(t, tt.want, holders[0].UsedBy)
	}
}
