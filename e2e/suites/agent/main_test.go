//go:build linux

// Package agent runs the agent in one member cluster without a hub, against real CDI, as
// people, clusters and other controllers treat it: bad input, lost objects, missing
// prerequisites, refused writes, and the ClusterPlans that a hub would send. Only real
// controllers show how their races and failures look to the agent. The judge is an observer
// that reads nothing the agent writes.
package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{Name: "agent", LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, true)
}

// createHomeNamespace creates a namespace. When the test ends, it deletes the ClusterPlan
// and waits until the namespace's images are gone: a stuck image would keep its slot from
// the next tests.
func createHomeNamespace(t *testing.T) string {
	t.Helper()
	ns := env.CreateNamespace(t)
	t.Cleanup(func() {
		ctx, c := context.Background(), env.Client()
		if t.Failed() {
			t.Log(describeImports(ctx, ns))
		}
		assert.NoError(t, client.IgnoreNotFound(c.Delete(ctx, emptyPlan())))
		assert.NoError(t, c.DeleteAllOf(ctx, &v1alpha1.VMDiskImage{}, client.InNamespace(ns)))
		var left v1alpha1.VMDiskImageList
		assert.NoError(t, wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, testenv.Patience, true, func(ctx context.Context) (bool, error) {
			left = v1alpha1.VMDiskImageList{}
			err := c.List(ctx, &left, client.InNamespace(ns))
			return err == nil && len(left.Items) == 0, nil
		}), "images that are not deleted: %+v", left.Items)
	})
	return ns
}

// newPolicy returns a policy with short waits and some of its keys changed.
func newPolicy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "100ms", "preflightAllow": testenv.SourceNetwork}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// describeImports returns the state of the imports of a namespace, for a failure message.
func describeImports(ctx context.Context, ns string) string {
	var text strings.Builder
	var dvs cdiv1.DataVolumeList
	var claims corev1.PersistentVolumeClaimList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&dvs, &claims, &pods} {
		_ = env.Client().List(ctx, list, client.InNamespace(ns))
	}
	for i := range dvs.Items {
		fmt.Fprintf(&text, "DataVolume %s %+v\n", dvs.Items[i].Name, dvs.Items[i].Status)
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		fmt.Fprintf(&text, "PersistentVolumeClaim %s %s %v on %q\n", c.Name, c.Status.Phase, c.Annotations, c.Spec.VolumeName)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		fmt.Fprintf(&text, "Pod %s on %q %s %+v\n", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses)
	}
	return text.String()
}

func awaitSucceeded(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
}

func awaitFailed(t *testing.T, img *v1alpha1.VMDiskImage, reason v1alpha1.Reason) *v1alpha1.VMDiskImage {
	t.Helper()
	return env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseFailed && img.Status.Reason == reason
	})
}

// awaitImporting waits until an importer of an image runs and the attempt is in the image's
// status, and returns the attempt's DataVolume. Only the Pod shows that the import runs: CDI
// may report nothing before it makes progress, and a hanging one makes none.
func awaitImporting(t *testing.T, img *v1alpha1.VMDiskImage) *cdiv1.DataVolume {
	t.Helper()
	var found *cdiv1.DataVolume
	require.True(t, testenv.AwaitCondition(t, func() bool {
		dvs := listDataVolumes(t, img)
		if len(dvs) != 1 || dvs[0].DeletionTimestamp != nil || countRunningImporters(t, img.Namespace, v1alpha1.LabelImageUID, string(img.UID), v1alpha1.LabelAttempt, dvs[0].Labels[v1alpha1.LabelAttempt]) == 0 {
			return false
		}
		got := &v1alpha1.VMDiskImage{}
		found = &dvs[0]
		return env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && len(got.Status.Revisions) > 0 &&
			got.Status.Revisions[0].DataVolume == found.Name
	}), "image %s is not being imported", img.Name)
	return found
}

// countRunningImporters counts the running importer Pods of a namespace with the labels.
func countRunningImporters(t *testing.T, ns string, labelsAndValues ...string) int {
	t.Helper()
	match := client.MatchingLabels{"cdi.kubevirt.io": "importer"}
	for i := 0; i < len(labelsAndValues); i += 2 {
		match[labelsAndValues[i]] = labelsAndValues[i+1]
	}
	var pods corev1.PodList
	require.NoError(t, env.Client().List(t.Context(), &pods, client.InNamespace(ns), match))
	running := 0
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil && pods.Items[i].Status.Phase == corev1.PodRunning {
			running++
		}
	}
	return running
}

func listDataVolumes(t *testing.T, img *v1alpha1.VMDiskImage) []cdiv1.DataVolume {
	t.Helper()
	var list cdiv1.DataVolumeList
	require.NoError(t, env.Client().List(t.Context(), &list, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
	return list.Items
}

func listSnapshots(t *testing.T, img *v1alpha1.VMDiskImage) []snapshotv1.VolumeSnapshot {
	t.Helper()
	var list snapshotv1.VolumeSnapshotList
	require.NoError(t, env.Client().List(t.Context(), &list, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
	return list.Items
}

// listStored lists, by kind and name, all objects of images in a namespace, including those
// of CDI and the contents of snapshots.
func listStored(t *testing.T, ns string) []string {
	t.Helper()
	var (
		names     []string
		contents  snapshotv1.VolumeSnapshotContentList
		volumes   corev1.PersistentVolumeList
		inThere   = client.InNamespace(ns)
		dvs       cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		pods      corev1.PodList
		snapshots snapshotv1.VolumeSnapshotList
	)
	for kind, list := range map[string]client.ObjectList{"DataVolume": &dvs, "PersistentVolumeClaim": &claims, "Pod": &pods, "VolumeSnapshot": &snapshots} {
		require.NoError(t, env.Client().List(t.Context(), list, inThere))
		require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
			names = append(names, kind+"/"+o.(client.Object).GetName())
			return nil
		}))
	}
	require.NoError(t, env.Client().List(t.Context(), &contents))
	for i := range contents.Items {
		if contents.Items[i].Spec.VolumeSnapshotRef.Namespace == ns {
			names = append(names, "VolumeSnapshotContent/"+contents.Items[i].Name)
		}
	}
	require.NoError(t, env.Client().List(t.Context(), &volumes))
	for i := range volumes.Items {
		if ref := volumes.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == ns {
			names = append(names, "PersistentVolume/"+volumes.Items[i].Name)
		}
	}
	return names
}

// awaitNothingStored waits until a namespace has no object of an image.
func awaitNothingStored(t *testing.T, ns string) {
	t.Helper()
	var left []string
	require.True(t, testenv.AwaitCondition(t, func() bool { left = listStored(t, ns); return len(left) == 0 }), "left: %v", left)
}

// slotsForUID returns the slots of an image.
func slotsForUID(t *testing.T, uid types.UID) []v1alpha1.Slot {
	t.Helper()
	var slots []v1alpha1.Slot
	for _, s := range env.Ledger(t).Status.Slots {
		if s.Image.UID == uid {
			slots = append(slots, s)
		}
	}
	return slots
}

// observeTest starts an observer. The function it returns checks S1, and that no DataVolume
// name was used twice, over all that happened since.
func observeTest(t *testing.T) func() observer.History {
	t.Helper()
	o := env.StartObserver(t)
	return func() observer.History {
		t.Helper()
		h := testenv.History(t, o)
		assert.Empty(t, h.BudgetViolations())
		assert.Empty(t, h.ReusedNames())
		return h
	}
}
