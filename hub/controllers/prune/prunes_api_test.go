//go:build linux

package prune

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// createPrune creates an ImagePrune of all candidates of a report.
func (s *testEnv) createPrune(t *testing.T, name string, by *v1alpha1.PruneReport) *v1alpha1.ImagePrune {
	t.Helper()
	p := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ImagePruneSpec{
		ReportRef: v1alpha1.PruneReportRef{Name: by.Name, Digest: by.Status.Digest}, ApprovedBy: "somebody",
		UndoWindow: &metav1.Duration{Duration: time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
	}}
	s.createAndAwait(t, p)
	return p
}

// createAndAwait makes an ImagePrune that all see.
func (s *testEnv) createAndAwait(t *testing.T, p *v1alpha1.ImagePrune) {
	t.Helper()
	require.NoError(t, s.Create(t.Context(), p))
	eventually(t, "it is seen", func() bool {
		return s.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(p), &v1alpha1.ImagePrune{}) == nil
	})
}

func (s *testEnv) getPrune(t *testing.T, name string) *v1alpha1.ImagePrune {
	t.Helper()
	p := &v1alpha1.ImagePrune{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: name}, p))
	return p
}

// reconcilePrune looks at an ImagePrune, and returns what is stored then.
func (p *process) reconcilePrune(name string) *v1alpha1.ImagePrune {
	p.t.Helper()
	_, err := p.prunes.reconcilePrune(p.t.Context(), name)
	require.NoError(p.t, err)
	return p.testEnv.getPrune(p.t, name)
}

// asked is what a member is asked to prune: image UIDs.
func (p *process) plannedImages(member string) (images []types.UID) {
	p.t.Helper()
	_, prunes, known := p.tracker.ForMember(member)
	require.True(p.t, known)
	for _, x := range prunes {
		images = append(images, x.ImageUID)
	}
	return images
}

func TestPruneRunsUntilAllTargetsAreReported(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "runs", "runs-cluster")
	p := s.newProcess(t, nil)
	r := p.completeReport("runs", "runs", newUnreferenced("ubuntu"), newUnreferenced("debian"))
	s.createPrune(t, "runs", r)
	stored := p.reconcilePrune("runs")
	assert.Equal(t, v1alpha1.ImagePruneRunning, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Waiting: 2}, stored.Status.Targets)
	assert.Equal(t, []types.UID{"debian-image", "ubuntu-image"}, p.plannedImages("runs"))

	p.tracker.SetRoot("runs", newRoot("page"))
	tell := func(name string, state v1alpha1.PruneState) v1alpha1.ReportedImage {
		img := newPruneReport(name, stored.UID, state)
		img.Prune.ImageUID = types.UID(name + "-image")
		return img
	}
	p.tracker.SetPage("runs", "page", 2, []v1alpha1.ReportedImage{tell("ubuntu", v1alpha1.PrunePruned), tell("debian", v1alpha1.PruneSkipped)})
	states, found, err := p.prunes.TargetStates(t.Context(), "runs")
	require.NoError(t, err)
	assert.True(t, found)
	require.Len(t, states, 2)
	assert.Equal(t, v1alpha1.PruneSkipped, states[0].State)
	assert.Equal(t, v1alpha1.PrunePruned, states[1].State)

	stored = p.reconcilePrune("runs")
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Pruned: 1, Skipped: 1}, stored.Status.Targets)
	assert.Empty(t, p.plannedImages("runs"))

	another := s.newProcess(t, nil)
	states, found, err = another.prunes.TargetStates(t.Context(), "runs")
	require.NoError(t, err)
	assert.True(t, found)
	assert.Len(t, states, 2, "also one that has not looked at it tells")
	_, found, err = another.prunes.TargetStates(t.Context(), "nothing")
	require.NoError(t, err)
	assert.False(t, found)
}

