package policy

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

var policyKey = types.NamespacedName{Namespace: "sync-operator", Name: "sync-operator-policy"}

// laggingClient reads from a stale cache.
type laggingClient struct {
	client.Client
	cache client.Reader
}

func (l laggingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return l.cache.Get(ctx, key, o, options...)
}

func newPolicyConfigMap(uid, version, concurrency string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: policyKey.Namespace, Name: policyKey.Name, UID: types.UID(uid), ResourceVersion: version},
		Data:       map[string]string{"concurrency": concurrency},
	}
}

// A new leader with a stale cache does not revert what the last leader took into force.
func TestOlderPolicyIsNotTakenIntoForce(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	with := func(objects ...client.Object) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	// lead has a new leader reconcile the policy, and returns the policy in force.
	lead := func(live client.Client, cached ...client.Object) map[string]string {
		t.Helper()
		r := &Reconciler{
			Client: laggingClient{Client: live, cache: with(cached...)}, Live: live, Events: events.NewFakeRecorder(8),
			Metrics: metrics.New(prometheus.NewRegistry()), InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey,
		}
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: policyKey})
		require.NoError(t, err)
		state := r.InForce.Current()
		require.True(t, state.Known)
		require.NotNil(t, state.Policy)
		data, _, errs := state.Policy.ForMember("frankfurt", nil)
		require.Empty(t, errs)
		kept := &corev1.ConfigMap{}
		require.NoError(t, live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: InForceConfigMap}, kept))
		assert.Equal(t, data["concurrency"], kept.Data["concurrency"], "it is kept")
		return data
	}

	live := with(newPolicyConfigMap("u", "20", "2"))
	assert.Equal(t, "2", lead(live, newPolicyConfigMap("u", "20", "2"))["concurrency"])
	assert.Equal(t, "2", lead(live, newPolicyConfigMap("u", "10", "9"))["concurrency"], "the cache shows an older one")
	assert.Equal(t, "2", lead(live)["concurrency"], "the cache shows none")
	assert.Equal(t, "2", lead(live, newPolicyConfigMap("deleted", "15", "9"))["concurrency"], "the cache shows the one before it")
	assert.Equal(t, "7", lead(live, newPolicyConfigMap("u", "30", "7"))["concurrency"], "the cache shows a newer one")

	// Versions of another API server have no order with those here, and are forgotten.
	require.NoError(t, live.Delete(t.Context(), newPolicyConfigMap("u", "", "")))
	require.NoError(t, live.Create(t.Context(), newPolicyConfigMap("restored", "", "7")))
	assert.Equal(t, "7", lead(live, newPolicyConfigMap("restored", "1", "7"))["concurrency"])
	kept := &corev1.ConfigMap{}
	require.NoError(t, live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: InForceConfigMap}, kept))
	assert.Equal(t, "restored", kept.Annotations[annotationUID])
}
