package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// A request that arrives while a clock that jumped has taken the Lease away is not lost.
func TestRequestWithoutLeaseIsRepeated(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}, &v1alpha1.MemberLink{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + "edge", Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush, Replica: "one"},
	}).Build()
	for replica, want := range map[string]time.Duration{"one": 15 * time.Second, "two": 0} {
		r := &Reconciler{
			Cached: c, Links: &shard.Links{Cached: c}, Members: memberclient.New(memberclient.Options{}),
			Replica: shard.NewReplica(nil, shard.Options{Name: replica, LeaseDuration: 15 * time.Second}),
		}
		result, err := r.Reconcile(t.Context(), mcreconcile.Request{ClusterName: multicluster.ClusterName("edge")})
		require.NoError(t, err)
		assert.Equal(t, want, result.RequeueAfter, "replica %s", replica)
	}
}
