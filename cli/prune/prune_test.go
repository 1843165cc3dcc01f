package prune_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/prune"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	hubprune "github.com/pelotech/ot-fleet/hub/prune"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-d))) }

const digest = "5d1f0c9e7a3b8842c0de11faa72b3d90"

func newReport(change func(*v1alpha1.PruneReport)) *v1alpha1.PruneReport {
	r := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "spring", UID: "r"}, Status: v1alpha1.PruneReportStatus{
		Phase: v1alpha1.PruneReportComplete, Reason: v1alpha1.ReasonReported, Digest: digest, CompletedAt: ago(19 * time.Minute),
		Clusters:        v1alpha1.AnswerCounts{Total: 40, Answered: 39, Unknown: 1},
		UnknownClusters: []v1alpha1.UnknownCluster{{Cluster: "edge-3", Reason: v1alpha1.ReasonOffline, Message: "silent for 2h"}},
		Candidates:      v1alpha1.PruneTotal{Count: 5, Bytes: 120 << 30}, Others: v1alpha1.PruneTotal{Count: 1, Bytes: 24 << 30},
		Kept:    []v1alpha1.KeptTotal{{Reason: v1alpha1.KeptReferenced, PruneTotal: v1alpha1.PruneTotal{Count: 214}}, {Reason: v1alpha1.KeptLeaving}, {Reason: v1alpha1.KeptWanted, PruneTotal: v1alpha1.PruneTotal{Count: 80}}},
		Orphans: v1alpha1.PruneTotal{Count: 3, Bytes: 72 << 30}, Pages: 2,
	}}
	if change != nil {
		change(r)
	}
	return r
}

func candidate(name string, origin v1alpha1.ImageOrigin, unreferenced *metav1.Time, declaredBy string) v1alpha1.PruneCandidate {
	return v1alpha1.PruneCandidate{Namespace: "vmdi-farm", Name: name, UID: types.UID(name), Origin: origin, Bytes: 24 << 30, UnreferencedSince: unreferenced, DeclaredBy: declaredBy}
}

// parts are two parts of one cluster, as a large cluster has, one of another, and one that is
// unknown.
func parts() []v1alpha1.ReportedCluster {
	return []v1alpha1.ReportedCluster{
		{Cluster: "bergen", Candidates: []v1alpha1.PruneCandidate{candidate("centos-5", v1alpha1.OriginPlan, ago(411*24*time.Hour), "")}},
		{Cluster: "bergen", Candidates: []v1alpha1.PruneCandidate{candidate("ubuntu-2.0.1", v1alpha1.OriginPlan, ago(94*24*time.Hour), "ubuntu"), candidate("scratch", "", ago(3*24*time.Hour), "")}},
		{Cluster: "edge-3", Unknown: v1alpha1.ReasonOffline, Candidates: []v1alpha1.PruneCandidate{candidate("centos-5", v1alpha1.OriginPlan, nil, "")}},
		{Cluster: "oslo", Candidates: []v1alpha1.PruneCandidate{candidate("centos-5", v1alpha1.OriginPlan, nil, ""), candidate("ubuntu-2.0.1", v1alpha1.OriginPlan, ago(20*24*time.Hour), "ubuntu")}},
	}
}

func selectIn(by readapi.PruneBy, spec v1alpha1.ImagePruneSpec, parts ...v1alpha1.ReportedCluster) *hubprune.Selection {
	s := hubprune.NewSelection(now, by, spec)
	for i := range parts {
		s.Add(parts[i : i+1])
	}
	return s
}

