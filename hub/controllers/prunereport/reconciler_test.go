//go:build linux

package prunereport

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// newUnreferenced returns a planned image without references.
func newUnreferenced(name string) v1alpha1.ReportedImage {
	since := metav1.NewTime(apitest.Epoch.Add(-time.Hour))
	return v1alpha1.ReportedImage{
		Namespace: "farm", Name: name, UID: types.UID(name + "-image"), Origin: v1alpha1.OriginPlan, Phase: v1alpha1.PhaseSucceeded,
		Revision: "revision", Bytes: 1 << 30, UnreferencedSince: &since,
	}
}

// createReport creates a PruneReport that asks members.
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

// createPrune creates an ImagePrune and waits until the cache shows it.
func (s *testEnv) createPrune(t *testing.T, p *v1alpha1.ImagePrune) {
	t.Helper()
	require.NoError(t, s.Create(t.Context(), p))
	eventually(t, "the cache shows the ImagePrune", func() bool {
		return s.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(p), &v1alpha1.ImagePrune{}) == nil
	})
}

// startAnsweredReport starts a PruneReport and has its member answer.
func (p *process) startAnsweredReport(name, member string, images ...v1alpha1.ReportedImage) *v1alpha1.PruneReport {
	p.t.Helper()
	p.createReport(p.t, name, member)
	_, err := p.reports.reconcile(p.t.Context(), name)
	require.NoError(p.t, err)
	cluster := types.UID(member + "-cluster")
	p.testEnv.writeReport(p.t, member, cluster, p.writePlan(member, cluster), p.store.Root(member).Sequence+1, images...)
	return p.getReport(p.t, name)
}

// completeReport makes a complete PruneReport.
func (p *process) completeReport(name, member string, images ...v1alpha1.ReportedImage) *v1alpha1.PruneReport {
	p.t.Helper()
	p.startAnsweredReport(name, member, images...)
	_, err := p.reports.reconcile(p.t.Context(), name)
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
	_, err := p.reports.reconcile(t.Context(), "asked")
	require.ErrorIs(t, err, errRefused)
	inquiries, _, known := p.tracker.ForMember("asked")
	assert.True(t, known)
	assert.Empty(t, inquiries, "startedAt is not stored")
	assert.Empty(t, s.getReport(t, "asked").Status.Phase)

	refuse = false
	_, err = p.reports.reconcile(t.Context(), "asked")
	require.NoError(t, err)
	stored := s.getReport(t, "asked")
	assert.Equal(t, v1alpha1.PruneReportCollecting, stored.Status.Phase)
	assert.NotNil(t, stored.Status.StartedAt)
	inquiries, _, _ = p.tracker.ForMember("asked")
	assert.Equal(t, []types.UID{stored.UID}, inquiries)

	restarted := s.newProcess(t, nil, prunetracker.Object{Kind: prunetracker.KindReport, Name: "asked"}, prunetracker.Object{Kind: prunetracker.KindPrune, Name: "gone"})
	_, err = restarted.reports.reconcile(t.Context(), "asked")
	require.NoError(t, err)
	_, _, known = restarted.tracker.ForMember("asked")
	assert.False(t, known, "an ImagePrune was not seen")
	restarted.tracker.MarkSeen(prunetracker.Object{Kind: prunetracker.KindPrune, Name: "gone"})
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
	clusters, changed, err := ReadPages(t.Context(), s, r, r.Status.Digest)
	require.NoError(t, err)
	assert.Empty(t, changed)
	require.Len(t, clusters, 1)
	assert.Equal(t, types.UID("made-cluster"), clusters[0].ClusterUID)
	inquiries, _, _ := p.tracker.ForMember("made")
	assert.Empty(t, inquiries, "the request is withdrawn")
	inquiries, _, _ = p.tracker.ForMember("beside")
	assert.Empty(t, inquiries)
}

// Whichever write a hub crashes before, the next hub completes the report and leaves no
// page that belongs to no report.
func TestReportSurvivesHubCrashes(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "ends", "ends-cluster")
	first := s.newProcess(t, nil)
	r := first.startAnsweredReport("ends", "ends", newUnreferenced("ubuntu"))
	stale := &v1alpha1.PruneReportPage{ObjectMeta: metav1.ObjectMeta{
		Name: prune.PageName("ends", "of-an-earlier-attempt", 0), Labels: map[string]string{v1alpha1.LabelPruneReport: string(r.UID)},
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
		}, prunetracker.Object{Kind: prunetracker.KindReport, Name: "ends"})
		_, err := p.reports.reconcile(t.Context(), "ends")
		if !ended {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, errRefused)
	}
	assert.GreaterOrEqual(t, writes, 2, "the stale page, the page and the status")
	r = s.getReport(t, "ends")
	assert.Equal(t, v1alpha1.PruneReportComplete, r.Status.Phase)
	assert.Equal(t, []string{prune.PageName("ends", r.Status.Digest, 0)}, s.pageNames(t, r))
}

