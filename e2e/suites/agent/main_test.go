//go:build linux

// Package agent runs the agent in one member cluster without a hub, against real CDI, as
// people, clusters and other controllers treat it: bad input, lost objects, missing
// prerequisites and refused writes. Only real controllers show how their races and failures look
// to the agent. The judge is an observer that reads nothing the agent writes.
package agent

import (
	"os"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{Name: "agent", ImportProgress: true, LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, true)
}

// observeUnderPolicy sets testenv.NewPolicy of some keys, then starts the observer of ObserveTest.
func observeUnderPolicy(t *testing.T, keysAndValues ...string) func() observer.History {
	t.Helper()
	env.SetPolicy(t, testenv.NewPolicy(keysAndValues...))
	return env.ObserveTest(t)
}

// createImage creates an image in a namespace of its own.
func createImage(t *testing.T, path string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := env.NewImage(env.CreateHomeNamespace(t), "image", path)
	env.Create(t, img)
	return img
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
