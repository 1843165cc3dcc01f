//go:build linux

package prune

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// newUnreferenced is an image that plans have made and nobody needs.
func newUnreferenced(name string) v1alpha1.ReportedImage {
	since := metav1.NewTime(apitest.Epoch.Add(-time.Hour))
	return v1alpha1.ReportedImage{
		Namespace: "farm", Name: name, UID: types.UID(name + "-image"), Origin: v1alpha1.OriginPlan, Phase: v1alpha1.PhaseSucceeded,
		Revision: "revision", Bytes: 1 << 30, UnreferencedSince: &since,
	}
}

// createReport creates a PruneReport about members.
func (s *testEnv) createReport(t *testing.T, name string, members ...string) *v1alpha1.PruneReport {
	t.Helper()
	r := &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.PruneReportSpec{Placement: &v1alpha1.Placement{ClusterNames: members}},
	}
	require.NoError(t, s.Create(t.Context(), r))
	return r
}

func (s *testEnv) getReport(t *testing.T, name string) *v1alpha1.PruneReport {
	t.Helper()
	r := &v1alpha1.PruneReport{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: name}, r))
	return r
}

func (s *testEnv) pageNames(t *testing.T, of *v1alpha1.PruneReport) (names []string) {
	t.Helper()
	var list v1alpha1.PruneReportPageList
	require.NoError(t, s.List(t.Context(), &list, client.MatchingLabels{v1alpha1.LabelPruneReport: string(of.UID)}))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// startAnsweredReport makes a PruneReport that has begun, and has its member answer.
func (p *process) startAnsweredReport(name, member string, images ...v1alpha1.ReportedImage) *v1alpha1.PruneReport {
	p.t.Helper()
	p.createReport(p.t, name, member)
	_, err := p.reports.reconcileReport(p.t.Context(), name)
	require.NoError(p.t, err)
	cluster := types.UID(member + "-cluster")
	p.testEnv.writeReport(p.t, member, cluster, p.writePlan(member, cluster), p.store.Root(member).Sequence+1, images...)
	return p.getReport(p.t, name)
}

// completeReport makes a PruneReport.
func (p *process) completeReport(name, member string, images ...v1alpha1.ReportedImage) *v1alpha1.PruneReport {
	p.t.Helper()
	p.startAnsweredReport(name, member, images...)
	_, err := p.reports.reconcileReport(p.t.Context(), name)
	require.NoError(p.t, err)
	r := p.getReport(p.t, name)
	require.Equal(p.t, v1alpha1.PruneReportComplete, r.Status.Phase, r.Status.Message)
	return r
}

func TestReportIsRequestedOnceStartIsStored(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "asked", "asked-cluster")
	refuse := true
	p := s.newProcess(t, func(verb string, _ client.Object) error {
		if refuse && verb == "status" {
			return errRefused
		}
		return nil
	})
	s.createReport(t, "asked", "asked")
	_, err := p.reports.reconcileReport(t.Context(), "asked")
	require.ErrorIs(t, err, errRefused)
	inquiries, _, known := p.tracker.ForMember("asked")
	assert.True(t, known)
	assert.Empty(t, inquiries, "it is not stored when it began")
	assert.Empty(t, s.getReport(t, "asked").Status.Phase)

	refuse = false
	_, err = p.reports.reconcileReport(t.Context(), "asked")
	require.NoError(t, err)
	stored := s.getReport(t, "asked")
	assert.Equal(t, v1alpha1.PruneReportCollecting, stored.Status.Phase)
	assert.NotNil(t, stored.Status.StartedAt)
	inquiries, _, _ = p.tracker.ForMember("asked")
	assert.Equal(t, []types.UID{stored.UID}, inquiries)

	restarted := s.newProcess(t, nil, Object{KindReport, "asked"}, Object{KindPrune, "gone"})
	_, err = restarted.reports.reconcileReport(t.Context(), "asked")
	require.NoError(t, err)
	_, _, known = restarted.tracker.ForMember("asked")
	assert.False(t, known, "an ImagePrune has not been looked at")
	_, err = restarted.prunes.reconcilePrune(t.Context(), "gone")
	require.NoError(t, err)
	inquiries, _, known = restarted.tracker.ForMember("asked")
	assert.True(t, known)
	assert.Equal(t, []types.UID{stored.UID}, inquiries)
}

