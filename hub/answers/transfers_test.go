package answers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// fleetOf has one member with an activity, whose clock is an hour behind the hub's.
func fleetOf(a *v1alpha1.ReportedActivity) *answers.Fleet {
	m := v1alpha1.MemberCluster{}
	m.Name = "a"
	root := &v1alpha1.ReportRoot{ObservedAt: metav1.NewTime(now.Add(-time.Hour))}
	return &answers.Fleet{
		Members: []v1alpha1.MemberCluster{m}, Activities: map[string]inventory.Activity{"a": {Reported: a}},
		Clocks: map[string]answers.Clock{"a": answers.NewClock(root, &now, now)},
	}
}

func TestUnknownRatesAreNotZero(t *testing.T) {
	for name, tt := range map[string]struct {
		activity v1alpha1.ReportedActivity
		want     *int64
		atLeast  bool
	}{
		"nothing is imported":    {v1alpha1.ReportedActivity{}, new(int64), false},
		"one has just begun":     {v1alpha1.ReportedActivity{Slots: 1, Active: []v1alpha1.ActiveImport{{Name: "a"}}}, nil, false},
		"one that is not listed": {v1alpha1.ReportedActivity{Slots: 1}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := answers.Summarize(fleetOf(&tt.activity)).Transfers
			assert.Equal(t, tt.want, s.Fleet.BytesPerSecond)
			require.Len(t, s.Sources, 1)
			assert.Equal(t, tt.want, s.Sources[0].BytesPerSecond)
			assert.Equal(t, tt.atLeast, s.Sources[0].UsedAtLeast)
		})
	}
}

// The times of a member are by its own clock, and may be anything.
func TestTimesOfMembersAreConverted(t *testing.T) {
	for name, tt := range map[string]struct {
		queued time.Time
		want   *metav1.Time
	}{
		"ten minutes ago":  {now.Add(-70 * time.Minute), &metav1.Time{Time: now.Add(-10 * time.Minute)}},
		"never":            {time.Time{}, nil},
		"in 1970":          {time.Unix(0, 0), nil},
		"in the year 9999": {time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &v1alpha1.ReportedActivity{
				ObservedAt: metav1.NewTime(now.Add(-time.Hour)), Budget: 1, Slots: 1, Queued: 1,
				Active: []v1alpha1.ActiveImport{{Namespace: "farm", Name: "runs", Source: "bucket", BytesTotal: 1000, BytesPerSecond: 10}},
				Head:   []v1alpha1.QueuedImport{{Namespace: "farm", Name: "waits", Source: "bucket", Bytes: 1000, QueuedAt: metav1.NewTime(tt.queued)}},
				Rates:  []v1alpha1.SourceRate{{Name: "bucket", P20: 10, P50: 10, P80: 10, Samples: 9}},
			}
			f := fleetOf(a)
			assert.Equal(t, tt.want, answers.Summarize(f).Transfers.OldestQueuedAt)

			inForce, _, _ := policy.ParsePolicy(map[string]string{"concurrency": "1", "fleetConcurrency": "4", "fleetSources": `[{name: bucket, hosts: [b.example.com], concurrency: 2}]`})
			then, _, _ := policy.ParsePolicy(map[string]string{"concurrency": "2"})
			in := answers.CompareBlast{InForce: answers.PolicyInForce{Policy: inForce}, Then: then, Members: f.Members, Activities: f.Activities, Clocks: f.Clocks, Limit: 1}
			row := answers.BlastRadius(&in).Rows[0]
			assert.Equal(t, tt.want, row.OldestQueuedAt)
			if tt.want == nil {
				return
			}
			require.NotNil(t, row.WaitNow.At, "its clock is behind, its report is not old: %s", row.WaitNow.Message)
			assert.WithinDuration(t, now.Add(200*time.Second), row.WaitNow.At.Time, 10*time.Second)
			in.Grants = map[string]*v1alpha1.TransferGrant{"a": {Spec: v1alpha1.TransferGrantSpec{Limits: &v1alpha1.TransferLimits{}}}}
			row = answers.BlastRadius(&in).Rows[0]
			assert.Nil(t, row.WaitNow.At, "nothing is granted")
			a.ObservedAt = metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
			assert.Nil(t, answers.BlastRadius(&in).Rows[0].WaitNow.At)
		})
	}
}
