package cachebounds

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fillMetadata gives an object what anybody may write to it, and what the agent reads.
func fillMetadata(o client.Object) {
	o.SetName("x-root")
	o.SetNamespace("ns")
	o.SetUID("uid")
	o.SetResourceVersion("7")
	labels, annotations := map[string]string{}, map[string]string{}
	for i := range 43_000 {
		labels["a"+strconv.Itoa(i)], annotations["a"+strconv.Itoa(i)] = "", ""
	}
	for i := range 1000 {
		annotations["restore.kubevirt.io/"+strconv.Itoa(i)] = ""
	}
	labels[v1alpha1.LabelMachineUID] = "machine"
	annotations[v1alpha1.AnnotationClonedFrom] = "image/r/1/claim"
	annotations[v1alpha1.AnnotationRequestedStorage] = strings.Repeat("x", 256<<10)
	annotations["restore.kubevirt.io/lastRestoreUID"] = "restore"
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	owners := []metav1.OwnerReference{{Kind: "VirtualMachine", UID: "machine", Controller: ptr.To(true)}}
	finalizers := []string{"kubernetes.io/pvc-protection"}
	for i := range 10_000 {
		owners = append(owners, metav1.OwnerReference{Kind: "Pod", Name: "pod", UID: types.UID(strconv.Itoa(i))})
		finalizers = append(finalizers, "a.b/"+strconv.Itoa(i))
	}
	o.SetOwnerReferences(owners)
	o.SetFinalizers(finalizers)
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
}

func TestObjectsOfOthersAreCachedInBoundedSize(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	var conditions []corev1.PodCondition
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	template := map[string]any{}
	for i := range 40_000 {
		conditions = append(conditions, corev1.PodCondition{Type: "x", Message: "y"})
		selector.MatchLabels[strconv.Itoa(i)] = "x"
		template[strconv.Itoa(i)] = "x"
	}
	for _, o := range []client.Object{
		&corev1.Pod{Spec: corev1.PodSpec{NodeName: long}, Status: corev1.PodStatus{Conditions: conditions}},
		&corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{Selector: selector, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(long)}}},
		&cdiv1.DataVolume{Spec: cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: long}}}},
		&cdiv1.DataSource{Spec: cdiv1.DataSourceSpec{Source: cdiv1.DataSourceSource{PVC: &cdiv1.DataVolumeSourcePVC{Name: long}}}},
		&snapshotv1.VolumeSnapshot{Status: &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: &long}}},
		&v1alpha1.VMDiskImage{}, &v1alpha1.VirtualMachine{},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": map[string]any{"template": map[string]any{"metadata": template}}}},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": long}},
	} {
		t.Run(fmt.Sprintf("%T", o), func(t *testing.T) {
			fillMetadata(o)
			trimmed, err := Trim(o)
			require.NoError(t, err)
			text, err := json.Marshal(trimmed)
			require.NoError(t, err)
			assert.Less(t, len(text), 80<<10)

			got := trimmed.(client.Object)
			assert.Equal(t, "machine", got.GetLabels()[v1alpha1.LabelMachineUID])
			assert.Equal(t, []string{"x-root", "ns", "uid", "7"}, []string{got.GetName(), got.GetNamespace(), string(got.GetUID()), got.GetResourceVersion()})
			if u, isUnstructured := trimmed.(*unstructured.Unstructured); isUnstructured {
				assert.True(t, IsTrimmed(u))
				return
			}
			assert.Equal(t, "image/r/1/claim", got.GetAnnotations()[v1alpha1.AnnotationClonedFrom])
			assert.Equal(t, "restore", got.GetAnnotations()["restore.kubevirt.io/lastRestoreUID"])
			assert.True(t, metav1.IsControlledBy(got, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "machine"}}))
			assert.Len(t, got.GetOwnerReferences(), MaxOwners)
			assert.Empty(t, got.GetManagedFields())
		})
	}
}

func TestObjectsAsTheyAreMadeAreKept(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: "x-root", Labels: map[string]string{v1alpha1.LabelMachineUID: "machine", v1alpha1.LabelDisk: "data"},
			Annotations: map[string]string{"cdi.kubevirt.io/storage.pod.phase": "Succeeded", importcause.AnnotationPrimeClaim: "prime-1"}, Finalizers: []string{"kubernetes.io/pvc-protection"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DataVolume", Name: "x-root", UID: "dv", Controller: ptr.To(true)}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("fast"), VolumeName: "pv", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}},
	}
	want := claim.DeepCopy()
	claim.Labels["other"], claim.Annotations["other"] = "x", "x"
	trimmed, err := Trim(claim)
	require.NoError(t, err)
	assert.Equal(t, want, trimmed)

	machine := &unstructured.Unstructured{Object: map[string]any{"kind": "VirtualMachine", "metadata": map[string]any{"name": "vm"}, "spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"of": "an overlay"}}, "spec": map[string]any{"volumes": []any{map[string]any{"name": "root"}}},
	}}}}
	wantMachine := machine.DeepCopy()
	trimmed, err = Trim(machine)
	require.NoError(t, err)
	assert.Equal(t, wantMachine, trimmed)
	assert.False(t, IsTrimmed(machine))
}