func TestReportIsBuiltFromAnswers(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "made", "made-cluster")
	s.addMember(t, "beside", "beside-cluster")
	p := s.newProcess(t, nil)
	referenced := newUnreferenced("referenced")
	referenced.References, referenced.UnreferencedSince = 2, nil
	r := p.completeReport("made", "made", newUnreferenced("ubuntu"), referenced)
	assert.Equal(t, v1alpha1.PruneTotal{Count: 1, Bytes: 1 << 30}, r.Status.Candidates)
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 1, Answered: 1}, r.Status.Clusters)
	assert.Equal(t, []string{prune.PageName("made", r.Status.Digest, 0)}, s.pageNames(t, r))
	clusters, changed, err := readPages(t.Context(), s, r, r.Status.Digest)
	require.NoError(t, err)
	assert.Empty(t, changed)
	require.Len(t, clusters, 1)
	assert.Equal(t, types.UID("made-cluster"), clusters[0].ClusterUID)
	inquiries, _, _ := p.tracker.ForMember("made")
	assert.Empty(t, inquiries, "nobody is asked any more")
	inquiries, _, _ = p.tracker.ForMember("beside")
	assert.Empty(t, inquiries)
}

// A hub that ends before any one of its writes leaves nothing that the next one does
// not mend, nor a page that belongs to no report.
func TestReportSurvivesHubCrashes(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "ends", "ends-cluster")
	first := s.newProcess(t, nil)
	r := first.startAnsweredReport("ends", "ends", newUnreferenced("ubuntu"))
	stale := &v1alpha1.PruneReportPage{ObjectMeta: metav1.ObjectMeta{
		Name: prune.PageName("ends", "of-an-earlier-try", 0), Labels: map[string]string{v1alpha1.LabelPruneReport: string(r.UID)},
	}, Clusters: []v1alpha1.ReportedCluster{}}
	require.NoError(t, s.Create(t.Context(), stale))
	writes := 0
	for ; ; writes++ {
		done, ended := 0, false
		p := s.newProcess(t, func(string, client.Object) error {
			if done++; done > writes {
				ended = true
				return errRefused
			}
			return nil
		}, Object{KindReport, "ends"})
		_, err := p.reports.reconcileReport(t.Context(), "ends")
		if !ended {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, errRefused)
	}
	assert.GreaterOrEqual(t, writes, 2, "the page of an earlier try, page, and status")
	r = s.getReport(t, "ends")
	assert.Equal(t, v1alpha1.PruneReportComplete, r.Status.Phase)
	assert.Equal(t, []string{prune.PageName("ends", r.Status.Digest, 0)}, s.pageNames(t, r))
}

func TestWrongPageIsReplaced(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "anew", "anew-cluster")
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if r, is := o.(*v1alpha1.PruneReport); is && verb == "status" && r.Status.Phase == v1alpha1.PruneReportComplete {
			return errRefused
		}
		return nil
	})
	r := p.startAnsweredReport("anew", "anew", newUnreferenced("ubuntu"))
	_, err := p.reports.reconcileReport(t.Context(), "anew")
	require.ErrorIs(t, err, errRefused)
	names := s.pageNames(t, r)
	require.Len(t, names, 1)
	page := &v1alpha1.PruneReportPage{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: names[0]}, page))
	page.Clusters[0].Candidates = nil
	require.NoError(t, s.Update(t.Context(), page))

	p = s.newProcess(t, nil)
	_, err = p.reports.reconcileReport(t.Context(), "anew")
	require.ErrorContains(t, err, "is made anew")
	_, err = p.reports.reconcileReport(t.Context(), "anew")
	require.NoError(t, err)
	r = s.getReport(t, "anew")
	_, changed, err := readPages(t.Context(), s, r, r.Status.Digest)
	require.NoError(t, err)
	assert.Empty(t, changed)
}

func TestWriteConflictIsRetried(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "conflict", "conflict-cluster")
	meddle := true
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if verb != "status" || !meddle {
			return nil
		}
		meddle = false
		stored := s.getReport(t, o.GetName())
		stored.Labels = map[string]string{"meddled": "yes"}
		return s.Update(t.Context(), stored)
	})
	s.createReport(t, "conflict", "conflict")
	request := ctrl.Request{NamespacedName: types.NamespacedName{Name: "conflict"}}
	result, err := p.reports.Reconcile(t.Context(), request)
	require.NoError(t, err)
	assert.Equal(t, ctrl.Result{RequeueAfter: conflictRetryDelay}, result)
	assert.Empty(t, s.getReport(t, "conflict").Status.Phase)
	inquiries, _, _ := p.tracker.ForMember("conflict")
	assert.Empty(t, inquiries)
	_, err = p.reports.reconcileReport(t.Context(), "conflict")
	require.NoError(t, err)
	assert.Equal(t, v1alpha1.PruneReportCollecting, s.getReport(t, "conflict").Status.Phase)
}