func TestNothingIsPlannedBeforeRunningIsStored(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "planned", "planned-cluster")
	refuse := false
	p := s.newProcess(t, func(verb string, o client.Object) error {
		if _, is := o.(*v1alpha1.ImagePrune); is && refuse && verb == "status" {
			return errRefused
		}
		return nil
	})
	s.createPrune(t, "planned", p.completeReport("planned", "planned", newUnreferenced("ubuntu")))
	refuse = true
	_, err := p.prunes.reconcilePrune(t.Context(), "planned")
	require.ErrorIs(t, err, errRefused)
	assert.Empty(t, p.plannedImages("planned"))

	refuse = false
	p.reconcilePrune("planned")
	assert.Equal(t, []types.UID{"ubuntu-image"}, p.plannedImages("planned"))
	refuse = true
	p.tracker.SetRoot("planned", newRoot("page"))
	gone := newPruneReport("ubuntu", s.getPrune(t, "planned").UID, v1alpha1.PrunePruned)
	gone.Prune.ImageUID = "ubuntu-image"
	p.tracker.SetPage("planned", "page", 1, []v1alpha1.ReportedImage{gone})
	_, err = p.prunes.reconcilePrune(t.Context(), "planned")
	require.ErrorIs(t, err, errRefused)
	assert.Equal(t, []types.UID{"ubuntu-image"}, p.plannedImages("planned"), "it stays until its end is stored")
}

func TestRestartedHubIsReadyOnceTargetsAreLoaded(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "restarts", "restarts-cluster")
	p := s.newProcess(t, nil)
	s.createPrune(t, "restarts", p.completeReport("restarts", "restarts", newUnreferenced("ubuntu")))
	p.reconcilePrune("restarts")

	restarted := s.newProcess(t, nil, Object{KindPrune, "restarts"})
	known := func() bool {
		_, _, known := restarted.tracker.ForMember("restarts")
		return known
	}
	assert.False(t, known())
	restarted.prunes.Live = unreadablePages{s.Client}
	_, err := restarted.prunes.reconcilePrune(t.Context(), "restarts")
	require.ErrorIs(t, err, errRefused)
	assert.False(t, known(), "its targets could not be read")
	restarted.prunes.Live = s.Client
	restarted.prunes.Roots = report.NewStore()
	restarted.reconcilePrune("restarts")
	assert.False(t, known(), "which cluster reports for its member is not known")
	restarted.prunes.Roots = s.store
	restarted.reconcilePrune("restarts")
	assert.True(t, known())
	assert.Equal(t, []types.UID{"ubuntu-image"}, restarted.plannedImages("restarts"))
}

// Agents that took up nothing before the deadline would take it up after it.
func TestPruneEndedDuringOutageIsNotPlannedAgain(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "late", "late-cluster")
	p := s.newProcess(t, nil)
	s.createPrune(t, "late", p.completeReport("late", "late", newUnreferenced("ubuntu")))
	stored := p.reconcilePrune("late")
	long := metav1.NewTime(time.Now().Add(-3 * time.Hour))
	stored.Status.StartedAt = &long
	require.NoError(t, s.Status().Update(t.Context(), stored))

	refuse := true
	restarted := s.newProcess(t, func(verb string, _ client.Object) error {
		if refuse && verb == "status" {
			return errRefused
		}
		return nil
	}, Object{KindPrune, "late"})
	var planned []string
	restarted.tracker.OnRequestsChange(func(member string) { planned = append(planned, member) })
	_, err := restarted.prunes.reconcilePrune(t.Context(), "late")
	require.ErrorIs(t, err, errRefused)
	assert.Empty(t, planned)
	assert.Empty(t, restarted.tracker.ActivePrunes())
	assert.False(t, restarted.tracker.Ready(), "until its end is stored plans keep what they have")

	refuse = false
	stored = restarted.reconcilePrune("late")
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 1, Unknown: 1}, stored.Status.Targets)
	assert.True(t, restarted.tracker.Ready())
	assert.Empty(t, restarted.plannedImages("late"))
}

