package rollout_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// The model states the rules again, as simply as possible.

// expectedState takes what the deadline has used.
func expectedState(c *rollout.Cluster, spec *v1alpha1.VMDiskImageSpec, used time.Duration) v1alpha1.ClusterState {
	started, wanted := c.PlannedDigest == spec.SourceDigest(), spec.Revision()
	r := c.Report
	succeeded := r.Exists && r.ItemState == v1alpha1.PlanItemApplied && r.Revision == wanted && r.ServingRevision == wanted && r.Phase == v1alpha1.PhaseSucceeded
	refused := (r.ItemRevision == "" || r.ItemRevision == wanted) && (r.ItemState == v1alpha1.PlanItemNotOurs || r.ItemState == v1alpha1.PlanItemRejected)
	failed := r.Exists && r.Revision == wanted && r.Phase == v1alpha1.PhaseFailed
	isFormer := c.KnowsRetry && c.PlannedRetry != "" && c.PlannedRetry != r.Retry // what failed is the former source
	switch {
	case started && succeeded:
		return v1alpha1.ClusterSucceeded
	case started && (refused || failed && !isFormer):
		return v1alpha1.ClusterFailed
	case c.OfflineReason != "":
		return v1alpha1.ClusterDeferred
	case !started:
		return v1alpha1.ClusterToApply
	case used > worldDeadline:
		return v1alpha1.ClusterTimedOut
	default:
		return v1alpha1.ClusterProgressing
	}
}

func expectedPart(of *intstr.IntOrString, all, unset int) int {
	if of == nil {
		return unset
	}
	if of.Type == intstr.Int {
		return of.IntValue()
	}
	n, _ := strconv.Atoi(strings.TrimSuffix(of.StrVal, "%"))
	return all * n / 100
}

var modelWaves = []string{"canary", "eu", v1alpha1.WaveRest}

type model struct {
	state map[string]v1alpha1.ClusterState // of those placed
	spec  map[string]*v1alpha1.VMDiskImageSpec
	in    map[string][]*rollout.Cluster // by wave
}

func (m *model) expectedCounts(wave string, states ...v1alpha1.ClusterState) (n int) {
	for name, clusters := range m.in {
		for _, c := range clusters {
			if (wave == "" || wave == name) && (len(states) == 0 || slices.Contains(states, m.state[c.Name])) {
				n++
			}
		}
	}
	return n
}

func (w *world) buildModel(v rollout.View) *model {
	m := &model{state: map[string]v1alpha1.ClusterState{}, spec: map[string]*v1alpha1.VMDiskImageSpec{}, in: map[string][]*rollout.Cluster{}}
	for i := range v.Clusters {
		c := &v.Clusters[i]
		if c.Labels["placed"] != "yes" {
			continue
		}
		wave := c.Labels["wave"]
		if wave == "others" {
			wave = v1alpha1.WaveRest
		}
		m.in[wave] = append(m.in[wave], c)
		m.spec[c.Name] = w.expectedSpec(c.Name, c.Labels)
		since := c.PlannedAt
		if !w.recordsUptime && c.OnlineSince.After(since) {
			since = c.OnlineSince
		}
		used := time.Duration(0)
		if c.PlannedDigest != "" {
			used = w.members[c.Name].expectedUse(since, w.now)
		}
		m.state[c.Name] = expectedState(c, m.spec[c.Name], used)
	}
	return m
}

// checkPending: what waits for an approval is named, and nothing else.
func (w *world) checkPending(m *model, d rollout.Decision) {
	p := d.Status.PendingApproval
	require.True(w.t, p != nil || d.Status.Reason != v1alpha1.ReasonAwaitingApproval)
	if p == nil {
		return
	}
	var want []string
	for _, c := range m.in[p.Wave] {
		state, spec := m.state[c.Name], m.spec[c.Name]
		waits := state == v1alpha1.ClusterToApply || state == v1alpha1.ClusterDeferred && c.PlannedDigest != spec.SourceDigest()
		if obstacle := expectedObstacle(spec, c); waits && (obstacle == "" || obstacle == v1alpha1.ReasonFieldsUnknown) && !w.expectedApproval(p.Wave, spec) {
			want = append(want, spec.SourceDigest())
		}
	}
	slices.Sort(want)
	require.Equal(w.t, slices.Compact(want), p.Sources)
	require.Equal(w.t, d.Status.CurrentWave, p.Wave)
}