func TestDeletedReportIsWithdrawn(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "deleted", "deleted-cluster")
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if r, is := o.(*v1alpha1.PruneReport); is && verb == "status" && r.Status.Phase == v1alpha1.PruneReportComplete {
			return s.Delete(t.Context(), s.getReport(t, r.Name))
		}
		return nil
	})
	p.startAnsweredReport("deleted", "deleted", newUnreferenced("ubuntu"))
	p.reports.throttle.forget("deleted")
	result, err := p.reports.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "deleted"}})
	require.NoError(t, err)
	assert.Equal(t, ctrl.Result{RequeueAfter: conflictRetryDelay}, result)
	_, err = p.reports.reconcileReport(t.Context(), "deleted")
	require.NoError(t, err)
	inquiries, _, known := p.tracker.ForMember("deleted")
	assert.True(t, known)
	assert.Empty(t, inquiries)
}

// alteredReader reads pages of members as they are about to be.
type alteredReader struct {
	client.Reader
	alter func(*v1alpha1.ClusterReport) error
}

func (a alteredReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := a.Reader.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	if r, is := o.(*v1alpha1.ClusterReport); is {
		return a.alter(r)
	}
	return nil
}

func TestMemberIsReadConsistentlyOrNotAtAll(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "read", "read-cluster")
	p := s.newProcess(t, nil)
	r := p.startAnsweredReport("read", "read", newUnreferenced("ubuntu"))
	m := &v1alpha1.MemberCluster{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: "read"}, m))
	for name, tt := range map[string]struct {
		alter func(*v1alpha1.ClusterReport) error
		want  string
	}{
		"as it is":                   {func(*v1alpha1.ClusterReport) error { return nil }, ""},
		"written since":              {func(r *v1alpha1.ClusterReport) error { r.Sequence++; return nil }, v1alpha1.ReasonPagesMissing},
		"an older one":               {func(r *v1alpha1.ClusterReport) error { r.Sequence--; return nil }, v1alpha1.ReasonPagesMissing},
		"of another cluster":         {func(r *v1alpha1.ClusterReport) error { r.ClusterUID = "another"; return nil }, v1alpha1.ReasonPagesMissing},
		"a root under a page's name": {func(r *v1alpha1.ClusterReport) error { r.Page = nil; return nil }, v1alpha1.ReasonPagesMissing},
		"gone": {func(r *v1alpha1.ClusterReport) error {
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource(), r.Name)
		}, v1alpha1.ReasonPagesMissing},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			p.reports.Pages, err = report.New(s.mgr.GetCache(), alteredReader{s.Client, tt.alter}, inventory.NewIndex(), report.NewStore())
			require.NoError(t, err)
			c, err := p.reports.gatherAnswer(t.Context(), r, m)
			require.NoError(t, err)
			require.NoError(t, p.reports.readImages(t.Context(), &c))
			assert.Equal(t, tt.want, c.Unknown)
			assert.Equal(t, tt.want == "", len(c.Images) == 1)
		})
	}
}

// One that does not settle is waited for until the deadline, and is unknown then:
// what it would have answered counts for nothing.
func TestUnsettledMemberIsUnknownAtDeadline(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "unsettled", "unsettled-cluster")
	p := s.newProcess(t, nil)
	p.startAnsweredReport("unsettled", "unsettled", newUnreferenced("ubuntu"))
	var err error
	p.reports.Pages, err = report.New(s.mgr.GetCache(), alteredReader{s.Client, func(r *v1alpha1.ClusterReport) error {
		r.Sequence++
		return nil
	}}, inventory.NewIndex(), report.NewStore())
	require.NoError(t, err)
	after, err := p.reports.reconcileReport(t.Context(), "unsettled")
	require.NoError(t, err)
	assert.Equal(t, unsettledRetryDelay, after)
	r := s.getReport(t, "unsettled")
	assert.Equal(t, v1alpha1.PruneReportCollecting, r.Status.Phase)
	assert.Empty(t, s.pageNames(t, r))

	long := metav1.NewTime(time.Now().Add(-time.Hour))
	r.Status.StartedAt = &long
	require.NoError(t, s.Status().Update(t.Context(), r))
	_, err = p.reports.reconcileReport(t.Context(), "unsettled")
	require.NoError(t, err)
	r = s.getReport(t, "unsettled")
	assert.Equal(t, v1alpha1.PruneReportComplete, r.Status.Phase)
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 1, Unknown: 1}, r.Status.Clusters)
	assert.Zero(t, r.Status.Candidates)
}