func TestPruneRequiresReviewedPages(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "reviewed", "reviewed-cluster")
	p := s.newProcess(t, nil)
	page := func(of *v1alpha1.PruneReport) *v1alpha1.PruneReportPage {
		page := &v1alpha1.PruneReportPage{}
		require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: s.pageNames(t, of)[0]}, page))
		return page
	}
	for name, tt := range map[string]struct {
		change      func(t *testing.T, of *v1alpha1.PruneReport)
		want        string
		wantMessage string
	}{
		"as-it-was": {func(*testing.T, *v1alpha1.PruneReport) {}, v1alpha1.ReasonAwaitingMembers, "wait"},
		"image-added": {func(t *testing.T, of *v1alpha1.PruneReport) {
			x := page(of)
			x.Clusters[0].Candidates = append(x.Clusters[0].Candidates, v1alpha1.PruneCandidate{Namespace: "farm", Name: "windows", UID: "windows-image"})
			require.NoError(t, s.Update(t.Context(), x))
		}, v1alpha1.ReasonReportChanged, "have digest"},
		"page-gone": {func(t *testing.T, of *v1alpha1.PruneReport) {
			require.NoError(t, s.Delete(t.Context(), page(of)))
		}, v1alpha1.ReasonReportChanged, "is missing"},
		"page-hidden": {func(t *testing.T, of *v1alpha1.PruneReport) {
			of.Status.Pages = 0
			require.NoError(t, s.Status().Update(t.Context(), of))
		}, v1alpha1.ReasonReportChanged, "have digest"},
		"report-gone": {func(t *testing.T, of *v1alpha1.PruneReport) {
			require.NoError(t, s.Delete(t.Context(), of))
		}, v1alpha1.ReasonReportMissing, "not any more"},
	} {
		t.Run(name, func(t *testing.T) {
			r := p.completeReport("reviewed-"+name, "reviewed", newUnreferenced("ubuntu"))
			s.createPrune(t, "reviewed-"+name, r)
			tt.change(t, r)
			eventually(t, "it has begun or failed", func() bool { return p.reconcilePrune("reviewed-"+name).Status.Phase != v1alpha1.ImagePrunePending })
			stored := s.getPrune(t, "reviewed-"+name)
			assert.Equal(t, tt.want, stored.Status.Reason, stored.Status.Message)
			assert.Contains(t, stored.Status.Message, tt.wantMessage)
			if tt.want == v1alpha1.ReasonAwaitingMembers {
				assert.Equal(t, []types.UID{"ubuntu-image"}, p.plannedImages("reviewed"))
				require.NoError(t, s.Delete(t.Context(), r))
				assert.Equal(t, v1alpha1.ReasonReportMissing, p.reconcilePrune(stored.Name).Status.Reason, "also while it runs")
			}
			assert.Empty(t, p.plannedImages("reviewed"))
		})
	}
}

func TestReplacedClusterIsAskedNothing(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "rebuilt", "rebuilt-cluster")
	p := s.newProcess(t, nil)
	s.createPrune(t, "rebuilt", p.completeReport("rebuilt", "rebuilt", newUnreferenced("ubuntu"), newUnreferenced("debian")))
	stored := p.reconcilePrune("rebuilt")
	require.Len(t, p.plannedImages("rebuilt"), 2)

	// What another cluster reports says nothing of the images of this one.
	told := newPruneReport("ubuntu", stored.UID, v1alpha1.PrunePruned)
	told.Prune.ImageUID = "ubuntu-image"
	p.tracker.SetRoot("rebuilt", newRoot("page"))
	p.tracker.SetPage("rebuilt", "page", 2, []v1alpha1.ReportedImage{told})
	s.writeReport(t, "rebuilt", "another-cluster", v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, 100, newUnreferenced("ubuntu"))
	v, err := p.prunes.gatherView(t.Context(), stored)
	require.NoError(t, err)
	target := p.prunes.cachedTargets(stored).list[1]
	_, found := v.Reported(target)
	assert.False(t, found)
	assert.Len(t, p.plannedImages("rebuilt"), 2, "the MemberCluster is still the cluster of the report")

	s.setCluster(t, "rebuilt", "another-cluster")
	stored = p.reconcilePrune("rebuilt")
	assert.Empty(t, p.plannedImages("rebuilt"))
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Unknown: 2}, stored.Status.Targets)
}

