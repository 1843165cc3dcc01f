package prune_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

func withCompleted(r *v1alpha1.PruneReport) {
	r.Status.Phase, r.Status.Digest = v1alpha1.PruneReportComplete, "abc"
	r.Status.Candidates.Count, r.Status.Others.Count = 4, 2
}

// pruneScenario is a running ImagePrune of a/farm/ubuntu-1, b/farm/ubuntu-1 and b/farm/z.
type pruneScenario struct {
	prune.PruneView
	reported map[string]v1alpha1.PruneStatus
	held     map[string]string
}

func newPruneScenario(change ...func(*v1alpha1.ImagePrune)) *pruneScenario {
	s := &pruneScenario{reported: map[string]v1alpha1.PruneStatus{}, held: map[string]string{}}
	s.PruneView = prune.PruneView{
		Now: now, Prune: newPrune(append([]func(*v1alpha1.ImagePrune){withRunning}, change...)...), Report: newReport(withCompleted), TargetsLoaded: true,
		Members: map[string]prune.Member{"a": {ClusterUID: "uid-a"}, "b": {ClusterUID: "uid-b"}},
		Reported: func(t prune.Target) (v1alpha1.PruneStatus, bool) {
			st, found := s.reported[targetKey(t)]
			return st, found
		},
		HeldReason: func(t prune.Target) string { return s.held[targetKey(t)] },
	}
	s.Targets = prune.SelectTargets(&s.Prune.Spec, newReviewedClusters())
	return s
}

func targetKey(t prune.Target) string { return t.Cluster + "/" + t.Namespace + "/" + t.Name }

func (s *pruneScenario) reportState(state v1alpha1.PruneState, reason string, keys ...string) {
	for _, key := range keys {
		s.reported[key] = v1alpha1.PruneStatus{UID: s.Prune.UID, State: state, Reason: reason, Message: "as " + key + " says"}
	}
}

// decideAndCheck checks the invariants of every decision.
func decideAndCheck(t require.TestingT, v prune.PruneView) prune.PruneDecision {
	before := v.Prune.DeepCopy()
	d := prune.Decide(v)
	require.Equal(t, before, v.Prune, "the decision does not change its view")
	require.Equal(t, toJSON(t, d), toJSON(t, prune.Decide(v)), "the same view gives the same decision")
	again := v
	again.Prune = v.Prune.DeepCopy()
	again.Prune.Status = roundTrip(t, d.Status)
	require.Equal(t, toJSON(t, d.Status), toJSON(t, prune.Decide(again).Status), "the decided status is stable")
	if !d.LoadPages { // else it is decided again
		requireConditions(t, d.Status.Conditions, v.Prune.Generation, pruneConditions, trueConditions(d.Status.Conditions))
	}
	sum := int32(0)
	for _, state := range v1alpha1.PruneStates() {
		sum += *d.Status.Targets.CountOf(state)
	}
	require.Equal(t, d.Status.Targets.Total, sum)
	require.LessOrEqual(t, len(d.Status.Skipped), 50)
	require.LessOrEqual(t, len(d.Status.Message), 2048)
	return d
}

var (
	inProgress = []string{v1alpha1.ConditionReconciling}
	failed     = []string{v1alpha1.ConditionStalled, v1alpha1.ConditionFinished}
	partly     = []string{v1alpha1.ConditionReady, v1alpha1.ConditionFinished}
	succeeded  = []string{v1alpha1.ConditionReady, v1alpha1.ConditionFinished, v1alpha1.ConditionSucceeded}
)

// The condition says whether the API server checked the approval at creation, whatever
// changes later.
func TestApprovalGuardedCondition(t *testing.T) {
	is := metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonGuarded, Message: "checked"}
	isNot := metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPolicyNotInForce, Message: "gone"}
	for name, test := range map[string]struct {
		phase       v1alpha1.ImagePrunePhase
		before, now metav1.Condition
		want        metav1.Condition
	}{
		"guarded":                      {"", metav1.Condition{}, is, is},
		"not guarded":                  {"", metav1.Condition{}, isNot, isNot},
		"the policy was added later":   {v1alpha1.ImagePruneRunning, isNot, is, isNot},
		"the policy was removed later": {v1alpha1.ImagePruneRunning, is, isNot, is},
		"an ended prune":               {v1alpha1.ImagePruneComplete, isNot, is, isNot},
		"not checked again":            {v1alpha1.ImagePruneRunning, isNot, metav1.Condition{}, isNot},
		"unknown":                      {"", metav1.Condition{}, metav1.Condition{}, metav1.Condition{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario(func(p *v1alpha1.ImagePrune) {
				p.Status.Phase = test.phase
				if test.before.Type != "" {
					p.Status.Conditions = []metav1.Condition{test.before}
				}
			})
			s.ApprovalGuarded = test.now
			got := meta.FindStatusCondition(prune.Decide(s.PruneView).Status.Conditions, v1alpha1.ConditionApprovalGuarded)
			if test.want.Type == "" {
				require.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			test.want.ObservedGeneration, test.want.LastTransitionTime = 2, got.LastTransitionTime
			require.Equal(t, test.want, *got)
		})
	}
}

