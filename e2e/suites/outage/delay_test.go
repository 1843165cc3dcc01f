//go:build linux

package outage_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// changes is the number of policy changes per measurement.
	changes = 5
	// maxDelay is how many times longer the others may take, in medians. A wait for a timeout
	// takes far longer, the load of a busy machine does not.
	maxDelay = 3
	// maxRounds bounds the measurements: load that comes and goes delays one of them, a wait
	// for a timeout all.
	maxRounds = 3
)

// TestDeadMemberDoesNotDelayOthers shows that one dead member among twenty delays no
// other, before and after the hub detects it.
func TestDeadMemberDoesNotDelayOthers(t *testing.T) {
	testenv.RunInTurn(t, 3)
	dead := shared.Fakes.List[fakeCount-1].Name
	away := shared.fakeLinks[dead]
	t.Cleanup(func() {
		require.NoError(t, away.Repair(context.Background()))
		shared.ResetPolicy(t)
	})
	for _, m := range shared.Fakes.List {
		shared.AwaitMember(t, m.Name, "healthy", isHealthy, hasBudget(2))
	}
	next := 2
	measure := func() (slowest []time.Duration) {
		for range changes {
			next++
			slowest = append(slowest, shared.measureAcknowledgement(t, fmt.Sprint(next), dead))
		}
		return slowest
	}
	var beforeNoticed, afterNoticed float64
	for range maxRounds {
		without := measure()
		require.NoError(t, away.Stall())
		unnoticed := measure()
		shared.AwaitMember(t, dead, "unreachable", hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))
		noticed := measure()
		require.NoError(t, away.Repair(t.Context()))
		shared.AwaitMember(t, dead, "healthy", isHealthy)
		without = append(without, measure()...)

		t.Logf("median time from a policy change to the last of %d members: %s; beside an unnoticed dead member: %s; beside a noticed one: %s",
			fakeCount-1, median(without), median(unnoticed), median(noticed))
		beforeNoticed, afterNoticed = float64(median(unnoticed))/float64(median(without)), float64(median(noticed))/float64(median(without))
		if max(beforeNoticed, afterNoticed) <= maxDelay {
			break
		}
	}
	assert.LessOrEqual(t, beforeNoticed, float64(maxDelay), "before the hub noticed")
	assert.LessOrEqual(t, afterNoticed, float64(maxDelay), "after the hub noticed")
}

// measureAcknowledgement changes the policy and returns how long all fake members but one took
// to get it.
func (f *testFleet) measureAcknowledgement(t *testing.T, concurrency, but string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	begun := time.Now()
	f.SetPolicy(t, map[string]string{"concurrency": concurrency})
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range f.Fakes.List {
		if m.Name == but {
			continue
		}
		group.Go(func() error {
			return m.AwaitPlan(ctx, func(root *v1alpha1.ReportRoot) bool { return root.Policy["concurrency"] == concurrency })
		})
	}
	require.NoError(t, group.Wait())
	return time.Since(begun)
}

func median(all []time.Duration) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
