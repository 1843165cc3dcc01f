//go:build linux

// Package crash kills agents before and after every write they make, freezes
// them past their lease, takes their API server away and keeps news from them.
// The judge is the observer, which never reads what the agent says.
package crash

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var testScene *testenv.Env

func TestMain(m *testing.M) { testenv.RunTests(m, &testScene, member.Options{Name: "crash"}, false) }

// isLongRun tells whether there is time for the large scenarios.
func isLongRun() bool { return os.Getenv("OT_FLEET_LONG") != "" }

// requirePromisesKept judges what an observer has seen: S1, S4, and S3 as far as it
// goes across the downtime of agents.
func requirePromisesKept(t *testing.T, o *observer.Observer) observer.History {
	t.Helper()
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations(), "S1: more imports than the policy allows")
	assert.Empty(t, h.ReusedNames(), "S4: DataVolumes created twice under one name")
	return h
}

// requireNothingLeft wants every slot freed, and of a namespace's images nothing
// that one which is gone has left behind.
func requireNothingLeft(t *testing.T, namespace string) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool { return len(testScene.Ledger(t).Status.Slots) == 0 }), "slots are still taken: %+v", testScene.Ledger(t).Status.Slots)
	var orphans []string
	require.True(t, testenv.Await(t, func() bool {
		orphans = orphans[:0]
		var images v1alpha1.VMDiskImageList
		require.NoError(t, testScene.Client().List(t.Context(), &images, client.InNamespace(namespace)))
		lives := map[string]bool{}
		for i := range images.Items {
			lives[string(images.Items[i].UID)] = true
		}
		for _, o := range listChildren(t, namespace) {
			if !lives[o.GetLabels()[v1alpha1.LabelImageUID]] {
				orphans = append(orphans, o.GetName())
			}
		}
		return len(orphans) == 0
	}), "left behind by images that are gone: %v", &orphans)
}

// listChildren are the objects of a namespace that were made for images.
func listChildren(t *testing.T, namespace string) []client.Object {
	t.Helper()
	var (
		dvs       cdiv1.DataVolumeList
		claims    corev1.PersistentVolumeClaimList
		pods      corev1.PodList
		snapshots snapshotv1.VolumeSnapshotList
		all       []client.Object
	)
	for _, list := range []client.ObjectList{&dvs, &claims, &pods, &snapshots} {
		require.NoError(t, testScene.Client().List(t.Context(), list, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelImageUID}))
	}
	for i := range dvs.Items {
		all = append(all, &dvs.Items[i])
	}
	for i := range claims.Items {
		all = append(all, &claims.Items[i])
	}
	for i := range pods.Items {
		all = append(all, &pods.Items[i])
	}
	for i := range snapshots.Items {
		all = append(all, &snapshots.Items[i])
	}
	return all
}

func asClaim(o client.Object) (*corev1.PersistentVolumeClaim, bool) {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	return claim, ok
}

func isDataVolume(o client.Object) bool {
	_, ok := o.(*cdiv1.DataVolume)
	return ok
}
