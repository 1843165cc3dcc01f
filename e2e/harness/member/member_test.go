//go:build linux

package member_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	namespace = "default"
	// waitTimeout is for a machine that is busy, and a scheduler that has lost a Pod.
	waitTimeout  = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
)

var (
	sharedMember *member.Member
	// suiteContext outlasts each test.
	suiteContext = context.Background()
)

func TestMain(m *testing.M) { os.Exit(runSuite(m)) }

func runSuite(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())
	// Tests wait more than they work: more of them at a time than there are cores,
	// unless -parallel, which is read later, says otherwise.
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	started := time.Now()
	var err error
	sharedMember, err = member.Start(suiteContext, member.Options{
		Name: "one", APIServerMemory: member.APIServerMemoryWithKubeVirt, LogDir: os.Getenv("OT_FLEET_TEST_LOGS"),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "a member in %s\n", time.Since(started).Round(100*time.Millisecond))
	code := m.Run()
	if err := sharedMember.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func newDataVolume(name, class, path string, labels map[string]string) *cdiv1.DataVolume {
	source := &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "http://127.0.0.1:1" + path}}
	if path == "" {
		source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
	}
	return &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: labels,
			Annotations: map[string]string{"cdi.kubevirt.io/storage.bind.immediate.requested": "true"},
		},
		Spec: cdiv1.DataVolumeSpec{
			Source: source,
			Storage: &cdiv1.StorageSpec{
				StorageClassName: ptr.To(class),
				Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		},
	}
}

func createObject(t *testing.T, object client.Object) {
	t.Helper()
	require.NoError(t, sharedMember.Client().Create(t.Context(), object))
}

func findCondition(dv *cdiv1.DataVolume, kind cdiv1.DataVolumeConditionType) cdiv1.DataVolumeCondition {
	for _, c := range dv.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return cdiv1.DataVolumeCondition{}
}

// awaitDataVolume polls a DataVolume until the assertions on it hold.
func awaitDataVolume(t *testing.T, name string, check func(c *assert.CollectT, dv *cdiv1.DataVolume)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var dv cdiv1.DataVolume
		require.NoError(c, sharedMember.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &dv))
		check(c, &dv)
	}, waitTimeout, pollInterval)
}

func awaitSucceeded(t *testing.T, name string) {
	t.Helper()
	awaitDataVolume(t, name, func(c *assert.CollectT, dv *cdiv1.DataVolume) {
		require.Equal(c, cdiv1.Succeeded, dv.Status.Phase, "conditions %v", dv.Status.Conditions)
		var claim corev1.PersistentVolumeClaim
		require.NoError(c, sharedMember.Client().Get(t.Context(), client.ObjectKeyFromObject(dv), &claim))
		require.Equal(c, corev1.ClaimBound, claim.Status.Phase)
	})
}

func TestImportsSucceed(t *testing.T) {
	t.Parallel()
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal, simulator.ClassWaitForFirstConsumer} {
		for kind, path := range map[string]string{"http": "/ok/500ms/name.qcow2", "blank": ""} {
			t.Run(kind+" on "+class, func(t *testing.T) {
				t.Parallel()
				name := kind + "-" + class
				createObject(t, newDataVolume(name, class, path, nil))
				awaitSucceeded(t, name)
				requireCleanDelete(t, name)
			})
		}
	}
}

func requireCleanDelete(t *testing.T, name string) {
	t.Helper()
	requireCleanDeleteIn(t, namespace, name)
}

func requireCleanDeleteIn(t *testing.T, namespace, name string) {
	t.Helper()
	ctx, c := t.Context(), sharedMember.Client()
	var claim corev1.PersistentVolumeClaim
	require.NoError(t, c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &claim))
	require.NoError(t, c.Delete(ctx, &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	gone := map[string]client.Object{
		name:                                  &corev1.PersistentVolumeClaim{},
		"prime-" + string(claim.UID):          &corev1.PersistentVolumeClaim{},
		"importer-" + name:                    &corev1.Pod{},
		"importer-prime-" + string(claim.UID): &corev1.Pod{},
	}
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		for object, kind := range gone {
			err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: object}, kind)
			require.True(check, apierrors.IsNotFound(err), "%T %s: %v", kind, object, err)
		}
		err := c.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
		require.True(check, apierrors.IsNotFound(err), "volume %s: %v", claim.Spec.VolumeName, err)
	}, waitTimeout, pollInterval)
}

