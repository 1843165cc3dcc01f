package rollout

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// updateCounts writes the counts into the status.
func (e *evaluation) updateCounts() {
	old := &e.Image.Status
	e.status.Clusters = e.counts.ClusterCounts
	if e.currentWave < len(e.waves) {
		e.status.CurrentWave = e.waves[e.currentWave].name
	}
	if len(e.waves) > 0 {
		e.status.Waves = make([]v1alpha1.WaveStatus, len(e.waves))
	}
	for i := range e.waves {
		w := &e.waves[i]
		e.status.Waves[i] = v1alpha1.WaveStatus{Name: w.name, Clusters: w.counts.ClusterCounts, DoneAt: w.doneAt, FirstDoneAt: w.firstDoneAt}
		if w.doneAt != nil || w.firstDoneAt != nil {
			e.status.Waves[i].AwaitedClusters = w.awaited
		}
	}
	succeeded := int32(0)
	if !e.versionChanged {
		e.status.LastSuccessAt, succeeded = old.LastSuccessAt.DeepCopy(), old.Clusters.Succeeded
	}
	// Clusters that a corrected placement selects again did not just succeed.
	wasHeld := old.Reason == v1alpha1.ReasonNoClusters && e.status.LastSuccessAt != nil
	if e.counts.Succeeded > succeeded && !wasHeld {
		e.status.LastSuccessAt = ptr.To(storedtime.Truncate(e.Now))
	}
	e.version.Succeeded = e.version.Succeeded || e.status.LastSuccessAt != nil
	e.updateExpectedAt()
	e.status.Failing = e.failingClusters()
	e.status.Blocked = e.blockedClusters()
}

// Limits of a ClusterSummary, of the status message, and of the names in a message.
const (
	maxReasonLength  = 64
	maxMessageLength = 256
	maxStatusLength  = 2048
	maxListedNames   = 5
)

// failingClusters returns the first failed clusters, by name.
func (e *evaluation) failingClusters() []v1alpha1.ClusterSummary {
	return e.summarizeClusters(e.counts.failures(), v1alpha1.MaxFailingClusters, func(c *placedCluster) bool { return isFailed(c.state) })
}

// summarizeClusters returns the first of count clusters that are listed, by name.
func (e *evaluation) summarizeClusters(count, limit int, isListed func(*placedCluster) bool) []v1alpha1.ClusterSummary {
	if count == 0 {
		return nil
	}
	summaries := make([]v1alpha1.ClusterSummary, 0, min(count, limit))
	for i := range e.placed {
		c := &e.placed[i]
		if !isListed(c) {
			continue
		}
		reason, message := e.explainState(c)
		summaries = append(summaries, v1alpha1.ClusterSummary{
			Cluster: c.Name, State: c.state, Reason: v1alpha1.SanitizeText(reason, maxReasonLength), Message: v1alpha1.SanitizeText(message, maxMessageLength),
		})
		if len(summaries) == limit {
			break
		}
	}
	return summaries
}

func isFailed(state v1alpha1.ClusterState) bool {
	return state == v1alpha1.ClusterFailed || state == v1alpha1.ClusterTimedOut
}

// setPhase writes phase and all conditions.
func (e *evaluation) setPhase(v phaseVerdict) {
	e.status.Phase, e.status.Reason, e.status.Message = v.phase, v.reason, v1alpha1.SanitizeText(v.message, maxStatusLength)
	finished := v.phase == v1alpha1.RolloutSucceeded || v.phase == v1alpha1.RolloutFailed
	progressing := v.phase == v1alpha1.RolloutProgressing || slices.Contains(transientReasons, v.reason)
	// Agents are often upgraded, and clusters labelled, while others get the image.
	isStalled := slices.Contains(stalledReasons, v.reason) && (!isObstacle(v.reason) || !progressing)
	c := kstatus.Writer{Conditions: &e.status.Conditions, Reason: e.status.Reason, Message: e.status.Message, Generation: e.Image.Generation, Now: e.Now}
	c.SetReady(v.phase == v1alpha1.RolloutSucceeded, isStalled)
	c.Set(v1alpha1.ConditionFinished, finished)
	c.Set(v1alpha1.ConditionSucceeded, v.phase == v1alpha1.RolloutSucceeded)
	c.Set(v1alpha1.ConditionProgressing, progressing)
	e.setApprovalGuarded()
}

// setApprovalGuarded sets whether the API server checks who approves, where a wave needs
// approval. An unknown state keeps the former condition.
func (e *evaluation) setApprovalGuarded() {
	c := e.ApprovalGuarded
	if !slices.ContainsFunc(e.Image.Spec.Rollout.Waves, func(w v1alpha1.Wave) bool { return w.RequireApproval }) {
		meta.RemoveStatusCondition(&e.status.Conditions, v1alpha1.ConditionApprovalGuarded)
		return
	}
	if before := meta.FindStatusCondition(e.status.Conditions, v1alpha1.ConditionApprovalGuarded); c.Type == "" && before != nil {
		c = *before
	}
	if c.Type != "" {
		c.Message = v1alpha1.SanitizeText(c.Message, maxStatusLength)
		c.ObservedGeneration, c.LastTransitionTime = e.Image.Generation, storedtime.Truncate(e.Now)
		meta.SetStatusCondition(&e.status.Conditions, c)
	}
}

var (
	// transientReasons pass without help.
	transientReasons = []string{v1alpha1.ReasonMinSuccessTime, v1alpha1.ReasonOfflineClusters, v1alpha1.ReasonDeletingImages, v1alpha1.ReasonRolloutWaitingForWindow}
	// stalledReasons need a person to correct something. They count while clusters are
	// still in progress, too: the rollout does not get further by itself.
	stalledReasons = []string{
		v1alpha1.ReasonMaxFailures, v1alpha1.ReasonNameConflict, v1alpha1.ReasonSelectorInvalid, v1alpha1.ReasonNoClusters, v1alpha1.ReasonPlanFull,
		v1alpha1.ReasonClustersBlocked, v1alpha1.ReasonFieldsUnknown, v1alpha1.ReasonLabelMissing, v1alpha1.ReasonSourceInvalid,
	}
)

// NeedsPerson reports whether a rollout with this reason continues only when a person acts.
func NeedsPerson(reason string) bool {
	return v1alpha1.IsHeldReason(reason) || slices.Contains(stalledReasons, reason)
}
