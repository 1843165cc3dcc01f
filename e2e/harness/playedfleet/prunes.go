package playedfleet

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// playedReport is a complete PruneReport.
type playedReport struct {
	report   *v1alpha1.PruneReport
	clusters []v1alpha1.ReportedCluster
}

// playedPrune is an ImagePrune and the report that it is about.
type playedPrune struct {
	object   *v1alpha1.ImagePrune
	report   *v1alpha1.PruneReport
	clusters []v1alpha1.ReportedCluster
	targets  []prune.Target
	// states are what members report of targets.
	states map[string]v1alpha1.PruneStatus
}

// addReport judges the images of all members as of some time ago, and completes a report.
func (f *Fleet) addReport(name string, before time.Duration, unreferencedFor time.Duration) (*v1alpha1.PruneReport, []v1alpha1.ReportedCluster, error) {
	at := f.at.Add(-before)
	report := &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("report-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(at.Add(-2 * time.Minute))},
		Spec:       v1alpha1.PruneReportSpec{UnreferencedFor: &metav1.Duration{Duration: unreferencedFor}},
	}
	started := metav1.NewTime(at.Add(-time.Minute))
	report.Status.StartedAt = &started
	declared, wanted := map[types.NamespacedName]string{}, map[types.NamespacedName]string{}
	for _, img := range f.images {
		for i, v := range img.object.Status.Versions {
			key := types.NamespacedName{Namespace: v.Namespace, Name: v.Image}
			declared[key] = img.object.Name
			if i < 2 {
				wanted[key] = "FleetDiskImage " + img.object.Name
			}
		}
	}
	clusters := make([]v1alpha1.ReportedCluster, len(f.members))
	for i, m := range f.members {
		c := prune.Cluster{Name: m.name(), ClusterUID: m.uid, Root: m.root, DeclaredBy: declared, WantedBy: wanted}
		if !m.speaks() {
			c.Unknown, c.Message = v1alpha1.ReasonOffline, "the member does not report"
		}
		for _, img := range m.images {
			c.Images = append(c.Images, img.ReportedImage)
		}
		clusters[i] = prune.JudgeCluster(&report.Spec, c)
	}
	pages, digest, err := prune.Paginate(report.UID, clusters)
	if err != nil {
		return nil, nil, fmt.Errorf("paginating PruneReport %s: %w", name, err)
	}
	for n, page := range pages {
		f.store.put(&v1alpha1.PruneReportPage{ObjectMeta: metav1.ObjectMeta{Name: prune.PageName(name, digest, n)}, Clusters: page})
	}
	report.Status = prune.CompleteStatus(report, clusters, len(pages), digest, at)
	f.store.put(report)
	f.reports = append(f.reports, playedReport{report, clusters})
	return report, clusters, nil
}