func TestWrongPageIsReplaced(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "anew", "anew-cluster")
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if r, ok := o.(*v1alpha1.PruneReport); ok && verb == "status" && r.Status.Phase == v1alpha1.PruneReportComplete {
			return errRefused
		}
		return nil
	})
	r := p.startAnsweredReport("anew", "anew", newUnreferenced("ubuntu"))
	_, err := p.reports.reconcile(t.Context(), "anew")
	require.ErrorIs(t, err, errRefused)
	names := s.pageNames(t, r)
	require.Len(t, names, 1)
	page := &v1alpha1.PruneReportPage{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: names[0]}, page))
	page.Clusters[0].Candidates = nil
	require.NoError(t, s.Update(t.Context(), page))

	p = s.newProcess(t, nil)
	_, err = p.reports.reconcile(t.Context(), "anew")
	require.ErrorContains(t, err, "creating it again")
	_, err = p.reports.reconcile(t.Context(), "anew")
	require.NoError(t, err)
	r = s.getReport(t, "anew")
	_, changed, err := ReadPages(t.Context(), s, r, r.Status.Digest)
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
	assert.Equal(t, ctrl.Result{RequeueAfter: trigger.ConflictRetryDelay}, result)
	assert.Empty(t, s.getReport(t, "conflict").Status.Phase)
	inquiries, _, _ := p.tracker.ForMember("conflict")
	assert.Empty(t, inquiries)
	_, err = p.reports.reconcile(t.Context(), "conflict")
	require.NoError(t, err)
	assert.Equal(t, v1alpha1.PruneReportCollecting, s.getReport(t, "conflict").Status.Phase)
}

func TestDeletedReportIsWithdrawn(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "deleted", "deleted-cluster")
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if r, ok := o.(*v1alpha1.PruneReport); ok && verb == "status" && r.Status.Phase == v1alpha1.PruneReportComplete {
			return s.Delete(t.Context(), s.getReport(t, r.Name))
		}
		return nil
	})
	p.startAnsweredReport("deleted", "deleted", newUnreferenced("ubuntu"))
	result, err := p.reports.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "deleted"}})
	require.NoError(t, err)
	assert.Equal(t, ctrl.Result{RequeueAfter: trigger.ConflictRetryDelay}, result)
	_, err = p.reports.reconcile(t.Context(), "deleted")
	require.NoError(t, err)
	inquiries, _, known := p.tracker.ForMember("deleted")
	assert.True(t, known)
	assert.Empty(t, inquiries)
}

// alteredReader changes each ClusterReport that is read.
type alteredReader struct {
	client.Client
	alter func(*v1alpha1.ClusterReport) error
}

func (a alteredReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := a.Client.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	if r, ok := o.(*v1alpha1.ClusterReport); ok {
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
		"unchanged":                  {func(*v1alpha1.ClusterReport) error { return nil }, ""},
		"a newer page":               {func(r *v1alpha1.ClusterReport) error { r.Sequence++; return nil }, v1alpha1.ReasonPagesMissing},
		"an older page":              {func(r *v1alpha1.ClusterReport) error { r.Sequence--; return nil }, v1alpha1.ReasonPagesMissing},
		"of another cluster":         {func(r *v1alpha1.ClusterReport) error { r.ClusterUID = "another"; return nil }, v1alpha1.ReasonPagesMissing},
		"a root under a page's name": {func(r *v1alpha1.ClusterReport) error { r.Page = nil; return nil }, v1alpha1.ReasonPagesMissing},
		"gone": {func(r *v1alpha1.ClusterReport) error {
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource(), r.Name)
		}, v1alpha1.ReasonPagesMissing},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			p.reports.Pages = s.newPages(alteredReader{s.Client, tt.alter}, inventory.NewIndex(), report.NewStore())
			c, err := p.reports.gatherCluster(t.Context(), r, m)
			require.NoError(t, err)
			require.NoError(t, p.reports.readImages(t.Context(), &c))
			assert.Equal(t, tt.want, c.Unknown)
			assert.Equal(t, tt.want == "", len(c.Images) == 1)
		})
	}
}

