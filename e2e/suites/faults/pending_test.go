//go:build linux

package faults

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPendingClaimIsWrittenOnce: what CDI writes to a claim that waits for its volume it writes
// once, and not again and again, where who is to bind it would lose every race.
func TestPendingClaimIsWrittenOnce(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "2"))
	ns := createHomeNamespace(t)
	nobody := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nobody"}, Provisioner: "example.com/nobody",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	testScene.Create(t, nobody)
	t.Cleanup(func() { require.NoError(t, testScene.Client().Delete(context.Background(), nobody)) })
	testScene.SetClaimProperties(t, nobody.Name)
	waits := testScene.NewImage(ns, "waits", "/ok/1s/waits")
	waits.Spec.StorageClass = nobody.Name
	testScene.Create(t, waits)
	var claims corev1.PersistentVolumeClaimList
	bound := func() map[string]string {
		require.NoError(t, testScene.Client().List(t.Context(), &claims, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(waits.UID)}))
		if len(claims.Items) != 1 {
			return nil
		}
		return claims.Items[0].Annotations
	}
	require.True(t, testenv.Await(t, func() bool {
		return bound()["volume.kubernetes.io/selected-node"] != "" && bound()["cdi.kubevirt.io/storage.condition.bound.reason"] == "Pending"
	}), "%+v", &claims)

	changes := countClaimWrites(t, ns)
	other := testScene.NewImage(ns, "other", "/ok/3s/other")
	testScene.Create(t, other)
	testScene.AwaitImage(t, other, testenv.InPhase(v1alpha1.PhaseSucceeded))
	assert.Less(t, changes(claims.Items[0].UID), 20, "as often is it written while another image is imported in 3 s and more")
	assert.Equal(t, "Pending", bound()["cdi.kubevirt.io/storage.condition.bound.reason"], "people learn why")
}

// countClaimWrites counts from now on how often the claims of a namespace are written.
func countClaimWrites(t *testing.T, ns string) func(types.UID) int {
	t.Helper()
	c, err := client.NewWithWatch(testScene.ControlPlane.Config(), client.Options{Scheme: testScene.Client().Scheme()})
	require.NoError(t, err)
	events, err := c.Watch(t.Context(), &corev1.PersistentVolumeClaimList{}, client.InNamespace(ns))
	require.NoError(t, err)
	t.Cleanup(events.Stop)
	var mu sync.Mutex
	changes := map[types.UID]int{}
	go func() {
		for event := range events.ResultChan() {
			if claim, ok := event.Object.(*corev1.PersistentVolumeClaim); ok {
				mu.Lock()
				changes[claim.UID]++
				mu.Unlock()
			}
		}
	}()
	return func(uid types.UID) int {
		mu.Lock()
		defer mu.Unlock()
		return changes[uid]
	}
}
