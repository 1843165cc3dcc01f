package prune_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

func withStarted(r *v1alpha1.PruneReport) {
	r.Status.Phase, r.Status.StartedAt = v1alpha1.PruneReportCollecting, toStoredTime(now.Add(-time.Minute))
}

func decideReport(t require.TestingT, v prune.ReportView) prune.ReportDecision {
	before := v.Report.DeepCopy()
	d := prune.DecideReport(v)
	require.Equal(t, before, v.Report, "the decision does not change its view")
	require.Equal(t, toJSON(t, d), toJSON(t, prune.DecideReport(v)), "the same view gives the same decision")
	return d
}

func TestDecideReport(t *testing.T) {
	answered, waiting := prune.AnswerState{Cluster: "a"}, prune.AnswerState{Cluster: "b", Unknown: v1alpha1.ReasonNotAnswered, Message: "not yet"}
	offline := prune.AnswerState{Cluster: "c", Unknown: v1alpha1.ReasonOffline, Offline: true}
	late := func(r *v1alpha1.PruneReport) { r.Status.StartedAt = toStoredTime(now.Add(-10 * time.Minute)) }
	soon := func(r *v1alpha1.PruneReport) { r.Spec.AnswerDeadline = newDuration(30 * time.Second) }
	tests := map[string]struct {
		report       *v1alpha1.PruneReport
		clusters     []prune.AnswerState
		invalid      string
		wantPhase    v1alpha1.PruneReportPhase
		wantReason   string
		wantComplete bool
		wantAfter    time.Duration
	}{
		"start":                         {newReport(), []prune.AnswerState{answered}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, false, 10 * time.Minute},
		"all answered":                  {newReport(withStarted), []prune.AnswerState{answered}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, true, 0},
		"one has not answered":          {newReport(withStarted), []prune.AnswerState{answered, waiting}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, false, 9 * time.Minute},
		"one is offline":                {newReport(withStarted), []prune.AnswerState{answered, offline}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, true, 0},
		"one offline, one not answered": {newReport(withStarted), []prune.AnswerState{offline, waiting}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, false, 9 * time.Minute},
		"the deadline has passed":       {newReport(withStarted, late), []prune.AnswerState{answered, waiting}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, true, 0},
		"spec.answerDeadline":           {newReport(withStarted, soon), []prune.AnswerState{waiting}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, true, 0},
		"no clusters":                   {newReport(), nil, "", v1alpha1.PruneReportFailed, v1alpha1.ReasonNoClusters, false, 0},
		"no clusters after the start":   {newReport(withStarted), nil, "", v1alpha1.PruneReportFailed, v1alpha1.ReasonNoClusters, false, 0},
		"an invalid selector":           {newReport(), []prune.AnswerState{answered}, "spec.placement: bad", v1alpha1.PruneReportFailed, v1alpha1.ReasonSelectorInvalid, false, 0},
		"deadline, all offline":         {newReport(withStarted, late), []prune.AnswerState{offline}, "", v1alpha1.PruneReportCollecting, v1alpha1.ReasonAwaitingAnswers, true, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := decideReport(t, prune.ReportView{Now: now, Report: test.report, Clusters: test.clusters, Invalid: test.invalid})
			require.Equal(t, test.wantPhase, d.Status.Phase)
			require.Equal(t, test.wantReason, d.Status.Reason)
			require.Equal(t, test.wantComplete, d.Complete)
			require.Equal(t, test.wantAfter, d.RequeueAfter)
			require.NotEmpty(t, d.Status.Message)
			require.Equal(t, int64(3), d.Status.ObservedGeneration)
			if test.wantPhase == v1alpha1.PruneReportCollecting {
				require.NotNil(t, d.Status.StartedAt)
				requireConditions(t, d.Status.Conditions, 3, reportConditions, []string{v1alpha1.ConditionReconciling})
				return
			}
			requireConditions(t, d.Status.Conditions, 3, reportConditions, failed)
			again := newReport(func(r *v1alpha1.PruneReport) { r.Status = d.Status })
			require.Equal(t, toJSON(t, d.Status), toJSON(t, decideReport(t, prune.ReportView{Now: now.AddDate(1, 0, 0), Report: again, Clusters: []prune.AnswerState{answered}}).Status), "it stays so")
		})
	}
}

