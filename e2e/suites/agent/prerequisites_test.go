//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func newDataVolume(name string) *cdiv1.DataVolume {
	return &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// createForTest creates cluster-scoped objects and deletes them when the test ends.
func createForTest(t *testing.T, objects ...client.Object) {
	t.Helper()
	env.Create(t, objects...)
	t.Cleanup(func() {
		for _, o := range objects {
			assert.NoError(t, client.IgnoreNotFound(env.Client().Delete(context.Background(), o)))
		}
	})
}

func newSnapshotClass(name string) *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Driver:     simulator.ClassCSI + ".pelotech.ot", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

// TestMissingPrerequisitesAreReported wants an image that lacks something to say so, to let
// others pass, and to go on by itself once it is there.
func TestMissingPrerequisitesAreReported(t *testing.T) {
	testenv.RunInTurn(t, 32)
	history := observeUnderPolicy(t, "concurrency", "1")
	ns := env.CreateHomeNamespace(t)
	storage := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "later-" + ns}, Provisioner: simulator.ClassCSI + ".pelotech.ot"}
	class := newSnapshotClass("later-" + ns)
	// One image loses its class while it is imported: it is no longer in the queue.
	gone := newSnapshotClass("gone-" + ns)
	require.NoError(t, env.Client().Create(t.Context(), gone.DeepCopy()))
	imported := env.NewImage(ns, "imported", "/ok/15s/a")
	imported.Spec.SnapshotClass = gone.Name
	env.Create(t, imported)
	env.AwaitImporting(t, imported)
	require.NoError(t, env.Client().Delete(t.Context(), gone))
	got := env.AwaitImage(t, imported, testenv.HasReason(v1alpha1.ReasonSnapshotClassMissing))
	assert.Contains(t, got.Status.Message, gone.Name)

	lacks := map[v1alpha1.Reason]*v1alpha1.VMDiskImage{}
	for _, tt := range []struct {
		name   string
		reason v1alpha1.Reason
		change func(*v1alpha1.VMDiskImageSpec)
	}{
		{"storage", v1alpha1.ReasonStorageClassMissing, func(s *v1alpha1.VMDiskImageSpec) { s.StorageClass = storage.Name }},
		{"snapshots", v1alpha1.ReasonSnapshotClassMissing, func(s *v1alpha1.VMDiskImageSpec) { s.SnapshotClass = class.Name }},
		{"secret", v1alpha1.ReasonSecretForbidden, func(s *v1alpha1.VMDiskImageSpec) { s.SecretRef = "later" }},
		{"certs", v1alpha1.ReasonCertConfigMapMissing, func(s *v1alpha1.VMDiskImageSpec) { s.CertConfigMap = "later" }},
	} {
		img := env.NewImage(ns, tt.name, "/ok/200ms/a")
		tt.change(&img.Spec)
		env.Create(t, img)
		lacks[tt.reason] = img
	}
	passes := env.NewImage(ns, "passes", "/ok/200ms/a")
	env.Create(t, passes)
	env.AwaitSucceeded(t, passes)
	for reason, img := range lacks {
		got = env.AwaitImage(t, img, testenv.HasReason(reason))
		assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
		assert.Contains(t, got.Status.Message, "later")
	}
	h := history()
	assert.Equal(t, []types.UID{imported.UID, passes.UID}, h.StartOrder(), "images that lack something take no slot")

	// The agent watches storage classes; it checks for the rest once a minute.
	env.AllowSecrets(t, ns)
	env.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "later"}, StringData: map[string]string{"accessKeyId": "me", "secretKey": "mine"}})
	env.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "later"}, Data: map[string]string{"ca.pem": ""}})
	createForTest(t, class, storage, newSnapshotClass(gone.Name))
	// CDI creates the StorageProfile, without access modes for the simulated class.
	env.SetClaimProperties(t, storage.Name)
	for _, img := range lacks {
		env.AwaitSucceeded(t, img)
	}
	assert.NotEmpty(t, env.AwaitSucceeded(t, imported).Status.Serving.VolumeSnapshot)
	h = history()
	assert.Equal(t, 1, h.Attempts(imported.UID))
	for reason, img := range lacks {
		assert.Equal(t, 1, h.Attempts(img.UID), "%s", reason)
	}
}

