package shard

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// Members that do not move get the next challenge once the reports are read, or have not been for long.
func TestChallengeComesWithoutReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		require.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
		s := snapshotOf("one", "one")
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(s.link(0), s.link(1), &s.members[0], &s.members[1]).Build()
		self := NewReplica(nil, Options{Name: "one", LeaseDuration: 15 * time.Second})
		self.extendLease(time.Now().Add(time.Hour))
		a := &Assigner{
			Client: c, Replica: self, Reports: report.NewStore(), Metrics: metrics.NewShards(prometheus.NewRegistry()),
			Peers: &Peers{self: self, peers: []Peer{{Name: "one", State: PeerAlive}}, observations: leaseObservations{}},
		}
		countChallenged := func() (challenged int) {
			var links v1alpha1.MemberLinkList
			require.NoError(t, c.List(t.Context(), &links))
			for i := range links.Items {
				if links.Items[i].Spec.Challenge == self.Challenge() {
					challenged++
				}
			}
			return challenged
		}
		result, err := a.Reconcile(t.Context(), fleetRequest)
		require.NoError(t, err)
		assert.Equal(t, report.MaxSyncWait, result.RequeueAfter)
		assert.Zero(t, countChallenged())
		require.NoError(t, trigger.Sleep(t.Context(), result.RequeueAfter))
		_, err = a.Reconcile(t.Context(), fleetRequest)
		require.NoError(t, err)
		assert.Equal(t, 2, countChallenged())
	})
}
