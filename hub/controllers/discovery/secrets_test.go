package discovery

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newLabelledSecret returns a Secret that claims to be member edge.
func newLabelledSecret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: name, Labels: map[string]string{v1alpha1.LabelMember: "edge"}}}
}

// A tool may replace a Secret by deleting it: another one of the same label, which may be of another cluster,
// waits as long as the deletion of the member would.
func TestOtherSecretWaitsForTheGrace(t *testing.T) {
	for name, tt := range map[string]struct {
		back       time.Duration // when the member's Secret is created again
		unseen     bool          // the cache does not show that
		wantWaits  bool          // at the end of the grace
		wantSecret string
	}{
		"it does not come back":            {0, false, false, "other"},
		"it comes back":                    {30 * time.Second, false, false, "edge"},
		"it comes back, the cache is late": {30 * time.Second, true, true, "edge"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				member := newDiscovered(nil)
				member.Labels[v1alpha1.LabelDiscovered] = originSecret
				member.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "edge", Key: "kubeconfig"}}
				api := newAPI(t, member, newLabelledSecret("other"))
				s := &secretReconciler{client: api, live: api, events: events.NewFakeRecorder(100), missingSince: map[string]time.Time{}}
				s.Namespace, s.DeletionGrace = "ot-hub", time.Minute
				reconcileMember := func() (time.Duration, string) {
					t.Helper()
					result, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "edge"}})
					require.NoError(t, err)
					stored := &v1alpha1.MemberCluster{}
					require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(member), stored))
					return result.RequeueAfter, stored.Spec.Connection.KubeconfigSecretRef.Name
				}
				wait, secret := reconcileMember()
				assert.Equal(t, time.Minute, wait)
				assert.Equal(t, "edge", secret)

				require.NoError(t, trigger.Sleep(t.Context(), tt.back))
				if tt.back > 0 {
					if tt.unseen {
						s.live = newAPI(t, newLabelledSecret("edge"), newLabelledSecret("other"))
					} else {
						require.NoError(t, api.Create(t.Context(), newLabelledSecret("edge")))
					}
				}
				require.NoError(t, trigger.Sleep(t.Context(), time.Minute-tt.back))
				wait, secret = reconcileMember()
				assert.Equal(t, tt.wantWaits, wait > 0)
				assert.Equal(t, tt.wantSecret, secret)

				// The next time counts from its own beginning.
				require.NoError(t, client.IgnoreNotFound(api.Delete(t.Context(), newLabelledSecret(tt.wantSecret))))
				if !tt.unseen {
					reconcileMember()
					require.NoError(t, api.Create(t.Context(), newLabelledSecret(tt.wantSecret)))
					reconcileMember()
					assert.Empty(t, s.missingSince)
				}
			})
		})
	}
}
