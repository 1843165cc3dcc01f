package eta_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const mebibyte = 1 << 20

// newActivity is of a member with three imports of 10 MiB/s, 100, 200 and 300 s before their
// end, and three more in its queue, of 1000 MiB each.
func newActivity() *v1alpha1.ReportedActivity {
	a := &v1alpha1.ReportedActivity{
		ObservedAt: metav1.NewTime(now), BootID: "boot", Budget: 3, Slots: 3, Queued: 3,
		Rates: []v1alpha1.SourceRate{
			{Name: "bucket", P20: 10 * mebibyte, P50: 10 * mebibyte, P80: 10 * mebibyte, Samples: 9},
			{Name: "slow", P20: mebibyte / 2, P50: mebibyte, P80: 2 * mebibyte, Samples: 3},
			{Name: "new", P20: mebibyte, P50: mebibyte, P80: mebibyte, Samples: 2},
		},
	}
	for i, name := range []string{"a", "b", "c"} {
		a.Active = append(a.Active, v1alpha1.ActiveImport{
			Namespace: "farm", Name: name, Source: "bucket", BytesDone: 1000 * mebibyte, BytesTotal: int64(2000+1000*i) * mebibyte,
			BytesPerSecond: 10 * mebibyte, StartedAt: metav1.NewTime(now.Add(-100 * time.Second)),
		})
	}
	for _, name := range []string{"d", "e", "f"} {
		a.Head = append(a.Head, v1alpha1.QueuedImport{
			Namespace: "farm", Name: name, Source: "bucket", Bytes: 1000 * mebibyte, QueuedAt: metav1.NewTime(now.Add(-time.Hour)), Reason: v1alpha1.ReasonWaitingForSlot,
		})
	}
	return a
}

// awaitWindow has the first of the queue wait for a window.
func awaitWindow(a *v1alpha1.ReportedActivity, left time.Duration) {
	opensAt := metav1.NewTime(now.Add(left))
	a.Head[0].Reason, a.Head[0].OpensAt = v1alpha1.ReasonWaitingForWindow, &opensAt
}