// addCollectingReport adds a report that waits for answers.
func (f *Fleet) addCollectingReport(name string, silent ...string) {
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("report-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(f.at.Add(-2 * time.Minute))}}
	var answers []prune.AnswerState
	for _, m := range f.members {
		a := prune.AnswerState{Cluster: m.name()}
		if !m.speaks() {
			a.Unknown, a.Message, a.Offline = v1alpha1.ReasonOffline, "the member does not report", true
		}
		for _, other := range silent {
			if other == m.name() {
				a.Unknown, a.Message = v1alpha1.ReasonNotAnswered, "its report does not answer a plan with this inquiry yet"
			}
		}
		answers = append(answers, a)
	}
	report.Status = prune.DecideReport(prune.ReportView{Now: f.at, Report: report, Clusters: answers}).Status
	f.store.put(report)
}

// addSchedule adds a schedule, whose last report is a name.
func (f *Fleet) addSchedule(name, last string) {
	next, latest := metav1.NewTime(f.at.Add(61*time.Hour).Truncate(time.Hour)), metav1.NewTime(f.at.Add(-107*time.Hour).Truncate(time.Hour))
	f.store.put(&v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("report-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(f.at.Add(-joinedFor))},
		Spec:       v1alpha1.PruneReportSpec{Schedule: "0 6 * * 1", TimeZone: "Europe/Berlin"},
		Status: v1alpha1.PruneReportStatus{
			ObservedGeneration: 1, Phase: v1alpha1.PruneReportScheduled, Reason: v1alpha1.ReasonScheduled, Message: "the next report is due at " + next.UTC().Format(time.RFC3339),
			NextScheduleTime: &next, LastScheduleTime: &latest, LastReport: last,
		},
	})
}

// addPrune approves images of a report; they go when their undo windows end.
func (f *Fleet) addPrune(name string, report *v1alpha1.PruneReport, clusters []v1alpha1.ReportedCluster, started, window time.Duration, images ...string) {
	p := &playedPrune{
		object: &v1alpha1.ImagePrune{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("prune-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(f.at.Add(-started))},
			Spec: v1alpha1.ImagePruneSpec{
				ReportRef: v1alpha1.PruneReportRef{Name: report.Name, Digest: report.Status.Digest}, ApprovedBy: "anna@example.com",
				UndoWindow: &metav1.Duration{Duration: window}, Images: images,
			},
		},
		report: report, clusters: clusters, states: map[string]v1alpha1.PruneStatus{},
	}
	p.targets = prune.SelectTargets(&p.object.Spec, clusters)
	until := metav1.NewTime(f.at.Add(window - started))
	for i := range p.targets {
		t := &p.targets[i]
		state := v1alpha1.PruneStatus{UID: p.object.UID, State: v1alpha1.PrunePending, Reason: string(v1alpha1.ReasonUndoWindowOpen), Message: "it serves until its undo window ends", Until: &until}
		if i == len(p.targets)/2 {
			state = v1alpha1.PruneStatus{UID: p.object.UID, State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneReferenced, Message: "workspace-9/build-2 came to need it"}
		}
		p.states[targetKey(t)] = state
	}
	// The first decision starts it, the next one counts what members report.
	at := f.at
	f.at = f.at.Add(-started)
	f.decidePrune(p)
	f.at = at
	f.decidePrune(p)
	f.prunes = append(f.prunes, p)
}

func targetKey(t *prune.Target) string { return t.Cluster + "/" + t.Namespace + "/" + t.Name }

func (f *Fleet) viewPrune(p *playedPrune) prune.PruneView {
	v := prune.PruneView{
		Now: f.at, Prune: p.object, Report: p.report, TargetsLoaded: true, Targets: p.targets, Members: map[string]prune.Member{},
		Exclusions: prune.SelectExclusions(&p.object.Spec, p.clusters), AbsentClusters: prune.AbsentClusters(&p.object.Spec, p.clusters),
		HeldReason: func(prune.Target) string { return "" },
		Reported: func(t prune.Target) (v1alpha1.PruneStatus, bool) {
			state, found := p.states[targetKey(&t)]
			if state.Until != nil && !f.at.Before(state.Until.Time) {
				state = v1alpha1.PruneStatus{UID: state.UID, State: v1alpha1.PrunePruned}
			}
			return state, found
		},
	}
	for _, m := range f.members {
		member := prune.Member{ClusterUID: m.uid}
		if !m.speaks() {
			member.OfflineReason = v1alpha1.ReasonSilent
		}
		v.Members[m.name()] = member
	}
	return v
}

func (f *Fleet) decidePrune(p *playedPrune) {
	next := p.object.DeepCopy()
	next.Status = prune.Decide(f.viewPrune(p)).Status
	p.object = next
	f.store.put(next)
}

// decidePrunes ends prunes whose undo windows have ended.
func (f *Fleet) decidePrunes() {
	for _, p := range f.prunes {
		if until := p.object.Status.PendingUntil; until != nil && !f.at.Before(until.Time) && !p.object.Status.Phase.IsFinal() {
			f.decidePrune(p)
			f.Changes.Mark(readapi.TopicPrunes)
		}
	}
}

func (f *Fleet) pruneTargets(_ context.Context, name string) ([]readapi.PruneTarget, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.prunes {
		if p.object.Name != name {
			continue
		}
		v, targets := f.viewPrune(p), make([]readapi.PruneTarget, len(p.targets))
		for i := range p.targets {
			t := &p.targets[i]
			s := prune.TargetState(v, *t)
			targets[i] = readapi.PruneTarget{
				Cluster: t.Cluster, Namespace: t.Namespace, Name: t.Name, UID: t.UID, Revision: t.Revision, Bytes: t.Bytes,
				State: s.State, Reason: s.Reason, Message: s.Message, Until: s.Until,
			}
		}
		return targets, true, nil
	}
	return nil, false, nil
}