func TestReviewScreens(t *testing.T) {
	others := v1alpha1.ImagePruneSpec{IncludeOthers: true}
	review := func(by readapi.PruneBy, spec v1alpha1.ImagePruneSpec, limit int) *prune.Review {
		return prune.NewReview(now, newReport(nil), nil, selectIn(by, spec, parts()...), limit, "from the hub's kinds; the read API is not open to you")
	}
	rendertest.Golden(t, "by-image", now, review(readapi.PruneByImage, v1alpha1.ImagePruneSpec{}, 0))
	rendertest.Golden(t, "by-cluster", now, review(readapi.PruneByCluster, others, 1))
	rendertest.Golden(t, "by-age", now, review(readapi.PruneByAge, others, 0))
	rendertest.Golden(t, "selected", now, review(readapi.PruneByImage, v1alpha1.ImagePruneSpec{Images: []string{"vmdi-farm/ubuntu-*", "vmdi-farm/absent"}, Clusters: []string{"oslo", "edge-3"}}, 0))
	rendertest.Golden(t, "collecting", now, prune.NewReport(now, newReport(func(r *v1alpha1.PruneReport) {
		r.Status = v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportCollecting, Reason: v1alpha1.ReasonAwaitingAnswers, Message: "waiting for 3 clusters", Clusters: v1alpha1.AnswerCounts{Total: 40, Answered: 37}}
	})))
	rendertest.Golden(t, "failed", now, prune.NewReport(now, newReport(func(r *v1alpha1.PruneReport) {
		r.Status = v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportFailed, Reason: v1alpha1.ReasonReportTooLarge, Message: "the report needs more than 250 pages: select fewer images"}
	})))
	rendertest.Golden(t, "schedule-invalid", now, prune.NewReport(now, newReport(invalidSchedule)))
	rendertest.Golden(t, "complete", now, prune.NewReport(now, newReport(nil)))
}

// TestCommandsSelectNoMore: what is copied from a screen or an error selects what was asked about.
func TestCommandsSelectNoMore(t *testing.T) {
	people := v1alpha1.ImagePruneSpec{Images: []string{"vmdi-farm/scratch*", "vmdi-farm/a"}, Clusters: []string{"bergen"}}
	const selected = " --images 'vmdi-farm/scratch*,vmdi-farm/a' --clusters bergen"
	for name, test := range map[string]struct {
		by   readapi.PruneBy
		spec v1alpha1.ImagePruneSpec
		want string
	}{
		"images of people":             {readapi.PruneByImage, people, "kubectl ot prune review spring" + selected + " --include-others"},
		"images of people, by cluster": {readapi.PruneByCluster, people, "kubectl ot prune review spring" + selected + " --include-others --by cluster"},
		"with them":                    {readapi.PruneByImage, v1alpha1.ImagePruneSpec{Images: people.Images, Clusters: people.Clusters, IncludeOthers: true}, "kubectl ot prune approve spring --digest " + digest + selected + " --include-others"},
		"others":                       {readapi.PruneByImage, v1alpha1.ImagePruneSpec{Clusters: []string{"oslo"}}, "kubectl ot prune approve spring --digest " + digest + " --clusters oslo"},
		"nothing":                      {readapi.PruneByImage, v1alpha1.ImagePruneSpec{Clusters: []string{"lab"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, prune.NewReview(now, newReport(nil), nil, selectIn(test.by, test.spec, parts()...), 0, "").Command)
		})
	}
	require.ErrorContains(t, prune.CheckApprovable(newReport(nil), "0", &people), "Review it: kubectl ot prune review spring"+selected)
}

func invalidSchedule(r *v1alpha1.PruneReport) {
	r.Spec.Schedule = "x"
	r.Status = v1alpha1.PruneReportStatus{
		Phase: v1alpha1.PruneReportScheduled, Reason: v1alpha1.ReasonScheduleInvalid, Message: "spec.schedule is invalid: expected 5 fields. Until then no report is created",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}},
	}
}

func TestAgesAreInOrder(t *testing.T) {
	v := prune.NewReview(now, newReport(nil), nil, selectIn(readapi.PruneByAge, v1alpha1.ImagePruneSpec{IncludeOthers: true}, parts()...), 0, "")
	require.Equal(t, []string{"age/365d and more", "age/90d to 365d", "age/7d to 30d", "age/less than 7d", "age/unknown since when"}, v.Names())
}

