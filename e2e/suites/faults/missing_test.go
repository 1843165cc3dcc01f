//go:build linux

package faults

import (
	"context"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func newDataVolume(name string) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// createForTest creates cluster-wide objects that go when the test ends.
func createForTest(t *testing.T, objects ...client.Object) {
	t.Helper()
	testScene.Create(t, objects...)
	t.Cleanup(func() {
		for _, o := range objects {
			assert.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(context.Background(), o)))
		}
	})
}

func newSnapshotClass(name string) *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Driver:     simulator.ClassCSI + ".pelotech.ot", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

// TestMissingPrerequisitesAreReported wants those that lack something to say so, to
// hold up nobody, and to go on by themselves.
func TestMissingPrerequisitesAreReported(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	storage := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "later-" + ns}, Provisioner: simulator.ClassCSI + ".pelotech.ot"}
	class := newSnapshotClass("later-" + ns)
	// The class of one goes while it is imported: it has left the queue then.
	gone := newSnapshotClass("gone-" + ns)
	require.NoError(t, testScene.Client().Create(t.Context(), gone.DeepCopy()))
	imported := testScene.NewImage(ns, "imported", "/ok/15s/a")
	imported.Spec.SnapshotClass = gone.Name
	testScene.Create(t, imported)
	awaitImporting(t, imported)
	require.NoError(t, testScene.Client().Delete(t.Context(), gone))
	got := testScene.AwaitImage(t, imported, testenv.HasReason(v1alpha1.ReasonSnapshotClassMissing))
	assert.Contains(t, got.Status.Message, gone.Name)

	lacks := map[v1alpha1.Reason]*v1alpha1.VMDiskImage{}
	for _, tt := range []struct {
		name   string
		reason v1alpha1.Reason
		change func(*v1alpha1.VMDiskImageSpec)
	}{
		{"storage", v1alpha1.ReasonStorageClassMissing, func(s *v1alpha1.VMDiskImageSpec) { s.StorageClass = storage.Name }},
		{"snapshots", v1alpha1.ReasonSnapshotClassMissing, func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = class.Name }},
		{"secret", v1alpha1.ReasonSecretMissing, func(s *v1alpha1.VMDiskImageSpec) { s.SecretRef = "later" }},
		{"certs", v1alpha1.ReasonCertConfigMapMissing, func(s *v1alpha1.VMDiskImageSpec) { s.CertConfigMap = "later" }},
	} {
		img := testScene.NewImage(ns, tt.name, "/ok/200ms/a")
		tt.change(&img.Spec)
		testScene.Create(t, img)
		lacks[tt.reason] = img
	}
	passes := testScene.NewImage(ns, "passes", "/ok/200ms/a")
	testScene.Create(t, passes)
	awaitSucceeded(t, passes)
	for reason, img := range lacks {
		got = testScene.AwaitImage(t, img, testenv.HasReason(reason))
		assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
		assert.Contains(t, got.Status.Message, "later")
	}
	h := history()
	assert.Equal(t, []types.UID{imported.UID, passes.UID}, h.StartOrder(), "none of them takes a slot")

	// Storage classes are watched; for the rest the agent looks once a minute.
	testScene.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "later"}, StringData: map[string]string{"accessKeyId": "me", "secretKey": "mine"}})
	testScene.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "later"}, Data: map[string]string{"ca.pem": ""}})
	createForTest(t, class, storage, newSnapshotClass(gone.Name))
	// CDI makes the profile of a class, and does not know the access modes of ours.
	profile := &cdiv1.StorageProfile{}
	require.True(t, testenv.Await(t, func() bool {
		if testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(storage), profile) != nil {
			return false
		}
		profile.Spec.ClaimPropertySets = []cdiv1.ClaimPropertySet{{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		}}
		return testScene.Client().Update(t.Context(), profile) == nil
	}))
	for _, img := range lacks {
		awaitSucceeded(t, img)
	}
	assert.NotEmpty(t, awaitSucceeded(t, imported).Status.Serving.VolumeSnapshot)
	h = history()
	assert.Equal(t, 1, h.Attempts(imported.UID))
	for reason, img := range lacks {
		assert.Equal(t, 1, h.Attempts(img.UID), "%s", reason)
	}
}

func TestNoDefaultStorageClass(t *testing.T) {
	const isDefault = "storageclass.kubernetes.io/is-default-class"
	testScene.SetPolicy(t, newPolicy())
	history := observeTest(t)
	setDefault := func(value string) error {
		class := &storagev1.StorageClass{}
		if err := testScene.Client().Get(context.Background(), client.ObjectKey{Name: simulator.ClassCSI}, class); err != nil {
			return err
		}
		class.Annotations[isDefault] = value
		return testScene.Client().Update(context.Background(), class)
	}
	require.NoError(t, setDefault("false"))
	t.Cleanup(func() { assert.NoError(t, setDefault("true")) })

	img := testScene.NewImage(createHomeNamespace(t), "image", "/ok/200ms/a")
	img.Spec.StorageClass = ""
	testScene.Create(t, img)
	got := testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonStorageClassMissing))
	assert.Contains(t, got.Status.Message, "no StorageClass is the default")
	require.NoError(t, setDefault("true"))
	awaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestStorageClassUnknownToCDI wants what CDI waits for told while it waits, and
// an end of it.
func TestStorageClassUnknownToCDI(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("retryLimit", "0"))
	history := observeTest(t)
	img := testScene.NewImage(createHomeNamespace(t), "image", "/ok/200ms/a")
	img.Spec.StorageClass = simulator.ClassUnknown
	testScene.Create(t, img)
	testScene.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseSyncing && strings.Contains(img.Status.Message, "accessModes")
	})
	testScene.SetPolicy(t, newPolicy("retryLimit", "0", "stallTimeout", "2s"))
	got := awaitFailed(t, img, v1alpha1.ReasonStalled)
	assert.Contains(t, got.Status.Message, "StorageProfile")
	assert.Equal(t, 1, history().Attempts(img.UID))
}

func TestWaitForFirstConsumer(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	history := observeTest(t)
	img := testScene.NewSnapshottedImage(createHomeNamespace(t), "image", "/ok/200ms/a")
	img.Spec.StorageClass = simulator.ClassWaitForFirstConsumer
	img.Spec.SnapshotClass = ""
	testScene.Create(t, img)
	awaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}
