//go:build linux

package faults

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestOneDownloadPerAttempt has CDI alone with imports that fail, for CDI would start
// them over for ever: one importer is made for each, and it is started once.
func TestOneDownloadPerAttempt(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "10", "retryLimit", "0"))
	testScene.AwaitLedgerCondition(t, v1alpha1.ConditionOneDownload, metav1.ConditionTrue, "InForce")
	ns := createHomeNamespace(t)
	starts := countImporterStarts(t, ns)
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		for _, behaviour := range []string{"servererror", "oom"} {
			name := behaviour + "-" + class
			images[name] = testScene.NewImage(ns, name, "/"+behaviour+"/20s/a")
			images[name].Spec.StorageClass = class
			testScene.Create(t, images[name])
		}
	}
	for _, img := range images {
		awaitImporting(t, img)
	}
	testScene.WithoutAgent(t, func() {
		for name, img := range images {
			var dvs []cdiv1.DataVolume // on a busy machine the agent may have ended one before it was stopped
			require.True(t, testenv.Await(t, func() bool {
				dvs = listDataVolumes(t, img)
				return len(dvs) == 0 || dvs[0].Status.Phase == cdiv1.Failed
			}), "%s: CDI does not take it for final: %+v", name, dvs)
			for _, dv := range dvs {
				assert.Zero(t, dv.Status.RestartCount, name)
			}
		}
		require.True(t, testenv.Await(t, func() bool {
			var pods corev1.PodList
			require.NoError(t, testScene.Client().List(t.Context(), &pods, client.InNamespace(ns)))
			return len(pods.Items) == 0
		}), "importers stay")
	})
	for name, img := range images {
		assert.Equal(t, 1, starts()[img.UID], name)
		awaitFailed(t, img, v1alpha1.ReasonImportFailed)
	}
}

// TestUnknownCDIVersionIsLeftAlone: what CDI is upgraded to is left alone, and that is said.
func TestUnknownCDIVersionIsLeftAlone(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("retryLimit", "0"))
	tell := func(version string) {
		installed := &cdiv1.CDI{}
		require.NoError(t, testScene.Client().Get(context.Background(), client.ObjectKey{Name: "cdi"}, installed))
		installed.Status.ObservedVersion = version
		require.NoError(t, testScene.Client().Update(context.Background(), installed))
	}
	tell("v1.99.0")
	t.Cleanup(func() { tell(member.CDIVersion) })
	c := testScene.AwaitLedgerCondition(t, v1alpha1.ConditionOneDownload, metav1.ConditionFalse, "CDIVersionUnknown")
	assert.Contains(t, c.Message, "the policies support CDI 1.65 and are inactive with v1.99.0")
	img := testScene.NewImage(createHomeNamespace(t), "image", "/servererror/15s/a")
	testScene.Create(t, img)
	awaitImporting(t, img)
	var pods corev1.PodList
	require.NoError(t, testScene.Client().List(t.Context(), &pods, client.InNamespace(img.Namespace)))
	require.Len(t, pods.Items, 1)
	assert.Equal(t, corev1.RestartPolicyOnFailure, pods.Items[0].Spec.RestartPolicy)
	awaitFailed(t, img, v1alpha1.ReasonImportFailed)
}

// countImporterStarts counts from now on how often importers of a namespace start, by image.
func countImporterStarts(t *testing.T, ns string) func() map[types.UID]int {
	t.Helper()
	c, err := client.NewWithWatch(testScene.ControlPlane.Config(), client.Options{Scheme: testScene.Client().Scheme()})
	require.NoError(t, err)
	events, err := c.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(ns), client.MatchingLabels{"cdi.kubevirt.io": "importer"})
	require.NoError(t, err)
	t.Cleanup(events.Stop)
	var mu sync.Mutex
	starts := map[types.UID]map[types.UID]int{}
	go func() {
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			mu.Lock()
			image := types.UID(pod.Labels[v1alpha1.LabelImageUID])
			if starts[image] == nil {
				starts[image] = map[types.UID]int{}
			}
			starts[image][pod.UID] = max(starts[image][pod.UID], 1)
			for i := range pod.Status.ContainerStatuses {
				starts[image][pod.UID] = max(starts[image][pod.UID], 1+int(pod.Status.ContainerStatuses[i].RestartCount))
			}
			mu.Unlock()
		}
	}()
	return func() map[types.UID]int {
		mu.Lock()
		defer mu.Unlock()
		all := map[types.UID]int{}
		for image, pods := range starts {
			for _, n := range pods {
				all[image] += n
			}
		}
		return all
	}
}
