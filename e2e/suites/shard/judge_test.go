//go:build linux

package shard_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// versionJudge watches all plans, reports and members: no version may fall, no agent may count as
// unhealthy.
type versionJudge struct {
	fleet *testFleet

	mu sync.Mutex
	// seen are the resourceVersions of objects.
	seen   map[string]uint64
	last   map[string]planVersion
	faults map[string]bool
}

type planVersion struct{ epoch, sequence int64 }

// startJudge watches until the fleet stops.
func startJudge(f *testFleet) (*versionJudge, error) {
	j := &versionJudge{fleet: f, seen: map[string]uint64{}, last: map[string]planVersion{}, faults: map[string]bool{}}
	for _, list := range judgedLists() {
		stop, err := controlplane.WatchObjects(context.Background(), f, list, j.record)
		if err != nil {
			return nil, err
		}
		f.OnStop(stop)
	}
	return j, nil
}

func judgedLists() []client.ObjectList {
	return []client.ObjectList{&v1alpha1.ClusterReportList{}, &v1alpha1.ClusterPlanList{}, &v1alpha1.MemberClusterList{}}
}

func objectKey(o client.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

func resourceVersion(o client.Object) uint64 {
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err) // etcd's revisions
	}
	return version
}

func (j *versionJudge) record(change controlplane.Change[client.Object]) {
	if change.Type == watch.Deleted {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	key := objectKey(change.Object)
	j.seen[key] = resourceVersion(change.Object)
	switch o := change.Object.(type) {
	case *v1alpha1.ClusterReport:
		j.requireRising(key, planVersion{0, o.Sequence})
	case *v1alpha1.ClusterPlan:
		j.requireRising(key, planVersion{o.Spec.Epoch, o.Spec.Sequence})
	case *v1alpha1.MemberCluster:
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAgentHealthy); c != nil && c.Status == metav1.ConditionFalse {
			j.faults[fmt.Sprintf("the agent of %s is not healthy: %s", o.Name, c.Message)] = true
		}
	}
}

func (j *versionJudge) requireRising(what string, now planVersion) {
	before := j.last[what]
	if now.epoch < before.epoch || now.epoch == before.epoch && now.sequence < before.sequence {
		j.faults[fmt.Sprintf("%s fell from %v to %v", what, before, now)] = true
	}
	j.last[what] = now
}

// requireNoFaults requires that no fault was recorded since the last call. It waits until the watches
// have seen all that is stored: a judge that sees nothing finds no fault.
func (j *versionJudge) requireNoFaults(t *testing.T) {
	t.Helper()
	for _, list := range judgedLists() {
		require.True(t, testenv.AwaitCondition(t, func() bool { return j.fleet.List(t.Context(), list) == nil }))
		require.NotZero(t, meta.LenList(list), "%T", list)
		require.NoError(t, meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			require.True(t, testenv.AwaitCondition(t, func() bool {
				j.mu.Lock()
				defer j.mu.Unlock()
				return j.seen[objectKey(o)] >= resourceVersion(o)
			}), "the judge has not seen %s", objectKey(o))
			return nil
		}))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	assert.Empty(t, j.faults)
	j.faults = map[string]bool{}
}
