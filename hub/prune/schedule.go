package prune

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ScheduleView is all that a decision about a PruneReport with a schedule rests on.
type ScheduleView struct {
	Now    time.Time
	Report *v1alpha1.PruneReport
	// Children are the PruneReports that it owns.
	Children []v1alpha1.PruneReport
	// InUse are the names of those that ImagePrunes go by which have not ended.
	InUse map[string]bool
}

// ScheduleDecision is what is to be done. Create comes before the status is written:
// a report that is there already under its name is the one that is meant.
type ScheduleDecision struct {
	Create *v1alpha1.PruneReport
	// Delete are reports that history has no room for.
	Delete []string
	Status v1alpha1.PruneReportStatus
	// RequeueAfter is when to look again although nothing happened; 0 for never.
	RequeueAfter time.Duration
}

const (
	// maxNameLength is how long the name of a PruneReport may be.
	maxNameLength = 180
	// maxRequeueAfter: a clock that is set is noticed by then.
	maxRequeueAfter = time.Hour
	// clockSetBackTolerance is how far a clock that was set back is made allowance for: times that
	// reports were made for do not come again. Where the last one is further ahead,
	// the clock was wrong then.
	clockSetBackTolerance = 24 * time.Hour
)

// DecideSchedule decides whether a report is to be made, and which are to go. Of times that
// were missed the last counts; none is made while the one before is being made, nor
// for a time before the schedule was what it is.
func DecideSchedule(v ScheduleView) ScheduleDecision {
	s := scheduleEvaluation{ScheduleView: v, reportEvaluation: reportEvaluation{report: v.Report, now: v.Now, status: *v.Report.Status.DeepCopy()}}
	s.decision.Delete = s.surplusReports()
	suspended := v.Report.Spec.Suspend != nil && *v.Report.Spec.Suspend
	switch err := s.parseSchedule(); {
	case err != nil:
		s.setInvalid(err)
	case suspended || v.Report.DeletionTimestamp != nil:
		s.status.NextScheduleTime = nil
		s.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonSuspended, "no report is made: spec.suspend is set, or it is being deleted")
	default:
		s.createDueReport()
	}
	s.decision.Status = s.status
	return s.decision
}

// scheduleEvaluation works out one decision.
type scheduleEvaluation struct {
	ScheduleView
	reportEvaluation
	schedule cron.Schedule
	zone     *time.Location
	decision ScheduleDecision
}

// parseSchedule reads schedule and time zone. The error says which is wrong, and what to do.
func (s *scheduleEvaluation) parseSchedule() (err error) {
	spec := &s.Report.Spec
	switch {
	case strings.Contains(spec.Schedule, "TZ="):
		return errors.New("spec.schedule must not have a time zone: set spec.timeZone")
	case strings.HasPrefix(spec.Schedule, "@every"):
		return errors.New(`spec.schedule must name times of the clock, which @every does not: write it as in "0 */6 * * *"`)
	case spec.TimeZone == "Local":
		return errors.New("spec.timeZone must name a time zone, as in Europe/Berlin")
	case len(childReportName(s.Report.Name, s.Now)) > maxNameLength:
		return fmt.Errorf("the name of a PruneReport with a schedule must have at most %d characters, for those that it makes have a time added: make another PruneReport",
			maxNameLength-len(childReportName("", s.Now)))
	}
	if s.schedule, err = cron.ParseStandard(spec.Schedule); err != nil {
		return fmt.Errorf("spec.schedule %q cannot be read: %v. Write it in Cron's form, as in \"0 6 * * 1\"", spec.Schedule, err)
	}
	if s.zone, err = time.LoadLocation(spec.TimeZone); err != nil {
		return fmt.Errorf("spec.timeZone %q is not known: write it as in Europe/Berlin", spec.TimeZone)
	}
	return nil
}

func (s *scheduleEvaluation) setInvalid(err error) {
	s.status.NextScheduleTime = nil
	s.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduleInvalid, "%v. Until then no report is made", err)
}

