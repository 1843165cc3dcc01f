package history

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sampleOf(member, boot string, bytes int64, slots int) MemberSample {
	return MemberSample{Member: member, Known: true, BootID: boot, Slots: slots, Sources: []SourceSample{{Name: "bucket", TransferredBytes: bytes, Slots: slots}}}
}

func pointsOf(h *History, by, series string, now time.Time, window time.Duration) readapi.Values {
	lines := h.BuildAnswer(Query{By: by, Series: []string{series}, Window: window, Points: 10_000, Limit: 100}, now).Lines
	if len(lines) == 0 {
		return nil
	}
	return lines[0].Values[series]
}

func TestBytesAreCountedFromSampleToSample(t *testing.T) {
	h := New(start)
	now := start
	for i, s := range []MemberSample{
		sampleOf("a", "one", 1000, 1), sampleOf("a", "one", 1600, 1),
		sampleOf("a", "two", 300, 1), // the process was started again, and counts from 0
		{Member: "a"},                // unknown
		sampleOf("a", "two", 900, 2), // 600 within two minutes
	} {
		now = start.Add(time.Duration(i) * Step)
		h.AddSample(now, []string{"bucket"}, []MemberSample{s})
	}
	text, err := json.Marshal(pointsOf(h, readapi.ByFleet, readapi.SeriesBytes, now, 6*Step))
	require.NoError(t, err)
	assert.Equal(t, "[null,null,10,5,null,5]", string(text), "before the first, and while it is unknown, there is no zero")
	text, err = json.Marshal(pointsOf(h, readapi.BySource, readapi.SeriesSlots, now, 6*Step))
	require.NoError(t, err)
	assert.Equal(t, "[null,1,1,1,null,2]", string(text))
	bytes, known := h.Bytes("bucket", time.Hour, now)
	assert.True(t, known)
	assert.Equal(t, int64(1200), bytes)
	_, known = h.Bytes("elsewhere", time.Hour, now)
	assert.False(t, known)
	assert.Equal(t, []int{0, 1, 0, 0, 1, 0}, h.BuildAnswer(Query{By: readapi.ByFleet, Series: []string{readapi.SeriesBytes}, Window: 6 * Step, Points: 10, Limit: 1}, now).Lines[0].UnknownMembers)
}

func TestMembersAreForgottenAndRanked(t *testing.T) {
	h := New(start)
	for i := range 3 {
		h.AddSample(start.Add(time.Duration(i)*MemberStep), []string{"bucket"}, []MemberSample{sampleOf("a", "x", 0, 1), sampleOf("b", "x", int64(i)*1000, 1), sampleOf("c", "x", int64(i)*100, 1)})
	}
	now := start.Add(2 * MemberStep)
	answer := h.BuildAnswer(Query{By: readapi.ByCluster, Series: []string{readapi.SeriesBytes}, Window: MemberWindow, Points: 10, Limit: 2}, now)
	assert.Equal(t, 3, answer.Total)
	require.Len(t, answer.Lines, 2)
	assert.Equal(t, []string{"b", "c"}, []string{answer.Lines[0].Name, answer.Lines[1].Name})
	answer = h.BuildAnswer(Query{By: readapi.ByCluster, Series: []string{readapi.SeriesBytes}, Window: MemberWindow, Points: 10, Limit: 2, Clusters: []string{"a"}}, now)
	require.Len(t, answer.Lines, 1)
	h.AddSample(now.Add(Step), []string{"bucket"}, []MemberSample{sampleOf("a", "x", 0, 1)})
	assert.Len(t, h.members, 1)
}

// A ring answers what was set within its length, and nothing else.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(1, 8).Draw(t, "length")
		r := newRing(length)
		known := map[int64]float64{}
		at := int64(100)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			at += int64(rapid.SampledFrom([]int{0, 1, 1, 2, 20}).Draw(t, "step"))
			value := float64(rapid.IntRange(0, 100).Draw(t, "value"))
			r.set(at, value)
			known[at] = value
			for back := int64(-1); back < int64(length)+3; back++ {
				want, set := known[at-back]
				if got := r.get(at - back); set && back >= 0 && back < int64(length) {
					assert.InDelta(t, want, got, 0)
				} else {
					assert.True(t, math.IsNaN(got), "step %d of %d", at-back, at)
				}
			}
		}
	})
}

func TestClockThatIsSetBack(t *testing.T) {
	h := New(start)
	h.AddSample(start, []string{"bucket"}, []MemberSample{sampleOf("a", "x", 0, 1)})
	h.AddSample(start.Add(-time.Hour), []string{"bucket"}, []MemberSample{sampleOf("a", "x", 100, 7)})
	h.AddSample(start.Add(Step), []string{"bucket"}, []MemberSample{sampleOf("a", "x", 100, 3)})
	text, err := json.Marshal(pointsOf(h, readapi.ByFleet, readapi.SeriesSlots, start.Add(Step), 2*Step))
	require.NoError(t, err)
	assert.Equal(t, "[7,3]", string(text))
}

func TestPointsMergeSteps(t *testing.T) {
	h := New(start)
	for i := range 60 {
		h.AddSample(start.Add(time.Duration(i)*Step), []string{"bucket"}, []MemberSample{sampleOf("a", "x", int64(i)*60, 2)})
	}
	answer := h.BuildAnswer(Query{By: readapi.ByFleet, Series: SeriesNames(), Window: time.Hour, Points: 6, Limit: 1}, start.Add(59*Step))
	assert.Equal(t, 600, answer.StepSeconds)
	require.Len(t, answer.Lines[0].Values[readapi.SeriesBytes], 6)
	for _, v := range answer.Lines[0].Values[readapi.SeriesBytes] {
		assert.InDelta(t, 1, v, 1e-6)
	}
	assert.Len(t, h.Trend("bucket", start.Add(59*Step)), readapi.TrendPoints)
	assert.Nil(t, h.Trend("elsewhere", start))
}

// The rings of 1,000 members take about 2 MB.
func TestMemoryIsBounded(t *testing.T) {
	var samples []MemberSample
	for i := range 1000 {
		samples = append(samples, sampleOf(fmt.Sprintf("member-%d", i), "x", 1, 1))
	}
	before := apitest.HeapBytes()
	h := New(start)
	h.AddSample(start, []string{"bucket"}, samples)
	assert.Less(t, apitest.HeapBytes()-before, 3.0*(1<<20))
	runtime.KeepAlive(h)
}

// What a member claims changes the numbers of no other: neither invented groups nor bytes that
// nothing can transfer count.
func TestClaimsOfAMemberAreBounded(t *testing.T) {
	h := New(start)
	for i := range 600 {
		claims := []SourceSample{{Name: "bucket", TransferredBytes: int64(i%2) << 50}}
		for n := range 16 {
			claims = append(claims, SourceSample{Name: fmt.Sprint("invented-", i, "-", n), TransferredBytes: int64(i%2) << 50})
		}
		h.AddSample(start.Add(time.Duration(i)*Step), []string{"bucket", "new"}, []MemberSample{
			{Member: "liar", Known: true, BootID: fmt.Sprint(i), Sources: claims}, sampleOf("honest", "x", int64(i)*60, 1),
		})
	}
	now := start.Add(599 * Step)
	assert.Len(t, h.sources, 3, "those of the policy, and other")
	bytes, known := h.Bytes("", Window, now)
	assert.True(t, known)
	assert.Less(t, bytes, int64(1<<50))
	assert.GreaterOrEqual(t, bytes, int64(599*60))
	h.AddSample(now.Add(Step), nil, nil)
	assert.Len(t, h.sources, 1, "the policy has no more groups")
}
