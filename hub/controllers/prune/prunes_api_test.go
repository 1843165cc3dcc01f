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

// goes creates an ImagePrune of all candidates of a report.
func (s *stage) goes(t *testing.T, name string, by *v1alpha1.PruneReport) *v1alpha1.ImagePrune {
	t.Helper()
	p := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ImagePruneSpec{
		ReportRef: v1alpha1.PruneReportRef{Name: by.Name, Digest: by.Status.Digest}, ApprovedBy: "somebody",
		UndoWindow: &metav1.Duration{Duration: time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
	}}
	s.approve(t, p)
	return p
}

// approve makes an ImagePrune that all see.
func (s *stage) approve(t *testing.T, p *v1alpha1.ImagePrune) {
	t.Helper()
	require.NoError(t, s.Create(t.Context(), p))
	eventually(t, "it is seen", func() bool {
		return s.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(p), &v1alpha1.ImagePrune{}) == nil
	})
}

func (s *stage) prune(t *testing.T, name string) *v1alpha1.ImagePrune {
	t.Helper()
	p := &v1alpha1.ImagePrune{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: name}, p))
	return p
}

// carried looks at an ImagePrune, and returns what is stored then.
func (p *process) carried(name string) *v1alpha1.ImagePrune {
	p.t.Helper()
	_, err := p.prunes.look(p.t.Context(), name)
	require.NoError(p.t, err)
	return p.stage.prune(p.t, name)
}

// asked is what a member is asked to prune: image UIDs.
func (p *process) pruned(member string) (images []types.UID) {
	p.t.Helper()
	_, prunes, known := p.register.Of(member)
	require.True(p.t, known)
	for _, x := range prunes {
		images = append(images, x.ImageUID)
	}
	return images
}

func TestPruneRunsUntilItsMembersHaveToldOfAll(t *testing.T) {
	s := onStage(t)
	s.join(t, "runs", "runs-cluster")
	p := s.process(t, nil)
	r := p.complete("runs", "runs", unreferenced("ubuntu"), unreferenced("debian"))
	s.goes(t, "runs", r)
	stored := p.carried("runs")
	assert.Equal(t, v1alpha1.ImagePruneRunning, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Waiting: 2}, stored.Status.Targets)
	assert.Equal(t, []types.UID{"debian-image", "ubuntu-image"}, p.pruned("runs"))

	p.register.SetRoot("runs", lists("page"))
	tell := func(name string, state v1alpha1.PruneState) v1alpha1.ReportedImage {
		img := tells(name, stored.UID, state)
		img.Prune.ImageUID = types.UID(name + "-image")
		return img
	}
	p.register.SetPage("runs", "page", 2, []v1alpha1.ReportedImage{tell("ubuntu", v1alpha1.PrunePruned), tell("debian", v1alpha1.PruneSkipped)})
	states, found, err := p.prunes.States(t.Context(), "runs")
	require.NoError(t, err)
	assert.True(t, found)
	require.Len(t, states, 2)
	assert.Equal(t, v1alpha1.PruneSkipped, states[0].State)
	assert.Equal(t, v1alpha1.PrunePruned, states[1].State)

	stored = p.carried("runs")
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Pruned: 1, Skipped: 1}, stored.Status.Targets)
	assert.Empty(t, p.pruned("runs"))

	another := s.process(t, nil)
	states, found, err = another.prunes.States(t.Context(), "runs")
	require.NoError(t, err)
	assert.True(t, found)
	assert.Len(t, states, 2, "also one that has not looked at it tells")
	_, found, err = another.prunes.States(t.Context(), "nothing")
	require.NoError(t, err)
	assert.False(t, found)
}

func TestNothingIsPlannedBeforeItIsStoredThatItRuns(t *testing.T) {
	s := onStage(t)
	s.join(t, "planned", "planned-cluster")
	refuse := false
	p := s.process(t, func(verb string, o client.Object) error {
		if _, is := o.(*v1alpha1.ImagePrune); is && refuse && verb == "status" {
			return errRefused
		}
		return nil
	})
	s.goes(t, "planned", p.complete("planned", "planned", unreferenced("ubuntu")))
	refuse = true
	_, err := p.prunes.look(t.Context(), "planned")
	require.ErrorIs(t, err, errRefused)
	assert.Empty(t, p.pruned("planned"))

	refuse = false
	p.carried("planned")
	assert.Equal(t, []types.UID{"ubuntu-image"}, p.pruned("planned"))
	refuse = true
	p.register.SetRoot("planned", lists("page"))
	gone := tells("ubuntu", s.prune(t, "planned").UID, v1alpha1.PrunePruned)
	gone.Prune.ImageUID = "ubuntu-image"
	p.register.SetPage("planned", "page", 1, []v1alpha1.ReportedImage{gone})
	_, err = p.prunes.look(t.Context(), "planned")
	require.ErrorIs(t, err, errRefused)
	assert.Equal(t, []types.UID{"ubuntu-image"}, p.pruned("planned"), "it stays until its end is stored")
}