// createDueReport makes the report that is due, if one is.
func (s *scheduleEvaluation) createDueReport() {
	next := s.nextTime()
	if next.IsZero() {
		s.setInvalid(fmt.Errorf("spec.schedule %q names no time that ever comes: mend it", s.Report.Spec.Schedule))
		return
	}
	if !next.After(s.Now) {
		due := s.latestDue(next)
		name := childReportName(s.Report.Name, due)
		made := slices.ContainsFunc(s.Children, func(c v1alpha1.PruneReport) bool { return c.Name == name })
		if former := s.unfinishedReport(); !made && former != "" {
			s.status.NextScheduleTime = toStoredTime(next)
			s.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduled, "the report of %s is made when %s is there", s.formatTime(due), former)
			return
		}
		if !made {
			s.decision.Create = s.newChildReport(name)
		}
		s.status.LastScheduleTime, s.status.LastReport = toStoredTime(due), name
		next = s.nextAfter(s.Now)
	}
	if next.IsZero() {
		s.status.NextScheduleTime = nil
		s.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduled, "no further report is made: no time to come is of spec.schedule")
		return
	}
	s.status.NextScheduleTime = toStoredTime(next)
	s.decision.RequeueAfter = min(max(next.Sub(s.Now), time.Millisecond), maxRequeueAfter)
	s.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduled, "the next report is made at %s", s.formatTime(next))
}

// nextTime returns the first time that no report was made for: a time to come, or one
// that is due. It is zero where none comes.
func (s *scheduleEvaluation) nextTime() time.Time {
	old := &s.Report.Status
	stored := old.NextScheduleTime
	switch {
	case stored != nil && !stored.After(s.Now):
		// What was waited for counts unless the schedule has another time now.
		if old.ObservedGeneration == s.Report.Generation || s.schedule.Next(stored.Add(-time.Second).In(s.zone)).Equal(stored.Time) {
			return stored.Time
		}
	case stored == nil && old.ObservedGeneration == 0 && !s.Report.CreationTimestamp.IsZero():
		if first := s.schedule.Next(s.Report.CreationTimestamp.In(s.zone)); !first.After(s.Now) {
			return first
		}
	}
	return s.nextAfter(s.Now)
}

// nextAfter returns the first time after another that no report was made for.
func (s *scheduleEvaluation) nextAfter(t time.Time) time.Time {
	if last := s.status.LastScheduleTime; last != nil && last.After(t) && last.Sub(t) <= clockSetBackTolerance {
		t = last.Time
	}
	return s.schedule.Next(t.In(s.zone))
}

// latestDue returns the last time from one that is due until now. Where the schedule has
// many, those of long ago are not gone through.
func (s *scheduleEvaluation) latestDue(due time.Time) time.Time {
	for window := time.Hour; ; window *= 4 {
		from := s.Now.Add(-window)
		all := !from.After(due)
		if all {
			from = due
		}
		last := time.Time{}
		for t := s.schedule.Next(from.In(s.zone)); t.After(from) && !t.After(s.Now); t = s.schedule.Next(t) {
			last, from = t, t
		}
		switch {
		case !last.IsZero():
			return last
		case all:
			return due
		}
	}
}

// unfinishedReport returns the report that is being made, empty for none.
func (s *scheduleEvaluation) unfinishedReport() string {
	for _, c := range sortNewestFirst(s.Children) {
		if !isFinished(c) && c.DeletionTimestamp == nil {
			return c.Name
		}
	}
	return ""
}

func isFinished(r *v1alpha1.PruneReport) bool {
	return r.Status.Phase == v1alpha1.PruneReportComplete || r.Status.Phase == v1alpha1.PruneReportFailed
}

// surplusReports returns the finished reports that history has no room for and that nobody
// goes by.
func (s *scheduleEvaluation) surplusReports() (names []string) {
	limit := v1alpha1.DefaultHistoryLimit
	if l := s.Report.Spec.HistoryLimit; l != nil {
		limit = int(*l)
	}
	for _, c := range sortNewestFirst(s.Children) {
		if !isFinished(c) || c.DeletionTimestamp != nil {
			continue
		}
		if limit--; limit < 0 && !s.InUse[c.Name] {
			names = append(names, c.Name)
		}
	}
	return names
}

// newChildReport is the report of one time. It is made once.
func (s *scheduleEvaluation) newChildReport(name string) *v1alpha1.PruneReport {
	spec := s.Report.Spec.DeepCopy()
	spec.Schedule, spec.TimeZone, spec.Suspend, spec.HistoryLimit = "", "", nil, nil
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.Report, v1alpha1.GroupVersion.WithKind("PruneReport"))},
		},
		Spec: *spec,
	}
}

func childReportName(schedule string, at time.Time) string {
	return fmt.Sprintf("%s-%d", schedule, at.Unix()/60)
}

func (s *scheduleEvaluation) formatTime(t time.Time) string { return t.In(s.zone).Format(time.RFC3339) }
