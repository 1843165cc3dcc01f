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

// timetable is a PruneReport with a schedule, the reports that it has made, and the
// clock of its hub.
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

func schedule(t require.TestingT, spec string, from time.Time) *timetable {
	r := oneReport(func(r *v1alpha1.PruneReport) {
		r.Name, r.Generation, r.CreationTimestamp = "weekly", 1, *stamp(from)
		r.Spec.Schedule = spec
	})
	return &timetable{t: t, now: from, report: r, inUse: map[string]bool{}}
}

// look decides and does what is decided; it returns the report that was made.
func (x *timetable) look() string {
	before := x.report.DeepCopy()
	v := prune.ScheduleView{Now: x.now, Report: x.report, Children: x.children, InUse: x.inUse}
	d := prune.Schedule(v)
	require.Equal(x.t, before, x.report, "a decision changes nothing it is given")
	require.Equal(x.t, text(x.t, d), text(x.t, prune.Schedule(v)), "the same view gives the same decision")
	wantConditions(x.t, d.Status.Conditions, x.report.Generation, reportConditions, holding(d.Status.Conditions))
	require.Equal(x.t, v1alpha1.PruneReportScheduled, d.Status.Phase)
	require.LessOrEqual(x.t, d.After, time.Hour)
	x.last = d
	made := ""
	if d.Create != nil {
		made = d.Create.Name
		for _, c := range x.children {
			require.NotEqual(x.t, c.Name, made, "it is there already")
		}
		child := *d.Create
		child.CreationTimestamp = *stamp(x.now)
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
		x.report.Status = stored(x.t, d.Status)
	}
	return made
}

func (x *timetable) at(t time.Time) string {
	x.now = t
	return x.look()
}

// finish has all reports be complete.
func (x *timetable) finish() {
	for i := range x.children {
		x.children[i].Status.Phase = v1alpha1.PruneReportComplete
	}
}

func (x *timetable) change(do func(*v1alpha1.PruneReportSpec)) {
	do(&x.report.Spec)
	x.report.Generation++
}

func name(t time.Time) string { return fmt.Sprintf("weekly-%d", t.Unix()/60) }

func TestAReportIsMadeAtItsTimeAndOnce(t *testing.T) {
	x := schedule(t, "0 * * * *", now.Add(-time.Minute))
	x.report.Spec.UnreferencedFor, x.report.Spec.Placement = lasting(time.Hour), &v1alpha1.Placement{ClusterNames: []string{"a"}}
	x.report.Spec.TimeZone, x.report.Spec.HistoryLimit, x.report.Spec.Suspend = "Europe/Berlin", ptr.To[int32](2), ptr.To(false)
	require.Empty(t, x.look())
	require.Equal(t, time.Minute, x.last.After)
	require.Equal(t, now, x.last.Status.NextScheduleTime.UTC())
	require.Contains(t, x.last.Status.Message, "2026-03-01T13:00:00+01:00")
	wantConditions(t, x.last.Status.Conditions, 1, reportConditions, []string{v1alpha1.ConditionReady})
	require.Equal(t, name(now), x.at(now.Add(3*time.Second)))
	child := x.children[0]
	require.Equal(t, v1alpha1.PruneReportSpec{UnreferencedFor: x.report.Spec.UnreferencedFor, Placement: x.report.Spec.Placement}, child.Spec)
	require.True(t, metav1.IsControlledBy(&child, x.report))
	require.Equal(t, name(now), x.last.Status.LastReport)
	require.Equal(t, now, x.last.Status.LastScheduleTime.UTC())
	require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
	x.finish()
	require.Empty(t, x.look())
	require.Empty(t, x.at(now.Add(59*time.Minute)))
	require.Equal(t, name(now.Add(time.Hour)), x.at(now.Add(time.Hour)))
}

func TestAReportThatIsThereAlreadyIsNotMadeAgain(t *testing.T) {
	x := schedule(t, "0 * * * *", now.Add(-time.Minute))
	x.look()
	x.lose = true // the hub dies between the two writes
	require.Equal(t, name(now), x.at(now))
	x.lose = false
	require.Empty(t, x.at(now.Add(time.Second)), "also while it is being made")
	require.Equal(t, name(now), x.report.Status.LastReport)
	require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
}

func TestOfTimesThatWereMissedTheLastCounts(t *testing.T) {
	for spec, last := range map[string]time.Time{
		"0 * * * *":   now.Add(240 * time.Hour),
		"*/5 * * * *": now.Add(240*time.Hour + 5*time.Minute),
		"* * * * *":   now.Add(240*time.Hour + 7*time.Minute),
		"0 6 * * 1":   time.Date(2026, 3, 9, 6, 0, 0, 0, time.UTC),
		"@daily":      time.Date(2026, 3, 11, 0, 0, 0, 0, time.UTC),
	} {
		x := schedule(t, spec, now.Add(-time.Second))
		x.look()
		require.Equal(t, name(last), x.at(now.Add(240*time.Hour+7*time.Minute+30*time.Second)), spec)
		x.finish()
		require.Empty(t, x.look(), spec)
		require.Len(t, x.children, 1)
	}
	x := schedule(t, "0 * * * *", now.Add(-time.Hour-time.Second))
	require.Equal(t, name(now), x.at(now.Add(time.Minute)), "a hub that was away when it was created makes up for it as well")
	x = schedule(t, "0 0 1 1 *", time.Date(1990, 1, 1, 0, 0, 1, 0, time.UTC))
	require.Equal(t, name(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), x.at(now))
}

