package inventory_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

const heartbeat = 20 * time.Second

func newActivityRoot(second int) *v1alpha1.ReportRoot {
	return &v1alpha1.ReportRoot{ObservedAt: *timeAt(second), HeartbeatSeconds: int32(heartbeat.Seconds()), BootID: "boot", Slots: 1}
}

func newActivity(second int) *v1alpha1.ReportedActivity {
	return &v1alpha1.ReportedActivity{
		ObservedAt: *timeAt(second), BootID: "boot", Budget: 2, Slots: 1, Queued: 1,
		Active: []v1alpha1.ActiveImport{{Namespace: "farm", Name: "a", Source: "eu", BytesDone: 5, BytesTotal: 10, StartedAt: *timeAt(0)}},
		Head:   []v1alpha1.QueuedImport{{Namespace: "farm", Name: "b", Source: "other", QueuedAt: *timeAt(0)}},
	}
}

func TestActivityIsUnknownUnlessItIsCurrent(t *testing.T) {
	idle := &v1alpha1.ReportedActivity{ObservedAt: *timeAt(0), BootID: "boot"}
	for name, tt := range map[string]struct {
		root        *v1alpha1.ReportRoot
		activity    *v1alpha1.ReportedActivity
		staleReason string
		wantUnknown string
	}{
		"current":                      {root: newActivityRoot(0), activity: newActivity(0)},
		"newer than the root":          {root: newActivityRoot(0), activity: newActivity(3600)},
		"three heartbeats old":         {root: newActivityRoot(60), activity: newActivity(0)},
		"more than three heartbeats":   {root: newActivityRoot(61), activity: newActivity(0), wantUnknown: v1alpha1.ReasonActivityOutdated},
		"of another process":           {root: newActivityRoot(0), activity: &v1alpha1.ReportedActivity{ObservedAt: *timeAt(0), BootID: "before", Slots: 1}, wantUnknown: v1alpha1.ReasonActivityOutdated},
		"idle for long":                {root: &v1alpha1.ReportRoot{ObservedAt: *timeAt(86400), HeartbeatSeconds: 20, BootID: "boot"}, activity: idle},
		"idle, but a slot is taken":    {root: newActivityRoot(0), activity: idle, wantUnknown: v1alpha1.ReasonActivityOutdated},
		"an agent of an older version": {root: newActivityRoot(0), wantUnknown: v1alpha1.ReasonActivityMissing},
		"no report":                    {activity: newActivity(0), wantUnknown: v1alpha1.ReasonNeverReported},
		"a silent member":              {root: newActivityRoot(0), activity: newActivity(0), staleReason: v1alpha1.ReasonSilent, wantUnknown: v1alpha1.ReasonSilent},
	} {
		t.Run(name, func(t *testing.T) {
			x := inventory.NewIndex()
			x.SetActivity("edge", tt.activity, now)
			x.SetRoot("edge", tt.root)
			x.SetStaleReason("edge", tt.staleReason)
			got := x.Activity("edge")
			assert.Equal(t, tt.wantUnknown, got.Unknown)
			assert.Equal(t, tt.activity, got.Reported, "what was said last is shown, current or not")
		})
	}
	assert.Equal(t, inventory.Activity{Unknown: v1alpha1.ReasonNeverReported}, inventory.NewIndex().Activity("edge"))
}

func TestActivityChangesNoTotals(t *testing.T) {
	x := inventory.NewIndex()
	x.SetPage("edge", "page", 1, []v1alpha1.ReportedImage{{Namespace: "farm", Name: "a", UID: "uid", Source: "http a"}})
	root := newActivityRoot(0)
	root.Pages = []v1alpha1.PageRef{{Name: "page", Sequence: 1}}
	x.SetRoot("edge", root)
	totals, _ := x.Totals("edge")
	stats, members := x.Stats(), x.Members()
	for _, activity := range []*v1alpha1.ReportedActivity{newActivity(0), nil, {BootID: "another"}} {
		x.SetActivity("edge", activity, now)
		got, _ := x.Totals("edge")
		assert.Equal(t, totals, got)
		assert.Equal(t, stats, x.Stats())
		assert.Equal(t, members, x.Members())
	}
	x.Forget("edge")
	assert.Nil(t, x.Activity("edge").Reported)
}

