package history

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// filledHistory was elected at start, and has two samples since.
func filledHistory() (h *History, now time.Time) {
	h = New(start)
	for i, bytes := range []int64{600, 1200} {
		now = start.Add(time.Duration(i) * Step)
		h.AddSample(now, []string{"bucket"}, []MemberSample{sampleOf("a", "one", bytes, 1)})
	}
	return h, now
}

func TestPastIsFilled(t *testing.T) {
	h, now := filledHistory()
	assert.Nil(t, h.BuildAnswer(Query{By: readapi.ByFleet, Series: SeriesNames(), Window: time.Hour, Points: 10, Limit: 1}, now).Prometheus, "nobody was asked")
	past := []PastPoint{
		{start.Add(-3 * Step), 7}, {start.Add(-2 * Step), 9},
		{start, 99}, {start.Add(Step), 99}, // it has seen these itself
		{start.Add(-Window - time.Hour), 99}, {start.Add(time.Hour), 99}, {time.Unix(-5, 0), 99}, // and cannot remember these
		{start.Add(-Step), math.NaN()}, {start.Add(-Step), -1}, {start.Add(-Step), math.Inf(1)}, {start.Add(-Step), 1e18}, // and does not believe these
	}
	h.FillPast(readapi.ByFleet, "", readapi.SeriesBytes, past)
	h.FillPast(readapi.ByFleet, "", SeriesUnknown, []PastPoint{{start.Add(-3 * Step), 2}})
	h.FillPast(readapi.BySource, "bucket", readapi.SeriesSlots, past)
	h.FillPast(readapi.BySource, "of a policy before", readapi.SeriesSlots, past)
	h.FillPast(readapi.ByCluster, "a", readapi.SeriesQueued, []PastPoint{{start.Add(-MemberStep), 5}, {start, 99}})
	h.FillPast(readapi.ByCluster, "nobody", readapi.SeriesQueued, past)
	text, err := json.Marshal(pointsOf(h, readapi.ByFleet, readapi.SeriesBytes, now, 5*Step))
	require.NoError(t, err)
	assert.Equal(t, "[7,9,null,null,10]", string(text))
	text, err = json.Marshal(pointsOf(h, readapi.BySource, readapi.SeriesSlots, now, 5*Step))
	require.NoError(t, err)
	assert.Equal(t, "[7,9,null,1,1]", string(text))
	text, err = json.Marshal(pointsOf(h, readapi.ByCluster, readapi.SeriesQueued, now, 2*MemberStep))
	require.NoError(t, err)
	assert.Equal(t, "[5,0]", string(text))
	answer := h.BuildAnswer(Query{By: readapi.ByFleet, Series: SeriesNames(), Window: 5 * Step, Points: 10, Limit: 1}, now)
	assert.Equal(t, []int{2, 0, 0, 1, 0}, answer.Lines[0].UnknownMembers)
	assert.Equal(t, start, answer.Since.Time, "what it remembers itself")
	require.NotNil(t, answer.Prometheus)
	assert.Equal(t, start.Add(-3*Step), answer.Prometheus.From.Time)
	assert.Equal(t, start.Add(-Step), answer.Prometheus.Until.Time)
	assert.Equal(t, start.Add(-3*Step), h.FilledSince().Time)
	bytes, known := h.Bytes("", time.Hour, now)
	assert.True(t, known)
	assert.Equal(t, int64((7+9+10)*60), bytes, "a day's bytes have them, too")
}

func TestPastProblemIsSaid(t *testing.T) {
	h, now := filledHistory()
	h.SetPastProblem("connection\x1b[31m refused", now)
	answer := h.BuildAnswer(Query{By: readapi.ByFleet, Series: SeriesNames(), Window: time.Hour, Points: 10, Limit: 1}, now)
	assert.Equal(t, "connection [31m refused", answer.Prometheus.Problem)
	assert.Equal(t, now, answer.Prometheus.ReadAt.Time)
	assert.Nil(t, answer.Prometheus.From)
	assert.Nil(t, h.FilledSince())
	h.SetPastProblem("", now)
	assert.Empty(t, h.BuildAnswer(Query{By: readapi.ByFleet, Series: SeriesNames(), Window: time.Hour, Points: 10, Limit: 1}, now).Prometheus.Problem)
}

// Whatever somebody else remembers, what this process has seen itself stays.
func TestPastNeverReplacesWhatWasSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, now := filledHistory()
		before := pointsOf(h, readapi.ByFleet, readapi.SeriesBytes, now, 2*Step)
		points := rapid.SliceOf(rapid.Custom(func(t *rapid.T) PastPoint {
			return PastPoint{start.Add(time.Duration(rapid.IntRange(-3000, 3000).Draw(t, "minutes")) * Step), rapid.Float64().Draw(t, "value")}
		})).Draw(t, "points")
		h.FillPast(readapi.ByFleet, "", readapi.SeriesBytes, points)
		after := pointsOf(h, readapi.ByFleet, readapi.SeriesBytes, now, 2*Step)
		require.Len(t, after, len(before))
		for i := range before {
			require.True(t, before[i] == after[i] || math.IsNaN(before[i]) && math.IsNaN(after[i]))
		}
		_, err := json.Marshal(h.BuildAnswer(Query{By: readapi.ByFleet, Series: SeriesNames(), Window: Window, Points: 2000, Limit: 1}, now))
		require.NoError(t, err)
	})
}

func TestLatestSample(t *testing.T) {
	h := New(start)
	_, known := h.Latest(start)
	assert.False(t, known, "nothing was sampled")
	h, now := filledHistory()
	latest, known := h.Latest(now)
	require.True(t, known)
	assert.Equal(t, map[string]map[string]float64{
		"":       {readapi.SeriesBytes: 10, readapi.SeriesSlots: 1, readapi.SeriesQueued: 0},
		"bucket": {readapi.SeriesBytes: 10, readapi.SeriesSlots: 1, readapi.SeriesQueued: 0},
		"other":  {readapi.SeriesBytes: 0, readapi.SeriesSlots: 0, readapi.SeriesQueued: 0},
	}, latest.BySource)
	assert.Equal(t, map[string]float64{"a": 10}, latest.BytesByMember)
	assert.Zero(t, latest.UnknownMembers)
	_, known = h.Latest(now.Add(3 * Step))
	assert.False(t, known, "it is not what is now")
}
