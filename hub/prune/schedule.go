package prune

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ScheduleView is everything that a decision about a PruneReport with a schedule depends
// on.
type ScheduleView struct {
	Now    time.Time
	Report *v1alpha1.PruneReport
	// Children are the PruneReports that it owns.
	Children []v1alpha1.PruneReport
	// InUse are the names of those that unfinished ImagePrunes use.
	InUse map[string]bool
}

// ScheduleDecision is what to do about a schedule.
type ScheduleDecision struct {
	// Create is created before the status is written. A report that exists under its name
	// is the same one.
	Create *v1alpha1.PruneReport
	// Delete are the names of reports beyond the history limit.
	Delete []string
	Status v1alpha1.PruneReportStatus
	// RequeueAfter is when to decide again without an event; 0 for never.
	RequeueAfter time.Duration
}

const (
	// maxNameLength bounds the name of a PruneReport.
	maxNameLength = 180
	// maxRequeueAfter bounds how late a change of the clock is noticed.
	maxRequeueAfter = time.Hour
	// clockSetBackTolerance is how far the clock may be set back without a second report
	// for the same time. A last time further ahead came from a wrong clock, and is ignored.
	clockSetBackTolerance = 24 * time.Hour
)

// DecideSchedule decides whether a report is created, and which are deleted. Of missed
// times only the last counts. No report is created while the former is unfinished, nor for
// a time before the last change of the schedule.
func DecideSchedule(v ScheduleView) ScheduleDecision {
	e := scheduleEvaluation{ScheduleView: v, reportEvaluation: newReportEvaluation(v.Report, v.Now)}
	e.decision.Delete = e.surplusReports()
	suspended := v.Report.Spec.Suspend != nil && *v.Report.Spec.Suspend
	switch err := e.parseSchedule(); {
	case err != nil:
		e.setInvalid(err)
	case suspended || v.Report.DeletionTimestamp != nil:
		e.status.NextScheduleTime = nil
		e.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonSuspended, "no report is created: spec.suspend is set, or the schedule is being deleted")
	default:
		e.createDueReport()
	}
	e.decision.Status = e.status
	return e.decision
}

// scheduleEvaluation builds one ScheduleDecision.
type scheduleEvaluation struct {
	ScheduleView
	reportEvaluation
	times    policy.ClockTimes
	zone     *time.Location
	decision ScheduleDecision
}

// parseSchedule parses schedule and time zone. The error says what to correct.
func (e *scheduleEvaluation) parseSchedule() (err error) {
	spec := &e.Report.Spec
	if len(childReportName(e.Report.Name, e.Now)) > maxNameLength {
		return fmt.Errorf("the name of a PruneReport with a schedule must have at most %d characters, because its reports add a time to it: create another PruneReport",
			maxNameLength-len(childReportName("", e.Now)))
	}
	schedule, err := policy.ParseCron(spec.Schedule, "spec.timeZone")
	if err != nil {
		return fmt.Errorf("spec.schedule is invalid: %w", err)
	}
	if e.zone, err = policy.LoadZone(spec.TimeZone); err != nil {
		return fmt.Errorf("spec.timeZone is not a time zone: %w", err)
	}
	e.times = policy.NewClockTimes(schedule, e.zone)
	return nil
}

func (e *scheduleEvaluation) setInvalid(err error) {
	e.status.NextScheduleTime = nil
	e.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduleInvalid, "%v. Until then no report is created", err)
}

// RefuseSchedule returns the decision after the API server has refused the report that was
// due. The time stays due, so that the report is created once the schedule is corrected.
func RefuseSchedule(d ScheduleDecision, schedule *v1alpha1.PruneReport, refusal error, now time.Time) ScheduleDecision {
	e := newReportEvaluation(schedule, now)
	e.status.NextScheduleTime = d.Status.LastScheduleTime
	// The name of the report would change the message at each time.
	e.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduleInvalid, "the API server refuses the reports of this schedule: %s. Correct spec. Until then no report is created",
		strings.ReplaceAll(refusal.Error(), d.Create.Name, schedule.Name))
	d.Status = e.status
	return d
}