// The prune goes on in the others meanwhile.
func TestOnlyUnchangedClusterIsAsked(t *testing.T) {
	s := sharedEnv(t)
	names := []string{"stays", "replaced"}
	p := s.newProcess(t, nil)
	for _, name := range names {
		s.addMember(t, name, types.UID(name+"-cluster"))
	}
	s.createReport(t, "two", names...)
	_, err := p.reports.reconcileReport(t.Context(), "two")
	require.NoError(t, err)
	for _, name := range names {
		cluster := types.UID(name + "-cluster")
		s.writeReport(t, name, cluster, p.writePlan(name, cluster), 1, newUnreferenced("ubuntu"))
	}
	_, err = p.reports.reconcileReport(t.Context(), "two")
	require.NoError(t, err)
	s.createPrune(t, "two", s.getReport(t, "two"))
	p.reconcilePrune("two")
	require.Len(t, p.plannedImages("stays"), 1)
	require.Len(t, p.plannedImages("replaced"), 1)

	s.setCluster(t, "replaced", "another-cluster")
	stored := p.reconcilePrune("two")
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Waiting: 1, Unknown: 1}, stored.Status.Targets)
	assert.Len(t, p.plannedImages("stays"), 1)
	assert.Empty(t, p.plannedImages("replaced"))
	assert.Equal(t, []string{"two"}, p.tracker.ActivePrunesIn("replaced"), "it may come back")

	s.setCluster(t, "replaced", "replaced-cluster")
	p.reconcilePrune("two")
	assert.Len(t, p.plannedImages("replaced"), 1)
}

func TestDeletedPruneIsWithdrawn(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "withdrawn", "withdrawn-cluster")
	p := s.newProcess(t, nil)
	s.createPrune(t, "withdrawn", p.completeReport("withdrawn", "withdrawn", newUnreferenced("ubuntu")))
	stored := p.reconcilePrune("withdrawn")
	assert.Len(t, p.plannedImages("withdrawn"), 1)

	stored.Spec.Undo = true
	require.NoError(t, s.Update(t.Context(), stored))
	p.reconcilePrune("withdrawn")
	_, prunes, _ := p.tracker.ForMember("withdrawn")
	require.Len(t, prunes, 1)
	assert.True(t, prunes[0].Undo)

	require.NoError(t, s.Delete(t.Context(), stored))
	p.prunes.throttle.forget("withdrawn")
	_, err := p.prunes.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "withdrawn"}})
	require.NoError(t, err)
	assert.Empty(t, p.plannedImages("withdrawn"))
	assert.Empty(t, p.prunes.targetsByPrune)
}

// Two that begin together are stored to have begun one after the other: whatever
// hub comes to lead has the same one first.
func TestPrunesStartInDifferentSeconds(t *testing.T) {
	s := sharedEnv(t)
	s.addMember(t, "together", "together-cluster")
	p := s.newProcess(t, nil)
	r := p.completeReport("together", "together", newUnreferenced("ubuntu"))
	s.createPrune(t, "together-b", r)
	s.createPrune(t, "together-a", r)
	assert.Equal(t, v1alpha1.ImagePruneRunning, p.reconcilePrune("together-b").Status.Phase)
	eventually(t, "the other begins", func() bool {
		return p.reconcilePrune("together-a").Status.Phase == v1alpha1.ImagePruneRunning
	})
	first, second := s.getPrune(t, "together-b"), s.getPrune(t, "together-a")
	assert.True(t, first.Status.StartedAt.Before(second.Status.StartedAt))
	assert.Equal(t, v1alpha1.PruneAnotherPrune, p.tracker.HeldReason(second.UID, "together", farmKey("ubuntu"), "ubuntu-image"))

	restarted := s.newProcess(t, nil, Object{KindPrune, "together-a"}, Object{KindPrune, "together-b"})
	restarted.reconcilePrune("together-a")
	restarted.reconcilePrune("together-b")
	_, prunes, known := restarted.tracker.ForMember("together")
	require.True(t, known)
	require.Len(t, prunes, 1)
	assert.Equal(t, first.UID, prunes[0].UID)
}