// What the screen counts is what the hub would select, whatever pages the report has.
func TestSelectionIsTheHubs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a-1", "a-2", "b-1"}
		var all []v1alpha1.ReportedCluster
		for n := range rapid.IntRange(0, 4).Draw(t, "clusters") {
			c := v1alpha1.ReportedCluster{Cluster: fmt.Sprintf("c%d", n)}
			if rapid.Bool().Draw(t, "unknown") {
				c.Unknown = v1alpha1.ReasonOffline
			}
			for _, name := range names {
				if rapid.Bool().Draw(t, name) {
					c.Candidates = append(c.Candidates, candidate(name, rapid.SampledFrom([]v1alpha1.ImageOrigin{v1alpha1.OriginPlan, ""}).Draw(t, "origin"), nil, ""))
				}
			}
			all = append(all, c)
		}
		spec := v1alpha1.ImagePruneSpec{
			IncludeOthers: rapid.Bool().Draw(t, "others"),
			Images:        rapid.SliceOfN(rapid.SampledFrom([]string{"vmdi-farm/a-*", "vmdi-farm/b-1", "other/*"}), 0, 2).Draw(t, "images"),
			Clusters:      rapid.SliceOfN(rapid.SampledFrom([]string{"c0", "c2", "c9"}), 0, 2).Draw(t, "selected"),
		}
		want := hubprune.SelectTargets(&spec, all)
		a := prune.NewApproval(now, newReport(nil), &v1alpha1.ImagePrune{Spec: spec}, selectIn(readapi.PruneByImage, spec, all...))
		bytes, clusters := int64(0), map[string]bool{}
		for i := range want {
			bytes += want[i].Bytes
			clusters[want[i].Cluster] = true
		}
		assert.Equal(t, len(want), a.SelectedImages)
		assert.Equal(t, len(clusters), a.SelectedClusters)
		assert.Equal(t, bytes, a.SelectedBytes)
		assert.Equal(t, len(want) > 0, a.CheckSelected() == nil)
	})
}

func TestApprovalScreens(t *testing.T) {
	spec := v1alpha1.ImagePruneSpec{ApprovedBy: "anna@example.com", UndoWindow: &metav1.Duration{Duration: 24 * time.Hour}}
	p := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "spring-1"}, Spec: spec}
	a := prune.NewApproval(now, newReport(nil), p, selectIn(readapi.PruneByImage, spec, parts()...))
	require.NoError(t, a.CheckSelected())
	require.Contains(t, a.Question(), "Delete 4 images of digest "+digest)
	rendertest.Golden(t, "approve", now, a)
	a.SetCreated()
	rendertest.Golden(t, "approved", now, a)

	many := v1alpha1.ReportedCluster{Cluster: "bergen"}
	for n := range v1alpha1.MaxPlannedPrunes + 1 {
		many.Candidates = append(many.Candidates, candidate(fmt.Sprintf("image-%04d", n), v1alpha1.OriginPlan, ago(time.Hour), ""))
	}
	rendertest.Golden(t, "approve-many", now, prune.NewApproval(now, newReport(nil), p, selectIn(readapi.PruneByImage, spec, many)))
}

func TestNothingSelected(t *testing.T) {
	for name, test := range map[string]struct {
		spec      v1alpha1.ImagePruneSpec
		parts     []v1alpha1.ReportedCluster
		wantError string
	}{
		"of an empty report":  {wantError: "has no candidates"},
		"made by people":      {spec: v1alpha1.ImagePruneSpec{Images: []string{"vmdi-farm/scratch"}}, parts: parts(), wantError: "--include-others deletes those"},
		"no such image":       {spec: v1alpha1.ImagePruneSpec{Images: []string{"vmdi-farm/absent"}}, parts: parts(), wantError: "no candidate is named vmdi-farm/absent"},
		"an unknown cluster":  {spec: v1alpha1.ImagePruneSpec{Clusters: []string{"edge-3"}}, parts: parts(), wantError: "edge-3 did not answer the report: Offline"},
		"of one cluster":      {spec: v1alpha1.ImagePruneSpec{Clusters: []string{"rome"}, Images: []string{"vmdi-farm/centos-5"}}, parts: parts(), wantError: "no candidate of these clusters is named vmdi-farm/centos-5; the report knows nothing of cluster rome"},
		"a cluster elsewhere": {spec: v1alpha1.ImagePruneSpec{Clusters: []string{"rome"}}, parts: parts(), wantError: "knows nothing of cluster rome"},
	} {
		t.Run(name, func(t *testing.T) {
			a := prune.NewApproval(now, newReport(nil), &v1alpha1.ImagePrune{Spec: test.spec}, selectIn(readapi.PruneByImage, test.spec, test.parts...))
			require.ErrorContains(t, a.CheckSelected(), test.wantError)
		})
	}
}

