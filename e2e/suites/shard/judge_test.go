//go:build linux

package shard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// versionJudge polls all plans, reports and members: no version may fall, no agent may count as
// unhealthy.
type versionJudge struct {
	fleet  *testFleet
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	last   map[string]planVersion
	faults map[string]bool
}

type planVersion struct{ epoch, sequence int64 }

func newJudge(f *testFleet) *versionJudge {
	ctx, cancel := context.WithCancel(context.Background())
	j := &versionJudge{fleet: f, cancel: cancel, last: map[string]planVersion{}, faults: map[string]bool{}}
	j.done.Go(func() {
		for ticker := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			j.checkVersions(ctx)
		}
	})
	return j
}

func (j *versionJudge) stopWatching() {
	j.cancel()
	j.done.Wait()
}

// checkVersions reads all copies; it skips a poll while the API server is away.
func (j *versionJudge) checkVersions(ctx context.Context) {
	var reports v1alpha1.ClusterReportList
	var plans v1alpha1.ClusterPlanList
	var all v1alpha1.MemberClusterList
	for _, list := range []client.ObjectList{&reports, &plans, &all} {
		if j.fleet.List(ctx, list) != nil {
			return
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range reports.Items {
		j.requireRising("ClusterReport "+r.Namespace+"/"+r.Name, planVersion{0, r.Sequence})
	}
	for _, p := range plans.Items {
		j.requireRising("ClusterPlan "+p.Namespace, planVersion{p.Spec.Epoch, p.Spec.Sequence})
	}
	for _, m := range all.Items {
		if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentHealthy); c != nil && c.Status == metav1.ConditionFalse {
			j.faults[fmt.Sprintf("the agent of %s is not healthy: %s", m.Name, c.Message)] = true
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

// requireNoFaults requires that no fault was recorded since the last call.
func (j *versionJudge) requireNoFaults(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	assert.Empty(t, j.faults)
	j.faults = map[string]bool{}
}