func TestNoDefaultStorageClass(t *testing.T) {
	const isDefault = "storageclass.kubernetes.io/is-default-class"
	history := observeUnderPolicy(t)
	setDefault := func(value string) error {
		class := &storagev1.StorageClass{}
		if err := env.Client().Get(context.Background(), client.ObjectKey{Name: simulator.ClassCSI}, class); err != nil {
			return err
		}
		class.Annotations[isDefault] = value
		return env.Client().Update(context.Background(), class)
	}
	require.NoError(t, setDefault("false"))
	t.Cleanup(func() { assert.NoError(t, setDefault("true")) })

	img := env.NewImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/a")
	img.Spec.StorageClass = ""
	env.Create(t, img)
	got := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonStorageClassMissing))
	assert.Contains(t, got.Status.Message, "no StorageClass is the default")
	require.NoError(t, setDefault("true"))
	env.AwaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestStorageClassUnknownToCDI wants an image whose claim CDI cannot create to wait without a
// slot, and to go on by itself.
func TestStorageClassUnknownToCDI(t *testing.T) {
	testenv.RunInTurn(t, 22)
	history := observeUnderPolicy(t, "retryLimit", "0", "concurrency", "1")
	ns := env.CreateHomeNamespace(t)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "unknown-" + ns}, Provisioner: simulator.ClassUnknown + ".pelotech.ot"}
	createForTest(t, class)
	profile := &cdiv1.StorageProfile{}
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Get(t.Context(), client.ObjectKeyFromObject(class), profile) == nil }))
	img, passes := env.NewImage(ns, "image", "/ok/200ms/a"), env.NewImage(ns, "passes", "/ok/200ms/b")
	img.Spec.StorageClass = class.Name
	env.Create(t, img, passes)
	got := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonStorageProfileIncomplete))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	assert.Contains(t, got.Status.Message, "StorageProfile "+class.Name)
	env.AwaitSucceeded(t, passes)
	assert.Equal(t, []types.UID{passes.UID}, history().StartOrder(), "it takes no slot")

	env.SetClaimProperties(t, class.Name)
	env.AwaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestClaimBeyondLimitRange: CDI names a claim that a LimitRange refuses nowhere but in its log.
func TestClaimBeyondLimitRange(t *testing.T) {
	testenv.RunInTurn(t, 23)
	history := observeUnderPolicy(t, "retryLimit", "0")
	ns := env.CreateHomeNamespace(t)
	limits := env.CreateLimitRange(t, ns, corev1.LimitTypePersistentVolumeClaim, corev1.ResourceStorage, "1Gi")
	img := env.NewImage(ns, "image", "/ok/200ms/a") // 1Gi, and CDI's overhead
	env.Create(t, img)
	message := awaitNoSpaceMessage(t, img)
	assert.Contains(t, message, "LimitRange "+ns+"/limits")
	limits.Spec.Limits[0].Max[corev1.ResourceStorage] = resource.MustParse("2Gi")
	require.NoError(t, env.Client().Update(t.Context(), limits))
	env.AwaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// createWithoutURLRules creates an image with a url that an earlier release accepted.
func createWithoutURLRules(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKey{Name: "vmdiskimages.pelotech.ot"}, crd))
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	require.NoError(t, err)
	path := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "url", "x-kubernetes-validations"}
	rules, found, err := unstructured.NestedFieldNoCopy(versions[0].(map[string]any), path...)
	require.NoError(t, err)
	require.True(t, found)
	patch := func(operation map[string]any) {
		operation["path"] = "/spec/versions/0/" + strings.Join(path, "/")
		text, err := json.Marshal([]any{operation})
		require.NoError(t, err)
		require.NoError(t, env.Client().Patch(context.Background(), crd, client.RawPatch(types.JSONPatchType, text)))
	}
	patch(map[string]any{"op": "remove"})
	t.Cleanup(func() { patch(map[string]any{"op": "add", "value": rules}) })
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Create(t.Context(), img) == nil }))
}

