package prune_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// world is an ImagePrune with the agents of its clusters. Its hub has no memory and loses
// writes.
type world struct {
	t       *rapid.T
	now     time.Time
	prune   *v1alpha1.ImagePrune
	report  *v1alpha1.PruneReport
	chosen  []prune.Target // of the pages as they are read
	members map[string]*worldMember
	images  map[types.UID]*worldImage // of all members
	// ended is the final status.
	ended *v1alpha1.ImagePruneStatus
}

type worldMember struct {
	uid     types.UID
	offline bool
	// cloned: an agent of a cluster that has none of its images reports in turns, and the hub knows it.
	cloned bool
	// plan and report as they have arrived in the member and on the hub.
	plan   map[types.UID]v1alpha1.PlannedPrune
	report map[types.UID]v1alpha1.PruneStatus
}

type worldImage struct {
	state v1alpha1.PruneState // empty: the agent has not accepted it
	until time.Time
	gone  bool
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: now, members: map[string]*worldMember{}, images: map[types.UID]*worldImage{}}
	clusters := judgeAll(&v1alpha1.PruneReportSpec{}, drawClusters(t))
	for i := range clusters {
		c := &clusters[i]
		w.members[c.Cluster] = &worldMember{uid: c.ClusterUID}
		for k := range c.Candidates {
			c.Candidates[k].UID = types.UID(fmt.Sprintf("%s-%s-%s", c.Cluster, c.Candidates[k].Namespace, c.Candidates[k].Name))
			w.images[c.Candidates[k].UID] = &worldImage{}
		}
	}
	w.report = newReport(withStarted)
	pages, digest, err := prune.Paginate(w.report.UID, clusters)
	require.NoError(t, err)
	w.report.Status = prune.CompleteStatus(w.report, clusters, len(pages), digest, now)
	w.prune = newPrune()
	w.prune.Spec.ReportRef.Digest = digest
	w.prune.Spec.IncludeOthers = rapid.Bool().Draw(t, "others")
	w.prune.Spec.UndoWindow.Duration = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "window")
	w.prune.Spec.Deadline.Duration = rapid.SampledFrom([]time.Duration{time.Second, time.Hour}).Draw(t, "deadline")
	var read []v1alpha1.ReportedCluster
	for _, page := range roundTrip(t, pages) {
		read = append(read, page...)
	}
	w.chosen = prune.SelectTargets(&w.prune.Spec, read)
	return w
}

func (w *world) gatherView(loaded bool) prune.PruneView {
	v := prune.PruneView{
		Now: w.now, Prune: w.prune, Report: w.report, TargetsLoaded: loaded, Members: map[string]prune.Member{},
		Reported: func(t prune.Target) (v1alpha1.PruneStatus, bool) {
			st, found := w.members[t.Cluster].report[t.UID]
			return st, found
		},
		HeldReason: func(prune.Target) string { return "" },
	}
	if loaded {
		v.Targets = w.chosen
	}
	for name, m := range w.members {
		v.Members[name] = prune.Member{ClusterUID: m.uid, OfflineReason: m.offlineReason()}
	}
	return v
}

func (m *worldMember) offlineReason() string {
	switch {
	case m.cloned:
		return v1alpha1.ReasonTwoAgents
	case m.offline:
		return v1alpha1.ReasonSilent
	default:
		return ""
	}
}

// runHub is one reconcile; the write may be lost.
func (w *world) runHub(lose bool) {
	d := decideAndCheck(w.t, w.gatherView(false))
	if d.LoadPages {
		require.False(w.t, d.Status.Phase.IsFinal())
		v := w.gatherView(true)
		d = decideAndCheck(w.t, v)
		w.checkDecision(v, d)
	}
	if w.ended != nil {
		require.Equal(w.t, toJSON(w.t, w.ended.Phase), toJSON(w.t, d.Status.Phase), "a final phase stays")
		require.Equal(w.t, w.ended.Targets, d.Status.Targets)
	}
	if old := w.prune.Status.StartedAt; old != nil {
		require.True(w.t, old.Equal(d.Status.StartedAt), "startedAt never changes")
	}
	if lose {
		return
	}
	w.prune.Status = roundTrip(w.t, d.Status)
	if d.Status.Phase.IsFinal() && w.ended == nil {
		w.ended = w.prune.Status.DeepCopy()
	}
}

// checkDecision compares the status with the state of each target.
func (w *world) checkDecision(v prune.PruneView, d prune.PruneDecision) {
	if d.Status.Phase == v1alpha1.ImagePruneFailed || d.Status.Targets.Total == 0 {
		return
	}
	counts := v1alpha1.TargetCounts{}
	v.Prune = v.Prune.DeepCopy()
	v.Prune.Status.Phase, v.Prune.Status.StartedAt = v1alpha1.ImagePruneRunning, d.Status.StartedAt
	for _, t := range v.Targets {
		st := prune.TargetState(v, t)
		counts.Total++
		*counts.CountOf(st.State)++
		if st.State == v1alpha1.PrunePruned {
			require.True(w.t, w.images[t.UID].gone, "a pruned image is deleted")
		}
	}
	require.Equal(w.t, counts, d.Status.Targets)
}