func TestScheduleCreatesOneReportPerTime(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "scheduled", "scheduled-cluster")
	refuse := false
	p := s.newProcess(t, func(verb string, _ client.Object) error {
		if refuse && verb == "status" {
			return errRefused
		}
		return nil
	})
	parent := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "scheduled"}, Spec: v1alpha1.PruneReportSpec{
		Schedule: "0 6 * * *", Placement: &v1alpha1.Placement{ClusterNames: []string{"scheduled"}},
	}}
	require.NoError(t, s.Create(t.Context(), parent))
	look := func() error {
		after, err := p.reports.reconcileReport(t.Context(), "scheduled")
		if err == nil {
			assert.Positive(t, after)
		}
		return err
	}
	require.NoError(t, look())
	due := metav1.NewTime(s.getReport(t, "scheduled").Status.NextScheduleTime.AddDate(0, 0, -1))
	isDue := func() {
		parent = s.getReport(t, "scheduled")
		parent.Status.NextScheduleTime = &due
		parent.Status.LastScheduleTime = nil
		require.NoError(t, s.Status().Update(t.Context(), parent))
	}
	children := func() (all []v1alpha1.PruneReport) {
		var list v1alpha1.PruneReportList
		require.NoError(t, s.List(t.Context(), &list))
		for _, r := range list.Items {
			if strings.HasPrefix(r.Name, "scheduled-") {
				all = append(all, r)
			}
		}
		return all
	}
	isDue()
	refuse = true
	require.ErrorIs(t, look(), errRefused)
	require.Len(t, children(), 1, "it is made before that is stored")
	refuse = false
	require.NoError(t, look())
	require.Len(t, children(), 1, "it is not made twice")
	child := children()[0]
	assert.True(t, metav1.IsControlledBy(&child, parent))
	assert.Empty(t, child.Spec.Schedule)
	assert.Equal(t, child.Name, s.getReport(t, "scheduled").Status.LastReport)

	// One of that name that is somebody else's is left alone.
	require.NoError(t, s.Delete(t.Context(), &child))
	foreign := s.createReport(t, child.Name, "scheduled")
	isDue()
	require.NoError(t, look())
	assert.Equal(t, foreign.UID, s.getReport(t, child.Name).UID)
}

func TestScheduleDeletesUnusedReports(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "history", "history-cluster")
	p := s.newProcess(t, nil)
	one := int32(1)
	parent := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "history"}, Spec: v1alpha1.PruneReportSpec{
		Schedule: "0 6 * * *", HistoryLimit: &one, Placement: &v1alpha1.Placement{ClusterNames: []string{"history"}},
	}}
	require.NoError(t, s.Create(t.Context(), parent))
	for _, name := range []string{"history-1", "history-2", "history-3"} {
		child := s.createReport(t, name, "history")
		child.OwnerReferences = []metav1.OwnerReference{newOwnerReference(parent)}
		require.NoError(t, s.Update(t.Context(), child))
		child.Status.Phase = v1alpha1.PruneReportComplete
		require.NoError(t, s.Status().Update(t.Context(), child))
	}
	s.createAndAwait(t, &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "history"}, Spec: v1alpha1.ImagePruneSpec{
		ReportRef: v1alpha1.PruneReportRef{Name: "history-1", Digest: "digest"}, ApprovedBy: "somebody",
		UndoWindow: &metav1.Duration{Duration: time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
	}})
	there := func(name string) bool {
		return s.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.PruneReport{}) == nil
	}
	eventually(t, "what nobody goes by is gone", func() bool {
		_, err := p.reports.reconcileReport(t.Context(), "history")
		if !apierrors.IsConflict(err) { // the cache may show one as it was
			require.NoError(t, client.IgnoreNotFound(err))
		}
		return !there("history-2")
	})
	assert.True(t, there("history-1"), "an ImagePrune goes by it")
	assert.True(t, there("history-3"))
}
