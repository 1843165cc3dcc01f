package connection

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// A clock that jumps and is set back has a replica disconnect its own member, and nothing says when that is
// over.
func TestMemberOfReplicaWithoutLeaseIsDecidedAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	for name, tt := range map[string]struct {
		replica string
		want    time.Duration
	}{
		"its own":     {"one", 15 * time.Second},
		"another's":   {"two", 0},
		"of none yet": {"", 0},
	} {
		t.Run(name, func(t *testing.T) {
			member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(member, &v1alpha1.MemberLink{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + "edge", Name: v1alpha1.MailboxName},
				Spec:       v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush, Replica: tt.replica},
			}).Build()
			r := &connectionReconciler{client: c, Options: Options{
				Members: memberclient.New(memberclient.Options{}), Links: &shard.Links{Cached: c},
				Replica: shard.NewReplica(nil, shard.Options{Name: "one", LeaseDuration: 15 * time.Second}),
			}}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(member)})
			require.NoError(t, err)
			assert.Equal(t, tt.want, result.RequeueAfter)
		})
	}
}