func TestImportFailuresLookLikeRealOnes(t *testing.T) {
	t.Parallel()
	for path, message := range map[string]string{
		"notfound":    "expected status code 200, got 404",
		"forbidden":   "expected status code 200, got 403",
		"servererror": "expected status code 200, got 500",
		"cut":         "unexpected EOF",
		"toosmall":    "DataVolume too small to contain image",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			createObject(t, newDataVolume(path, simulator.ClassCSI, "/"+path+"/image.qcow2", nil))
			awaitDataVolume(t, path, func(c *assert.CollectT, dv *cdiv1.DataVolume) {
				running := findCondition(dv, cdiv1.DataVolumeRunning)
				require.Equal(c, corev1.ConditionFalse, running.Status)
				reason := "Error"
				if path == "cut" {
					reason = "ImagePullFailed"
				}
				require.Equal(c, reason, running.Reason)
				require.Contains(c, running.Message, message)
				require.Equal(c, cdiv1.ImportInProgress, dv.Status.Phase)
			})
			awaitDataVolume(t, path, func(c *assert.CollectT, dv *cdiv1.DataVolume) {
				require.Positive(c, dv.Status.RestartCount)
			})
			deleteFailedImport(t, path)
		})
	}
}

func TestChecksumMismatchIsFinal(t *testing.T) {
	t.Parallel()
	createObject(t, newDataVolume("checksum", simulator.ClassCSI, "/checksum/image.qcow2", nil))
	awaitDataVolume(t, "checksum", func(c *assert.CollectT, dv *cdiv1.DataVolume) {
		require.Equal(c, cdiv1.Failed, dv.Status.Phase)
		require.Equal(c, "ChecksumError", findCondition(dv, cdiv1.DataVolumeRunning).Reason)
	})
}

func deleteFailedImport(t *testing.T, name string) {
	t.Helper()
	ctx, c := t.Context(), sharedMember.Client()
	var claim corev1.PersistentVolumeClaim
	require.NoError(t, c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &claim))
	require.NoError(t, c.Delete(ctx, &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		err := c.Get(ctx, client.ObjectKeyFromObject(&claim), &corev1.PersistentVolumeClaim{})
		require.True(check, apierrors.IsNotFound(err), "claim: %v", err)
		err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "importer-prime-" + string(claim.UID)}, &corev1.Pod{})
		require.True(check, apierrors.IsNotFound(err), "pod: %v", err)
		err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "prime-" + string(claim.UID)}, &corev1.PersistentVolumeClaim{})
		require.True(check, apierrors.IsNotFound(err), "prime claim: %v", err)
	}, waitTimeout, pollInterval)
}

func TestFlakyImageRecovers(t *testing.T) {
	t.Parallel()
	createObject(t, newDataVolume("flaky-1", simulator.ClassCSI, "/flaky/1/200ms/image.qcow2", map[string]string{simulator.AttemptLabel: "1"}))
	createObject(t, newDataVolume("flaky-2", simulator.ClassCSI, "/flaky/1/200ms/image.qcow2", map[string]string{simulator.AttemptLabel: "2"}))
	awaitSucceeded(t, "flaky-2")
	awaitDataVolume(t, "flaky-1", func(c *assert.CollectT, dv *cdiv1.DataVolume) {
		require.Contains(c, findCondition(dv, cdiv1.DataVolumeRunning).Message, "got 500")
	})
}