// TestRefusalOfCDIsWebhook has CDI's webhook refuse an image that is stored.
func TestRefusalOfCDIsWebhook(t *testing.T) {
	history := observeUnderPolicy(t, "retryLimit", "0", "preflight", "false")
	img := env.NewImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/%zz")
	createWithoutURLRules(t, img)
	awaitWaiting(t, img, v1alpha1.ReasonDataVolumeRefused, "Invalid source URL")
	env.Update(t, img, func() { img.Spec.URL = env.Source.URL + "/ok/200ms/a" })
	env.AwaitSucceeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestSnapshotClassOfAnotherDriver wants the mismatch to be named before the download.
func TestSnapshotClassOfAnotherDriver(t *testing.T) {
	history := observeUnderPolicy(t)
	ns := env.CreateHomeNamespace(t)
	class := newSnapshotClass("foreign-" + ns)
	class.Driver = "another.example.com"
	createForTest(t, class)
	img := env.NewImage(ns, "image", "/ok/200ms/a")
	img.Spec.SnapshotClass = class.Name
	env.Create(t, img)
	got := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonSnapshotClassMismatch))
	assert.Contains(t, got.Status.Message, class.Driver)
	assert.Zero(t, history().Attempts(img.UID), "nothing is downloaded before")
}

func TestWaitForFirstConsumer(t *testing.T) {
	testenv.RunInTurn(t, 28)
	history := observeUnderPolicy(t)
	img := env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/a")
	img.Spec.StorageClass = simulator.ClassWaitForFirstConsumer
	img.Spec.SnapshotClass = ""
	env.ImportImage(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// awaitCapacityRefresh waits until capacity that was read before is too old for admission.
func awaitCapacityRefresh(t *testing.T) {
	t.Helper()
	since := time.Now()
	require.True(t, testenv.AwaitCondition(t, func() bool { return time.Since(since) > capacity.MaxAgeAtAdmission }))
}

// awaitNoSpaceMessage waits until an image has reason InsufficientStorage and returns its
// message.
func awaitNoSpaceMessage(t *testing.T, img *v1alpha1.VMDiskImage) string {
	t.Helper()
	got := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonInsufficientStorage))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	return got.Status.Message
}

// TestStorageCapacityIsRespected has a driver report a pool that is too small for one of two
// images, and then a larger one.
func TestStorageCapacityIsRespected(t *testing.T) {
	testenv.RunInTurn(t, 14)
	history := observeUnderPolicy(t, "concurrency", "1")
	ns := env.CreateHomeNamespace(t)
	class := "space-" + ns
	env.CreateStorageClasses(t, class, class)
	pool := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: ns, Name: "pool"},
		StorageClassName: class, NodeTopology: &metav1.LabelSelector{}, MaximumVolumeSize: ptr.To(resource.MustParse("4Gi")),
	}
	env.Create(t, pool)
	awaitCapacityRefresh(t)
	large, small := env.NewImage(ns, "large", "/ok/200ms/a"), env.NewImage(ns, "small", "/ok/200ms/b")
	large.Spec.StorageClass, small.Spec.StorageClass = class, class
	large.Spec.DiskSize = resource.MustParse("5Gi")
	env.Create(t, large, small)
	message := awaitNoSpaceMessage(t, large)
	assert.Contains(t, message, "needs a volume of 5Gi")
	assert.Contains(t, message, "StorageClass "+class+" has room for is 4Gi")
	env.AwaitSucceeded(t, small)
	awaitNoSpaceMessage(t, large)
	assert.Equal(t, []types.UID{small.UID}, history().StartOrder(), "an image without space takes no slot")
	assert.Zero(t, history().Attempts(large.UID))

	env.Update(t, pool, func() { pool.MaximumVolumeSize = ptr.To(resource.MustParse("5Gi")) })
	got := env.AwaitSucceeded(t, large)
	assert.EqualValues(t, 1, got.Status.Attempts)
	assert.Equal(t, 1, history().Attempts(large.UID))
}