// createDueReport creates the report that is due, if any.
func (e *scheduleEvaluation) createDueReport() {
	next := e.nextTime()
	if next.IsZero() {
		e.setInvalid(fmt.Errorf("spec.schedule %q matches no date: correct it", e.Report.Spec.Schedule))
		return
	}
	if !next.After(e.Now) {
		due := e.latestDue(next)
		name := childReportName(e.Report.Name, due)
		exists := slices.ContainsFunc(e.Children, func(c v1alpha1.PruneReport) bool { return c.Name == name })
		if former := e.unfinishedReport(); !exists && former != "" {
			e.status.NextScheduleTime = ptr.To(storedtime.Truncate(next))
			e.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduled, "the report of %s is created once %s has finished", e.formatTime(due), former)
			return
		}
		if !exists {
			e.decision.Create = e.newChildReport(name)
		}
		e.status.LastScheduleTime, e.status.LastReport = ptr.To(storedtime.Truncate(due)), name
		next = e.nextAfter(e.Now)
	}
	if next.IsZero() {
		e.status.NextScheduleTime = nil
		e.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduled, "no further report is created: spec.schedule matches no future date")
		return
	}
	e.status.NextScheduleTime = ptr.To(storedtime.Truncate(next))
	e.decision.RequeueAfter = min(max(next.Sub(e.Now), time.Millisecond), maxRequeueAfter)
	e.setPhase(v1alpha1.PruneReportScheduled, v1alpha1.ReasonScheduled, "the next report is created at %s", e.formatTime(next))
}

// nextTime returns the first time without a report: a future one, or one that is due. It is
// zero where there is none.
func (e *scheduleEvaluation) nextTime() time.Time {
	old := &e.Report.Status
	stored := old.NextScheduleTime
	switch {
	case stored != nil && !stored.After(e.Now):
		// The stored time counts unless the schedule changed.
		if old.ObservedGeneration == e.Report.Generation || e.times.Next(stored.Add(-time.Second)).Equal(stored.Time) {
			return stored.Time
		}
	case stored == nil && old.ObservedGeneration <= 0 && !e.Report.CreationTimestamp.IsZero():
		if first := e.times.Next(e.Report.CreationTimestamp.Time); !first.After(e.Now) {
			return first
		}
	}
	return e.nextAfter(e.Now)
}

// nextAfter returns the first time after t without a report.
func (e *scheduleEvaluation) nextAfter(t time.Time) time.Time {
	if last := e.status.LastScheduleTime; last != nil && last.After(t) && last.Sub(t) <= clockSetBackTolerance {
		t = last.Time
	}
	return e.times.Next(t)
}

// latestDue returns the last time between a due one and now. It searches backwards in
// growing windows: a frequent schedule may have missed very many times.
func (e *scheduleEvaluation) latestDue(due time.Time) time.Time {
	for window := time.Hour; ; window *= 4 {
		from := e.Now.Add(-window)
		isWhole := !from.After(due)
		if isWhole {
			from = due
		}
		last := time.Time{}
		for t := e.times.Next(from); t.After(from) && !t.After(e.Now); t = e.times.Next(t) {
			last, from = t, t
		}
		switch {
		case !last.IsZero():
			return last
		case isWhole:
			return due
		}
	}
}

// unfinishedReport returns the newest report that is not finished; empty for none.
func (e *scheduleEvaluation) unfinishedReport() string {
	for _, c := range sortNewestFirst(e.Children) {
		if !IsFinished(&c.Status) && c.DeletionTimestamp == nil {
			return c.Name
		}
	}
	return ""
}

// surplusReports returns the finished reports beyond the history limit that no ImagePrune
// uses.
func (e *scheduleEvaluation) surplusReports() (names []string) {
	limit := v1alpha1.DefaultHistoryLimit
	if l := e.Report.Spec.HistoryLimit; l != nil {
		limit = int(*l)
	}
	for _, c := range sortNewestFirst(e.Children) {
		if !IsFinished(&c.Status) || c.DeletionTimestamp != nil {
			continue
		}
		if limit--; limit < 0 && !e.InUse[c.Name] {
			names = append(names, c.Name)
		}
	}
	return names
}

// newChildReport returns the report for one time.
func (e *scheduleEvaluation) newChildReport(name string) *v1alpha1.PruneReport {
	spec := e.Report.Spec.DeepCopy()
	spec.Schedule, spec.TimeZone, spec.Suspend, spec.HistoryLimit = "", "", nil, nil
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{NewOwnerReference(e.Report)}},
		Spec:       *spec,
	}
}

// NewOwnerReference has a report own what it creates. It does not block the owner's deletion: that
// would take the right to set finalizers.
func NewOwnerReference(report *v1alpha1.PruneReport) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "PruneReport", Name: report.Name, UID: report.UID, Controller: ptr.To(true),
	}
}

func childReportName(schedule string, at time.Time) string {
	return fmt.Sprintf("%s-%d", schedule, at.Unix()/60)
}

func (e *scheduleEvaluation) formatTime(t time.Time) string { return t.In(e.zone).Format(time.RFC3339) }

func sortNewestFirst(reports []v1alpha1.PruneReport) []*v1alpha1.PruneReport {
	list := make([]*v1alpha1.PruneReport, len(reports))
	for i := range reports {
		list[i] = &reports[i]
	}
	slices.SortFunc(list, func(a, b *v1alpha1.PruneReport) int {
		if c := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(b.Name, a.Name)
	})
	return list
}