func TestCheckApprovable(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(*v1alpha1.PruneReport)
		digest    string
		wantError string
	}{
		"reviewed":       {digest: digest},
		"not named":      {},
		"another digest": {digest: "0", wantError: "another report than the one that was reviewed"},
		"collecting":     {change: func(r *v1alpha1.PruneReport) { r.Status.Phase = v1alpha1.PruneReportCollecting }, wantError: "39 of 40 clusters have answered"},
		"failed": {change: func(r *v1alpha1.PruneReport) {
			r.Status.Phase, r.Status.Message = v1alpha1.PruneReportFailed, "too large"
		}, wantError: "failed: too large"},
		"invalid schedule": {change: invalidSchedule, wantError: "without a report yet: spec.schedule is invalid"},
		"new schedule":     {change: func(r *v1alpha1.PruneReport) { r.Spec.Schedule = "0 6 * * 1" }, wantError: "without a report yet"},
		"schedule":         {change: func(r *v1alpha1.PruneReport) { r.Spec.Schedule, r.Status.LastReport = "0 6 * * 1", "spring-7" }, wantError: "its last report, spring-7"},
	} {
		t.Run(name, func(t *testing.T) {
			err := prune.CheckApprovable(newReport(test.change), test.digest, &v1alpha1.ImagePruneSpec{})
			if test.wantError == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.wantError)
		})
	}
}

func TestReportExitCode(t *testing.T) {
	for phase, test := range map[v1alpha1.PruneReportPhase]struct {
		unknown      int32
		allowUnknown bool
		wantCode     exit.Code
		wantEnded    bool
	}{
		"":                             {wantCode: exit.NotYet},
		v1alpha1.PruneReportCollecting: {wantCode: exit.NotYet},
		v1alpha1.PruneReportFailed:     {wantCode: exit.No, wantEnded: true},
		v1alpha1.PruneReportScheduled:  {wantEnded: true},
		v1alpha1.PruneReportComplete:   {unknown: 1, wantCode: exit.Unknown, wantEnded: true},
	} {
		v := prune.NewReport(now, newReport(func(r *v1alpha1.PruneReport) { r.Status.Phase, r.Status.Clusters.Unknown = phase, test.unknown }))
		assert.Equal(t, test.wantCode, v.ExitCode(test.allowUnknown), phase)
		assert.Equal(t, test.wantEnded, v.Ended(), phase)
	}
	assert.Equal(t, exit.Yes, prune.NewReport(now, newReport(nil)).ExitCode(true))
	assert.Equal(t, exit.No, prune.NewReport(now, newReport(invalidSchedule)).ExitCode(true))
}

