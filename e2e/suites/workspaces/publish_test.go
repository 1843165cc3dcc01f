//go:build linux

package workspaces

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func publishedImage(namespace, name, path string) *v1alpha1.VMDiskImage {
	img := env.NewSnapshottedImage(namespace, name, path)
	img.Spec.Publish = &v1alpha1.Publish{DataSource: true, Name: "ubuntu"}
	return img
}

// awaitPublished waits for a reason of condition Published, and returns the image.
func awaitPublished(t *testing.T, img *v1alpha1.VMDiskImage, reason v1alpha1.Reason) *v1alpha1.VMDiskImage {
	t.Helper()
	return env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionPublished)
		return c != nil && c.Reason == string(reason)
	})
}

func dataSourceOf(namespace string) *cdiv1.DataSource {
	return &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ubuntu"}}
}

// awaitPointer waits until the DataSource points at a snapshot and CDI calls it ready.
func awaitPointer(t *testing.T, namespace, snapshot string) *cdiv1.DataSource {
	t.Helper()
	return awaitObject(t, dataSourceOf(namespace), "points at "+snapshot, func(ds *cdiv1.DataSource) bool {
		return ds.Spec.Source.Snapshot != nil && ds.Spec.Source.Snapshot.Name == snapshot && len(ds.Status.Conditions) > 0 && ds.Status.Conditions[0].Status == corev1.ConditionTrue
	})
}

// createUnservedClass creates a StorageClass in which no claim is ever bound, so that no clone ends.
func createUnservedClass(t *testing.T, name string) {
	t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "unserved.example.com"}
	env.Create(t, class)
	t.Cleanup(func() { assert.NoError(t, env.Client().Delete(context.Background(), class)) })
}

// cloneOf is a DataVolume with sourceRef.
func cloneOf(namespace, name, imageNamespace, class string) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: cdiv1.DataVolumeSpec{
			SourceRef: &cdiv1.DataVolumeSourceRef{Kind: cdiv1.DataVolumeDataSource, Namespace: &imageNamespace, Name: "ubuntu"},
			Storage: &cdiv1.StorageSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}},
			},
		},
	}
}

// plainMachine is KubeVirt's own VirtualMachine with a dataVolumeTemplate from the DataSource. What
// it lacks is inferred from it.
func plainMachine(namespace, imageNamespace string) *kubevirtv1.VirtualMachine {
	dv := cloneOf("", "plain-root", imageNamespace, simulator.ClassCSI)
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy:         ptr.To(kubevirtv1.RunStrategyAlways),
			Instancetype:        &kubevirtv1.InstancetypeMatcher{InferFromVolume: "root"},
			DataVolumeTemplates: []kubevirtv1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: dv.Name}, Spec: dv.Spec}},
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Domain:  kubevirtv1.DomainSpec{Devices: kubevirtv1.Devices{Disks: []kubevirtv1.Disk{{Name: "root", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusVirtio}}}}}},
				Volumes: []kubevirtv1.Volume{{Name: "root", VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: dv.Name}}}},
			}},
		},
	}
}

// allowClones lets the default account of one namespace clone from another.
func allowClones(t *testing.T, from, to string) {
	t.Helper()
	env.Create(t,
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: from, Name: "clone"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"cdi.kubevirt.io"}, Resources: []string{"datavolumes/source"}, Verbs: []string{"create"}}}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: from, Name: "clone"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "clone"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: to, Name: "default"}},
		})
}

// TestPlainMachinesBootFromPublishedImage boots machines of KubeVirt without ours, in the namespace
// of the image and in another one, with the instancetype that the DataSource has.
func TestPlainMachinesBootFromPublishedImage(t *testing.T) {
	t.Parallel()
	ns, other := env.CreateNamespace(t), env.CreateNamespace(t)
	instancetype := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype", "metadata": map[string]any{"name": "published-" + ns},
		"spec": map[string]any{"cpu": map[string]any{"guest": int64(3)}, "memory": map[string]any{"guest": "96Mi"}},
	}}
	env.Create(t, instancetype)
	img := publishedImage(ns, "ubuntu-24", "/ok/100ms/published")
	img.Spec.Defaults = &v1alpha1.MachineDefaults{Instancetype: instancetype.GetName()}
	img = awaitPublished(t, env.ImportImage(t, img), v1alpha1.ReasonPublished)
	awaitPointer(t, ns, img.Status.Serving.VolumeSnapshot)
	allowClones(t, ns, other)

	for _, namespace := range []string{ns, other} {
		machine := plainMachine(namespace, ns)
		env.Create(t, machine)
		awaitObject(t, machine, "is ready", func(vm *kubevirtv1.VirtualMachine) bool { return vm.Status.Ready })
		require.NotNil(t, machine.Spec.Instancetype)
		assert.Equal(t, instancetype.GetName(), machine.Spec.Instancetype.Name, "inferred from the DataSource's label")
		instance := requireObject(t, &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"}})
		require.NotNil(t, instance.Spec.Domain.CPU)
		assert.Equal(t, uint32(3), instance.Spec.Domain.CPU.Sockets*instance.Spec.Domain.CPU.Cores*instance.Spec.Domain.CPU.Threads)
		dv := requireObject(t, &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain-root"}})
		require.NotNil(t, dv.Spec.Source, "KubeVirt resolves the DataSource itself")
		assert.Equal(t, img.Status.Serving.VolumeSnapshot, dv.Spec.Source.Snapshot.Name)
	}
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 0 })
}

