//go:build linux

package prune_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A schedule makes a report when it is time, once; those before go, but for as many as
// are to stay and those that a prune goes by.
func TestScheduledReports(t *testing.T) {
	testenv.RunInTurn(t, 3)
	t.Parallel()
	in := shared.Members[bergen]
	in.createLeftoverImages(t, "schedule-a")
	now := time.Now().UTC()
	r := newPruneReport("schedule", "schedule-", bergen)
	daily := func(at time.Time) string { return fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()) }
	times := []time.Time{now.Add(-50 * time.Minute), now.Add(-40 * time.Minute), now.Add(-30 * time.Minute)}
	r.Spec.Schedule, r.Spec.HistoryLimit, r.Spec.Suspend = daily(times[0]), ptr.To[int32](1), ptr.To(true)
	shared.CreateForTest(t, r)
	shared.awaitReport(t, r, "suspended", func(r *v1alpha1.PruneReport) bool {
		return r.Status.Phase == v1alpha1.PruneReportScheduled && r.Status.Reason == v1alpha1.ReasonSuspended
	})
	assert.Empty(t, shared.listPages(t, r))
	var made []string
	for n, at := range times {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := shared.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
				return err
			}
			r.Spec.Schedule, r.Spec.Suspend = daily(at), nil
			return shared.Update(t.Context(), r)
		}))
		// The time has come, though it is the hub that says so: nobody waits for it here.
		// It looks again where the phase is another.
		var err error
		require.True(t, testenv.AwaitCondition(t, func() bool {
			r = r.DeepCopy()
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(r), r))
			if r.Status.ObservedGeneration != r.Generation || r.Status.NextScheduleTime == nil {
				return false
			}
			require.True(t, r.Status.NextScheduleTime.After(now), "no report is made for a time before the schedule was what it is")
			r.Status.NextScheduleTime, r.Status.Phase = ptr.To(metav1.NewTime(at.Truncate(time.Minute))), v1alpha1.PruneReportFailed
			err = shared.Status().Update(t.Context(), r)
			return err == nil
		}), "%+v: %v", &r.Status, &err)
		name := fmt.Sprintf("schedule-%d", at.Unix()/60)
		child := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
		child = shared.awaitReportComplete(t, child)
		made = append(made, name)
		require.Len(t, child.OwnerReferences, 1)
		assert.Equal(t, r.UID, child.OwnerReferences[0].UID)
		assert.Empty(t, child.Spec.Schedule)
		want := v1alpha1.PruneTotal{} // it is in the undo window of the first one's prune
		if n == 0 {
			want = v1alpha1.PruneTotal{Count: 1, Bytes: gibibyte}
		}
		assert.Equal(t, want, child.Status.Candidates)
		shared.awaitReport(t, r, "the PruneReport names its child", func(r *v1alpha1.PruneReport) bool {
			return r.Status.LastReport == name && r.Status.LastScheduleTime.Unix()/60 == at.Unix()/60 &&
				r.Status.NextScheduleTime != nil && r.Status.NextScheduleTime.After(time.Now())
		})
		if n == 0 { // it is kept for the prune
			shared.createPendingPrune(t, "schedule", child, time.Hour)
		}
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(shared.listPages(t, r)) == 2 }), "%v", shared.listPages(t, r))
	assert.ElementsMatch(t, []string{made[0], made[2]}, shared.listPages(t, r))
	p := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "schedule"}}
	shared.undoPrune(t, p)
	shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 1, Undone: 1})
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(shared.listPages(t, r)) == 1 }), "%v", shared.listPages(t, r))
	assert.Equal(t, made[2:], shared.listPages(t, r))

	broken := newPruneReport("schedule-broken", "schedule-", bergen)
	broken.Spec.Schedule = "TZ=Europe/Berlin 0 6 * * 1"
	shared.CreateForTest(t, broken)
	shared.awaitReport(t, broken, "refused", func(r *v1alpha1.PruneReport) bool {
		return r.Status.Phase == v1alpha1.PruneReportScheduled && r.Status.Reason == v1alpha1.ReasonScheduleInvalid
	})
}

// listPages are the reports that a schedule has made and that are there.
func (f *testFleet) listPages(t *testing.T, r *v1alpha1.PruneReport) (names []string) {
	t.Helper()
	var list v1alpha1.PruneReportList
	require.NoError(t, f.List(t.Context(), &list))
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], r) && list.Items[i].DeletionTimestamp == nil {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}
