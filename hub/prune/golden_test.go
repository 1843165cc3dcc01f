package prune_test

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// api/kstatus tests how clients that wait read these statuses.
func TestGoldenStatusesOfPruneReports(t *testing.T) {
	answers := []prune.AnswerState{{Cluster: "a"}, {Cluster: "b", Unknown: v1alpha1.ReasonNotAnswered, Message: "not yet"}}
	collecting := decideReport(t, prune.ReportView{Now: now, Report: newReport(), Clusters: answers}).Status
	noClusters := decideReport(t, prune.ReportView{Now: now, Report: newReport()}).Status
	complete := prune.CompleteStatus(newReport(withStarted), []v1alpha1.ReportedCluster{newLargeCluster("a", 2, 2, 3)}, 1, "abc", now)
	tooLarge := prune.TooLargeStatus(newReport(withStarted), now)
	schedule := func(change func(*v1alpha1.PruneReportSpec)) statuscheck.Object {
		x := newTimetable(t, "0 6 * * 1", now)
		change(&x.report.Spec)
		x.runHub()
		return statuscheck.Object{Generation: x.report.Generation, Status: &x.last.Status}
	}
	objects := map[string]statuscheck.Object{
		"Scheduled":       schedule(func(*v1alpha1.PruneReportSpec) {}),
		"Suspended":       schedule(func(s *v1alpha1.PruneReportSpec) { s.Suspend = ptr.To(true) }),
		"ScheduleInvalid": schedule(func(s *v1alpha1.PruneReportSpec) { s.Schedule = "every monday" }),
	}
	for name, status := range map[string]*v1alpha1.PruneReportStatus{
		"AwaitingAnswers": &collecting, "NoClusters": &noClusters, "Reported": &complete, "ReportTooLarge": &tooLarge,
	} {
		objects[name] = statuscheck.Object{Generation: newReport().Generation, Status: status}
	}
	statuscheck.CompareGolden(t, "PruneReport", objects)
}

// api/kstatus tests how clients that wait read these statuses.
func TestGoldenStatusesOfImagePrunes(t *testing.T) {
	const a, b, z = "a/farm/ubuntu-1", "b/farm/ubuntu-1", "b/farm/z"
	notStarted := func(p *v1alpha1.ImagePrune) { p.Status = v1alpha1.ImagePruneStatus{ObservedGeneration: -1} }
	scenarios := map[string]func() *pruneScenario{
		"AwaitingMembers": func() *pruneScenario { return newPruneScenario(notStarted) },
		"ReportIncomplete": func() *pruneScenario {
			s := newPruneScenario(notStarted)
			s.Report.Status.Phase = v1alpha1.PruneReportCollecting
			return s
		},
		"ReportMissing": func() *pruneScenario {
			s := newPruneScenario()
			s.Report = nil
			return s
		},
		"UndoWindow": func() *pruneScenario {
			s := newPruneScenario()
			s.reportState(v1alpha1.PrunePending, "", a, b, z)
			return s
		},
		"Pruned": func() *pruneScenario {
			s := newPruneScenario()
			s.reportState(v1alpha1.PrunePruned, "", a, b, z)
			return s
		},
		"PartlyPruned": func() *pruneScenario {
			s := newPruneScenario()
			s.reportState(v1alpha1.PrunePruned, "", a, b)
			s.reportState(v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, z)
			return s
		},
		"Undone": func() *pruneScenario {
			return newPruneScenario(notStarted, func(p *v1alpha1.ImagePrune) { p.Spec.Undo = true })
		},
		"Undone, being deleted": func() *pruneScenario {
			return newPruneScenario(notStarted, func(p *v1alpha1.ImagePrune) { p.DeletionTimestamp = toStoredTime(now) })
		},
		"Deadline has passed": func() *pruneScenario {
			s := newPruneScenario()
			s.Now = now.Add(48 * time.Hour)
			return s
		},
	}
	objects := map[string]statuscheck.Object{}
	for name, newScenario := range scenarios {
		s := newScenario()
		d := decideAndCheck(t, s.PruneView)
		objects[name] = statuscheck.Object{Generation: s.Prune.Generation, Deleted: s.Prune.DeletionTimestamp, Status: &d.Status}
	}
	statuscheck.CompareGolden(t, "ImagePrune", objects)
}