// TestPublishedImageMovesOn changes the source of a published image while clones are in flight, and
// deletes it then.
func TestPublishedImageMovesOn(t *testing.T) {
	testenv.RunInTurn(t, 1)
	t.Parallel()
	ns, other := env.CreateNamespace(t), env.CreateNamespace(t)
	img := publishedImage(ns, "ubuntu-24", "/ok/100ms/first")
	first := awaitPublished(t, env.ImportImage(t, img), v1alpha1.ReasonPublished)
	awaitPointer(t, ns, first.Status.Serving.VolumeSnapshot)
	firstClaim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: first.Status.Serving.PersistentVolumeClaim}}
	class := "unserved-" + ns
	createUnservedClass(t, class)
	waiting := cloneOf(other, "waiting", ns, class)
	env.Create(t, waiting)
	held := env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
	assert.Equal(t, []string{other + "/waiting (clone)"}, held.Status.References.Holders)

	env.Update(t, img, func() { img.Spec.URL += "-newer" })
	second := env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.Phase == v1alpha1.PhaseSucceeded && got.Status.Serving.Revision != first.Status.Serving.Revision
	})
	awaitPointer(t, ns, second.Status.Serving.VolumeSnapshot)
	// The sentence may come with a later write than the end of the former publication.
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return len(got.Status.Publications) == 2 && got.Status.Publications[0].Until != nil &&
			strings.Contains(got.Status.Message, "earlier storage is kept for the VirtualMachines and clones built from it: "+other+"/waiting (clone)")
	})
	requireObject(t, firstClaim)

	deleteAndAwaitGone(t, waiting)
	env.AwaitGone(t, firstClaim)
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool {
		return got.Status.References.Count == 0 && len(got.Status.Revisions) == 1
	})

	again := cloneOf(other, "again", ns, class)
	env.Create(t, again)
	env.AwaitImage(t, img, func(got *v1alpha1.VMDiskImage) bool { return got.Status.References.Count == 1 })
	require.NoError(t, env.Client().Delete(t.Context(), img))
	terminating := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Contains(t, terminating.Status.Message, other+"/again (clone)")
	// CDI neither finishes nor deletes a DataVolume whose DataSource is gone.
	assert.Equal(t, second.Status.Serving.VolumeSnapshot, requireObject(t, dataSourceOf(ns)).Spec.Source.Snapshot.Name)
	requireObject(t, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: second.Status.Serving.PersistentVolumeClaim}})
	deleteAndAwaitGone(t, again)
	env.AwaitGone(t, dataSourceOf(ns))
	env.AwaitGone(t, img)
}

// TestForeignDataSourceIsLeftAlone wants condition Published to say so, and the image to be
// published once the name is free; and two images to be published under one name, one at a time.
func TestForeignDataSourceIsLeftAlone(t *testing.T) {
	testenv.RunInTurn(t, 7)
	t.Parallel()
	ns := env.CreateNamespace(t)
	foreign := dataSourceOf(ns)
	foreign.Spec.Source.PVC = &cdiv1.DataVolumeSourcePVC{Namespace: ns, Name: "golden"}
	env.Create(t, foreign)
	img := publishedImage(ns, "ubuntu-22", "/ok/100ms/old")
	env.Create(t, img)
	awaitPublished(t, img, v1alpha1.ReasonDataSourceForeign)
	still := requireObject(t, dataSourceOf(ns))
	assert.Equal(t, foreign.UID, still.UID)
	assert.Equal(t, "golden", still.Spec.Source.PVC.Name)
	deleteAndAwaitGone(t, foreign)
	img = awaitPublished(t, img, v1alpha1.ReasonPublished)
	awaitPointer(t, ns, img.Status.Serving.VolumeSnapshot)

	newer := publishedImage(ns, "ubuntu-24", "/ok/100ms/new")
	newer.Spec.SnapshotClass = ""
	env.Create(t, newer)
	newer = awaitPublished(t, newer, v1alpha1.ReasonPublished)
	awaitObject(t, dataSourceOf(ns), "points at the claim of the newer image", func(ds *cdiv1.DataSource) bool {
		return ds.Spec.Source.PVC != nil && ds.Spec.Source.PVC.Name == newer.Status.Serving.PersistentVolumeClaim && ds.Spec.Source.Snapshot == nil
	})
	awaitPublished(t, img, v1alpha1.ReasonOtherImagePublished)

	env.Update(t, newer, func() { newer.Spec.Publish = nil })
	awaitPublished(t, img, v1alpha1.ReasonPublished)
	awaitPointer(t, ns, img.Status.Serving.VolumeSnapshot)
	env.Update(t, img, func() { img.Spec.Publish = nil })
	env.AwaitGone(t, dataSourceOf(ns))
	require.NoError(t, env.Client().Delete(t.Context(), img))
	env.AwaitGone(t, img)
}
