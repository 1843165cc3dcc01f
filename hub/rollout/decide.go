package rollout

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Decide returns what is to be done about a FleetDiskImage, and its status. The
// same view gives the same decision, and with the status that was decided there is
// nothing more to write.
func Decide(v View) Decision {
	s := newEvaluation(v)
	switch err := s.parseSelectors(); {
	case v.Image.DeletionTimestamp != nil:
		s.carryOverCounts()
		s.setPhase(s.deletingVerdict())
	case v.Conflict != "":
		s.setPhase(s.conflictVerdict())
	case err != nil:
		s.decision.Freeze = true
		s.carryOverCounts()
		s.setPhase(invalidSelectorVerdict(err))
	default:
		s.placeClusters()
		s.findCurrentWave()
		b := s.decideNextWave()
		s.listPlaced()
		s.updateCounts()
		s.setPhase(s.decidePhase(b))
	}
	s.decision.Status = s.status
	return s.decision
}

// evaluation works out one decision.
type evaluation struct {
	View
	status   v1alpha1.FleetDiskImageStatus
	decision Decision
	// version is what is rolled out; fresh: the stored status is about another one.
	version        *v1alpha1.VersionStatus
	versionChanged bool

	placement   placement
	waves       []wave
	clusters    []placedCluster // in order of name
	counts      stateCounts
	currentWave int // the first wave that is not done, or the number of waves
}

// placedCluster is one cluster that is placed.
type placedCluster struct {
	*Cluster
	wave    int32
	started bool
	state   v1alpha1.ClusterState
}

func newEvaluation(v View) *evaluation {
	old := &v.Image.Status
	s := &evaluation{View: v}
	s.status.ObservedGeneration = v.Image.Generation
	s.status.Versions = slices.Clone(updatedVersions(v.Image, v.Now))
	s.status.Conditions = slices.Clone(old.Conditions)
	s.version = &s.status.Versions[0]
	s.versionChanged = len(old.Versions) == 0 || !sameVersion(&old.Versions[0], s.version)
	return s
}

// carryOverCounts leaves what was counted as it was: it is not counted again.
func (s *evaluation) carryOverCounts() {
	if s.versionChanged {
		return
	}
	old := s.Image.Status.DeepCopy()
	s.status.Clusters, s.status.CurrentWave, s.status.Waves, s.status.Failing = old.Clusters, old.CurrentWave, old.Waves, old.Failing
	s.status.LastSuccessAt, s.status.ExpectedAt = old.LastSuccessAt, old.ExpectedAt
}

// requeueAt asks for another look at a time to come.
func (s *evaluation) requeueAt(at time.Time) {
	if wait := at.Sub(s.Now); wait > 0 && (s.decision.RequeueAfter == 0 || wait < s.decision.RequeueAfter) {
		s.decision.RequeueAfter = wait
	}
}

// placeClusters finds the clusters that are placed, with their waves and states.
func (s *evaluation) placeClusters() {
	clusters := s.Clusters
	s.clusters = make([]placedCluster, 0, len(clusters))
	for i := range clusters {
		c := &clusters[i]
		if !s.placement.matches(c.Name, c.Labels) {
			continue
		}
		m := placedCluster{Cluster: c, wave: s.waveFor(c), started: c.PlannedRevision == s.version.Revision}
		s.evaluateState(&m)
		s.clusters = append(s.clusters, m)
		s.waves[m.wave].counts.addCluster(m.state)
	}
	// The last one is rest, which nobody has named.
	if last := len(s.waves) - 1; s.waves[last].counts.Total == 0 {
		s.waves = s.waves[:last]
	}
}

// findCurrentWave adds the waves up, and finds those that are done, and since when.
func (s *evaluation) findCurrentWave() {
	s.currentWave = len(s.waves)
	for i := range s.waves {
		w := &s.waves[i]
		s.counts.addCounts(&w.counts)
		if !w.isDone(s.Image.Spec.Rollout.OfflineClusters) {
			s.currentWave = min(s.currentWave, i)
			continue
		}
		if !s.versionChanged {
			w.doneAt = previousDoneAt(s.Image.Status.Waves, w.name)
		}
		if w.doneAt == nil {
			w.doneAt = toStoredTime(s.Now)
		}
	}
}

func previousDoneAt(waves []v1alpha1.WaveStatus, name string) *metav1.Time {
	for i := range waves {
		if waves[i].Name == name {
			return waves[i].DoneAt.DeepCopy()
		}
	}
	return nil
}

// decideNextWave has as many clusters of the current wave begin as may, and says what
// keeps the others from it.
func (s *evaluation) decideNextWave() blocker {
	if b := s.blockedBy(); b.reason != "" {
		return b
	}
	w := &s.waves[s.currentWave]
	limit := w.concurrencyLimit()
	free := limit - int(w.counts.Progressing)
	full := 0
	for i := range s.clusters {
		m := &s.clusters[i]
		if int(m.wave) != s.currentWave || m.state != v1alpha1.ClusterToApply {
			continue
		}
		switch {
		case m.PlanFull:
			full++
		case free > 0:
			free--
			m.started, m.state = true, v1alpha1.ClusterProgressing
			w.counts.markStarted()
			s.counts.markStarted()
			s.decision.Start = append(s.decision.Start, m.Name)
			if d := s.Image.Spec.Rollout.ProgressDeadline; d != nil {
				s.requeueAt(s.Now.Add(d.Duration + time.Millisecond))
			}
		}
	}
	switch int(w.counts.ToApply) {
	case 0:
		return blocker{reason: v1alpha1.ReasonAwaitingClusters}
	case full:
		return blocker{reason: v1alpha1.ReasonPlanFull}
	default:
		return blocker{reason: v1alpha1.ReasonMaxConcurrency, limit: limit}
	}
}

// listPlaced lists the clusters wave by wave.
func (s *evaluation) listPlaced() {
	next := make([]int, len(s.waves)) // where the next cluster of each wave goes
	at := 0
	for i := range s.waves {
		next[i] = at
		at += int(s.waves[i].counts.Total)
	}
	s.decision.Placed = make([]PlacedCluster, len(s.clusters))
	for i := range s.clusters {
		m := &s.clusters[i]
		reason, message := s.explainState(m)
		s.decision.Placed[next[m.wave]] = PlacedCluster{
			Cluster: m.Name, Wave: s.waves[m.wave].name, State: m.state, Started: m.started, Reason: reason, Message: message,
		}
		next[m.wave]++
	}
}
