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
	changes = 4
	// mostDelay is how much longer the others may take because of one that is dead,
	// in medians: that nobody waits for a timeout shows, what a busy machine adds
	// does not.
	mostDelay = 3
)

// One dead member among twenty delays nobody: neither while the hub does not know
// yet that it is dead, nor later.
func TestDeadMemberDelaysNobody(t *testing.T) {
	dead := shared.light.List[lights-1].Name
	away := shared.links[dead]
	t.Cleanup(func() {
		require.NoError(t, away.Mend(context.Background()))
		require.NoError(t, shared.policy(context.Background(), "concurrency", "2"))
	})
	for _, m := range shared.light.List {
		shared.eventually(t, m.Name, "healthy", healthy, hasBudget(2))
	}
	next := 2
	measure := func() []time.Duration {
		var all []time.Duration
		for range changes {
			next++
			all = append(all, shared.acknowledged(t, fmt.Sprint(next), dead)...)
		}
		return all
	}
	without := measure()
	require.NoError(t, away.Hang())
	with := measure()
	shared.eventually(t, dead, "unreachable", says(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonUnreachable))
	with = append(with, measure()...)
	require.NoError(t, away.Mend(t.Context()))
	shared.eventually(t, dead, "healthy", healthy)
	without = append(without, measure()...)

	ratio := float64(median(with)) / float64(median(without))
	t.Logf("policy change -> acknowledgement by %d members, median: %s with a dead one beside them, %s without: ratio %.2f",
		lights-1, median(with), median(without), ratio)
	assert.LessOrEqual(t, ratio, float64(mostDelay))
}

// acknowledged changes the policy and returns how long each member took, but for
// one.
func (f *fleet) acknowledged(t *testing.T, concurrency, but string) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begun := time.Now()
	require.NoError(t, f.policy(ctx, "concurrency", concurrency))
	took := make([]time.Duration, 0, lights)
	group, ctx := errgroup.WithContext(ctx)
	each := make([]time.Duration, lights)
	for i, m := range f.light.List {
		if m.Name == but {
			continue
		}
		group.Go(func() error {
			err := m.Await(ctx, func(root *v1alpha1.ReportRoot) bool { return root.Policy["concurrency"] == concurrency })
			each[i] = time.Since(begun)
			return err
		})
	}
	require.NoError(t, group.Wait())
	for i, m := range f.light.List {
		if m.Name != but {
			took = append(took, each[i])
		}
	}
	return took
}

func median(all []time.Duration) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