func TestOversizedActivityIsUnknown(t *testing.T) {
	x := inventory.NewIndex()
	x.SetRoot("edge", newActivityRoot(0))
	activity := newActivity(0)
	for range 60 {
		activity.Head = append(activity.Head, v1alpha1.QueuedImport{Namespace: "farm", Name: strings.Repeat("a", 253)})
	}
	x.SetActivity("edge", activity, now)
	assert.Equal(t, inventory.Activity{Unknown: v1alpha1.ReasonActivityOversized}, x.Activity("edge"))
}

// A member may lie, or have had no clock when an image was queued: neither is the oldest of the fleet.
func TestTimesOfActivityAreBounded(t *testing.T) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	y9999 := metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
	for name, tt := range map[string]struct {
		observedAt, at                      metav1.Time
		wantObserved, wantTime, wantBackoff bool
	}{
		"now":                    {observedAt: at(0), at: at(0), wantObserved: true, wantTime: true, wantBackoff: true},
		"a day ahead":            {observedAt: at(0), at: at(day), wantObserved: true, wantTime: true, wantBackoff: true},
		"more than a day ahead":  {observedAt: at(0), at: at(day + time.Second), wantObserved: true, wantBackoff: true},
		"a year ago":             {observedAt: at(0), at: at(-year), wantObserved: true, wantTime: true, wantBackoff: true},
		"more than a year ago":   {observedAt: at(0), at: at(-year - time.Second), wantObserved: true},
		"1970":                   {observedAt: at(0), at: metav1.NewTime(time.Unix(1, 0)), wantObserved: true},
		"none":                   {observedAt: at(0), wantObserved: true},
		"9999":                   {observedAt: at(0), at: y9999, wantObserved: true},
		"a clock at 9999":        {observedAt: y9999, at: y9999},
		"no clock":               {at: at(0), wantTime: true, wantBackoff: true},
		"a clock at 1970":        {observedAt: metav1.NewTime(time.Unix(60, 0)), at: metav1.NewTime(time.Unix(1, 0)), wantObserved: true, wantTime: true, wantBackoff: true},
		"ahead of its own clock": {observedAt: at(-2 * day), at: at(0), wantObserved: true, wantBackoff: true},
	} {
		t.Run(name, func(t *testing.T) {
			activity := newActivity(0)
			activity.ObservedAt, activity.Active[0].StartedAt, activity.Head[0].QueuedAt, activity.Head[0].NotBefore = tt.observedAt, tt.at, tt.at, &tt.at
			activity.Rates = []v1alpha1.SourceRate{{Name: "eu", Since: &tt.at}}
			x := inventory.NewIndex()
			x.SetActivity("edge", activity, now)
			got := x.Activity("edge").Reported
			if !tt.wantObserved {
				activity.ObservedAt = metav1.Time{}
			}
			if !tt.wantTime {
				activity.Active[0].StartedAt, activity.Head[0].QueuedAt, activity.Rates[0].Since = metav1.Time{}, metav1.Time{}, nil
			}
			if !tt.wantBackoff {
				activity.Head[0].NotBefore = nil
			}
			assert.Equal(t, activity, got)
		})
	}
}

