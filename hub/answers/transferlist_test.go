package answers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// movingFleet has member a with a fast and a slow import and a queue, whose clock is an hour
// behind; silent b that was importing; c that never reported; and d in quarantine.
func movingFleet() *answers.Moving {
	theirs := now.Add(-time.Hour)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(theirs.Add(-d)) }
	rates := []v1alpha1.SourceRate{{Name: "bucket", P20: 100, P50: 100, P80: 100, Samples: 9}}
	a := &v1alpha1.ReportedActivity{
		ObservedAt: metav1.NewTime(theirs), Budget: 2, Slots: 2, Queued: 5, Rates: rates,
		Active: []v1alpha1.ActiveImport{
			{Namespace: "farm", Name: "slow", Source: "bucket", BytesTotal: 1000, BytesPerSecond: 10, StartedAt: ago(time.Minute), Attempt: 2, MaxAttempts: 4},
			{Namespace: "farm", Name: "fast", Source: "bucket", BytesDone: 500, BytesTotal: 1000, BytesPerSecond: 100, StartedAt: ago(time.Hour)},
		},
		Head: []v1alpha1.QueuedImport{
			{Namespace: "farm", Name: "first", Source: "bucket", Bytes: 1000, QueuedAt: ago(time.Minute), Reason: v1alpha1.ReasonWaitingForSlot},
			{Namespace: "farm", Name: "other", AtMostBytes: 9000, QueuedAt: ago(2 * time.Hour)},
		},
	}
	b := &v1alpha1.ReportedActivity{
		ObservedAt: metav1.NewTime(now), Budget: 1, Slots: 1, Rates: rates,
		Active: []v1alpha1.ActiveImport{{Namespace: "farm", Name: "lost", Source: "bucket", BytesTotal: 10, BytesPerSecond: 1000, StartedAt: metav1.NewTime(now)}},
	}
	f := &answers.Moving{
		Activities: map[string]inventory.Activity{
			"a": {Reported: a}, "b": {Reported: b, Unknown: v1alpha1.ReasonSilent}, "c": {Unknown: v1alpha1.ReasonNeverReported}, "d": {Reported: a},
		},
		Clocks: map[string]answers.Clock{
			"a": answers.NewClock(&v1alpha1.ReportRoot{ObservedAt: metav1.NewTime(theirs)}, &now, now), "b": {Now: now}, "c": {Now: now}, "d": {Now: now},
		},
		References: func(_, _, name string) (int32, bool) { return 2, name == "first" },
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		m := v1alpha1.MemberCluster{}
		m.Name = name
		if name == "d" {
			m.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "broken"}
		}
		f.Members = append(f.Members, m)
	}
	return f
}