// TestAnnotationsUseUpNothingElse: a patch of owners replaces the list, and a clone is in flight by its source.
func TestAnnotationsUseUpNothingElse(t *testing.T) {
	annotations := map[string]string{}
	for _, key := range keys {
		annotations[key] = strings.Repeat("x", maxListedNames)
	}
	var owners []metav1.OwnerReference
	for i := range MaxOwners - 1 {
		owners = append(owners, metav1.OwnerReference{
			APIVersion: strings.Repeat("g", 253) + "/" + strings.Repeat("v", 63), Kind: strings.Repeat("K", 63), Name: strings.Repeat("n", 253), UID: types.UID(fmt.Sprintf("%036d", i)),
		})
	}
	finalizers := []string{"example.com/hold", v1alpha1.FinalizerImage, metav1.FinalizerDeleteDependents}
	source := cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "golden-r"}}
	for _, o := range []client.Object{
		&corev1.Pod{}, &corev1.PersistentVolumeClaim{}, &cdiv1.DataVolume{Spec: cdiv1.DataVolumeSpec{Source: source.DeepCopy()}}, &v1alpha1.VMDiskImage{}, &v1alpha1.VirtualMachine{},
		&metav1.PartialObjectMetadata{},
	} {
		t.Run(fmt.Sprintf("%T", o), func(t *testing.T) {
			o.SetAnnotations(maps.Clone(annotations))
			o.SetOwnerReferences(slices.Clone(owners))
			o.SetFinalizers(slices.Clone(finalizers))
			_, err := Trim(o)
			require.NoError(t, err)
			assert.Equal(t, owners, o.GetOwnerReferences())
			assert.Equal(t, finalizers, o.GetFinalizers())
			if dv, isDataVolume := o.(*cdiv1.DataVolume); isDataVolume {
				assert.Equal(t, source, *dv.Spec.Source)
			}
		})
	}
}

// TestAnnotationsOfAnySizeCutNoFinalizer: an annotation that leaves a few bytes for them cut the text of the
// agent's, so that the image counted as one without it, and the next patch stored the text that was left.
func TestAnnotationsOfAnySizeCutNoFinalizer(t *testing.T) {
	finalizers := []string{"example.com/hold", v1alpha1.FinalizerImage}
	for size := maxListedNames - 600; size <= maxListedNames; size++ {
		img := apitest.Image("ns/a").Obj()
		img.Finalizers = slices.Clone(finalizers)
		img.Annotations = map[string]string{v1alpha1.AnnotationIgnoreOrphanedDisks: strings.Repeat("x", size)}
		_, err := Trim(img)
		require.NoError(t, err)
		require.Equal(t, finalizers, img.Finalizers, "with %d bytes", size)
	}
}

// TestEachKeyOfAMemberIsKept reads the first group of labels and annotations of the API.
func TestEachKeyOfAMemberIsKept(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/labels.go", nil, 0)
	require.NoError(t, err)
	group := file.Decls[0].(*ast.GenDecl)
	found := 0
	for _, spec := range group.Specs {
		constant := spec.(*ast.ValueSpec)
		if name := constant.Names[0].Name; strings.HasPrefix(name, "Label") || strings.HasPrefix(name, "Annotation") {
			value, err := strconv.Unquote(constant.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			assert.Contains(t, keys, value, name)
			found++
		}
	}
	assert.Greater(t, found, 15)
}

// TestVolumesThatNameSecretsAreKept: Events of a Pod name a Secret that is missing, and only the Pod's spec
// says that it is the Pod's own.
func TestVolumesThatNameSecretsAreKept(t *testing.T) {
	secret := corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, secret}, NodeName: "n"}}
	trimmed, err := Trim(pod)
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{secret}}}, trimmed)
}

func TestTrimKeys(t *testing.T) {
	long := strings.Repeat("x", 2*maxListedNames)
	for name, others := range map[string]int{"few keys": 1, "many keys": 2 * maxTrimmedKeys} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{
				v1alpha1.LabelImageUID: "uid", v1alpha1.AnnotationRequestedStorage: long, v1alpha1.AnnotationOverlaid: long,
				restoreUID: "restore", "restore.kubevirt.io/name": long,
			}
			for i := range others {
				all["a"+strconv.Itoa(i)] = long
			}
			assert.Equal(t, long[:maxValueBytes], trimKeys(maps.Clone(all))[v1alpha1.AnnotationOverlaid], "of a kind that has none")
			assert.Equal(t, map[string]string{
				v1alpha1.LabelImageUID: "uid", v1alpha1.AnnotationRequestedStorage: long[:maxValueBytes], v1alpha1.AnnotationOverlaid: long[:maxListedNames],
				restoreUID: "restore", "restore.kubevirt.io/name": "",
			}, trimKeys(all, v1alpha1.AnnotationOverlaid))
		})
	}
	assert.Nil(t, trimKeys(map[string]string{"a": "b"}))
	assert.Nil(t, trimKeys(nil))
}