func TestNoneIsMadeWhileTheFormerIs(t *testing.T) {
	x := schedule(t, "0 * * * *", now.Add(-time.Second))
	x.look()
	require.NotEmpty(t, x.at(now))
	x.children[0].Status.Phase = v1alpha1.PruneReportCollecting
	require.Empty(t, x.at(now.Add(time.Hour)))
	require.Contains(t, x.last.Status.Message, name(now))
	require.Zero(t, x.last.After)
	require.Empty(t, x.at(now.Add(3*time.Hour+time.Minute)))
	x.finish()
	require.Equal(t, name(now.Add(3*time.Hour)), x.at(now.Add(3*time.Hour+2*time.Minute)))

	x.children[0].DeletionTimestamp, x.children[0].Status.Phase = stamp(now), v1alpha1.PruneReportCollecting
	x.children = x.children[:1]
	require.NotEmpty(t, x.at(now.Add(4*time.Hour)), "one that is being deleted is not waited for")
}

func TestSummerTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	// On 29 March there is no 02:30, and on 25 October there are two.
	x := schedule(t, "30 2 * * *", time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
	x.report.Spec.TimeZone = "Europe/Berlin"
	x.look()
	require.Equal(t, time.Date(2026, 3, 30, 2, 30, 0, 0, berlin).Unix(), x.last.Status.NextScheduleTime.Unix())

	x = schedule(t, "30 2 * * *", time.Date(2026, 10, 24, 12, 0, 0, 0, berlin))
	x.report.Spec.TimeZone = "Europe/Berlin"
	x.look()
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC)
	require.Equal(t, name(first), x.at(first))
	x.finish()
	require.Equal(t, name(first.Add(time.Hour)), x.at(first.Add(time.Hour)))
	x.finish()
	require.Empty(t, x.look())
	require.Equal(t, first.Add(25*time.Hour), x.last.Status.NextScheduleTime.UTC())

	x = schedule(t, "0 6 * * 1", time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
	x.report.Spec.TimeZone = "Europe/Berlin"
	x.look()
	require.Equal(t, time.Date(2026, 3, 30, 4, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
}

func TestAClockThatIsSet(t *testing.T) {
	x := schedule(t, "0 * * * *", now.Add(-time.Second))
	x.look()
	require.Equal(t, name(now), x.at(now))
	x.finish()
	require.Empty(t, x.at(now.Add(-30*time.Minute)), "set back by half an hour")
	require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
	x.children = nil
	require.Empty(t, x.at(now.Add(time.Minute)), "a time that came is over, also where its report was deleted")
	require.Equal(t, name(now.Add(time.Hour)), x.at(now.Add(time.Hour)))

	x.finish()
	require.NotEmpty(t, x.at(now.AddDate(4, 0, 0)), "it was years ahead")
	x.finish()
	require.Empty(t, x.at(now.Add(90*time.Minute)))
	require.Equal(t, now.Add(2*time.Hour), x.last.Status.NextScheduleTime.UTC())
	require.Equal(t, name(now.Add(2*time.Hour)), x.at(now.Add(2*time.Hour)))
}

func TestSuspend(t *testing.T) {
	x := schedule(t, "0 * * * *", now.Add(-time.Second))
	x.look()
	x.change(func(s *v1alpha1.PruneReportSpec) { s.Suspend = ptr.To(true) })
	require.Empty(t, x.at(now.Add(time.Minute)))
	require.Equal(t, v1alpha1.ReasonSuspended, x.last.Status.Reason)
	require.Nil(t, x.last.Status.NextScheduleTime)
	require.Zero(t, x.last.After)
	x.change(func(s *v1alpha1.PruneReportSpec) { s.Suspend = nil })
	require.Empty(t, x.at(now.Add(5*time.Hour+time.Minute)), "what was suspended is not made up for")
	require.Equal(t, name(now.Add(6*time.Hour)), x.at(now.Add(6*time.Hour)))

	x = schedule(t, "0 * * * *", now.Add(-time.Second))
	x.report.DeletionTimestamp = stamp(now)
	require.Empty(t, x.at(now.Add(time.Minute)), "it is being deleted")
}

func TestAScheduleThatCannotBeRead(t *testing.T) {
	tests := map[string]struct {
		change func(*v1alpha1.PruneReport)
		want   string
	}{
		"no cron":                 {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "every monday" }, "Cron's form"},
		"six fields":              {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "0 0 6 * * 1" }, "Cron's form"},
		"a zone in the schedule":  {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "TZ=UTC 0 6 * * 1" }, "spec.timeZone"},
		"another such":            {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "CRON_TZ=Europe/Berlin 0 6 * * 1" }, "spec.timeZone"},
		"a zone and nothing else": {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "TZ=UTC" }, "spec.timeZone"},
		"every so often":          {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "@every 1s" }, "@every"},
		"no zone":                 {func(r *v1alpha1.PruneReport) { r.Spec.TimeZone = "Europe/Atlantis" }, "Europe/Atlantis"},
		"the zone of the hub":     {func(r *v1alpha1.PruneReport) { r.Spec.TimeZone = "Local" }, "time zone"},
		"a time that never comes": {func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "0 0 30 2 *" }, "ever comes"},
		"a name that is too long": {func(r *v1alpha1.PruneReport) { r.Name = strings.Repeat("n", 172) }, "at most 171 characters"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x := schedule(t, "0 * * * *", now.Add(-time.Hour))
			test.change(x.report)
			require.Empty(t, x.at(now))
			require.Equal(t, v1alpha1.ReasonScheduleInvalid, x.last.Status.Reason)
			require.Contains(t, x.last.Status.Message, test.want)
			require.Zero(t, x.last.After)
			wantConditions(t, x.last.Status.Conditions, 1, reportConditions, []string{v1alpha1.ConditionStalled})
			x.report.Name = "weekly"
			x.change(func(s *v1alpha1.PruneReportSpec) { s.Schedule, s.TimeZone = "0 * * * *", "" })
			require.Empty(t, x.at(now.Add(time.Minute)))
			require.Equal(t, v1alpha1.ReasonScheduled, x.last.Status.Reason)
			require.Equal(t, now.Add(time.Hour), x.last.Status.NextScheduleTime.UTC())
		})
	}
	x := schedule(t, "0 * * * *", now)
	x.report.Name = strings.Repeat("n", 171)
	require.Len(t, x.at(now.Add(time.Hour)), 180)
}

