package prune_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // as the hub has it

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// timetable is a schedule, its reports, and the clock of the hub.
type timetable struct {
	t        require.TestingT
	now      time.Time
	report   *v1alpha1.PruneReport
	children []v1alpha1.PruneReport
	inUse    map[string]bool
	last     prune.ScheduleDecision
	// lose the next status instead of writing it.
	lose bool
}

func newTimetable(t require.TestingT, spec string, from time.Time) *timetable {
	r := newReport(func(r *v1alpha1.PruneReport) {
		r.Name, r.Generation, r.CreationTimestamp = "weekly", 1, *toStoredTime(from)
		r.Spec.Schedule = spec
		r.Status.ObservedGeneration = -1 // the default of the API server
	})
	return &timetable{t: t, now: from, report: r, inUse: map[string]bool{}}
}

// runHub decides and applies; it returns the name of a created report.
func (x *timetable) runHub() string {
	before := x.report.DeepCopy()
	v := prune.ScheduleView{Now: x.now, Report: x.report, Children: x.children, InUse: x.inUse}
	d := prune.DecideSchedule(v)
	require.Equal(x.t, before, x.report, "the decision does not change its view")
	require.Equal(x.t, toJSON(x.t, d), toJSON(x.t, prune.DecideSchedule(v)), "the same view gives the same decision")
	requireConditions(x.t, d.Status.Conditions, x.report.Generation, reportConditions, trueConditions(d.Status.Conditions))
	require.Equal(x.t, v1alpha1.PruneReportScheduled, d.Status.Phase)
	require.LessOrEqual(x.t, d.RequeueAfter, time.Hour)
	x.last = d
	made := ""
	if d.Create != nil {
		made = d.Create.Name
		for _, c := range x.children {
			require.NotEqual(x.t, c.Name, made, "the report exists already")
		}
		child := *d.Create
		child.CreationTimestamp = *toStoredTime(x.now)
		x.children = append(x.children, child)
	}
	for _, name := range d.Delete {
		for i := range x.children {
			if x.children[i].Name == name {
				x.children = append(x.children[:i], x.children[i+1:]...)
				break
			}
		}
	}
	if !x.lose {
		x.report.Status = roundTrip(x.t, d.Status)
	}
	return made
}

func (x *timetable) runHubAt(t time.Time) string {
	x.now = t
	return x.runHub()
}

// finishReport completes all reports.
func (x *timetable) finishReport() {
	for i := range x.children {
		x.children[i].Status.Phase = v1alpha1.PruneReportComplete
	}
}

func (x *timetable) changeSpec(do func(*v1alpha1.PruneReportSpec)) {
	do(&x.report.Spec)
	x.report.Generation++
}

func childName(t time.Time) string { return fmt.Sprintf("weekly-%d", t.Unix()/60) }

func TestScheduledReportIsCreatedOnce(t *testing.T) {
	x := newTimetable(t, "0 * * * *", now.Add(-time.Minute))
	x.report.Spec.UnreferencedFor, x.report.Spec.Placement = newDuration(time.Hour), &v1alpha1.Placement{ClusterNames: []string{"a"}}
	x.report.Spec.TimeZone, x.report.Spec.HistoryLimit, x.report.Spec.Suspend = "Europe/Berlin", ptr.To[int32](2), ptr.To(false)
	require.Empty(t, x.runHub())
	require.Equal(t, time.Minute, x.last.RequeueAfter)
	require.Equal(t, now, x.last.Status.NextScheduleTime.UTC())
	require.Contains(t, x.last.Status.Message, "2026-03-01T13:00:00+01:00")
	requireConditions(t, x.last.Status.Conditions, 1, reportConditions, []string{v1alpha1.ConditionReady})
	require.Equal(t, childName(now), x.runHubAt(now.Add(3*time.Second)))
	child := x.children[0]
	require.Equal(t, v1alpha1.PruneReportSpec{UnreferencedFor: x.report.Spec.UnreferencedFor, Placement: x.report.Spec.Placement}, child.Spec)
	require.True(t, metav1.IsControlledBy(&child, x.report))
	require.Equal(t, childName(now), x.last.Status.LastReport)
	require.Equal(t, now, x.last.Status.LastScheduleTime.UTC())
	require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
	x.finishReport()
	require.Empty(t, x.runHub())
	require.Empty(t, x.runHubAt(now.Add(59*time.Minute)))
	require.Equal(t, childName(now.Add(time.Hour)), x.runHubAt(now.Add(time.Hour)))
}