func TestNothingIsCollectedBeforeStartIsStored(t *testing.T) {
	d := decideReport(t, prune.ReportView{Now: now, Report: newReport(), Clusters: []prune.AnswerState{{Cluster: "a"}}})
	require.False(t, d.Complete)
	r := newReport()
	r.Status = roundTrip(t, d.Status)
	require.True(t, decideReport(t, prune.ReportView{Now: now, Report: r, Clusters: []prune.AnswerState{{Cluster: "a"}}}).Complete)
	require.Equal(t, now.Add(10*time.Minute), prune.AnswerDeadline(r).UTC())
}

func TestReportThatStartedAheadOfTheClock(t *testing.T) {
	r := newReport()
	r.Status.Phase, r.Status.StartedAt = v1alpha1.PruneReportCollecting, toStoredTime(now.AddDate(1, 0, 0))
	d := decideReport(t, prune.ReportView{Now: now, Report: r, Clusters: []prune.AnswerState{{Cluster: "a", Unknown: v1alpha1.ReasonSilent}}})
	require.Equal(t, now, d.Status.StartedAt.Time)
	require.Equal(t, 10*time.Minute, d.RequeueAfter)
}

func TestCompleteStatus(t *testing.T) {
	a, b := newLargeCluster("a", 2, 2, 3), newLargeCluster("b", 1, 0, 0)
	a.Candidates[0].Origin, a.Candidates[1].DeclaredBy = "", ""
	a.Kept[1].Reason = v1alpha1.KeptReferenced
	unknown := v1alpha1.ReportedCluster{Cluster: "c", Unknown: v1alpha1.ReasonOffline, Message: "its agent does not report"}
	st := prune.CompleteStatus(newReport(withStarted), []v1alpha1.ReportedCluster{unknown, b, a}, 4, "abc", now.Add(time.Millisecond))
	requireConditions(t, st.Conditions, 3, reportConditions, []string{v1alpha1.ConditionReady, v1alpha1.ConditionComplete, v1alpha1.ConditionFinished})
	st.Conditions = nil
	require.Equal(t, v1alpha1.PruneReportStatus{
		ObservedGeneration: 3, Phase: v1alpha1.PruneReportComplete, Reason: v1alpha1.ReasonReported,
		Message: "3 images (3 TiB) can be pruned; 2 of 3 clusters answered; 1 of the images (1 TiB) were not created by a plan and need spec.includeOthers; 6 are kept; " +
			"6 objects of storage belong to no image. Unknown: 1 cluster (c: Offline); create another PruneReport when they answer. " +
			"To delete the images, review the pages and create an ImagePrune with reportRef {name: spring, digest: abc}",
		StartedAt: toStoredTime(now.Add(-time.Minute)), CompletedAt: toStoredTime(now),
		Clusters:        v1alpha1.AnswerCounts{Total: 3, Answered: 2, Unknown: 1},
		UnknownClusters: []v1alpha1.UnknownCluster{{Cluster: "c", Reason: v1alpha1.ReasonOffline, Message: "its agent does not report"}},
		Candidates:      v1alpha1.PruneTotal{Count: 3, Bytes: 3 << 40}, Others: v1alpha1.PruneTotal{Count: 1, Bytes: 1 << 40}, Undeclared: v1alpha1.PruneTotal{Count: 1, Bytes: 1 << 40},
		Kept:    []v1alpha1.KeptTotal{{Reason: v1alpha1.KeptReferenced, PruneTotal: v1alpha1.PruneTotal{Count: 3, Bytes: 11}}, {Reason: v1alpha1.KeptWanted, PruneTotal: v1alpha1.PruneTotal{Count: 3, Bytes: 11}}},
		Orphans: v1alpha1.PruneTotal{Count: 6, Bytes: 32}, Pages: 4, Digest: "abc",
	}, st)

	done := newReport(func(r *v1alpha1.PruneReport) { r.Status = st })
	require.Equal(t, st, prune.CompleteStatus(done, nil, 0, "other", now.AddDate(0, 0, 1)), "a finished report never changes")
	require.Equal(t, st, decideReport(t, prune.ReportView{Now: now.AddDate(0, 0, 1), Report: done, Invalid: "bad"}).Status)
	require.Equal(t, st, prune.TooLargeStatus(done, now))
}