// runAgent is one step of an agent: it applies its plan and reports.
func (w *world) runAgent(name string, reports bool) {
	m := w.members[name]
	if !m.offline {
		former := m.plan
		m.plan = map[types.UID]v1alpha1.PlannedPrune{}
		for _, p := range prune.PlannedPrunes(w.prune, w.chosen)[name] {
			require.NotNil(w.t, w.prune.Status.StartedAt, "startedAt is stored")
			require.Equal(w.t, v1alpha1.ImagePruneRunning, w.prune.Status.Phase)
			if _, begun := former[p.ImageUID]; !m.cloned || begun || p.Undo {
				m.plan[p.ImageUID] = p
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(w.images)) {
		img := w.images[uid]
		if !strings.HasPrefix(string(uid), name+"-") {
			continue
		}
		p, planned := m.plan[uid]
		switch {
		case img.gone || img.state.IsFinal() && img.state != "":
		case !planned && img.state == v1alpha1.PrunePending, planned && p.Undo:
			img.state = v1alpha1.PruneUndone
		case !planned:
		case img.state == "":
			img.state, img.until = v1alpha1.PrunePending, w.now.Add(p.UndoWindow.Duration)
			if rapid.IntRange(0, 5).Draw(w.t, "referenced") == 0 {
				img.state = v1alpha1.PruneSkipped
			}
		case !w.now.Before(img.until):
			img.state, img.gone = v1alpha1.PrunePruned, true
		}
	}
	if m.offline || !reports {
		return
	}
	m.report = map[types.UID]v1alpha1.PruneStatus{}
	if m.cloned && rapid.Bool().Draw(w.t, "by the clone") {
		for uid := range m.plan {
			m.report[uid] = v1alpha1.PruneStatus{UID: w.prune.UID, State: v1alpha1.PrunePruned}
		}
		return
	}
	for uid, img := range w.images {
		if _, planned := m.plan[uid]; img.state != "" && (planned || !img.gone) {
			st := v1alpha1.PruneStatus{UID: w.prune.UID, State: img.state}
			if img.state == v1alpha1.PrunePending {
				st.Until = toStoredTime(img.until)
			}
			m.report[uid] = st
		}
	}
}

func (w *world) drawMember() string {
	if len(w.members) == 0 {
		return ""
	}
	name := fmt.Sprintf("c%d", rapid.IntRange(0, len(w.members)-1).Draw(w.t, "member"))
	return name
}

// step lets one thing happen.
func (w *world) step(what int, name string) {
	t := w.t
	switch {
	case what < 6:
		w.runHub(rapid.IntRange(0, 3).Draw(t, "lost") == 0)
	case what < 14:
		if name != "" {
			w.runAgent(name, rapid.Bool().Draw(t, "reports"))
		}
	case what < 17:
		w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{1, 60, 1800}).Draw(t, "seconds")) * time.Second)
	case what == 17 && name != "":
		w.members[name].offline = !w.members[name].offline
	case what == 18 && name != "" && rapid.IntRange(0, 3).Draw(t, "rebuilt") == 0:
		w.members[name].uid += "-rebuilt"
	case what == 19 && rapid.IntRange(0, 3).Draw(t, "undo") == 0:
		w.prune.Spec.Undo = true
		w.prune.Generation++
	case what == 20 && rapid.IntRange(0, 5).Draw(t, "no report") == 0:
		w.report = nil
	case what == 21 && name != "":
		w.members[name].cloned = true
	case what == 22 && name != "" && w.members[name].cloned:
		w.members[name].cloned, w.members[name].report = false, nil // until its agent reports
	}
}

// end lets the time of the ImagePrune pass.
func (w *world) end() {
	w.runHub(false)
	w.runHub(false)
	w.now = w.now.Add(w.prune.Spec.TotalDuration())
	w.runHub(false)
	require.True(w.t, w.prune.Status.Phase.IsFinal(), "%s: %s", w.prune.Status.Phase, w.prune.Status.Message)
	require.Empty(w.t, prune.PlannedPrunes(w.prune, w.chosen))
	w.now = w.now.AddDate(1, 0, 0)
	w.runHub(false)
}

// An ImagePrune always ends, whatever happens to the hub and the clusters, and deletes only
// what its report lists and it selects.
func TestPropertyImagePruneAlwaysEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		selected := map[types.UID]bool{}
		for _, target := range w.chosen {
			selected[target.UID] = true
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			name := w.drawMember()
			w.step(rapid.IntRange(0, 22).Draw(t, "what"), name)
			for uid, img := range w.images {
				require.False(t, img.state != "" && !selected[uid], "no other image is touched")
			}
		}
		w.end()
	})
}

// An agent whose cluster never had an image answers that it is deleted, also where the prune is undone.
func TestPropertyCloneDeletesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		if len(w.chosen) == 0 {
			return
		}
		name := w.chosen[0].Cluster
		w.runHub(false)
		w.runHub(false)
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			w.step(rapid.SampledFrom([]int{0, 6, 6, 14, 17, 19, 21, 21, 22}).Draw(t, "what"), name)
		}
		w.end()
	})
}