func TestExistingReportIsNotCreatedAgain(t *testing.T) {
	x := newTimetable(t, "0 * * * *", now.Add(-time.Minute))
	x.runHub()
	x.lose = true // the hub dies between the two writes
	require.Equal(t, childName(now), x.runHubAt(now))
	x.lose = false
	require.Empty(t, x.runHubAt(now.Add(time.Second)), "also while the report is collecting")
	require.Equal(t, childName(now), x.report.Status.LastReport)
	require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
}

func TestLatestMissedTimeCounts(t *testing.T) {
	for spec, last := range map[string]time.Time{
		"0 * * * *":   now.Add(240 * time.Hour),
		"*/5 * * * *": now.Add(240*time.Hour + 5*time.Minute),
		"* * * * *":   now.Add(240*time.Hour + 7*time.Minute),
		"0 6 * * 1":   time.Date(2026, 3, 9, 6, 0, 0, 0, time.UTC),
		"@daily":      time.Date(2026, 3, 11, 0, 0, 0, 0, time.UTC),
	} {
		x := newTimetable(t, spec, now.Add(-time.Second))
		x.runHub()
		require.Equal(t, childName(last), x.runHubAt(now.Add(240*time.Hour+7*time.Minute+30*time.Second)), spec)
		x.finishReport()
		require.Empty(t, x.runHub(), spec)
		require.Len(t, x.children, 1)
	}
	x := newTimetable(t, "0 * * * *", now.Add(-time.Hour-time.Second))
	require.Equal(t, childName(now), x.runHubAt(now.Add(time.Minute)), "also when the hub was down at the creation")
	x = newTimetable(t, "0 0 1 1 *", time.Date(1990, 1, 1, 0, 0, 1, 0, time.UTC))
	require.Equal(t, childName(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), x.runHubAt(now))
}

func TestNoReportWhileFormerIsUnfinished(t *testing.T) {
	x := newTimetable(t, "0 * * * *", now.Add(-time.Second))
	x.runHub()
	require.NotEmpty(t, x.runHubAt(now))
	x.children[0].Status.Phase = v1alpha1.PruneReportCollecting
	require.Empty(t, x.runHubAt(now.Add(time.Hour)))
	require.Contains(t, x.last.Status.Message, childName(now))
	require.Zero(t, x.last.RequeueAfter)
	require.Empty(t, x.runHubAt(now.Add(3*time.Hour+time.Minute)))
	x.finishReport()
	require.Equal(t, childName(now.Add(3*time.Hour)), x.runHubAt(now.Add(3*time.Hour+2*time.Minute)))

	x.children[0].DeletionTimestamp, x.children[0].Status.Phase = toStoredTime(now), v1alpha1.PruneReportCollecting
	x.children = x.children[:1]
	require.NotEmpty(t, x.runHubAt(now.Add(4*time.Hour)), "a report that is being deleted does not block")
}

func TestDaylightSavingTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	// On 29 March there is no 02:30, and on 25 October there are two: one report each.
	x := newTimetable(t, "30 2 * * *", time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
	x.report.Spec.TimeZone = "Europe/Berlin"
	x.runHub()
	require.Equal(t, time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
	require.Equal(t, childName(time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)), x.runHubAt(time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)))
	x.finishReport()
	require.Empty(t, x.runHub())
	require.Equal(t, time.Date(2026, 3, 30, 2, 30, 0, 0, berlin).Unix(), x.last.Status.NextScheduleTime.Unix())

	x = newTimetable(t, "30 2 * * *", time.Date(2026, 10, 24, 12, 0, 0, 0, berlin))
	x.report.Spec.TimeZone = "Europe/Berlin"
	x.runHub()
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC)
	require.Equal(t, childName(first), x.runHubAt(first))
	x.finishReport()
	require.Empty(t, x.runHubAt(first.Add(time.Hour)))
	require.Equal(t, first.Add(25*time.Hour), x.last.Status.NextScheduleTime.UTC())

	x = newTimetable(t, "0 * * * *", first.Add(-time.Hour))
	x.report.Spec.TimeZone = "Europe/Berlin"
	for hour := range 3 {
		at := first.Add(time.Duration(hour)*time.Hour - 30*time.Minute)
		require.Equal(t, childName(at), x.runHubAt(at), "each hour has a report, also one that comes twice")
		x.finishReport()
	}

	x = newTimetable(t, "0 6 * * 1", time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
	x.report.Spec.TimeZone = "Europe/Berlin"
	x.runHub()
	require.Equal(t, time.Date(2026, 3, 30, 4, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
}

func TestClockChanges(t *testing.T) {
	x := newTimetable(t, "0 * * * *", now.Add(-time.Second))
	x.runHub()
	require.Equal(t, childName(now), x.runHubAt(now))
	x.finishReport()
	require.Empty(t, x.runHubAt(now.Add(-30*time.Minute)), "set back by half an hour")
	require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
	x.children = nil
	require.Empty(t, x.runHubAt(now.Add(time.Minute)), "a past time is over, also after its report was deleted")
	require.Equal(t, childName(now.Add(time.Hour)), x.runHubAt(now.Add(time.Hour)))

	x.finishReport()
	require.NotEmpty(t, x.runHubAt(now.AddDate(4, 0, 0)), "a last time years ahead is ignored")
	x.finishReport()
	require.Empty(t, x.runHubAt(now.Add(90*time.Minute)))
	require.Equal(t, now.Add(2*time.Hour), x.last.Status.NextScheduleTime.UTC())
	require.Equal(t, childName(now.Add(2*time.Hour)), x.runHubAt(now.Add(2*time.Hour)))
}

func TestSuspendStopsSchedule(t *testing.T) {
	x := newTimetable(t, "0 * * * *", now.Add(-time.Second))
	x.runHub()
	x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.Suspend = ptr.To(true) })
	require.Empty(t, x.runHubAt(now.Add(time.Minute)))
	require.Equal(t, v1alpha1.ReasonSuspended, x.last.Status.Reason)
	require.Nil(t, x.last.Status.NextScheduleTime)
	require.Zero(t, x.last.RequeueAfter)
	x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.Suspend = nil })
	require.Empty(t, x.runHubAt(now.Add(5*time.Hour+time.Minute)), "suspended times are skipped")
	require.Equal(t, childName(now.Add(6*time.Hour)), x.runHubAt(now.Add(6*time.Hour)))

	x = newTimetable(t, "0 * * * *", now.Add(-time.Second))
	x.report.DeletionTimestamp = toStoredTime(now)
	require.Empty(t, x.runHubAt(now.Add(time.Minute)), "the schedule is being deleted")
}

func TestInvalidSchedule(t *testing.T) {
	tests := map[string]struct {
		change func(*v1alpha1.PruneReport)
		want   string
	}{
		"no Cron format":          {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "every monday" }, "Cron format"},
		"six fields":              {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "0 0 6 * * 1" }, "Cron format"},
		"a zone in the schedule":  {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "TZ=UTC 0 6 * * 1" }, "spec.timeZone"},
		"a zone in another form":  {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "CRON_TZ=Europe/Berlin 0 6 * * 1" }, "spec.timeZone"},
		"a zone and nothing else": {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "TZ=UTC" }, "spec.timeZone"},
		"@every":                  {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "@every 1s" }, "@every"},
		"an unknown zone":         {func(r *v1alpha1.PruneReport) { r.Spec.TimeZone = "Europe/Atlantis" }, "Europe/Atlantis"},
		"the zone of the hub":     {func(r *v1alpha1.PruneReport) { r.Spec.TimeZone = "Local" }, "time zone"},
		"no matching date":        {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "0 0 30 2 *" }, "matches no date"},
		"a name that is too long": {func(r *v1alpha1.PruneReport) { r.Name = strings.Repeat("n", 172) }, "at most 171 characters"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x := newTimetable(t, "0 * * * *", now.Add(-time.Hour))
			test.change(x.report)
			require.Empty(t, x.runHubAt(now))
			require.Equal(t, v1alpha1.ReasonScheduleInvalid, x.last.Status.Reason)
			require.Contains(t, x.last.Status.Message, test.want)
			require.Zero(t, x.last.RequeueAfter)
			requireConditions(t, x.last.Status.Conditions, 1, reportConditions, []string{v1alpha1.ConditionStalled})
			x.report.Name = "weekly"
			x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.Schedule, s.TimeZone = "0 * * * *", "" })
			require.Empty(t, x.runHubAt(now.Add(time.Minute)))
			require.Equal(t, v1alpha1.ReasonScheduled, x.last.Status.Reason)
			require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
		})
	}
	x := newTimetable(t, "0 * * * *", now)
	x.report.Name = strings.Repeat("n", 171)
	require.Len(t, x.runHubAt(now.Add(time.Hour)), 180)
}

