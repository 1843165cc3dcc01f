//go:build linux

package rollout_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// What a member lacks, and only a person can give it, is in the status of the FleetDiskImage.
// It is stalled while no other cluster proceeds, and goes on once the member has it.
func TestRolloutNamesWhatMembersLack(t *testing.T) {
	testenv.RunInTurn(t, 0)
	t.Parallel()
	const missing = "blocked-images"
	img := shared.newFleetImage("blocked", bergen, frankfurt)
	img.Spec.TargetNamespace = missing
	img.Spec.Template.SecretRef = "pull"
	createNamespace := func(cluster string) {
		t.Helper()
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: missing}}
		require.NoError(t, shared.Members[cluster].Client().Create(t.Context(), ns))
	}
	createNamespace(frankfurt)
	shared.createFleetImage(t, img)
	stalled := shared.awaitFleetImage(t, img, "both lack something", hasReason(v1alpha1.RolloutWaiting, v1alpha1.ReasonClustersBlocked), func(img *v1alpha1.FleetDiskImage) bool {
		return len(img.Status.Blocked) == 2
	})
	requireAllConditions(t, stalled)
	assert.True(t, isConditionTrue(stalled, v1alpha1.ConditionStalled))
	assert.False(t, isConditionTrue(stalled, v1alpha1.ConditionProgressing))
	assert.Equal(t, v1alpha1.ClusterSummary{
		Cluster: bergen, State: v1alpha1.ClusterProgressing, Reason: "NamespaceMissing", Message: "namespace " + missing + " does not exist: create it",
	}, stalled.Status.Blocked[0])
	assert.Equal(t, frankfurt, stalled.Status.Blocked[1].Cluster)
	assert.Contains(t, []string{"SecretMissing", "SecretForbidden"}, stalled.Status.Blocked[1].Reason)
	assert.Contains(t, stalled.Status.Message, bergen+" (NamespaceMissing: ")
	// The commands of docs/waiting.md for a pipeline that wants to know at once.
	out, err := runKubectl(t, nil, "wait", "fdi/"+img.Name, "--for=condition=Reconciling=false", "--timeout=10s")
	require.NoError(t, err, out)
	out, err = runKubectl(t, nil, "wait", "fdi/"+img.Name, "--for=condition=Ready", "--timeout=0s")
	require.Error(t, err, out)

	shared.updateFleetImage(t, img, func() { img.Spec.Template.SecretRef = "" })
	createNamespace(bergen)
	done := shared.awaitFleetImage(t, img, "done", hasReason(v1alpha1.RolloutSucceeded, v1alpha1.ReasonRolledOut))
	assert.Empty(t, done.Status.Blocked)
	assert.False(t, isConditionTrue(done, v1alpha1.ConditionStalled))
	t.Cleanup(func() {
		for _, cluster := range []string{bergen, frankfurt} {
			leftover := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: missing, Name: img.ImageNameForVersion("1")}}
			assert.NoError(t, client.IgnoreNotFound(shared.Members[cluster].Client().Delete(context.Background(), leftover)))
		}
	})
}