// Invariant: whatever a member writes, what is kept is small, has no text that a terminal
// interprets, and no number that makes a sum overflow.
func TestAnyActivityIsBounded(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z0-9-]{1,12}`))
	number := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, 1, -1, math.MaxInt64, math.MinInt64}))
	count := rapid.OneOf(rapid.Int32(), rapid.SampledFrom([]int32{0, 1, -1, math.MaxInt32, math.MinInt32}))
	at := rapid.Map(number, func(n int64) metav1.Time { return metav1.NewTime(time.Unix(n%(1<<40), 0)) })
	active := rapid.Custom(func(t *rapid.T) v1alpha1.ActiveImport {
		return v1alpha1.ActiveImport{
			Namespace: text.Draw(t, "namespace"), Name: text.Draw(t, "name"), Source: text.Draw(t, "source"),
			BytesDone: number.Draw(t, "done"), BytesTotal: number.Draw(t, "total"), AtMostBytes: number.Draw(t, "at most"), BytesPerSecond: number.Draw(t, "rate"),
			StartedAt: at.Draw(t, "started"), Attempt: count.Draw(t, "attempt"), MaxAttempts: count.Draw(t, "attempts"),
		}
	})
	queued := rapid.Custom(func(t *rapid.T) v1alpha1.QueuedImport {
		notBefore := at.Draw(t, "not before")
		return v1alpha1.QueuedImport{
			Namespace: text.Draw(t, "namespace"), Name: text.Draw(t, "name"), Source: text.Draw(t, "source"), Reason: v1alpha1.Reason(text.Draw(t, "reason")),
			Bytes: number.Draw(t, "bytes"), AtMostBytes: number.Draw(t, "at most"), Priority: count.Draw(t, "priority"), Attempts: count.Draw(t, "attempts"),
			QueuedAt: at.Draw(t, "queued"), NotBefore: &notBefore,
		}
	})
	rate := rapid.Custom(func(t *rapid.T) v1alpha1.SourceRate {
		return v1alpha1.SourceRate{
			Name: text.Draw(t, "name"), P20: number.Draw(t, "p20"), P50: number.Draw(t, "p50"), P80: number.Draw(t, "p80"),
			OverheadSeconds: number.Draw(t, "overhead"), Samples: count.Draw(t, "samples"), TransferredBytes: number.Draw(t, "transferred"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		x := inventory.NewIndex()
		x.SetActivity("edge", &v1alpha1.ReportedActivity{
			ObservedAt: at.Draw(t, "observed"), BootID: text.Draw(t, "boot"), Budget: count.Draw(t, "budget"), Slots: count.Draw(t, "slots"), Queued: count.Draw(t, "queued"),
			Active: rapid.SliceOfN(active, 0, 40).Draw(t, "active"), Head: rapid.SliceOfN(queued, 0, 30).Draw(t, "head"), Rates: rapid.SliceOfN(rate, 0, 20).Draw(t, "rates"),
		}, now)
		got := x.Activity("edge").Reported
		if got == nil {
			return // too large
		}
		stored, err := json.Marshal(got)
		require.NoError(t, err)
		require.LessOrEqual(t, len(stored), 2*v1alpha1.MaxActivityBytes)
		for _, c := range string(stored) {
			require.GreaterOrEqual(t, c, ' ')
		}
		const maxBytes = int64(1) << 50
		inRange := func(n, limit int64) {
			require.GreaterOrEqual(t, n, int64(0))
			require.LessOrEqual(t, n, limit)
		}
		require.LessOrEqual(t, len(got.Active), v1alpha1.MaxActiveImports)
		require.LessOrEqual(t, len(got.Head), v1alpha1.MaxQueuedImports)
		require.LessOrEqual(t, len(got.Rates), v1alpha1.MaxSourceRates)
		inRange(int64(got.Slots), v1alpha1.MaxSlots)
		isEncodable := func(at time.Time) { require.False(t, at.After(now.AddDate(0, 0, 3)), "%s", at) }
		isEncodable(got.ObservedAt.Time)
		require.GreaterOrEqual(t, got.Queued, int32(len(got.Head)))
		for _, i := range got.Active {
			require.Regexp(t, `^[a-z0-9.-]+ [a-z0-9.-]+ [a-z0-9.-]+$`, i.Namespace+" "+i.Name+" "+i.Source)
			inRange(i.BytesDone, maxBytes)
			inRange(i.BytesTotal, maxBytes)
			inRange(i.AtMostBytes, maxBytes)
			inRange(i.BytesPerSecond, maxBytes)
			isEncodable(i.StartedAt.Time)
			require.True(t, i.BytesTotal == 0 || i.AtMostBytes == 0 && i.BytesDone <= i.BytesTotal)
		}
		for _, i := range got.Head {
			require.Regexp(t, `^[a-z0-9.-]+ [a-z0-9.-]+ [a-z0-9.-]+ [A-Za-z0-9]*$`, i.Namespace+" "+i.Name+" "+i.Source+" "+string(i.Reason))
			isEncodable(i.QueuedAt.Time)
			inRange(i.Bytes, maxBytes)
			inRange(i.AtMostBytes, maxBytes)
		}
		names := map[string]bool{}
		for _, r := range got.Rates {
			require.False(t, names[r.Name])
			names[r.Name] = true
			inRange(r.P20, r.P50)
			inRange(r.P50, r.P80)
			inRange(r.P80, maxBytes)
			inRange(r.TransferredBytes, maxBytes)
		}
	})
}
