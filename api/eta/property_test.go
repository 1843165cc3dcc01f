package eta_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// drawSnapshot draws an activity. hostile: of any numbers.
func drawSnapshot(t *rapid.T, hostile bool) eta.Snapshot {
	sources := []string{"bucket", "mirror", v1alpha1.SourceOther}
	bytes := rapid.Int64Range(0, 64<<30)
	rate := rapid.Int64Range(0, 512<<20)
	seconds := rapid.Int64Range(-600, 3600)
	slots := rapid.Int32Range(0, 6)
	if hostile {
		bytes, rate, seconds, slots = rapid.Int64(), rapid.Int64(), rapid.Int64Range(math.MinInt32, math.MaxInt32), rapid.Int32()
	}
	drawTime := func(label string) metav1.Time {
		return metav1.NewTime(now.Add(time.Duration(seconds.Draw(t, label)) * time.Second))
	}
	a := &v1alpha1.ReportedActivity{ObservedAt: metav1.NewTime(now), Budget: slots.Draw(t, "budget")}
	for _, source := range sources {
		p := []int64{rate.Draw(t, "p"), rate.Draw(t, "p"), rate.Draw(t, "p")}
		if !hostile {
			slices.Sort(p)
		}
		a.Rates = append(a.Rates, v1alpha1.SourceRate{
			Name: source, P20: p[0], P50: p[1], P80: p[2], Samples: rapid.Int32Range(2, 9).Draw(t, "samples"), OverheadSeconds: seconds.Draw(t, "overhead"),
		})
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "active") {
		a.Active = append(a.Active, v1alpha1.ActiveImport{
			Namespace: "farm", Name: "active-" + string(rune('a'+i)), Source: rapid.SampledFrom(sources).Draw(t, "source"), StartedAt: drawTime("started"),
			BytesDone: bytes.Draw(t, "done"), BytesTotal: bytes.Draw(t, "total"), AtMostBytes: bytes.Draw(t, "at most"), BytesPerSecond: rate.Draw(t, "own rate"),
		})
	}
	a.Slots = int32(len(a.Active))
	if hostile {
		a.Slots = slots.Draw(t, "slots")
	}
	for i := range rapid.IntRange(1, 8).Draw(t, "queued") {
		q := v1alpha1.QueuedImport{
			Namespace: "farm", Name: "queued-" + string(rune('a'+i)), Source: rapid.SampledFrom(sources).Draw(t, "source"),
			Bytes: bytes.Draw(t, "bytes"), AtMostBytes: bytes.Draw(t, "at most"),
			Reason: rapid.SampledFrom([]v1alpha1.Reason{v1alpha1.ReasonWaitingForSlot, v1alpha1.ReasonWaitingForSlot, v1alpha1.ReasonWaitingForSource, v1alpha1.ReasonSecretMissing}).Draw(t, "reason"),
		}
		if rapid.Bool().Draw(t, "backs off") {
			at := drawTime("not before")
			q.NotBefore = &at
		}
		a.Head = append(a.Head, q)
	}
	s := eta.Snapshot{Activity: a, Now: now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "age")) * time.Second)}
	if rapid.Bool().Draw(t, "limited") {
		s.SourceLimits = map[string]int32{sources[0]: rapid.Int32Range(0, 3).Draw(t, "limit"), sources[1]: rapid.Int32Range(0, 3).Draw(t, "limit")}
	}
	return s
}

func allEstimates(s eta.Snapshot) (all []eta.Estimate) {
	for i := range s.Activity.Active {
		all = append(all, s.Active(i))
	}
	for i := range s.Activity.Head {
		all = append(all, s.Queued(i))
	}
	return all
}

func TestEstimateHasTimesOrAReason(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t, rapid.Bool().Draw(t, "hostile"))
		for _, e := range allEstimates(s) {
			if e.Why != "" {
				require.Contains(t, eta.Unknowns(), e.Why)
				require.Equal(t, eta.Estimate{Position: e.Position, Why: e.Why}, e)
				continue
			}
			require.False(t, e.Low.Before(s.Now), "%v is in the past", e.Low)
			require.False(t, e.At.Before(e.Low), "%v is before %v", e.At, e.Low)
			require.False(t, e.High.Before(e.At), "%v is before %v", e.High, e.At)
			require.Equal(t, e.Position == 0, e.Begin.IsZero(), "only what waits has yet to begin")
			require.False(t, e.At.Before(e.Begin), "%v is before %v", e.At, e.Begin)
		}
	})
}

func TestLargerBudgetIsNeverLater(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t, false)
		more := s
		more.Activity = s.Activity.DeepCopy()
		more.Activity.Budget += rapid.Int32Range(1, 3).Draw(t, "more")
		for i := range s.Activity.Head {
			before, after := s.Queued(i), more.Queued(i)
			if before.Why == "" && after.Why == "" {
				require.False(t, after.At.After(before.At), "%s: %v with budget %d, %v with %d", s.Activity.Head[i].Name, before.At, s.Activity.Budget, after.At, more.Activity.Budget)
			}
		}
	})
}

func TestNeverBeforeASlotIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t, false)
		s.Now = now
		if int(s.Activity.Budget) > len(s.Activity.Active) {
			t.Skip("a slot is free")
		}
		var first time.Time
		for i := range s.Activity.Active {
			if e := s.Active(i); e.Why == "" && (first.IsZero() || e.At.Before(first)) {
				first = e.At
			}
		}
		for i := range s.Activity.Head {
			if e := s.Queued(i); e.Why == "" {
				require.False(t, e.At.Before(first), "%v is before the first end %v", e.At, first)
			}
		}
	})
}

func TestWhatIsBehindChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t, false)
		target := rapid.IntRange(0, len(s.Activity.Head)-1).Draw(t, "target")
		permuted := s
		permuted.Activity = s.Activity.DeepCopy()
		permuted.Activity.Head = append(permuted.Activity.Head[:target+1:target+1], rapid.Permutation(permuted.Activity.Head[target+1:]).Draw(t, "behind")...)
		require.Equal(t, s.Queued(target), permuted.Queued(target))
		permuted.Activity.Head = permuted.Activity.Head[:target+1]
		require.Equal(t, s.Queued(target), permuted.Queued(target))
	})
}
