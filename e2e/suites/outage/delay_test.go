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
)

const (
	// changes of the policy that are measured at a time.
	changes = 9
	// mostDelay is how much longer the others may take because of one that is dead,
	// in medians: that nobody waits for a timeout shows, what a busy machine adds
	// does not.
	mostDelay = 3
	// rounds at the most: a neighbour on the machine that is busy while the member is
	// dead, and not before and after, delays one of them; a wait for a timeout all.
	rounds = 3
)

// TestDeadMemberDoesNotDelayOthers shows that one dead member among twenty delays no
// other, before and after the hub detects it.
func TestDeadMemberDoesNotDelayOthers(t *testing.T) {
	dead := shared.Fakes.List[fakeCount-1].Name
	away := shared.linkByMember[dead]
	t.Cleanup(func() {
		require.NoError(t, away.Repair(context.Background()))
		require.NoError(t, shared.updatePolicy(context.Background(), "concurrency", "2"))
	})
	for _, m := range shared.Fakes.List {
		shared.awaitMember(t, m.Name, "healthy", isHealthy, hasBudget(2))
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
	for range rounds {
		without := measure()
		require.NoError(t, away.Stall())
		unnoticed := measure()
		shared.awaitMember(t, dead, "unreachable", hasCondition(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))
		noticed := measure()
		require.NoError(t, away.Repair(t.Context()))
		shared.awaitMember(t, dead, "healthy", isHealthy)
		without = append(without, measure()...)

		t.Logf("policy change -> acknowledgement by the last of %d members, median: %s, beside a dead one %s, once that is known %s",
			fakeCount-1, median(without), median(unnoticed), median(noticed))
		beforeNoticed, afterNoticed = float64(median(unnoticed))/float64(median(without)), float64(median(noticed))/float64(median(without))
		if max(beforeNoticed, afterNoticed) <= mostDelay {
			break
		}
	}
	assert.LessOrEqual(t, beforeNoticed, float64(mostDelay), "not noticed yet")
	assert.LessOrEqual(t, afterNoticed, float64(mostDelay), "noticed")
}

// measureAcknowledgement changes the policy and returns how long it took until each member
// had it, but for one.
func (f *testFleet) measureAcknowledgement(t *testing.T, concurrency, but string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begun := time.Now()
	require.NoError(t, f.updatePolicy(ctx, "concurrency", concurrency))
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