func TestPruneRequiresReviewedReport(t *testing.T) {
	report := func(change func(*v1alpha1.PruneReport)) func(*pruneScenario) {
		return func(s *pruneScenario) { s.Report = newReport(withCompleted, change) }
	}
	tests := map[string]struct {
		change     func(*pruneScenario)
		want       v1alpha1.ImagePrunePhase // of a prune that has not started
		wantReason string
		wantLoad   bool
		// of a running ImagePrune, where it differs
		wantRunning       v1alpha1.ImagePrunePhase
		wantRunningReason string
	}{
		"the reviewed report": {func(*pruneScenario) {}, v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, false, "", ""},
		"no report":           {func(s *pruneScenario) { s.Report = nil }, v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportMissing, false, "", ""},
		"a report that is being deleted": {
			report(func(r *v1alpha1.PruneReport) { r.DeletionTimestamp = toStoredTime(now) }), v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportMissing, false, "", "",
		},
		"a schedule": {report(func(r *v1alpha1.PruneReport) {
			r.Spec.Schedule, r.Status.Phase = "@daily", v1alpha1.PruneReportScheduled
		}), v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportMissing, false, "", ""},
		"a failed report": {
			report(func(r *v1alpha1.PruneReport) { r.Status.Phase = v1alpha1.PruneReportFailed }), v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportMissing, false, "", "",
		},
		"a collecting report": {
			report(func(r *v1alpha1.PruneReport) { r.Status.Phase = v1alpha1.PruneReportCollecting }),
			v1alpha1.ImagePrunePending, v1alpha1.ReasonReportIncomplete, false, v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportChanged,
		},
		"another digest": {
			report(func(r *v1alpha1.PruneReport) { r.Status.Digest = "abd" }), v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportChanged, false, "", "",
		},
		"pages not loaded": {
			func(s *pruneScenario) { s.TargetsLoaded, s.Targets = false, nil }, v1alpha1.ImagePrunePending, v1alpha1.ReasonReportIncomplete, true, v1alpha1.ImagePruneRunning, "",
		},
		"a changed page": {
			func(s *pruneScenario) { s.ChangedReason = "page spring-abc-0 is missing" }, v1alpha1.ImagePruneFailed, v1alpha1.ReasonReportChanged, false, "", "",
		},
		"nothing selected": {func(s *pruneScenario) { s.Targets = nil }, v1alpha1.ImagePruneFailed, v1alpha1.ReasonNothingSelected, false, "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario(func(p *v1alpha1.ImagePrune) { p.Status = v1alpha1.ImagePruneStatus{} })
			test.change(s)
			d := decideAndCheck(t, s.PruneView)
			require.Equal(t, test.want, d.Status.Phase)
			require.Equal(t, test.wantReason, d.Status.Reason)
			require.Equal(t, test.wantLoad, d.LoadPages)
			require.NotEmpty(t, d.Status.Message)
			switch test.want {
			case v1alpha1.ImagePruneFailed:
				requireConditions(t, d.Status.Conditions, 2, pruneConditions, failed)
				require.Nil(t, d.Status.StartedAt)
				require.Equal(t, now, d.Status.FinishedAt.Time)
			case v1alpha1.ImagePruneRunning:
				requireConditions(t, d.Status.Conditions, 2, pruneConditions, inProgress)
				require.Equal(t, now, d.Status.StartedAt.Time)
			default:
				requireConditions(t, d.Status.Conditions, 2, pruneConditions, inProgress)
				require.Nil(t, d.Status.StartedAt, "nothing is requested before startedAt is stored")
			}

			s = newPruneScenario()
			test.change(s)
			d = decideAndCheck(t, s.PruneView)
			if test.wantRunning != "" {
				test.want, test.wantReason = test.wantRunning, test.wantRunningReason
			}
			require.Equal(t, test.want, d.Status.Phase)
			require.Equal(t, test.wantReason, d.Status.Reason)
			require.Equal(t, test.wantLoad, d.LoadPages)
			require.Equal(t, now.Add(-time.Hour), d.Status.StartedAt.Time)
			if test.want == v1alpha1.ImagePruneFailed {
				require.Contains(t, d.Status.Message, "not deleted yet stay")
			}
		})
	}
}