func TestStorageClassUnknownToCDI(t *testing.T) {
	t.Parallel()
	createObject(t, newDataVolume("unknown", simulator.ClassUnknown, "/ok/image.qcow2", nil))
	awaitDataVolume(t, "unknown", func(c *assert.CollectT, dv *cdiv1.DataVolume) {
		require.Equal(c, "ErrClaimNotValid", findCondition(dv, cdiv1.DataVolumeBound).Reason)
		require.Empty(c, dv.Status.Phase)
	})
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	createObject(t, newDataVolume("snapped", simulator.ClassCSI, "/ok/100ms/image.qcow2", nil))
	awaitSucceeded(t, "snapped")
	for _, class := range []string{simulator.SnapshotClass, simulator.SnapshotClassNever} {
		createObject(t, &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: class},
			Spec: snapshotv1.VolumeSnapshotSpec{
				VolumeSnapshotClassName: ptr.To(class),
				Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("snapped")},
			},
		})
	}
	get := func(c *assert.CollectT, name string) (s snapshotv1.VolumeSnapshot) {
		require.NoError(c, sharedMember.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &s))
		return s
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		s := get(c, simulator.SnapshotClass)
		require.NotNil(c, s.Status)
		require.True(c, ptr.Deref(s.Status.ReadyToUse, false))
		require.NotNil(c, s.Status.RestoreSize)
		require.NotEmpty(c, ptr.Deref(s.Status.BoundVolumeSnapshotContentName, ""))
	}, waitTimeout, pollInterval)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		s := get(c, simulator.SnapshotClassNever)
		require.NotNil(c, s.Status)
		require.NotNil(c, s.Status.ReadyToUse)
		require.False(c, *s.Status.ReadyToUse)
	}, waitTimeout, pollInterval)
	for _, name := range []string{simulator.SnapshotClass, simulator.SnapshotClassNever} {
		require.NoError(t, sharedMember.Client().Delete(t.Context(), &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var contents snapshotv1.VolumeSnapshotContentList
		require.NoError(c, sharedMember.Client().List(t.Context(), &contents))
		for _, name := range []string{simulator.SnapshotClass, simulator.SnapshotClassNever} {
			err := sharedMember.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &snapshotv1.VolumeSnapshot{})
			require.True(c, apierrors.IsNotFound(err), "snapshot %s: %v", name, err)
			for _, content := range contents.Items {
				require.NotEqual(c, name, content.Spec.VolumeSnapshotRef.Name)
			}
		}
	}, waitTimeout, pollInterval)
}

func newImporterPod(name, path string, policy corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"cdi.kubevirt.io": "importer"}},
		Spec: corev1.PodSpec{
			RestartPolicy: policy,
			Containers: []corev1.Container{{
				Name: "importer", Image: "importer", Env: []corev1.EnvVar{{Name: "IMPORTER_ENDPOINT", Value: "http://127.0.0.1:1" + path}},
			}},
		},
	}
}

func TestImporterPods(t *testing.T) {
	t.Parallel()
	for _, pod := range []*corev1.Pod{
		newImporterPod("never", "/notfound/image", corev1.RestartPolicyNever),
		newImporterPod("crashloop", "/crashloop/100ms/image", corev1.RestartPolicyOnFailure),
		newImporterPod("hang", "/hang/image", corev1.RestartPolicyOnFailure),
	} {
		createObject(t, pod)
	}
	status := func(c *assert.CollectT, name string) corev1.PodStatus {
		var pod corev1.Pod
		require.NoError(c, sharedMember.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &pod))
		require.Len(c, pod.Status.ContainerStatuses, 1)
		return pod.Status
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		s := status(c, "never")
		require.Equal(c, corev1.PodFailed, s.Phase)
		require.Zero(c, s.ContainerStatuses[0].RestartCount)
		require.NotNil(c, s.ContainerStatuses[0].State.Terminated)
		require.EqualValues(c, 1, s.ContainerStatuses[0].State.Terminated.ExitCode)
	}, waitTimeout, pollInterval)
	var first, second time.Time
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		s := status(c, "crashloop").ContainerStatuses[0]
		require.NotNil(c, s.LastTerminationState.Terminated)
		require.EqualValues(c, 2, s.LastTerminationState.Terminated.ExitCode)
		if s.RestartCount == 1 && first.IsZero() {
			first = time.Now()
		}
		require.EqualValues(c, 2, s.RestartCount)
		second = time.Now()
	}, waitTimeout, pollInterval)
	require.Greater(t, second.Sub(first), 3*time.Second, "the second restart comes after a back-off, the first after less than 1 s")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		s := status(c, "hang")
		require.Equal(c, corev1.PodRunning, s.Phase)
		require.Zero(c, s.ContainerStatuses[0].RestartCount)
	}, waitTimeout, pollInterval)
}