// expectedStarts returns the clusters that start, and records when waves are done.
func (w *world) expectedStarts(m *model) (start []string) {
	rules := &w.img.Spec.Rollout
	var current string
	for _, wave := range modelWaves {
		open := m.expectedCounts(wave, v1alpha1.ClusterToApply, v1alpha1.ClusterProgressing)
		if rules.OfflineClusters == v1alpha1.OfflineWait {
			open += m.expectedCounts(wave, v1alpha1.ClusterDeferred)
		}
		switch {
		case wave == v1alpha1.WaveRest && m.expectedCounts(wave) == 0: // rest is not in the spec
			delete(w.done, wave)
			delete(w.first, wave)
			delete(w.away, wave)
		case open > 0:
			w.forgetReturned(m, wave)
			w.reopenWave(m, wave)
			if current == "" {
				current = wave
			}
		case w.done[wave].IsZero() && m.expectedCounts("") > 0:
			w.forgetReturned(m, wave)
			w.done[wave] = w.now
			if first, ok := w.first[wave]; ok {
				w.done[wave] = first
			} else {
				w.away[wave] = w.offlineInProgress(m, wave)
			}
			delete(w.first, wave)
		default:
			w.forgetReturned(m, wave)
		}
	}
	failures := m.expectedCounts("", v1alpha1.ClusterFailed, v1alpha1.ClusterTimedOut)
	if current == "" || rules.Paused || failures > expectedPart(rules.MaxFailures, m.expectedCounts(""), 0) {
		return nil
	}
	for i, wave := range modelWaves {
		if wave == current {
			break
		}
		if w.now.Sub(w.done[wave]) < rules.Waves[i].MinSuccessTime.Duration {
			return nil
		}
	}
	most := expectedPart(rules.MaxConcurrency, m.expectedCounts(current), math.MaxInt)
	free := max(1, most) - m.expectedCounts(current, v1alpha1.ClusterProgressing)
	for _, c := range m.in[current] {
		canBegin := !c.PlanFull && expectedObstacle(m.spec[c.Name], c) == "" && w.expectedApproval(current, m.spec[c.Name])
		if m.state[c.Name] == v1alpha1.ClusterToApply && canBegin && len(start) < free {
			start = append(start, c.Name)
			delete(w.first, current)
		}
	}
	return start
}

// reopenWave: a wave that is no longer done becomes done as of the same time again, while none is
// in progress there but clusters that were in progress and offline at that time, and have been
// unfinished since.
func (w *world) reopenWave(m *model, wave string) {
	if done, ok := w.done[wave]; ok {
		w.first[wave] = done
		delete(w.done, wave)
	}
	for _, c := range m.in[wave] {
		if m.state[c.Name] == v1alpha1.ClusterProgressing && (!slices.Contains(w.away[wave], c.Name) || c.PlannedAt.After(w.first[wave])) {
			delete(w.first, wave)
		}
	}
}

func (w *world) offlineInProgress(m *model, wave string) (names []string) {
	for _, c := range m.in[wave] {
		if m.state[c.Name] == v1alpha1.ClusterDeferred && c.PlannedDigest == m.spec[c.Name].SourceDigest() {
			names = append(names, c.Name)
		}
	}
	return names
}

// forgetReturned forgets those that were in progress and offline, and have finished since.
func (w *world) forgetReturned(m *model, wave string) {
	var names []string
	for _, c := range m.in[wave] {
		unfinished := m.state[c.Name] == v1alpha1.ClusterProgressing || m.state[c.Name] == v1alpha1.ClusterDeferred && c.PlannedDigest == m.spec[c.Name].SourceDigest()
		if unfinished && slices.Contains(w.away[wave], c.Name) {
			names = append(names, c.Name)
		}
	}
	w.away[wave] = names
}

