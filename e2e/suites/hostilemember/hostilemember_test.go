//go:build linux

package hostilemember_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// minCases is how many cases there are at least.
	minCases = 60
	// roundTripSamples is how many round trips a median is made of.
	roundTripSamples = 3
	// maxMeasurements of latency are made before it counts as disturbed: a busy machine
	// disturbs some of them.
	maxMeasurements = 3
	// latencyNoise is added to twice the undisturbed latency.
	latencyNoise = 150 * time.Millisecond
	// maxMemoryGrowth is by how much laneCount hostile members may raise the hub's memory, and
	// maxMemory the half of the chart's limit.
	maxMemoryGrowth = 384 << 20
	maxMemory       = 512 << 20
)

// canary counts requests that were redirected to it.
var (
	canaryAsked atomic.Int64
	canary      = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { canaryAsked.Add(1) }))
)

func TestHostileMembers(t *testing.T) {
	cases := allCases()
	require.GreaterOrEqual(t, len(cases), minCases)
	cases = testenv.TurnShare(cases)
	quiet := shared.measureLatency(t)
	baseline := shared.peakMemory(t)
	t.Logf("%d cases; undisturbed: %s, %d MiB", len(cases), quiet, baseline>>20)
	var worstLatency time.Duration
	var worstMemory int64
	for batch := range slices.Chunk(cases, laneCount) {
		var names []string
		for _, c := range batch {
			names = append(names, c.name)
		}
		t.Run(strings.Join(names, "; "), func(t *testing.T) {
			shared.resetPeakMemory(t)
			for n, c := range batch {
				shared.lanes[n].beginCase(t, c)
			}
			var waiting sync.WaitGroup
			for n, c := range batch {
				waiting.Go(func() { shared.lanes[n].awaitNamed(t, c) })
			}
			disturbed := shared.measureLatency(t)
			waiting.Wait()
			for measured := 1; disturbed > 2*quiet+latencyNoise && measured < maxMeasurements; measured++ {
				disturbed = shared.measureLatency(t)
			}
			peak := shared.peakMemory(t)
			for n := range batch {
				shared.lanes[n].restore(t)
			}
			for n := range batch {
				shared.lanes[n].awaitRestored(t)
			}
			again := shared.measureLatency(t)
			assert.LessOrEqual(t, disturbed, 2*max(quiet, again)+latencyNoise, "round trip of the honest members; undisturbed %s before and %s after", quiet, again)
			quiet = again
			assert.Less(t, peak, baseline+maxMemoryGrowth, "memory of the hub")
			assert.Less(t, peak, int64(maxMemory), "memory of the hub")
			worstLatency, worstMemory = max(worstLatency, disturbed), max(worstMemory, peak)
			require.NoError(t, shared.Hub.ExitError())
		})
	}
	t.Logf("worst: round trip %s, hub %d MiB", worstLatency, worstMemory>>20)
	assert.Zero(t, canaryAsked.Load(), "nobody follows a redirect")
}

// measureLatency returns the median time from a change of the fleet's policy until the reports
// of all honest members on the hub have it.
func (f *testFleet) measureLatency(t *testing.T) time.Duration {
	t.Helper()
	var all []time.Duration
	for range roundTripSamples {
		f.trips++
		value := (time.Minute + time.Duration(f.trips)*time.Second).String()
		began := time.Now()
		f.SetPolicy(t, map[string]string{"retryBackoffDuration": value})
		require.True(t, testenv.AwaitCondition(t, func() bool {
			for _, m := range f.Fakes.List {
				report := &v1alpha1.ClusterReport{}
				key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + m.Name, Name: v1alpha1.MailboxName}
				if f.Get(t.Context(), key, report) != nil || report.Root == nil || report.Root.PlanPolicy["retryBackoffDuration"] != value {
					return false
				}
			}
			return true
		}), "honest members do not get policy %s", value)
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// peakMemory returns the highest resident memory of the hub since resetPeakMemory.
func (f *testFleet) peakMemory(t *testing.T) int64 {
	t.Helper()
	bytes, err := f.Hub.PeakMemory()
	require.NoError(t, err)
	return bytes
}

func (f *testFleet) resetPeakMemory(t *testing.T) {
	t.Helper()
	require.NoError(t, f.Hub.ResetPeakMemory())
}
