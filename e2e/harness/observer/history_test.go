package observer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// createDataVolume creates one of an attempt that goes on.
func (s *fakeHistory) createDataVolume(uid string, at time.Time) {
	s.upsert(dataVolumes, uid, func(o map[string]any) {
		withLabel(labelImage, uid)(o)
		o["metadata"].(map[string]any)["creationTimestamp"] = at.Format(time.RFC3339)
	})
}

func withPlan(concurrency, windows string) func(map[string]any) {
	return func(o map[string]any) {
		_ = unstructured.SetNestedStringMap(o, map[string]string{"concurrency": concurrency, "windows": windows}, "spec", "policy")
	}
}

func TestBudgetViolationsByWindows(t *testing.T) {
	const window = `[{cron: "0 22 * * *", duration: 8h, timeZone: Europe/Oslo, concurrency: %d}]`
	const outside, inside = "2026-11-26T12:00:00Z", "2026-11-26T23:00:00Z"
	for name, tt := range map[string]struct {
		windows, at string
		local       string
		want        int
	}{
		"no window":                              {at: inside, want: 1},
		"a wider window is closed":               {windows: fmt.Sprintf(window, 3), at: outside, want: 1},
		"a wider window is open":                 {windows: fmt.Sprintf(window, 3), at: inside},
		"a narrower window is closed":            {windows: fmt.Sprintf(window, 1), at: outside, want: 1},
		"a narrower window is open":              {windows: fmt.Sprintf(window, 1), at: inside, want: 2},
		"the cluster's own limit is the smaller": {windows: fmt.Sprintf(window, 3), at: inside, local: "2", want: 1},
		"a bad list leaves the last good policy": {windows: "[{}]", at: inside, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeHistory()
			s.upsert(plans, "plan", withPlan("2", ""))
			s.upsert(plans, "plan", withPlan("2", tt.windows))
			if tt.local != "" {
				s.upsert(policies, "policy", func(o map[string]any) {
					_ = unstructured.SetNestedStringMap(o, map[string]string{"concurrency": tt.local}, "data")
				})
			}
			s.history.acknowledgements = []uint64{uint64(len(s.history.events))}
			at, err := time.Parse(time.RFC3339, tt.at)
			require.NoError(t, err)
			for i := range 3 {
				s.createDataVolume(fmt.Sprint("dv-", i), at)
			}
			assert.Len(t, s.history.BudgetViolations(), tt.want)
		})
	}
}