func TestEstimates(t *testing.T) {
	in := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	for name, tt := range map[string]struct {
		change       func(*v1alpha1.ReportedActivity, *eta.Snapshot)
		image        string
		wantPosition int
		wantAt       time.Time
		wantAtMost   bool
		wantWhy      eta.Unknown
	}{
		"an import that runs":              {image: "b", wantAt: in(200)},
		"the first of the queue":           {image: "d", wantPosition: 1, wantAt: in(100 + 100)},
		"the second takes the same slot":   {image: "e", wantPosition: 2, wantAt: in(200 + 100)},
		"two are free at the same time":    {image: "f", wantPosition: 3, wantAt: in(200 + 100)},
		"a free slot":                      {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Budget = 4 }, "d", 1, in(100), false, ""},
		"beyond a lowered budget":          {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Budget = 1 }, "d", 1, in(300 + 100), false, ""},
		"a slot is free before the window": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { awaitWindow(a, 3*time.Hour) }, "d", 1, in(100 + 100), false, ""},
		"behind one that awaits a window":  {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { awaitWindow(a, 3*time.Hour) }, "e", 2, in(200 + 100), false, ""},
		"the window opens before":          {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { awaitWindow(a, 50*time.Second) }, "d", 1, in(50 + 100), false, ""},
		"nothing starts before the window": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			awaitWindow(a, 50*time.Second)
			a.Active, a.Slots, a.Budget = nil, 0, 0
		}, "d", 1, in(50 + 100), false, ""},
		"overhead follows and comes before": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Rates[0].OverheadSeconds = 20 }, "a", 0, in(110), false, ""},
		"its own rate, not that of others": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Active[0].BytesPerSecond = 20 * mebibyte
		}, "a", 0, in(50), false, ""},
		"the rate of others without its own": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Active[0].BytesPerSecond = 0 }, "a", 0, in(100), false, ""},
		"one that does not move yet": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Rates[0].OverheadSeconds, a.Active[0].BytesDone, a.Active[0].StartedAt = 40, 0, metav1.NewTime(now.Add(-10*time.Second))
		}, "a", 0, in(200 + 30), false, ""},
		"one that backs off is passed over": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			later := metav1.NewTime(in(1000))
			a.Head[0].NotBefore = &later
		}, "e", 2, in(200), false, ""},
		"one that backs off": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			later := metav1.NewTime(in(1000))
			a.Head[0].NotBefore = &later
		}, "d", 1, in(1100), false, ""},
		"a backoff that is over sooner than a slot is free": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			later := metav1.NewTime(in(50))
			a.Head[0].NotBefore = &later
		}, "d", 1, in(200), false, ""},
		"one that waits for a person is passed over": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Head[0].Reason = v1alpha1.ReasonStorageClassMissing
		}, "e", 2, in(200), false, ""},
		"its group is limited": {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) { s.SourceLimits = map[string]int32{"bucket": 1} }, "d", 1, in(400), false, ""},
		"another group passes a limited one": {func(a *v1alpha1.ReportedActivity, s *eta.Snapshot) {
			s.SourceLimits, a.Head[1].Source, a.Head[1].Bytes = map[string]int32{"bucket": 1}, "other", 20*mebibyte
			a.Rates = append(a.Rates, v1alpha1.SourceRate{Name: "other", P50: mebibyte, Samples: 5})
		}, "e", 2, in(120), false, ""},
		"the disk's size": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Head[0].Bytes, a.Head[0].AtMostBytes = 0, 3000*mebibyte
		}, "d", 1, in(400), true, ""},
		"the disk's size of one ahead": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Active[0].BytesTotal, a.Active[0].AtMostBytes = 0, 2000*mebibyte
		}, "d", 1, in(200), true, ""},
		"too few samples":        {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Head[0].Source = "new" }, "d", 1, time.Time{}, false, eta.UnknownTooFewSamples},
		"no samples":             {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Head[0].Source = "never" }, "d", 1, time.Time{}, false, eta.UnknownTooFewSamples},
		"too few samples ahead":  {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Head[0].Source = "new" }, "f", 3, time.Time{}, false, eta.UnknownTooFewSamples},
		"too few samples behind": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Head[2].Source = "new" }, "e", 2, in(300), false, ""},
		"an import without a rate": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Active[0].BytesPerSecond, a.Active[0].Source = 0, "new"
		}, "a", 0, time.Time{}, false, eta.UnknownTooFewSamples},
		"a slot whose end is unknown": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Active[0].BytesTotal = 0
		}, "d", 1, time.Time{}, false, eta.UnknownSize},
		"a free slot beside one whose end is unknown": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Budget, a.Active[0].BytesTotal = 4, 0
		}, "d", 1, in(100), false, ""},
		"no size":        {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Head[0].Bytes = 0 }, "d", 1, time.Time{}, false, eta.UnknownSize},
		"no concurrency": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Budget = 0 }, "d", 1, time.Time{}, false, eta.UnknownWaitsForPerson},
		"paused":         {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Head[0].Reason = v1alpha1.ReasonPaused }, "d", 1, time.Time{}, false, eta.UnknownWaitsForPerson},
		"a person has to act": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Head[0].Reason = v1alpha1.ReasonInsufficientStorage
		}, "d", 1, time.Time{}, false, eta.UnknownWaitsForPerson},
		"nothing is granted": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) {
			a.Budget, a.Head[0].Reason = 0, v1alpha1.ReasonWaitingForFleet
		}, "d", 1, time.Time{}, false, eta.UnknownNothingGranted},
		"nothing of its group": {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) { s.SourceLimits = map[string]int32{"bucket": 0} }, "d", 1, time.Time{}, false, eta.UnknownNothingGranted},
		"no slot of group or budget": {func(a *v1alpha1.ReportedActivity, s *eta.Snapshot) {
			a.Budget, s.SourceLimits = 0, map[string]int32{"bucket": 1}
		}, "d", 1, time.Time{}, false, eta.UnknownNothingGranted},
		"unlisted imports end later": {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Budget, a.Slots = 7, 7 }, "d", 1, in(200), false, ""},
		"only unlisted imports":      {func(a *v1alpha1.ReportedActivity, _ *eta.Snapshot) { a.Active = nil }, "d", 1, time.Time{}, false, eta.UnknownNotListed},
		"behind the head":            {nil, "z", 0, time.Time{}, false, eta.UnknownNotListed},
		"an old activity":            {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) { s.Now = in(301) }, "d", 1, time.Time{}, false, eta.UnknownNotReported},
		"an old activity, of an import": {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) {
			s.Now = in(301)
		}, "a", 0, time.Time{}, false, eta.UnknownNotReported},
		"no activity":                    {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) { s.Activity = nil }, "d", 0, time.Time{}, false, eta.UnknownNotReported},
		"what should have ended has not": {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) { s.Now = in(150) }, "a", 0, in(150), false, ""},
		"the time passes":                {func(_ *v1alpha1.ReportedActivity, s *eta.Snapshot) { s.Now = in(150) }, "b", 0, in(200), false, ""},
		"the member's clock is wrong": {func(a *v1alpha1.ReportedActivity, s *eta.Snapshot) {
			s.ObservedAt, a.ObservedAt = now, metav1.NewTime(now.Add(-time.Hour))
			later := metav1.NewTime(a.ObservedAt.Add(1000 * time.Second))
			a.Head[0].NotBefore = &later
		}, "d", 1, in(1100), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := eta.Snapshot{Activity: newActivity(), Now: now}
			if tt.change != nil {
				tt.change(s.Activity, &s)
			}
			got, _ := s.ForImage("farm", tt.image)
			assert.Equal(t, tt.wantPosition, got.Position)
			assert.Equal(t, tt.wantWhy, got.Why)
			assert.Equal(t, tt.wantAtMost, got.AtMost)
			if tt.wantAt.IsZero() {
				assert.Equal(t, eta.Estimate{Position: got.Position, Why: got.Why}, got)
				return
			}
			// Sums of imports are about their mean, which is a little more than their median.
			assert.InDelta(t, tt.wantAt.Sub(now).Seconds(), got.At.Sub(now).Seconds(), 0.011*tt.wantAt.Sub(now).Seconds())
		})
	}
}