func TestHubThatRestartsKnowsWhatIsAskedOnceTargetsAreLoaded(t *testing.T) {
	s := onStage(t)
	s.join(t, "restarts", "restarts-cluster")
	p := s.process(t, nil)
	s.goes(t, "restarts", p.complete("restarts", "restarts", unreferenced("ubuntu")))
	p.carried("restarts")

	restarted := s.process(t, nil, object{kindPrune, "restarts"})
	known := func() bool {
		_, _, known := restarted.register.Of("restarts")
		return known
	}
	assert.False(t, known())
	restarted.prunes.Live = unreadable{s.Client}
	_, err := restarted.prunes.look(t.Context(), "restarts")
	require.ErrorIs(t, err, errRefused)
	assert.False(t, known(), "its targets could not be read")
	restarted.prunes.Live = s.Client
	restarted.prunes.Roots = report.NewStore()
	restarted.carried("restarts")
	assert.False(t, known(), "which cluster reports for its member is not known")
	restarted.prunes.Roots = s.store
	restarted.carried("restarts")
	assert.True(t, known())
	assert.Equal(t, []types.UID{"ubuntu-image"}, restarted.pruned("restarts"))
}

// Agents that took up nothing before the deadline would take it up after it.
func TestPruneThatEndedWhileNoHubRanIsNotPlannedAfresh(t *testing.T) {
	s := onStage(t)
	s.join(t, "late", "late-cluster")
	p := s.process(t, nil)
	s.goes(t, "late", p.complete("late", "late", unreferenced("ubuntu")))
	stored := p.carried("late")
	long := metav1.NewTime(time.Now().Add(-3 * time.Hour))
	stored.Status.StartedAt = &long
	require.NoError(t, s.Status().Update(t.Context(), stored))

	refuse := true
	restarted := s.process(t, func(verb string, _ client.Object) error {
		if refuse && verb == "status" {
			return errRefused
		}
		return nil
	}, object{kindPrune, "late"})
	var planned []string
	restarted.register.OnAsks(func(member string) { planned = append(planned, member) })
	_, err := restarted.prunes.look(t.Context(), "late")
	require.ErrorIs(t, err, errRefused)
	assert.Empty(t, planned)
	assert.Empty(t, restarted.register.allRunning())
	assert.False(t, restarted.register.Known(), "until its end is stored plans keep what they have")

	refuse = false
	stored = restarted.carried("late")
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 1, Unknown: 1}, stored.Status.Targets)
	assert.True(t, restarted.register.Known())
	assert.Empty(t, restarted.pruned("late"))
}

func TestPruneGoesByWhatWasReviewedAlone(t *testing.T) {
	s := onStage(t)
	s.join(t, "reviewed", "reviewed-cluster")
	p := s.process(t, nil)
	page := func(of *v1alpha1.PruneReport) *v1alpha1.PruneReportPage {
		page := &v1alpha1.PruneReportPage{}
		require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: s.pagesOf(t, of)[0]}, page))
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
			r := p.complete("reviewed-"+name, "reviewed", unreferenced("ubuntu"))
			s.goes(t, "reviewed-"+name, r)
			tt.change(t, r)
			eventually(t, "it has begun or failed", func() bool { return p.carried("reviewed-"+name).Status.Phase != v1alpha1.ImagePrunePending })
			stored := s.prune(t, "reviewed-"+name)
			assert.Equal(t, tt.want, stored.Status.Reason, stored.Status.Message)
			assert.Contains(t, stored.Status.Message, tt.wantMessage)
			if tt.want == v1alpha1.ReasonAwaitingMembers {
				assert.Equal(t, []types.UID{"ubuntu-image"}, p.pruned("reviewed"))
				require.NoError(t, s.Delete(t.Context(), r))
				assert.Equal(t, v1alpha1.ReasonReportMissing, p.carried(stored.Name).Status.Reason, "also while it runs")
			}
			assert.Empty(t, p.pruned("reviewed"))
		})
	}
}