// TestQuotaCapacityIsRespected does the same with quotas, of which an HTTP import uses thrice
// the disk. Each run takes its share of the quotas.
func TestQuotaCapacityIsRespected(t *testing.T) {
	type quotaCase struct {
		name     corev1.ResourceName
		few, all string
		want     string
	}
	for _, tt := range testenv.SweepShare([]quotaCase{
		{corev1.ResourceRequestsStorage, "2Gi", "20Gi", "needs 3Gi of requests.storage, with the scratch space of its import and a claim that CDI fills first"},
		{corev1.ResourcePersistentVolumeClaims, "2", "20", "needs 3 of persistentvolumeclaims"},
		{"sim-csi.storageclass.storage.k8s.io/requests.storage", "500Mi", "20Gi", "of sim-csi.storageclass.storage.k8s.io/requests.storage"},
	}) {
		t.Run(string(tt.name), func(t *testing.T) {
			history := observeUnderPolicy(t, "concurrency", "1")
			ns := env.CreateHomeNamespace(t)
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}}
			env.Create(t, quota)
			setQuotaStatus(t, quota, tt.name, tt.few)
			img := env.NewImage(ns, "image", "/ok/200ms/a")
			passes := env.NewImage(env.CreateHomeNamespace(t), "passes", "/ok/0s/a")
			env.Create(t, img, passes)
			message := awaitNoSpaceMessage(t, img)
			assert.Contains(t, message, tt.want)
			assert.Contains(t, message, "ResourceQuota "+ns+"/quota has "+tt.few+" left of "+tt.few)
			env.AwaitSucceeded(t, passes)
			awaitNoSpaceMessage(t, img)
			assert.Zero(t, history().Attempts(img.UID))

			setQuotaStatus(t, quota, tt.name, tt.all)
			env.AwaitSucceeded(t, img)
			assert.Equal(t, 1, history().Attempts(img.UID))
		})
	}
}

// setQuotaStatus sets what a quota allows of a resource, of which nothing is used, and waits until the
// agent has read it. Without a quota controller, the API server enforces the status.
func setQuotaStatus(t *testing.T, quota *corev1.ResourceQuota, name corev1.ResourceName, hard string) {
	t.Helper()
	quota.Status.Hard = corev1.ResourceList{name: resource.MustParse(hard)}
	quota.Status.Used = corev1.ResourceList{name: resource.MustParse("0")}
	require.NoError(t, env.Client().Status().Update(t.Context(), quota))
	awaitCapacityRefresh(t)
}

// TestQuotaSharedByTwoImages has a quota with room for one of two images: others pass the
// second one.
func TestQuotaSharedByTwoImages(t *testing.T) {
	testenv.RunInTurn(t, 7)
	history := observeUnderPolicy(t, "concurrency", "1")
	ns := env.CreateHomeNamespace(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}}
	env.Create(t, quota)
	setQuotaStatus(t, quota, corev1.ResourceRequestsStorage, "3500Mi")

	// The first import takes longer than MaxAgeAtAdmission.
	first, second := env.NewImage(ns, "first", "/ok/15s/a"), env.NewImage(ns, "second", "/ok/200ms/b")
	env.Create(t, first)
	env.AwaitImporting(t, first)
	env.Create(t, second)
	next := env.NewImage(env.CreateHomeNamespace(t), "next", "/ok/200ms/c")
	env.Create(t, next)
	env.AwaitSucceeded(t, first)
	awaitNoSpaceMessage(t, second)
	env.AwaitSucceeded(t, next)
	assert.Zero(t, history().Attempts(second.UID))

	require.NoError(t, env.Client().Delete(t.Context(), quota))
	env.AwaitSucceeded(t, second)
	assert.Equal(t, 1, history().Attempts(second.UID))
}