func TestPruneProgress(t *testing.T) {
	const a, b, z = "a/farm/ubuntu-1", "b/farm/ubuntu-1", "b/farm/z"
	undo := func(s *pruneScenario) { s.Prune.Spec.Undo = true }
	late := func(s *pruneScenario) { s.Now = now.Add(24 * time.Hour) }
	tests := map[string]struct {
		change         []func(*pruneScenario)
		want           v1alpha1.ImagePrunePhase
		wantReason     string
		wantTargets    v1alpha1.TargetCounts
		wantConditions []string
		wantMessage    string
	}{
		"no outcome yet": {
			nil, v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, v1alpha1.TargetCounts{Total: 3, Waiting: 3}, inProgress,
			"3 images wait for a, b. Deadline: 2026-03-02T12:00:00Z",
		},
		"one is offline": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonSilent}
			}},
			v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, v1alpha1.TargetCounts{Total: 3, Waiting: 3}, inProgress,
			"3 images wait for a, for b (it is offline). ",
		},
		"one waits for another prune": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				s.held[a] = v1alpha1.PruneAnotherPrune
				s.reportState(v1alpha1.PrunePending, "", b, z)
			}},
			v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, v1alpha1.TargetCounts{Total: 3, Waiting: 1, Pending: 2}, inProgress,
			"1 image waits for other ImagePrunes to end; 2 images serve until their undo windows end (to keep what is left, set spec.undo). ",
		},
		"all in their undo windows": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				s.reportState(v1alpha1.PrunePending, "", a, b, z)
				s.reported[b] = v1alpha1.PruneStatus{State: v1alpha1.PrunePending, Until: toStoredTime(now.Add(5 * time.Hour))}
				s.reported[z] = v1alpha1.PruneStatus{State: v1alpha1.PrunePending, Until: toStoredTime(now.Add(3 * time.Hour))}
			}},
			v1alpha1.ImagePruneRunning, v1alpha1.ReasonUndoWindow, v1alpha1.TargetCounts{Total: 3, Pending: 3}, inProgress,
			"3 images serve until their undo windows end, the last at 2026-03-01T17:00:00Z (to keep what is left, set spec.undo). ",
		},
		"all deleted": {
			[]func(*pruneScenario){func(s *pruneScenario) { s.reportState(v1alpha1.PrunePruned, "", a, b, z) }},
			v1alpha1.ImagePruneComplete, v1alpha1.ReasonPruned, v1alpha1.TargetCounts{Total: 3, Pruned: 3}, succeeded, "3 images in 2 clusters: 3 are deleted (30 B)",
		},
		"one was skipped": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				s.reportState(v1alpha1.PrunePruned, "", a, b)
				s.reportState(v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, z)
			}},
			v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 3, Pruned: 2, Skipped: 1}, partly, "1 was skipped. See status.skipped",
		},
		"one was undone": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				s.reportState(v1alpha1.PrunePruned, "", a, b)
				s.reportState(v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn, z)
			}},
			v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 3, Pruned: 2, Undone: 1}, partly, "1 was undone and stays",
		},
		"undoing": {
			[]func(*pruneScenario){undo, func(s *pruneScenario) {
				s.reportState(v1alpha1.PruneUndone, "", a)
				s.reportState(v1alpha1.PrunePending, "", b, z)
			}},
			v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, v1alpha1.TargetCounts{Total: 3, Pending: 2, Undone: 1}, inProgress, "undoing; 2 images serve until",
		},
		"undone": {
			[]func(*pruneScenario){undo, func(s *pruneScenario) {
				s.reportState(v1alpha1.PruneUndone, "", a, b)
				s.reportState(v1alpha1.PrunePruned, "", z)
			}},
			v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 3, Pruned: 1, Undone: 2}, succeeded, "2 were undone and stay",
		},
		"undone while held by another prune": {
			[]func(*pruneScenario){undo, func(s *pruneScenario) {
				s.held[a], s.held[z] = v1alpha1.PruneAnotherPrune, v1alpha1.ReasonPlanFull
				s.reportState(v1alpha1.PruneUndone, "", b)
			}},
			v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 3, Undone: 3}, succeeded, "3 were undone and stay",
		},
		"at the deadline": {
			[]func(*pruneScenario){late, func(s *pruneScenario) {
				s.reportState(v1alpha1.PrunePruned, "", a)
				s.reportState(v1alpha1.PrunePending, "", b)
			}},
			v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 3, Pruned: 1, Unknown: 2}, partly, "2 are unknown",
		},
		"at the deadline while undoing": {
			[]func(*pruneScenario){late, undo}, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 3, Unknown: 3}, partly, "3 are unknown",
		},
		"a moment before the deadline": {
			[]func(*pruneScenario){func(s *pruneScenario) { s.Now = now.Add(24*time.Hour - time.Second) }},
			v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, v1alpha1.TargetCounts{Total: 3, Waiting: 3}, inProgress, "",
		},
		"a member is gone, another one replaced": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				delete(s.Members, "a")
				s.Members["b"] = prune.Member{ClusterUID: "rebuilt"}
				s.reportState(v1alpha1.PrunePruned, "", a, b, z)
			}},
			v1alpha1.ImagePruneComplete, v1alpha1.ReasonPartlyPruned, v1alpha1.TargetCounts{Total: 3, Unknown: 3}, partly, "3 are unknown",
		},
		"an unknown reported state": {
			[]func(*pruneScenario){func(s *pruneScenario) {
				s.reportState("OfTomorrow", "", a)
				s.reportState(v1alpha1.PruneWaiting, "", b)
			}},
			v1alpha1.ImagePruneRunning, v1alpha1.ReasonAwaitingMembers, v1alpha1.TargetCounts{Total: 3, Waiting: 3}, inProgress, "",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario()
			for _, do := range test.change {
				do(s)
			}
			d := decideAndCheck(t, s.PruneView)
			require.Equal(t, test.want, d.Status.Phase)
			require.Equal(t, test.wantReason, d.Status.Reason)
			require.Equal(t, test.wantTargets, d.Status.Targets)
			require.Contains(t, d.Status.Message, test.wantMessage)
			requireConditions(t, d.Status.Conditions, 2, pruneConditions, test.wantConditions)
			require.Equal(t, int32(2), d.Status.Clusters)
			require.Equal(t, int64(30), d.Status.Bytes)
			require.Equal(t, int64(10*d.Status.Targets.Pruned), d.Status.PrunedBytes)
			require.Len(t, d.Status.Skipped, int(d.Status.Targets.Skipped+d.Status.Targets.Unknown))
			if !test.want.IsFinal() {
				require.Equal(t, now.Add(24*time.Hour), s.Now.Add(d.RequeueAfter))
				require.Nil(t, d.Status.FinishedAt)
				return
			}
			require.Zero(t, d.RequeueAfter)
			require.Equal(t, s.Now, d.Status.FinishedAt.Time)

			// A final status stays, whatever is reported later.
			s.Prune.Status = roundTrip(t, d.Status)
			s.reported, s.Now, s.Report, s.TargetsLoaded, s.Targets = nil, s.Now.AddDate(1, 0, 0), nil, false, nil
			s.Prune.Spec.Undo, s.Prune.Generation = true, 3
			later := prune.Decide(s.PruneView)
			require.Equal(t, int64(3), later.Status.ObservedGeneration)
			requireConditions(t, later.Status.Conditions, 3, pruneConditions, test.wantConditions)
			require.False(t, later.LoadPages)
			later.Status.ObservedGeneration, later.Status.Conditions = 2, d.Status.Conditions
			require.Equal(t, toJSON(t, d.Status), toJSON(t, later.Status))
		})
	}
}

