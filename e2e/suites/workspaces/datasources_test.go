//go:build linux

package workspaces

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const goldenNamespace = "kubevirt-os-images"

// newGolden returns metadata of what KubeVirt's operators keep.
func newGolden(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: goldenNamespace, Name: name, Labels: map[string]string{"example.com/kept-by": "others"}}
}

// fingerprint returns what tells whether an object was changed by the agent: not its status.
func fingerprint(t *testing.T, o client.Object) []any {
	t.Helper()
	requireObject(t, o)
	var managers []string
	for _, f := range o.GetManagedFields() {
		managers = append(managers, f.Manager)
	}
	assert.NotContains(t, managers, "ot-agent", "%T %s", o, o.GetName())
	return []any{o.GetUID(), o.GetLabels()["example.com/kept-by"], o.GetLabels()[v1alpha1.LabelImageUID], o.GetDeletionTimestamp()}
}

func point(t *testing.T, dataSource *cdiv1.DataSource, source cdiv1.DataSourceSource) {
	t.Helper()
	env.Update(t, dataSource, func() { dataSource.Spec.Source = source })
}

// TestDataSourceOfOthers has real CDI keep a DataSource ready, and a machine boot from it: first
// from a claim, then from a snapshot. Nothing of it is changed or deleted.
func TestDataSourceOfOthers(t *testing.T) {
	t.Parallel()
	env.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: goldenNamespace}})
	ns := env.CreateNamespace(t)
	prototype := env.NewSnapshottedImage(ns, "prototype", "/ok/100ms/golden")
	img := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "fedora"}, Spec: v1alpha1.VMDiskImageSpec{
		Name: "fedora", SourceType: v1alpha1.SourceDataSource, DiskSize: resource.MustParse("1Mi"),
		DataSource: &v1alpha1.DataSourceReference{Namespace: goldenNamespace, Name: "fedora"},
	}}
	env.Create(t, img)
	waiting := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonDataSourceMissing))
	assert.Equal(t, v1alpha1.PhaseSyncing, waiting.Status.Phase)

	golden := &cdiv1.DataVolume{ObjectMeta: newGolden("fedora-1"), Spec: cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: prototype.Spec.URL}},
		Storage: &cdiv1.StorageSpec{
			StorageClassName: ptr.To(prototype.Spec.StorageClass),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: prototype.Spec.DiskSize}},
		},
	}}
	golden.Annotations = map[string]string{"cdi.kubevirt.io/storage.bind.immediate.requested": "true"}
	dataSource := &cdiv1.DataSource{ObjectMeta: newGolden("fedora"), Spec: cdiv1.DataSourceSpec{
		Source: cdiv1.DataSourceSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: goldenNamespace, Name: "fedora-1"}},
	}}
	env.Create(t, golden, dataSource)
	ready := env.AwaitSucceeded(t, img)
	require.Equal(t, "fedora-1", ready.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, goldenNamespace, ready.Status.Serving.Namespace)
	assert.GreaterOrEqual(t, ready.Status.Serving.DiskSize.Cmp(prototype.Spec.DiskSize), 0, "CDI clones into no less")
	for _, slot := range env.Ledger(t).Status.Slots {
		assert.NotEqual(t, img.UID, slot.Image.UID, "no slot")
	}
	first := createAndAwaitRunning(t, testenv.NewMachine(ns, "first", img))
	awaitHolders(t, img, first)
	assert.Equal(t, &cdiv1.DataVolumeSourcePVC{Namespace: goldenNamespace, Name: "fedora-1"}, requireObject(t, rootDiskOf(first)).Spec.Source.PVC)

	snapshot := &snapshotv1.VolumeSnapshot{ObjectMeta: newGolden("fedora-2"), Spec: snapshotv1.VolumeSnapshotSpec{
		Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("fedora-1")},
		VolumeSnapshotClassName: ptr.To(prototype.Spec.SnapshotClass),
	}}
	env.Create(t, snapshot)
	point(t, dataSource, cdiv1.DataSourceSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: goldenNamespace, Name: "fedora-2"}})
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Serving != nil && img.Status.Serving.VolumeSnapshot == "fedora-2" && img.Status.Phase == v1alpha1.PhaseSucceeded
	})
	second := createAndAwaitRunning(t, testenv.NewMachine(ns, "second", img))
	assert.Equal(t, &cdiv1.DataVolumeSourceSnapshot{Namespace: goldenNamespace, Name: "fedora-2"}, requireObject(t, rootDiskOf(second)).Spec.Source.Snapshot)
	assert.Equal(t, "fedora-1", env.AwaitMachine(t, first, testenv.IsMachineReady).Status.Pinned.PersistentVolumeClaim, "a disk stays what it is")

	point(t, dataSource, cdiv1.DataSourceSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: ns, Name: "fedora-1"}})
	elsewhere := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonDataSourceInvalid))
	assert.Contains(t, elsewhere.Status.Message, "points at namespace "+ns)
	point(t, dataSource, cdiv1.DataSourceSource{DataSource: &cdiv1.DataSourceRefSourceDataSource{Namespace: goldenNamespace, Name: "fedora"}})
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Reason == v1alpha1.ReasonDataSourceInvalid && img.Status.Message != elsewhere.Status.Message
	})
	point(t, dataSource, cdiv1.DataSourceSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: goldenNamespace, Name: "fedora-1"}})
	env.AwaitSucceeded(t, img)

	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: goldenNamespace, Name: "fedora-1"}}
	theirs := []client.Object{dataSource, golden, claim, snapshot}
	var before [][]any
	for _, o := range theirs {
		before = append(before, fingerprint(t, o))
	}
	deleteAndAwaitGone(t, first)
	deleteAndAwaitGone(t, second)
	awaitHolders(t, img)
	deleteAndAwaitGone(t, img)
	for i, o := range theirs {
		assert.Equal(t, before[i], fingerprint(t, o), "%T", o)
	}
}