// The rates of a group give the range.
func TestRangeFollowsRates(t *testing.T) {
	a := newActivity()
	a.Budget = 4
	s := eta.Snapshot{Activity: a, Now: now}
	width := func() time.Duration {
		e, found := s.ForImage("farm", "d")
		require.True(t, found)
		return e.High.Sub(e.Low)
	}
	narrow := width()
	a.Rates[0].P20, a.Rates[0].P80 = 5*mebibyte, 20*mebibyte
	wide := width()
	assert.Greater(t, wide, 3*narrow)
	e, _ := s.ForImage("farm", "d")
	assert.Less(t, e.Low, now.Add(50*time.Second), "a fifth are faster than p80")
	assert.Greater(t, e.High, now.Add(200*time.Second), "a fifth are slower than p20")
}

func TestImageThatJoinsTheQueue(t *testing.T) {
	newImage := v1alpha1.QueuedImport{Namespace: "farm", Name: "g", Source: "bucket", Bytes: 1000 * mebibyte}
	s := eta.Snapshot{Activity: newActivity(), Now: now}
	before := s.Activity.DeepCopy()
	e := s.ForNew(newImage)
	assert.Equal(t, 4, e.Position)
	assert.InDelta(t, 400, e.At.Sub(now).Seconds(), 5, "d and e end at 200 and 300 s")
	assert.Equal(t, before, s.Activity)
	s.Activity.Queued = 4
	assert.Equal(t, eta.Estimate{Why: eta.UnknownNotListed}, s.ForNew(newImage))

	idle := newActivity()
	idle.Active, idle.Head, idle.Queued, idle.Slots = nil, nil, 0, 0
	s = eta.Snapshot{Activity: idle, Now: now.Add(24 * time.Hour)}
	assert.Equal(t, now.Add(24*time.Hour+100*time.Second), s.ForNew(newImage).At, "an idle member writes none")
	s.Activity.Budget = 0
	assert.Equal(t, eta.Estimate{Why: eta.UnknownNotReported}, s.ForNew(newImage), "it may have another budget by now")
	s.Activity.Slots = 1
	assert.Equal(t, eta.Estimate{Why: eta.UnknownNotReported}, s.ForNew(newImage))
	assert.Equal(t, eta.Estimate{Why: eta.UnknownNotReported}, eta.Snapshot{Now: now}.ForNew(newImage))

	// Closed since, which an idle member does not tell.
	opensAt := metav1.NewTime(now.Add(48 * time.Hour))
	newImage.Reason, newImage.OpensAt = v1alpha1.ReasonWaitingForWindow, &opensAt
	for _, s.Activity.Budget = range []int32{0, 3} {
		s.Activity.Slots = 0
		assert.Equal(t, opensAt.Add(100*time.Second), s.ForNew(newImage).At)
	}
}

func TestNextFreeSlot(t *testing.T) {
	a := newActivity()
	s := eta.Snapshot{Activity: a, Now: now}
	at, ok := s.NextFreeSlot()
	assert.True(t, ok)
	assert.Equal(t, now.Add(100*time.Second), at)
	a.Slots = 2
	at, ok = s.NextFreeSlot()
	assert.True(t, ok)
	assert.Equal(t, now, at)
	a.Budget = 0
	_, ok = s.NextFreeSlot()
	assert.False(t, ok)
}

func TestUnknownsAreExplained(t *testing.T) {
	for _, u := range eta.Unknowns() {
		assert.NotEmpty(t, u.Message(), u)
	}
	assert.Empty(t, eta.Unknown("").Message())
}

func TestIsSlow(t *testing.T) {
	for name, tt := range map[string]struct {
		rate   int64
		source string
		want   bool
	}{
		"half of the slowest fifth": {5 * mebibyte, "bucket", false},
		"less than that":            {5*mebibyte - 1, "bucket", true},
		"of unknown rate":           {0, "bucket", false},
		"too few to compare with":   {1, "new", false},
		"nothing to compare with":   {1, "elsewhere", false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, eta.IsSlow(newActivity(), &v1alpha1.ActiveImport{Source: tt.source, BytesPerSecond: tt.rate}))
		})
	}
}