func TestSelectorWithoutImagesIsSaid(t *testing.T) {
	const selectsNone = "spec.imageSelector selects no image of the clusters that answered: check its namespaces and names, and create another PruneReport"
	selective := newReport(withStarted, func(r *v1alpha1.PruneReport) {
		r.Spec.ImageSelector = &v1alpha1.ImageSelector{Namespaces: []string{"vmdi-farn"}}
	})
	empty, kept := newLargeCluster("a", 0, 0, 0), newLargeCluster("b", 0, 1, 1)
	unknown := v1alpha1.ReportedCluster{Cluster: "c", Unknown: v1alpha1.ReasonOffline}
	for name, tt := range map[string]struct {
		report   *v1alpha1.PruneReport
		clusters []v1alpha1.ReportedCluster
		want     string
	}{
		"no image matches":    {selective, []v1alpha1.ReportedCluster{empty}, selectsNone + "; 1 of 1 cluster answered"},
		"an image is kept":    {selective, []v1alpha1.ReportedCluster{empty, kept}, "no image can be pruned; 2 of 2 clusters answered; 1 are kept"},
		"no selector":         {newReport(withStarted), []v1alpha1.ReportedCluster{empty}, "no image can be pruned; 1 of 1 cluster answered"},
		"nobody has answered": {selective, []v1alpha1.ReportedCluster{unknown}, "no image can be pruned; 0 of 1 cluster answered"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, prune.CompleteStatus(tt.report, tt.clusters, 1, "abc", now).Message, tt.want)
		})
	}
}

func TestReportStatusIsBounded(t *testing.T) {
	var judged []v1alpha1.ReportedCluster
	var standing []prune.AnswerState
	for i := range 50 {
		name := fmt.Sprintf("c-%02d", i)
		judged = append(judged, v1alpha1.ReportedCluster{Cluster: name, Unknown: "NotAnswered", Message: strings.Repeat("m", 5000)})
		standing = append(standing, prune.AnswerState{Cluster: name, Unknown: strings.Repeat("N", 100), Message: strings.Repeat("m", 5000)})
	}
	for _, st := range []v1alpha1.PruneReportStatus{
		prune.CompleteStatus(newReport(withStarted), judged, 1, "abc", now),
		decideReport(t, prune.ReportView{Now: now, Report: newReport(withStarted), Clusters: standing}).Status,
		decideReport(t, prune.ReportView{Now: now, Report: newReport(withStarted), Clusters: standing, Invalid: strings.Repeat("m", 5000)}).Status,
	} {
		require.Equal(t, v1alpha1.AnswerCounts{Total: 50, Unknown: 50}, st.Clusters)
		require.Len(t, st.UnknownClusters, 20)
		require.Equal(t, "c-00", st.UnknownClusters[0].Cluster)
		require.LessOrEqual(t, len(st.Message), 2048)
		for _, u := range st.UnknownClusters {
			require.LessOrEqual(t, len(u.Message), 512)
			require.LessOrEqual(t, len(u.Reason), 64)
		}
	}
}

func TestSplitClusterIsCountedOnce(t *testing.T) {
	pages, digest, err := prune.Paginate("u", []v1alpha1.ReportedCluster{newLargeCluster("a", 5000, 3, 2)})
	require.NoError(t, err)
	require.Greater(t, len(pages), 1)
	var parts []v1alpha1.ReportedCluster
	for _, page := range pages {
		parts = append(parts, page...)
	}
	st := prune.CompleteStatus(newReport(withStarted), parts, len(pages), digest, now)
	require.Equal(t, v1alpha1.AnswerCounts{Total: 1, Answered: 1}, st.Clusters)
	require.Equal(t, int32(5000), st.Candidates.Count)
	require.Equal(t, v1alpha1.PruneTotal{Count: 3, Bytes: 16}, st.Orphans)
}

func TestPropertyTotalsAreSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clusters := judgeAll(drawSpec(t), drawClusters(t))
		pages, digest, err := prune.Paginate("u", clusters)
		require.NoError(t, err)
		st := prune.CompleteStatus(newReport(withStarted), clusters, len(pages), digest, now)
		var parts []v1alpha1.ReportedCluster
		for _, page := range pages {
			parts = append(parts, page...)
		}
		require.Equal(t, toJSON(t, st), toJSON(t, prune.CompleteStatus(newReport(withStarted), parts, len(pages), digest, now)), "parts have the same totals")

		want := v1alpha1.PruneReportStatus{}
		kept := map[v1alpha1.KeptReason]v1alpha1.PruneTotal{}
		add := func(to *v1alpha1.PruneTotal, bytes int64) { to.Count, to.Bytes = to.Count+1, to.Bytes+bytes }
		for _, c := range clusters {
			want.Clusters.Total++
			if c.Unknown == "" {
				want.Clusters.Answered++
			} else {
				want.Clusters.Unknown++
			}
			for _, i := range c.Candidates {
				add(&want.Candidates, i.Bytes)
				if i.Origin != v1alpha1.OriginPlan {
					add(&want.Others, i.Bytes)
				} else if i.DeclaredBy == "" {
					add(&want.Undeclared, i.Bytes)
				}
			}
			for _, g := range c.Kept {
				sum := kept[g.Reason]
				sum.Count, sum.Bytes = sum.Count+int32(len(g.Images)), sum.Bytes+g.Bytes
				kept[g.Reason] = sum
			}
			for _, o := range c.Orphans {
				add(&want.Orphans, o.Bytes)
			}
			want.Orphans.Count += c.OmittedOrphans
			want.Orphans.Bytes += c.OmittedOrphanBytes
		}
		require.Equal(t, want.Clusters, st.Clusters)
		require.Equal(t, want.Candidates, st.Candidates)
		require.Equal(t, want.Others, st.Others)
		require.Equal(t, want.Undeclared, st.Undeclared)
		require.Equal(t, want.Orphans, st.Orphans)
		require.Len(t, st.Kept, len(kept))
		for _, k := range st.Kept {
			require.Equal(t, kept[k.Reason], k.PruneTotal)
		}
	})
}

func TestPlacementMatcher(t *testing.T) {
	tests := map[string]struct {
		placement *v1alpha1.Placement
		want      []string
		wantErr   string
	}{
		"all by default": {nil, []string{"a", "b"}, ""},
		"by label":       {&v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "a"}}}, []string{"a"}, ""},
		"by name":        {&v1alpha1.Placement{ClusterNames: []string{"b"}}, []string{"b"}, ""},
		"all but one":    {&v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}, ExcludedClusters: []string{"a"}}, []string{"b"}, ""},
		"an invalid selector": {
			&v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Is"}}}}, nil, "spec.placement.clusterSelector",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			has, err := prune.PlacementMatcher(&v1alpha1.PruneReportSpec{Placement: test.placement})
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				return
			}
			require.NoError(t, err)
			var placed []string
			for _, name := range []string{"a", "b"} {
				if has(name, map[string]string{"env": name}) {
					placed = append(placed, name)
				}
			}
			require.Equal(t, test.want, placed)
		})
	}
}

func TestSumsOfBytesDoNotOverflow(t *testing.T) {
	images := make([]v1alpha1.ReportedImage, 256*128)
	for i := range images {
		images[i] = newUnreferenced(fmt.Sprint("i", i), func(img *v1alpha1.ReportedImage) { img.Bytes, img.References = 1<<47, int32(i%2) })
	}
	images[0].Bytes = 5
	first := images[1]
	judged := judgeAll(&v1alpha1.PruneReportSpec{}, []prune.Cluster{{Name: "a", Root: newRoot(), Images: images}, {Name: "b", Root: newRoot(), Images: images}})
	st := prune.CompleteStatus(newReport(withStarted), judged, 1, "digest", now)
	require.Len(t, st.Kept, 1)
	require.Equal(t, int64(2<<50), st.Candidates.Bytes+st.Kept[0].Bytes, "a cluster counts as 1 PiB")
	require.Equal(t, int64(5), judged[0].Candidates[0].Bytes)
	require.Equal(t, first, images[1], "the images may be a cache's")
}