// TestArchitectureMismatchWaits has a machine wait for an image of its architecture, without a
// clone, and start once that is mended.
func TestArchitectureMismatchWaits(t *testing.T) {
	testenv.RunInTurn(t, 28)
	t.Parallel()
	ns := env.CreateNamespace(t)
	img := env.NewSnapshottedImage(ns, "image", "/ok/100ms/architecture")
	img.Spec.Architecture = v1alpha1.ArchitectureAMD64
	env.ImportImage(t, img)
	vm := testenv.NewMachine(ns, "vm", img)
	vm.Spec.Architecture = v1alpha1.ArchitectureARM64
	env.Create(t, vm)
	awaitFailure(t, vm, v1alpha1.ReasonArchitectureMismatch)
	waiting := env.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonArchitectureMismatch))
	assert.Contains(t, waiting.Status.Message, "spec.architecture is arm64, and VMDiskImage "+ns+"/image is for amd64")
	assert.Nil(t, waiting.Status.Pinned)
	for _, absent := range []client.Object{rootDiskOf(vm), kubeVirtVMOf(vm)} {
		require.NoError(t, client.IgnoreNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(absent), absent)))
		assert.Empty(t, absent.GetUID(), "%T", absent)
	}
	env.Update(t, vm, func() { vm.Spec.Architecture = "" })
	awaitRunning(t, vm)
	assert.Equal(t, "amd64", requireObject(t, kubeVirtVMOf(vm)).Spec.Template.Spec.Architecture, "the image's")

	env.Update(t, vm, func() { vm.Spec.Architecture = v1alpha1.ArchitectureARM64 })
	message := awaitCondition(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue)
	assert.Contains(t, message, "the machine runs on as it was started")
	assert.Equal(t, "amd64", requireObject(t, kubeVirtVMOf(vm)).Spec.Template.Spec.Architecture)
	setRunStrategy(t, vm, "Halted")
	awaitFailure(t, vm, v1alpha1.ReasonArchitectureMismatch)
	env.Update(t, vm, func() { vm.Spec.Architecture = v1alpha1.ArchitectureAMD64 })
	awaitReason(t, vm, v1alpha1.ReasonStopped)
	setRunStrategy(t, vm, "Always")
	awaitRunning(t, vm)
}
