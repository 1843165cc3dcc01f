package rollout

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/fleet"
)

// count writes what was counted into the status.
func (s *step) count() {
	old := &s.Image.Status
	s.st.Clusters = s.counts.ClusterCounts
	if s.current < len(s.waves) {
		s.st.CurrentWave = s.waves[s.current].name
	}
	if len(s.waves) > 0 {
		s.st.Waves = make([]v1alpha1.WaveStatus, len(s.waves))
	}
	for i := range s.waves {
		w := &s.waves[i]
		s.st.Waves[i] = v1alpha1.WaveStatus{Name: w.name, Clusters: w.counts.ClusterCounts, DoneAt: w.doneAt}
	}
	succeeded := int32(0)
	if !s.fresh {
		s.st.LastSuccessAt, succeeded = old.LastSuccessAt.DeepCopy(), old.Clusters.Succeeded
	}
	if s.counts.Succeeded > succeeded {
		s.st.LastSuccessAt = stamp(s.Now)
	}
	s.st.ExpectedAt = s.expected()
	s.st.Failing = s.failing()
}

// expected extrapolates from the clusters that have succeeded. It rests on what
// was counted, never on the current time, so that it stands while nothing else
// changes. Waves soak meanwhile: what was waited for them is no part of the pace,
// what is still to be waited comes on top.
func (s *step) expected() *metav1.Time {
	left := s.counts.ToApply + s.counts.Progressing
	if s.counts.Succeeded == 0 || left == 0 || s.st.LastSuccessAt == nil {
		return nil
	}
	last := 0 // of the waves with anything left
	begun := 0
	for i := range s.waves {
		c := &s.waves[i].counts
		if c.ToApply+c.Progressing > 0 {
			last = i
		}
		if c.Succeeded > 0 {
			begun = i
		}
	}
	var waited, ahead time.Duration
	for i := range s.waves[:max(begun, last)] {
		if i < begun {
			waited += s.waves[i].soak
		} else {
			ahead += s.waves[i].soak
		}
	}
	took := max(0, s.st.LastSuccessAt.Sub(s.version.Since.Time)-waited)
	each := took / time.Duration(s.counts.Succeeded)
	return stamp(s.st.LastSuccessAt.Add(time.Duration(left)*each + ahead))
}

// Bounds of a ClusterSummary and of what is named in a message.
const (
	mostReason  = 64
	mostMessage = 256
	mostNames   = 5
)

// failing returns the first clusters that have failed, by name.
func (s *step) failing() []v1alpha1.ClusterSummary {
	if s.counts.failures() == 0 {
		return nil
	}
	failing := make([]v1alpha1.ClusterSummary, 0, min(s.counts.failures(), v1alpha1.MaxFailingClusters))
	for i := range s.members {
		m := &s.members[i]
		if !failed(m.state) {
			continue
		}
		reason, message := s.why(m)
		failing = append(failing, v1alpha1.ClusterSummary{
			Cluster: m.Name, State: m.state, Reason: fleet.Cut(reason, mostReason), Message: fleet.Cut(message, mostMessage),
		})
		if len(failing) == v1alpha1.MaxFailingClusters {
			break
		}
	}
	return failing
}

func failed(state v1alpha1.ClusterState) bool {
	return state == v1alpha1.ClusterFailed || state == v1alpha1.ClusterTimedOut
}

// tell writes phase and conditions, all of them on every visit.
func (s *step) tell(v verdict) {
	s.st.Phase, s.st.Reason, s.st.Message = v.phase, v.reason, fleet.Cut(v.message, 2048)
	finished := v.phase == v1alpha1.RolloutSucceeded || v.phase == v1alpha1.RolloutFailed
	moves := v.phase == v1alpha1.RolloutProgressing || slices.Contains(passing, v.reason)
	s.set(v1alpha1.ConditionFinished, finished)
	s.set(v1alpha1.ConditionSucceeded, v.phase == v1alpha1.RolloutSucceeded)
	s.set(v1alpha1.ConditionProgressing, moves)
	s.set(v1alpha1.ConditionStalled, slices.Contains(stalled, v.reason))
	s.guard()
}

// guard says whether the API server checks who approves, where some wave needs that.
// What is not known leaves what was said before.
func (s *step) guard() {
	c := s.Guarded
	if !slices.ContainsFunc(s.Image.Spec.Rollout.Waves, func(w v1alpha1.Wave) bool { return w.RequireApproval }) {
		meta.RemoveStatusCondition(&s.st.Conditions, v1alpha1.ConditionApprovalGuarded)
		return
	}
	if before := meta.FindStatusCondition(s.st.Conditions, v1alpha1.ConditionApprovalGuarded); c.Type == "" && before != nil {
		c = *before
	}
	if c.Type != "" {
		c.ObservedGeneration, c.LastTransitionTime = s.Image.Generation, *stamp(s.Now)
		meta.SetStatusCondition(&s.st.Conditions, c)
	}
}

var (
	// passing are the reasons to wait that pass by themselves.
	passing = []string{v1alpha1.ReasonMinSuccessTime, v1alpha1.ReasonOfflineClusters, v1alpha1.ReasonDeletingImages}
	// stalled are those for which a person has to act.
	stalled = []string{
		v1alpha1.ReasonMaxFailures, v1alpha1.ReasonNameConflict, v1alpha1.ReasonSelectorInvalid, v1alpha1.ReasonAwaitingApproval,
		v1alpha1.ReasonRolloutPaused, v1alpha1.ReasonNoClusters, v1alpha1.ReasonPlanFull,
	}
)

func (s *step) set(t string, holds bool) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.st.Conditions, metav1.Condition{
		Type: t, Status: status, Reason: s.st.Reason, Message: s.st.Message,
		ObservedGeneration: s.Image.Generation, LastTransitionTime: *stamp(s.Now),
	})
}