func newPrune(change func(*v1alpha1.ImagePrune)) *v1alpha1.ImagePrune {
	p := &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: "spring", CreationTimestamp: *ago(time.Hour)},
		Spec:       v1alpha1.ImagePruneSpec{ReportRef: v1alpha1.PruneReportRef{Name: "spring", Digest: digest}, ApprovedBy: "anna@example.com"},
		Status: v1alpha1.ImagePruneStatus{
			Phase: v1alpha1.ImagePruneRunning, Reason: v1alpha1.ReasonUndoWindow, Clusters: 38, Bytes: 120 << 30, PrunedBytes: 48 << 30, PendingUntil: ptr.To(metav1.NewTime(now.Add(3 * time.Hour))),
			Targets: v1alpha1.TargetCounts{Total: 112, Waiting: 1, Pending: 14, Pruned: 93, Skipped: 2, Undone: 1, Unknown: 1},
			Skipped: []v1alpha1.TargetSummary{
				{Cluster: "bergen", Namespace: "vmdi-farm", Name: "ubuntu-2.0.1", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneReferenced, Message: "workspace-9/build-2 references it"},
				{Cluster: "rome", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneNotReported},
			},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func end(phase v1alpha1.ImagePrunePhase) func(*v1alpha1.ImagePrune) {
	return func(p *v1alpha1.ImagePrune) {
		p.Status.Phase, p.Status.Reason, p.Status.Targets.Waiting, p.Status.Targets.Pending = phase, v1alpha1.ReasonPartlyPruned, 0, 0
	}
}

func TestProgressScreens(t *testing.T) {
	rendertest.Golden(t, "running", now, prune.NewProgress(now, newPrune(nil)))
	rendertest.Golden(t, "over", now, prune.NewProgress(now, newPrune(end(v1alpha1.ImagePruneComplete))))
	rendertest.Golden(t, "overview", now, prune.NewOverview(now, []v1alpha1.PruneReport{*newReport(nil)}, []v1alpha1.ImagePrune{*newPrune(nil), *newPrune(func(p *v1alpha1.ImagePrune) {
		p.Name, p.Spec.Undo, p.Status.Phase = "winter", true, v1alpha1.ImagePruneUndone
	})}))
	rendertest.Golden(t, "overview-schedule-invalid", now, prune.NewOverview(now, []v1alpha1.PruneReport{*newReport(invalidSchedule)}, nil))
	rendertest.Golden(t, "nothing", now, prune.NewOverview(now, nil, nil))
}

func TestProgressExitCode(t *testing.T) {
	assert.Equal(t, exit.Yes, prune.NewProgress(now, newPrune(nil)).ExitCode(), "it goes on")
	assert.Equal(t, exit.No, prune.NewProgress(now, newPrune(end(v1alpha1.ImagePruneFailed))).ExitCode())
	assert.Equal(t, exit.Unknown, prune.NewProgress(now, newPrune(end(v1alpha1.ImagePruneComplete))).ExitCode(), "one image is unknown")
	assert.Equal(t, exit.Yes, prune.NewProgress(now, newPrune(func(p *v1alpha1.ImagePrune) {
		end(v1alpha1.ImagePruneComplete)(p)
		p.Status.Targets.Unknown = 0
	})).ExitCode())
}

func TestCheckUndoable(t *testing.T) {
	require.NoError(t, prune.CheckUndoable(newPrune(nil)))
	require.NoError(t, prune.CheckUndoable(newPrune(end(v1alpha1.ImagePruneUndone))), "as it is wanted")
	require.ErrorContains(t, prune.CheckUndoable(newPrune(end(v1alpha1.ImagePruneComplete))), "93 images of 112 deleted")
	require.ErrorContains(t, prune.CheckUndoable(newPrune(func(p *v1alpha1.ImagePrune) {
		end(v1alpha1.ImagePruneFailed)(p)
		p.Status.Targets.Pruned = 0
	})), "nothing was deleted")
}

func TestCheckPatterns(t *testing.T) {
	require.NoError(t, prune.CheckPatterns([]string{"vmdi-farm/ubuntu-*", "*/a"}, []string{"bergen"}))
	for _, pattern := range []string{"ubuntu", "/ubuntu", "vmdi-farm/", "a/b/c"} {
		require.ErrorContains(t, prune.CheckPatterns([]string{pattern}, nil), "--images "+pattern)
	}
	require.ErrorContains(t, prune.CheckPatterns(nil, []string{"bergen", ""}), "--clusters")
}
