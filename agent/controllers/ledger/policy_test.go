package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What limits a cluster within the fleet is the hub's to say: a ConfigMap of its own
// that does is told so, and so is what was kept of one.
func TestOwnConfigMapSetsNoFleetLimits(t *testing.T) {
	data := map[string]string{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "safeConcurrency": "2"}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: data}
	there := fake.NewClientBuilder().WithObjects(cm).Build()
	nothing := fake.NewClientBuilder().Build()
	ledger := &v1alpha1.SyncLedger{}
	for name, c := range map[string]client.Client{"there": there, "kept": nothing} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Client: c, Live: c, PolicyKey: client.ObjectKeyFromObject(cm)}
			if c == nothing {
				ledger.Status = &v1alpha1.SyncLedgerStatus{Policy: data}
			}
			got, err := r.readOwnPolicy(t.Context(), ledger, false)
			require.NoError(t, err)
			require.NotNil(t, got.policy)
			assert.False(t, got.policy.UsesGrants)
			assert.Zero(t, got.policy.SafeConcurrency)
			assert.EqualValues(t, 2, got.policy.Concurrency)
			if c == there {
				assert.Contains(t, got.ignoredKeys, "safeConcurrency")
			}
		})
	}
}
