package rollout

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// updateCounts writes what was counted into the status.
func (s *evaluation) updateCounts() {
	old := &s.Image.Status
	s.status.Clusters = s.counts.ClusterCounts
	if s.currentWave < len(s.waves) {
		s.status.CurrentWave = s.waves[s.currentWave].name
	}
	if len(s.waves) > 0 {
		s.status.Waves = make([]v1alpha1.WaveStatus, len(s.waves))
	}
	for i := range s.waves {
		w := &s.waves[i]
		s.status.Waves[i] = v1alpha1.WaveStatus{Name: w.name, Clusters: w.counts.ClusterCounts, DoneAt: w.doneAt}
	}
	succeeded := int32(0)
	if !s.versionChanged {
		s.status.LastSuccessAt, succeeded = old.LastSuccessAt.DeepCopy(), old.Clusters.Succeeded
	}
	if s.counts.Succeeded > succeeded {
		s.status.LastSuccessAt = toStoredTime(s.Now)
	}
	s.status.ExpectedAt = s.estimateCompletion()
	s.status.Failing = s.failingClusters()
}

// estimateCompletion extrapolates from the clusters that have succeeded. It rests on what
// was counted, never on the current time, so that it stands while nothing else
// changes. Waves soak meanwhile: what was waited for them is no part of the pace,
// what is still to be waited comes on top.
func (s *evaluation) estimateCompletion() *metav1.Time {
	left := s.counts.ToApply + s.counts.Progressing
	if s.counts.Succeeded == 0 || left == 0 || s.status.LastSuccessAt == nil {
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
			waited += s.waves[i].minSuccessTime
		} else {
			ahead += s.waves[i].minSuccessTime
		}
	}
	took := max(0, s.status.LastSuccessAt.Sub(s.version.Since.Time)-waited)
	each := took / time.Duration(s.counts.Succeeded)
	return toStoredTime(s.status.LastSuccessAt.Add(time.Duration(left)*each + ahead))
}

// Bounds of a ClusterSummary and of what is named in a message.
const (
	maxReasonLength  = 64
	maxMessageLength = 256
	maxListedNames   = 5
)

// failingClusters returns the first clusters that have failed, by name.
func (s *evaluation) failingClusters() []v1alpha1.ClusterSummary {
	if s.counts.failures() == 0 {
		return nil
	}
	failing := make([]v1alpha1.ClusterSummary, 0, min(s.counts.failures(), v1alpha1.MaxFailingClusters))
	for i := range s.clusters {
		m := &s.clusters[i]
		if !isFailed(m.state) {
			continue
		}
		reason, message := s.explainState(m)
		failing = append(failing, v1alpha1.ClusterSummary{
			Cluster: m.Name, State: m.state, Reason: v1alpha1.Truncate(reason, maxReasonLength), Message: v1alpha1.Truncate(message, maxMessageLength),
		})
		if len(failing) == v1alpha1.MaxFailingClusters {
			break
		}
	}
	return failing
}

func isFailed(state v1alpha1.ClusterState) bool {
	return state == v1alpha1.ClusterFailed || state == v1alpha1.ClusterTimedOut
}

// setPhase writes phase and conditions, all of them on every visit.
func (s *evaluation) setPhase(v phaseVerdict) {
	s.status.Phase, s.status.Reason, s.status.Message = v.phase, v.reason, v1alpha1.Truncate(v.message, 2048)
	finished := v.phase == v1alpha1.RolloutSucceeded || v.phase == v1alpha1.RolloutFailed
	moves := v.phase == v1alpha1.RolloutProgressing || slices.Contains(transientReasons, v.reason)
	s.setCondition(v1alpha1.ConditionFinished, finished)
	s.setCondition(v1alpha1.ConditionSucceeded, v.phase == v1alpha1.RolloutSucceeded)
	s.setCondition(v1alpha1.ConditionProgressing, moves)
	s.setCondition(v1alpha1.ConditionStalled, slices.Contains(stalledReasons, v.reason))
	s.setApprovalGuarded()
}

// setApprovalGuarded says whether the API server checks who approves, where some wave needs that.
// What is not known leaves what was said before.
func (s *evaluation) setApprovalGuarded() {
	c := s.ApprovalGuarded
	if !slices.ContainsFunc(s.Image.Spec.Rollout.Waves, func(w v1alpha1.Wave) bool { return w.RequireApproval }) {
		meta.RemoveStatusCondition(&s.status.Conditions, v1alpha1.ConditionApprovalGuarded)
		return
	}
	if before := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionApprovalGuarded); c.Type == "" && before != nil {
		c = *before
	}
	if c.Type != "" {
		c.ObservedGeneration, c.LastTransitionTime = s.Image.Generation, *toStoredTime(s.Now)
		meta.SetStatusCondition(&s.status.Conditions, c)
	}
}

var (
	// transientReasons are the reasons to wait that pass by themselves.
	transientReasons = []string{v1alpha1.ReasonMinSuccessTime, v1alpha1.ReasonOfflineClusters, v1alpha1.ReasonDeletingImages}
	// stalledReasons are those for which a person has to act.
	stalledReasons = []string{
		v1alpha1.ReasonMaxFailures, v1alpha1.ReasonNameConflict, v1alpha1.ReasonSelectorInvalid, v1alpha1.ReasonAwaitingApproval,
		v1alpha1.ReasonRolloutPaused, v1alpha1.ReasonNoClusters, v1alpha1.ReasonPlanFull,
	}
)

func (s *evaluation) setCondition(t string, holds bool) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.status.Conditions, metav1.Condition{
		Type: t, Status: status, Reason: s.status.Reason, Message: s.status.Message,
		ObservedGeneration: s.Image.Generation, LastTransitionTime: *toStoredTime(s.Now),
	})
}