func TestAScheduleThatIsChanged(t *testing.T) {
	x := schedule(t, "0 6 * * 1", now)
	x.look()
	x.change(func(s *v1alpha1.PruneReportSpec) { s.Schedule = "0 7 * * *" })
	require.Empty(t, x.at(now.Add(72*time.Hour)), "no time before it was what it is")
	require.Equal(t, time.Date(2026, 3, 5, 7, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
	x.change(func(s *v1alpha1.PruneReportSpec) { s.Schedule = "0 13 * * *" })
	require.Empty(t, x.look())
	require.Equal(t, time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC), x.last.Status.NextScheduleTime.UTC())
	x.change(func(s *v1alpha1.PruneReportSpec) { s.HistoryLimit = ptr.To[int32](9) })
	require.Equal(t, name(time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC)), x.at(time.Date(2026, 3, 4, 13, 0, 1, 0, time.UTC)), "another change does not have a time be missed")
}

func TestHistory(t *testing.T) {
	x := schedule(t, "0 * * * *", now.Add(-time.Second))
	x.look()
	for i := range 6 {
		require.NotEmpty(t, x.at(now.Add(time.Duration(i)*time.Hour)))
		x.finish()
		x.children[len(x.children)-1].Status.Phase = []v1alpha1.PruneReportPhase{v1alpha1.PruneReportComplete, v1alpha1.PruneReportFailed}[i%2]
		x.inUse[name(now)] = true
		x.look()
	}
	var left []string
	for _, c := range x.children {
		left = append(left, c.Name)
	}
	require.Equal(t, []string{name(now), name(now.Add(3 * time.Hour)), name(now.Add(4 * time.Hour)), name(now.Add(5 * time.Hour))}, left)

	x.children[3].Status.Phase = v1alpha1.PruneReportCollecting
	x.change(func(s *v1alpha1.PruneReportSpec) { s.HistoryLimit, s.Suspend = ptr.To[int32](1), ptr.To(true) })
	x.inUse = nil
	x.look()
	require.Equal(t, []string{name(now.Add(3 * time.Hour)), name(now)}, x.last.Delete, "one that is being made is no history")
}

// Whatever the clock does and whenever the hub dies: no time has two reports, none
// is made beside another, before its time or for a time that was suspended, nor a
// second one of those that were missed at once.
func TestPropertySchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := rapid.SampledFrom([]string{"*/7 * * * *", "0 * * * *", "30 2 * * *", "0 6 * * 1", "15 1-3 * * 0,6"}).Draw(t, "schedule")
		x := schedule(t, spec, now.Add(time.Duration(rapid.IntRange(0, 60*24*300).Draw(t, "start"))*time.Minute))
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
				x.change(func(s *v1alpha1.PruneReportSpec) { s.Suspend = ptr.To(rapid.Bool().Draw(t, "suspend")) })
			case 2, 3, 4:
				x.finish()
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
			made := x.look()
			if made == "" {
				continue
			}
			require.False(t, at[made], "no time has two reports")
			at[made] = true
			require.False(t, busy, "none beside another")
			require.False(t, x.report.Spec.Suspend != nil && *x.report.Spec.Suspend)
			var minutes int64
			_, err := fmt.Sscanf(made, "weekly-%d", &minutes)
			require.NoError(t, err)
			require.False(t, time.Unix(minutes*60, 0).After(x.now), "none before its time")
			x.lose = false
			require.Empty(t, x.look(), "and no other at once")
		}
	})
}