func namesOf(list []readapi.Transfer) []string {
	names := []string{}
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

func TestTransfersAreSortedAndFiltered(t *testing.T) {
	for name, tt := range map[string]struct {
		query                   answers.TransferQuery
		wantRunning, wantQueued []string
		wantUnlisted            int
		wantUnknown             []string
	}{
		"all, by when they are expected": {answers.TransferQuery{}, []string{"fast", "slow", "lost"}, []string{"first", "other"}, 3, []string{"b", "c"}},
		"by rate":                        {answers.TransferQuery{Sort: readapi.TransfersByRate}, []string{"fast", "slow", "lost"}, []string{"first", "other"}, 3, []string{"b", "c"}},
		"by time":                        {answers.TransferQuery{Sort: readapi.TransfersByOldest}, []string{"fast", "slow", "lost"}, []string{"other", "first"}, 3, []string{"b", "c"}},
		"by image":                       {answers.TransferQuery{Sort: readapi.TransfersByImage}, []string{"fast", "lost", "slow"}, []string{"first", "other"}, 3, []string{"b", "c"}},
		"by cluster":                     {answers.TransferQuery{Sort: readapi.TransfersByCluster}, []string{"fast", "slow", "lost"}, []string{"first", "other"}, 3, []string{"b", "c"}},
		"of one cluster":                 {answers.TransferQuery{Cluster: "b"}, []string{"lost"}, []string{}, 0, []string{"b"}},
		"of one in quarantine":           {answers.TransferQuery{Cluster: "d"}, []string{}, []string{}, 0, nil},
		"of one source":                  {answers.TransferQuery{Source: "bucket"}, []string{"fast", "slow", "lost"}, []string{"first"}, 3, []string{"b", "c"}},
		"of no group":                    {answers.TransferQuery{Source: v1alpha1.SourceOther}, []string{}, []string{"other"}, 3, []string{"b", "c"}},
		"searched for":                   {answers.TransferQuery{Search: "FARM/F"}, []string{"fast"}, []string{"first"}, 3, []string{"b", "c"}},
		"only what runs":                 {answers.TransferQuery{State: readapi.TransferRunning}, []string{"fast", "slow", "lost"}, []string{}, 0, []string{"b", "c"}},
		"only what waits":                {answers.TransferQuery{State: readapi.TransferQueued}, []string{}, []string{"first", "other"}, 3, []string{"b", "c"}},
		"the second of each":             {answers.TransferQuery{Offset: 1, Limit: 1}, []string{"slow"}, []string{"other"}, 3, []string{"b", "c"}},
		"beyond the end":                 {answers.TransferQuery{Offset: 9, Limit: 1}, []string{}, []string{}, 3, []string{"b", "c"}},
		"the first of each":              {answers.TransferQuery{Limit: 1}, []string{"fast"}, []string{"first"}, 3, []string{"b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.query.Limit == 0 {
				tt.query.Limit = 100
			}
			got := answers.ListTransfers(movingFleet(), tt.query)
			assert.Equal(t, tt.wantRunning, namesOf(got.Running))
			assert.Equal(t, tt.wantQueued, namesOf(got.Queued))
			assert.Equal(t, tt.wantUnlisted, got.Unlisted)
			var unknown []string
			for _, u := range got.UnknownMembers {
				unknown = append(unknown, u.Member)
			}
			assert.Equal(t, tt.wantUnknown, unknown)
			assert.Equal(t, len(unknown), got.UnknownMembersTotal)
		})
	}
	got := answers.ListTransfers(movingFleet(), answers.TransferQuery{Limit: 1})
	assert.Equal(t, 3, got.RunningTotal)
	assert.Equal(t, 2, got.QueuedTotal)
}

func TestTransferSaysWhatIsKnown(t *testing.T) {
	got := answers.ListTransfers(movingFleet(), answers.TransferQuery{Sort: readapi.TransfersByImage, Limit: 100})
	fast, lost, slow := got.Running[0], got.Running[1], got.Running[2]
	assert.False(t, fast.Slow)
	assert.True(t, slow.Slow)
	assert.Equal(t, int64(500), *fast.BytesDone)
	require.NotNil(t, fast.Expected.At, fast.Expected.Message)
	assert.WithinDuration(t, now.Add(5*time.Second), fast.Expected.At.Time, time.Second)
	assert.Equal(t, now.Add(-time.Hour), fast.StartedAt.Time, "by the hub's clock")
	assert.Nil(t, fast.References, "unknown is not zero")

	assert.Equal(t, v1alpha1.ReasonSilent, lost.Unknown)
	assert.Nil(t, lost.Expected.At, "what a silent member does is unknown")

	first, other := got.Queued[0], got.Queued[1]
	assert.Equal(t, int32(2), *first.References)
	assert.Equal(t, 1, first.Position)
	assert.Equal(t, v1alpha1.ReasonWaitingForSlot, first.Reason)
	assert.Equal(t, now.Add(-time.Minute), first.QueuedAt.Time)
	assert.True(t, other.AtMost)
	assert.Equal(t, int64(9000), *other.Bytes)
	assert.Nil(t, other.BytesPerSecond)
	assert.NotEmpty(t, other.Expected.Reason)
}

// A large fleet may have many silent members: their names are bounded, and all are counted.
func TestUnknownMembersOfTransfersAreBounded(t *testing.T) {
	f := movingFleet()
	for range 100 {
		f.Members = append(f.Members, f.Members[2])
	}
	got := answers.ListTransfers(f, answers.TransferQuery{Limit: 1})
	assert.Len(t, got.UnknownMembers, readapi.MaxTransferUnknownMembers)
	assert.Equal(t, 102, got.UnknownMembersTotal)
}
