package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
)

func TestWindowNumbers(t *testing.T) {
	numbers := func(concurrency, fleet int32) readapi.PolicyNumbers {
		return readapi.PolicyNumbers{Concurrency: concurrency, FleetConcurrency: ptr.To(fleet)}
	}
	night := data{"concurrency": "0", "fleetConcurrency": "10", "windows": nightly}
	for name, tt := range map[string]struct {
		data     data
		at       string
		now      readapi.PolicyNumbers
		then     *readapi.PolicyNumbers
		changeAt string
	}{
		"outside":                  {night, "2026-06-01T12:00:00Z", numbers(0, 10), ptr.To(numbers(8, 40)), "2026-06-01T20:00:00Z"},
		"inside, from the opening": {night, "2026-06-01T20:00:00Z", numbers(8, 40), ptr.To(numbers(0, 10)), "2026-06-02T04:00:00Z"},
		"windows that meet": {
			data{"concurrency": "1", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 2}, {cron: "0 2 * * *", duration: 1h, concurrency: 2}]`},
			"2026-06-01T01:30:00Z", readapi.PolicyNumbers{Concurrency: 2}, &readapi.PolicyNumbers{Concurrency: 1}, "2026-06-01T03:00:00Z",
		},
		"one that changes nothing": {data{"concurrency": "2", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 2}]`}, "2026-06-01T01:30:00Z", readapi.PolicyNumbers{Concurrency: 2}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := mustParse(t, tt.data).WindowNumbers(mustTime(t, tt.at))
			require.NotNil(t, got)
			assert.Equal(t, tt.now, got.Now)
			assert.Equal(t, tt.then, got.Then)
			require.Equal(t, tt.then == nil, got.ChangesAt == nil)
			if tt.then != nil {
				assert.Equal(t, mustTime(t, tt.changeAt), got.ChangesAt.UTC())
			}
		})
	}
	ofOneMember := data{"overrides": `[{cluster: a, windows: [{cron: "0 1 * * *", duration: 1h, concurrency: 1}]}]`}
	assert.Nil(t, mustParse(t, ofOneMember).WindowNumbers(mustTime(t, "2026-06-01T01:30:00Z")), "of the whole fleet only")
}
