package policy

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

// Only the hub limits a cluster within the fleet: a ConfigMap of the cluster that tries to
// is ignored, and so is what the ledger stores of one.
func TestOwnConfigMapSetsNoFleetLimits(t *testing.T) {
	data := map[string]string{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "safeConcurrency": "2"}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: data}
	withConfigMap := fake.NewClientBuilder().WithObjects(cm).Build()
	without := fake.NewClientBuilder().Build()
	for name, c := range map[string]client.Client{"ConfigMap": withConfigMap, "stored in the ledger": without} {
		t.Run(name, func(t *testing.T) {
			r := &Reader{Cached: c, Live: c, ConfigMapKey: client.ObjectKeyFromObject(cm)}
			status := v1alpha1.SyncLedgerStatus{}
			if c == without {
				status.Policy = data
			}
			got, err := r.readConfigMap(t.Context(), status, false)
			require.NoError(t, err)
			require.NotNil(t, got.Policy)
			assert.False(t, got.Policy.UsesGrants)
			assert.Zero(t, got.Policy.SafeConcurrency)
			assert.EqualValues(t, 2, got.Policy.Concurrency)
			if c == withConfigMap {
				assert.Contains(t, got.ignoredKeys, "safeConcurrency")
			}
		})
	}
}
