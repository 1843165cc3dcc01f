//go:build linux

// Package crash shows that the promises about imports (S1, S3 and S4 of
// docs/architecture.md) survive what only real API servers and processes can do to an
// agent: it is killed before or after any of its writes, paused past its Lease with a write
// in flight, cut off from its API server, or left with a stale cache. The judge is the
// observer, which reads nothing that the agent writes.
package crash

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) { testenv.RunTests(m, &env, member.Options{Name: "crash"}, false) }

func newPolicy(concurrency string) map[string]string {
	return map[string]string{"concurrency": concurrency, "retryLimit": "1", "retryBackoffDuration": "1s"}
}

// requirePromisesKept checks S1 and S4 over all that an observer has seen.
func requirePromisesKept(t *testing.T, o *observer.Observer) observer.History {
	t.Helper()
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations(), "S1: more imports than the policy allows")
	assert.Empty(t, h.ReusedNames(), "S4: DataVolumes created twice under one name")
	return h
}

// requireNothingLeft waits until every slot is free and a namespace has no object of an
// image that is gone.
func requireNothingLeft(t *testing.T, namespace string) {
	t.Helper()
	if !testenv.AwaitCondition(t, func() bool { return len(env.Ledger(t).Status.Slots) == 0 }) {
		slots := env.Ledger(t).Status.Slots
		require.NotEmpty(t, slots, "the last slot was freed too late")
		require.Failf(t, "slots are still taken", "%+v\n%s", slots, env.DescribeImports(t.Context(), slots[0].Image.Namespace))
	}
	var orphans []string
	require.True(t, testenv.AwaitCondition(t, func() bool {
		orphans = orphans[:0]
		var images v1alpha1.VMDiskImageList
		require.NoError(t, env.Client().List(t.Context(), &images, client.InNamespace(namespace)))
		uids := map[string]bool{}
		for i := range images.Items {
			uids[string(images.Items[i].UID)] = true
		}
		for _, o := range listChildren(t, namespace) {
			if !uids[o.GetLabels()[v1alpha1.LabelImageUID]] {
				orphans = append(orphans, o.GetName())
			}
		}
		return len(orphans) == 0
	}), "left behind by images that are gone: %v", &orphans)
}

// requireDeleted deletes images and waits until nothing of them is left.
func requireDeleted(t *testing.T, leader *faults.FaultyAgent, namespace string, images ...*v1alpha1.VMDiskImage) {
	t.Helper()
	require.False(t, leader.HasEnded(), "the agent that should delete the images has ended")
	for _, img := range images {
		require.NoError(t, env.Client().Delete(t.Context(), img.DeepCopy()))
	}
	for _, img := range images {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return apierrors.IsNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{}))
		}), "%s still exists", img.Name)
	}
	requireNothingLeft(t, namespace)
}

// listChildren returns the objects of a namespace that were created for images.
func listChildren(t *testing.T, namespace string) []client.Object {
	t.Helper()
	var children []client.Object
	for _, list := range []client.ObjectList{
		&cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PodList{}, &snapshotv1.VolumeSnapshotList{},
	} {
		require.NoError(t, env.Client().List(t.Context(), list, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelImageUID}))
		objects, err := meta.ExtractList(list)
		require.NoError(t, err)
		for _, o := range objects {
			children = append(children, o.(client.Object))
		}
	}
	return children
}