func TestUndoBeforeStartRequestsNothing(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.ImagePrune){
		"undo":    func(p *v1alpha1.ImagePrune) { p.Spec.Undo = true },
		"deleted": func(p *v1alpha1.ImagePrune) { p.DeletionTimestamp = toStoredTime(now) },
	} {
		s := newPruneScenario(func(p *v1alpha1.ImagePrune) { p.Status = v1alpha1.ImagePruneStatus{} }, change)
		d := decideAndCheck(t, s.PruneView)
		require.Equal(t, v1alpha1.ImagePruneUndone, d.Status.Phase, name)
		require.Nil(t, d.Status.StartedAt, name)
	}
}

func TestPruneThatStartedAheadOfTheClock(t *testing.T) {
	s := newPruneScenario(withRunning, func(p *v1alpha1.ImagePrune) { p.Status.StartedAt = toStoredTime(now.AddDate(1, 0, 0)) })
	d := decideAndCheck(t, s.PruneView)
	require.Equal(t, now, d.Status.StartedAt.Time)
	require.LessOrEqual(t, d.RequeueAfter, s.Prune.Spec.TotalDuration())
}

func TestPruneStatusIsBounded(t *testing.T) {
	s := newPruneScenario()
	long := strings.Repeat("é", 3000)
	s.reported["a/farm/ubuntu-1"] = v1alpha1.PruneStatus{State: v1alpha1.PruneSkipped, Reason: long, Message: long}
	d := decideAndCheck(t, s.PruneView)
	require.LessOrEqual(t, len(d.Status.Skipped[0].Message), 256)
	require.LessOrEqual(t, len(d.Status.Skipped[0].Reason), 64)
	s.ChangedReason = long
	require.LessOrEqual(t, len(decideAndCheck(t, s.PruneView).Status.Message), 2048)

	s = newPruneScenario()
	s.Members = map[string]prune.Member{}
	var clusters []v1alpha1.ReportedCluster
	for i := range 1000 {
		c := newLargeCluster(fmt.Sprintf("cluster-%s-%04d", strings.Repeat("n", 30), i), 1, 0, 0)
		clusters = append(clusters, c)
		s.Members[c.Cluster] = prune.Member{ClusterUID: types.UID("uid-" + c.Cluster)}
	}
	s.Targets = prune.SelectTargets(&s.Prune.Spec, clusters)
	require.Contains(t, decideAndCheck(t, s.PruneView).Status.Message, "and 995 more")
}