func TestChangedSchedule(t *testing.T) {
	x := newTimetable(t, "0 6 * * 1", now)
	x.runHub()
	x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.Schedule = "0 7 * * *" })
	require.Empty(t, x.runHubAt(now.Add(72*time.Hour)), "no time before the change")
	require.Equal(t, time.Date(2026, 3, 5, 7, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
	x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.Schedule = "0 13 * * *" })
	require.Empty(t, x.runHub())
	require.Equal(t, time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
	x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.HistoryLimit = ptr.To[int32](9) })
	require.Equal(t, childName(time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC)), x.runHubAt(time.Date(2026, 3, 4, 13, 0, 1, 0, time.UTC)), "another change skips no time")
}

func TestHistoryLimit(t *testing.T) {
	x := newTimetable(t, "0 * * * *", now.Add(-time.Second))
	x.runHub()
	for i := range 6 {
		require.NotEmpty(t, x.runHubAt(now.Add(time.Duration(i)*time.Hour)))
		x.finishReport()
		x.children[len(x.children)-1].Status.Phase = []v1alpha1.PruneReportPhase{v1alpha1.PruneReportComplete, v1alpha1.PruneReportFailed}[i%2]
		x.inUse[childName(now)] = true
		x.runHub()
	}
	var left []string
	for _, c := range x.children {
		left = append(left, c.Name)
	}
	require.Equal(t, []string{childName(now), childName(now.Add(3 * time.Hour)), childName(now.Add(4 * time.Hour)), childName(now.Add(5 * time.Hour))}, left)

	x.children[3].Status.Phase = v1alpha1.PruneReportCollecting
	x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.HistoryLimit, s.Suspend = ptr.To[int32](1), ptr.To(true) })
	x.inUse = nil
	x.runHub()
	require.Equal(t, []string{childName(now.Add(3 * time.Hour)), childName(now)}, x.last.Delete, "an unfinished report does not count")
}

// Whatever the clock does and whenever the hub crashes: no time has two reports, none is
// created beside an unfinished one, early, for a suspended time, or for more than one missed
// time at once.
func TestPropertySchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := rapid.SampledFrom([]string{"*/7 * * * *", "0 * * * *", "30 2 * * *", "0 6 * * 1", "15 1-3 * * 0,6"}).Draw(t, "schedule")
		x := newTimetable(t, spec, now.Add(time.Duration(rapid.IntRange(0, 60*24*300).Draw(t, "start"))*time.Minute))
		x.report.Spec.TimeZone = rapid.SampledFrom([]string{"", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe"}).Draw(t, "zone")
		at := map[string]bool{}
		latest := x.now
		for range rapid.IntRange(5, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				x.now = x.now.Add(-time.Duration(rapid.IntRange(1, 180).Draw(t, "back")) * time.Minute)
				if latest.Sub(x.now) > 20*time.Hour {
					x.now = latest
				}
			case 1:
				x.changeSpec(func(s *v1alpha1.PruneReportSpec) { s.Suspend = ptr.To(rapid.Bool().Draw(t, "suspend")) })
			case 2, 3, 4:
				x.finishReport()
			default:
				x.now = x.now.Add(time.Duration(rapid.SampledFrom([]int{1, 7, 60, 600, 5000}).Draw(t, "minutes")) * time.Minute)
			}
			if x.now.After(latest) {
				latest = x.now
			}
			x.lose = rapid.IntRange(0, 4).Draw(t, "lost") == 0
			busy := false
			for _, c := range x.children {
				busy = busy || c.Status.Phase == ""
			}
			made := x.runHub()
			if made == "" {
				continue
			}
			require.False(t, at[made], "no time has two reports")
			at[made] = true
			require.False(t, busy, "none beside an unfinished one")
			require.False(t, x.report.Spec.Suspend != nil && *x.report.Spec.Suspend)
			var minutes int64
			_, err := fmt.Sscanf(made, "weekly-%d", &minutes)
			require.NoError(t, err)
			require.False(t, time.Unix(minutes*60, 0).After(x.now), "none early")
			x.lose = false
			require.Empty(t, x.runHub(), "only one missed time")
		}
	})
}