func TestAnotherClusterUnderTheNameIsAskedForNothing(t *testing.T) {
	s := onStage(t)
	s.join(t, "rebuilt", "rebuilt-cluster")
	p := s.process(t, nil)
	s.goes(t, "rebuilt", p.complete("rebuilt", "rebuilt", unreferenced("ubuntu"), unreferenced("debian")))
	stored := p.carried("rebuilt")
	require.Len(t, p.pruned("rebuilt"), 2)

	// What another cluster reports says nothing of the images of this one.
	told := tells("ubuntu", stored.UID, v1alpha1.PrunePruned)
	told.Prune.ImageUID = "ubuntu-image"
	p.register.SetRoot("rebuilt", lists("page"))
	p.register.SetPage("rebuilt", "page", 2, []v1alpha1.ReportedImage{told})
	s.answers(t, "rebuilt", "another-cluster", v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, 100, unreferenced("ubuntu"))
	v, err := p.prunes.view(t.Context(), stored)
	require.NoError(t, err)
	target := p.prunes.targets(stored).list[1]
	_, found := v.Reported(target)
	assert.False(t, found)
	assert.Len(t, p.pruned("rebuilt"), 2, "the MemberCluster is still the cluster of the report")

	s.is(t, "rebuilt", "another-cluster")
	stored = p.carried("rebuilt")
	assert.Empty(t, p.pruned("rebuilt"))
	assert.Equal(t, v1alpha1.ImagePruneComplete, stored.Status.Phase)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Unknown: 2}, stored.Status.Targets)
}

// The prune goes on in the others meanwhile.
func TestOfTwoClustersOneIsAnother(t *testing.T) {
	s := onStage(t)
	names := []string{"stays", "replaced"}
	p := s.process(t, nil)
	for _, name := range names {
		s.join(t, name, types.UID(name+"-cluster"))
	}
	s.asks(t, "two", names...)
	_, err := p.reports.look(t.Context(), "two")
	require.NoError(t, err)
	for _, name := range names {
		cluster := types.UID(name + "-cluster")
		s.answers(t, name, cluster, p.plan(name, cluster), 1, unreferenced("ubuntu"))
	}
	_, err = p.reports.look(t.Context(), "two")
	require.NoError(t, err)
	s.goes(t, "two", s.stored(t, "two"))
	p.carried("two")
	require.Len(t, p.pruned("stays"), 1)
	require.Len(t, p.pruned("replaced"), 1)

	s.is(t, "replaced", "another-cluster")
	stored := p.carried("two")
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Waiting: 1, Unknown: 1}, stored.Status.Targets)
	assert.Len(t, p.pruned("stays"), 1)
	assert.Empty(t, p.pruned("replaced"))
	assert.Equal(t, []string{"two"}, p.register.running("replaced"), "it may come back")

	s.is(t, "replaced", "replaced-cluster")
	p.carried("two")
	assert.Len(t, p.pruned("replaced"), 1)
}

func TestPruneThatIsDeletedIsTakenBack(t *testing.T) {
	s := onStage(t)
	s.join(t, "withdrawn", "withdrawn-cluster")
	p := s.process(t, nil)
	s.goes(t, "withdrawn", p.complete("withdrawn", "withdrawn", unreferenced("ubuntu")))
	stored := p.carried("withdrawn")
	assert.Len(t, p.pruned("withdrawn"), 1)

	stored.Spec.Undo = true
	require.NoError(t, s.Update(t.Context(), stored))
	p.carried("withdrawn")
	_, prunes, _ := p.register.Of("withdrawn")
	require.Len(t, prunes, 1)
	assert.True(t, prunes[0].Undo)

	require.NoError(t, s.Delete(t.Context(), stored))
	p.prunes.looks.forget("withdrawn")
	_, err := p.prunes.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "withdrawn"}})
	require.NoError(t, err)
	assert.Empty(t, p.pruned("withdrawn"))
	assert.Empty(t, p.prunes.loaded)
}

// Two that begin together are stored to have begun one after the other: whatever
// hub comes to lead has the same one first.
func TestPrunesBeginOneAfterTheOther(t *testing.T) {
	s := onStage(t)
	s.join(t, "together", "together-cluster")
	p := s.process(t, nil)
	r := p.complete("together", "together", unreferenced("ubuntu"))
	s.goes(t, "together-b", r)
	s.goes(t, "together-a", r)
	assert.Equal(t, v1alpha1.ImagePruneRunning, p.carried("together-b").Status.Phase)
	eventually(t, "the other begins", func() bool {
		return p.carried("together-a").Status.Phase == v1alpha1.ImagePruneRunning
	})
	first, second := s.prune(t, "together-b"), s.prune(t, "together-a")
	assert.True(t, first.Status.StartedAt.Before(second.Status.StartedAt))
	assert.Equal(t, v1alpha1.PruneAnother, p.register.held(second.UID, "together", farm("ubuntu"), "ubuntu-image"))

	restarted := s.process(t, nil, object{kindPrune, "together-a"}, object{kindPrune, "together-b"})
	restarted.carried("together-a")
	restarted.carried("together-b")
	_, prunes, known := restarted.register.Of("together")
	require.True(t, known)
	require.Len(t, prunes, 1)
	assert.Equal(t, first.UID, prunes[0].UID)
}