// An unsettled member is awaited until the deadline, and then unknown.
func TestUnsettledMemberIsUnknownAtDeadline(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "unsettled", "unsettled-cluster")
	p := s.newProcess(t, nil)
	p.startAnsweredReport("unsettled", "unsettled", newUnreferenced("ubuntu"))
	p.reports.Pages = s.newPages(alteredReader{s.Client, func(r *v1alpha1.ClusterReport) error {
		r.Sequence++
		return nil
	}}, inventory.NewIndex(), report.NewStore())
	after, err := p.reports.reconcile(t.Context(), "unsettled")
	require.NoError(t, err)
	assert.Equal(t, unsettledRetryDelay, after)
	r := s.getReport(t, "unsettled")
	assert.Equal(t, v1alpha1.PruneReportCollecting, r.Status.Phase)
	assert.Empty(t, s.pageNames(t, r))

	long := metav1.NewTime(time.Now().Add(-time.Hour))
	r.Status.StartedAt = &long
	require.NoError(t, s.Status().Update(t.Context(), r))
	_, err = p.reports.reconcile(t.Context(), "unsettled")
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
	reconcile := func() error {
		after, err := p.reports.reconcile(t.Context(), "scheduled")
		if err == nil {
			assert.Positive(t, after)
		}
		return err
	}
	require.NoError(t, reconcile())
	due := metav1.NewTime(s.getReport(t, "scheduled").Status.NextScheduleTime.AddDate(0, 0, -1))
	makeDue := func() {
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
	makeDue()
	refuse = true
	require.ErrorIs(t, reconcile(), errRefused)
	require.Len(t, children(), 1, "it is created before the status is stored")
	refuse = false
	require.NoError(t, reconcile())
	require.Len(t, children(), 1, "it is not created twice")
	child := children()[0]
	assert.True(t, metav1.IsControlledBy(&child, parent))
	assert.Empty(t, child.Spec.Schedule)
	assert.Equal(t, child.Name, s.getReport(t, "scheduled").Status.LastReport)

	// A foreign report of that name is left alone.
	require.NoError(t, s.Delete(t.Context(), &child))
	foreign := s.createReport(t, child.Name, "scheduled")
	makeDue()
	require.NoError(t, reconcile())
	assert.Equal(t, foreign.UID, s.getReport(t, child.Name).UID)
}

// A schedule whose reports the API server refuses says so, and is made up for once corrected.
func TestRefusedReportStallsSchedule(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "refused", "refused-cluster")
	refuse := true
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if refuse && verb == "create" {
			return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("PruneReport").GroupKind(), o.GetName(),
				field.ErrorList{field.Invalid(field.NewPath("spec", "imageSelector", "namespaces").Index(0), "VMs", "no namespace can have this name")})
		}
		return nil
	})
	parent := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: v1alpha1.PruneReportSpec{
		Schedule: "0 6 * * *", Placement: &v1alpha1.Placement{ClusterNames: []string{"refused"}},
	}}
	require.NoError(t, s.Create(t.Context(), parent))
	reconcile := func() *v1alpha1.PruneReport {
		_, err := p.reports.reconcile(t.Context(), "refused")
		require.NoError(t, err)
		return s.getReport(t, "refused")
	}
	parent = reconcile()
	due := metav1.NewTime(parent.Status.NextScheduleTime.AddDate(0, 0, -1))
	parent.Status.NextScheduleTime = &due
	require.NoError(t, s.Status().Update(t.Context(), parent))
	parent = reconcile()
	assert.Equal(t, v1alpha1.ReasonScheduleInvalid, parent.Status.Reason)
	assert.Contains(t, parent.Status.Message, `"refused" is invalid: spec.imageSelector.namespaces[0]: Invalid value: "VMs": no namespace can have this name. Correct spec.`)
	assert.True(t, meta.IsStatusConditionTrue(parent.Status.Conditions, v1alpha1.ConditionStalled))
	assert.Empty(t, parent.Status.LastReport)
	assert.Equal(t, parent, reconcile(), "it is written once")

	refuse = false
	parent = reconcile()
	assert.Equal(t, v1alpha1.ReasonScheduled, parent.Status.Reason)
	assert.NotEmpty(t, parent.Status.LastReport)
	s.getReport(t, parent.Status.LastReport)
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
		child.OwnerReferences = []metav1.OwnerReference{prune.NewOwnerReference(parent)}
		require.NoError(t, s.Update(t.Context(), child))
		child.Status.Phase = v1alpha1.PruneReportComplete
		require.NoError(t, s.Status().Update(t.Context(), child))
	}
	s.createPrune(t, &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "history"}, Spec: v1alpha1.ImagePruneSpec{
		ReportRef: v1alpha1.PruneReportRef{Name: "history-1", Digest: "digest"}, ApprovedBy: "somebody",
		UndoWindow: &metav1.Duration{Duration: time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
	}})
	there := func(name string) bool {
		return s.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.PruneReport{}) == nil
	}
	eventually(t, "the unused report is deleted", func() bool {
		_, err := p.reports.reconcile(t.Context(), "history")
		if !apierrors.IsConflict(err) { // the cache may lag behind
			require.NoError(t, client.IgnoreNotFound(err))
		}
		return !there("history-2")
	})
	assert.True(t, there("history-1"), "an ImagePrune uses it")
	assert.True(t, there("history-3"))
}
