package vm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestEnqueueAllEnqueuesAllMachines: also those that are listed before the controller starts.
func TestEnqueueAllEnqueuesAllMachines(t *testing.T) {
	for _, isStarted := range []bool{true, false} {
		r, machines, _ := newSharingMachines(t, 3)
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		if isStarted {
			require.NoError(t, r.requests.Start(t.Context(), q))
		}
		require.NoError(t, r.EnqueueAll(t.Context()))
		if !isStarted {
			require.NoError(t, r.requests.Start(t.Context(), q))
		}
		assert.Equal(t, len(machines), q.Len())
	}
}