// checkDecision compares a decision with the model.
func (w *world) checkDecision(v rollout.View, d rollout.Decision) {
	m := w.buildModel(v)
	require.Equal(w.t, w.expectedStarts(m), d.Start, "%s: %s", formatStates(d), d.Status.Message)
	for _, name := range d.Start {
		m.state[name] = v1alpha1.ClusterProgressing
	}

	st := &d.Status
	var order []string
	for _, wave := range modelWaves {
		for _, c := range m.in[wave] {
			order = append(order, wave+"/"+c.Name)
		}
	}
	for i, p := range d.Placed {
		require.Less(w.t, i, len(order))
		require.Equal(w.t, order[i], p.Wave+"/"+p.Cluster)
		require.Equal(w.t, m.state[p.Cluster], p.State, p.Cluster)
	}
	w.checkPending(m, d)
	require.Len(w.t, d.Placed, len(order))
	require.Equal(w.t, v1alpha1.ClusterCounts{
		Total: int32(len(order)), ToApply: int32(m.expectedCounts("", v1alpha1.ClusterToApply)), Progressing: int32(m.expectedCounts("", v1alpha1.ClusterProgressing)),
		Succeeded: int32(m.expectedCounts("", v1alpha1.ClusterSucceeded)), Failed: int32(m.expectedCounts("", v1alpha1.ClusterFailed)),
		TimedOut: int32(m.expectedCounts("", v1alpha1.ClusterTimedOut)), Deferred: int32(m.expectedCounts("", v1alpha1.ClusterDeferred)),
	}, st.Clusters)

	require.Equal(w.t, w.checkPhase(m, st), st.Phase, "%s %s", formatStates(d), st.Message)
	require.Equal(w.t, w.img.Spec.Version, st.Versions[0].Version)
	require.Equal(w.t, w.img.Spec.Template.Revision(), st.Versions[0].Revision)
	for _, wave := range st.Waves {
		if since, done := w.done[wave.Name]; done {
			require.Equal(w.t, since.UTC(), wave.DoneAt.UTC(), wave.Name)
		} else {
			require.Nil(w.t, wave.DoneAt, wave.Name)
		}
	}
	require.GreaterOrEqual(w.t, d.RequeueAfter, time.Duration(0))
}

// checkPhase checks phase and reason against the API's comments.
func (w *world) checkPhase(m *model, st *v1alpha1.FleetDiskImageStatus) v1alpha1.RolloutPhase {
	rules := &w.img.Spec.Rollout
	failures := m.expectedCounts("", v1alpha1.ClusterFailed, v1alpha1.ClusterTimedOut)
	tooMany := failures > expectedPart(rules.MaxFailures, m.expectedCounts(""), 0)
	offline := m.expectedCounts("", v1alpha1.ClusterDeferred)
	isObstacle := slices.Contains([]string{v1alpha1.ReasonLabelMissing, v1alpha1.ReasonSourceInvalid, v1alpha1.ReasonFieldsUnknown}, st.Reason)
	switch {
	case m.expectedCounts("", v1alpha1.ClusterProgressing) > 0:
		return v1alpha1.RolloutProgressing
	case isObstacle && w.now.Before(st.BlockedSince.Add(time.Minute)): // a label may be set at this moment
		return v1alpha1.RolloutProgressing
	case tooMany:
		return v1alpha1.RolloutFailed
	case m.expectedCounts("", v1alpha1.ClusterToApply) > 0, m.expectedCounts("") == offline, offline > 0 && rules.OfflineClusters == v1alpha1.OfflineWait:
		return v1alpha1.RolloutWaiting
	default:
		return v1alpha1.RolloutSucceeded
	}
}

// checkDesired checks the desired images of one member.
func (w *world) checkDesired(name string, desired rollout.DesiredImages, in rollout.ClusterProgress, current *v1alpha1.PlannedImage) {
	versions := w.decided.Versions
	var named []string
	for _, i := range desired.Images {
		named = append(named, i.Name)
	}
	asked := len(named)
	for _, i := range desired.Kept {
		named = append(named, i.Name)
	}
	protected := len(named)
	for _, i := range desired.Retired {
		named = append(named, i.Name)
	}
	slices.Sort(named)
	require.Len(w.t, slices.Compact(slices.Clone(named)), len(named), "each image is named once")
	if w.img.Spec.Retention.KeepUnreferencedFor == nil {
		require.Empty(w.t, desired.Retired)
	} else {
		require.Len(w.t, named, len(versions), "every version is named")
	}
	if in.Placed && !in.Succeeded {
		require.Equal(w.t, len(versions), protected, "nothing is retired before success")
	} else {
		require.Equal(w.t, min(2, len(versions)), protected, "two versions are protected")
	}

	switch {
	case in.Placed && in.Started && in.KeepsItem:
		require.Equal(w.t, current.Spec, desired.Images[0].Spec, "fields that the agent does not know change nothing")
		require.Equal(w.t, w.expectedSpec(name, w.members[name].labels).SourceDigest(), current.Spec.SourceDigest())
	case in.Placed && in.Started:
		spec := w.expectedSpec(name, w.members[name].labels)
		require.Equal(w.t, *spec, desired.Images[0].Spec)
		if current != nil && current.Spec.SourceDigest() == spec.SourceDigest() && current.Retry == in.Retry {
			require.Equal(w.t, current.PlannedAt, desired.Images[0].PlannedAt)
		} else {
			require.Equal(w.t, w.now.UTC(), desired.Images[0].PlannedAt.UTC())
		}
	case in.Placed && current != nil:
		require.Equal(w.t, *current, desired.Images[0], "the former item stays until the start")
	default:
		require.Zero(w.t, asked)
	}
}
