//go:build linux

package budget_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// judgeExcess fails the test if an honest member is ever taken for one that reports too much, until
// the cleanups end that are registered later. It sees each stored status, by a watch.
func (f *testFleet) judgeExcess(t *testing.T) {
	t.Helper()
	var mu sync.Mutex
	seen, judged, excess := map[string]string{}, map[string]bool{}, map[string]bool{}
	stop, err := controlplane.WatchObjects(context.WithoutCancel(t.Context()), f, &v1alpha1.MemberClusterList{}, func(c controlplane.Change[*v1alpha1.MemberCluster]) {
		mu.Lock()
		defer mu.Unlock()
		name := c.Object.Name
		seen[name] = c.Object.ResourceVersion
		if found := meta.FindStatusCondition(c.Object.Status.Conditions, v1alpha1.ConditionTransfersAccounted); found != nil && f.Members[name] != nil {
			judged[name] = true
			if found.Reason == v1alpha1.ReasonReportedSlotsExceedGrants {
				excess[name+": "+found.Message] = true
			}
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		defer stop()
		for name := range f.Members {
			assert.True(t, testenv.AwaitCondition(t, func() bool {
				m := &v1alpha1.MemberCluster{}
				if f.Get(context.Background(), client.ObjectKey{Name: name}, m) != nil {
					return false
				}
				mu.Lock()
				defer mu.Unlock()
				return seen[name] == m.ResourceVersion
			}), "the watch has not seen %s", name)
		}
		mu.Lock()
		defer mu.Unlock()
		assert.Len(t, judged, len(f.Members), "without the condition, nothing is judged")
		assert.Empty(t, excess)
	})
}