func TestAbsentClustersAreNamed(t *testing.T) {
	named := func(p *v1alpha1.ImagePrune) { p.Spec.Clusters = []string{"z", "a", "silent", "z", "b"} }
	s := newPruneScenario(named)
	silent := v1alpha1.ReportedCluster{Cluster: "silent", Unknown: v1alpha1.ReasonOffline}
	bare := v1alpha1.ReportedCluster{Cluster: "bare"}
	pages := append(newReviewedClusters(), silent, bare)
	s.AbsentClusters = prune.AbsentClusters(&s.Prune.Spec, pages)
	require.Equal(t, []string{"silent", "z"}, s.AbsentClusters)
	require.Empty(t, prune.AbsentClusters(&v1alpha1.ImagePruneSpec{}, pages), "no cluster is named")
	require.Empty(t, prune.AbsentClusters(&v1alpha1.ImagePruneSpec{Clusters: []string{"bare"}}, pages), "the report covers it")

	const says = "PruneReport spring does not cover silent, z, named in spec.clusters"
	require.Contains(t, decideAndCheck(t, s.PruneView).Status.Message, says)
	s.reportState(v1alpha1.PrunePruned, "", "a/farm/ubuntu-1", "b/farm/ubuntu-1", "b/farm/z")
	d := decideAndCheck(t, s.PruneView)
	require.Equal(t, v1alpha1.ReasonPartlyPruned, d.Status.Reason)
	require.Contains(t, d.Status.Message, says)
	requireConditions(t, d.Status.Conditions, 2, pruneConditions, partly)
	absent := v1alpha1.TargetSummary{Cluster: "silent", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneNotReported, Message: "the report does not cover this cluster: nothing is pruned there"}
	z := absent
	z.Cluster = "z"
	require.Equal(t, []v1alpha1.TargetSummary{absent, z}, d.Status.Skipped)
	require.Equal(t, v1alpha1.TargetCounts{Total: 3, Pruned: 3}, d.Status.Targets, "the images of these clusters are unknown")
	s.Prune.Status, s.reported = d.Status, nil
	require.Equal(t, v1alpha1.PrunePruned, prune.TargetState(s.PruneView, s.Targets[0]).State, "it is remembered")

	undone := newPruneScenario(named, func(p *v1alpha1.ImagePrune) { p.Spec.Undo = true })
	undone.AbsentClusters = s.AbsentClusters
	undone.reportState(v1alpha1.PruneUndone, "", "a/farm/ubuntu-1", "b/farm/ubuntu-1", "b/farm/z")
	requireConditions(t, decideAndCheck(t, undone.PruneView).Status.Conditions, 2, pruneConditions, succeeded)

	s = newPruneScenario(func(p *v1alpha1.ImagePrune) { p.Status = v1alpha1.ImagePruneStatus{} })
	s.Targets, s.AbsentClusters = nil, []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6"}
	d = decideAndCheck(t, s.PruneView)
	require.Equal(t, v1alpha1.ReasonNothingSelected, d.Status.Reason)
	require.Contains(t, d.Status.Message, "does not cover c0, c1, c2, c3, c4 and 2 more, named in spec.clusters")
}
