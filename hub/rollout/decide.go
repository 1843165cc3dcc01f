package rollout

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Decide returns what to do about a FleetDiskImage, and its status. The same view gives
// the same decision; deciding again with the decided status changes nothing.
func Decide(v View) Decision {
	return evaluate(v).decision
}

func evaluate(v View) *evaluation {
	e := newEvaluation(v)
	switch err := e.parseSelectors(); {
	case v.Image.DeletionTimestamp != nil:
		e.carryOverCounts()
		e.setUntimedPhase(e.deletingVerdict())
	case v.Conflict != "":
		e.setUntimedPhase(e.conflictVerdict())
	case err != nil:
		e.decision.Freeze = true
		e.carryOverCounts()
		if e.overrides == nil {
			e.setOverridesApplied(err)
		}
		e.setUntimedPhase(invalidSelectorVerdict(err))
	default:
		e.placeClusters()
		e.observeRetry()
		e.findCurrentWave()
		blocked := e.decideNextWave()
		e.listPlaced()
		e.updateCounts()
		e.decision.NoneSelected = e.counts.Total == 0
		e.setOverridesApplied(nil)
		e.setPhase(e.decidePhase(blocked))
	}
	e.decision.Status = e.status
	return e
}

// evaluation builds one Decision.
type evaluation struct {
	View
	status   v1alpha1.FleetDiskImageStatus
	decision Decision
	// version is rolled out. versionChanged: the stored status is about another one.
	version        *v1alpha1.VersionStatus
	versionChanged bool

	overrides *override.Overrides
	// templateDigest is the source of the template alone.
	templateDigest string
	placement      placement
	waves          []wave
	placed         []placedCluster // by name
	counts         stateCounts
	// unplannedRetries are the clusters that get a token which their plans do not show yet,
	// unreachedRetries those whose plans cannot be written, by name.
	unplannedRetries int
	unreachedRetries []string
	currentWave      int // index of the first wave that is not done, or the number of waves
}

// placedCluster is a cluster that the placement selects.
type placedCluster struct {
	*Cluster
	wave      int32
	effective *override.Effective
	started   bool
	// countsFrom is since when its progressDeadline counts: since it has its plan, or has lost its
	// image; zero where that is unknown.
	countsFrom time.Time
	// keepsItem: its plan has this source, with other fields that have changed since and the
	// member does not know.
	keepsItem bool
	state     v1alpha1.ClusterState
	// obstacle is the reason why it cannot begin until a person acts; empty for none.
	obstacle string
	// isApproved: its wave needs no approval, or an approval covers its source.
	isApproved bool
	// retry is the token that its plan's item has, or gets now. pendingRetry: it had failed when a
	// request was observed that has not reached it yet. awaitsRetry: the agent follows tokens, and
	// has not reported this one.
	retry                     string
	pendingRetry, awaitsRetry bool
	// blocked: it waits until a person acts there, being Progressing or, with an obstacle,
	// ToApply.
	blocked bool
	// opensAt is when the window opens that it waits for, being Progressing; zero for none.
	opensAt time.Time
}

func newEvaluation(v View) *evaluation {
	old := &v.Image.Status
	e := &evaluation{View: v}
	e.status.ObservedGeneration, e.status.ObservedRetry, e.status.PendingRetries = v.Image.Generation, old.ObservedRetry, slices.Clone(old.PendingRetries)
	e.status.Versions = slices.Clone(updatedVersions(v.Image, v.Now))
	recordFormerSuccesses(e.status.Versions, old)
	e.status.SuccessesRecorded = true
	for i := range e.status.Versions {
		version := &e.status.Versions[i]
		version.Taken = slices.Contains(v.Taken, types.NamespacedName{Namespace: version.Namespace, Name: version.Image})
	}
	recordTemplate(e.status.Versions, v.Image)
	e.status.Conditions = slices.Clone(old.Conditions)
	e.version, e.templateDigest = &e.status.Versions[0], v.Image.Spec.Template.SourceDigest()
	e.versionChanged = len(old.Versions) == 0 || !sameVersion(&old.Versions[0], e.version)
	return e
}

// carryOverCounts keeps the stored counts of this version.
func (e *evaluation) carryOverCounts() {
	if e.versionChanged {
		return
	}
	old := e.Image.Status.DeepCopy()
	e.status.Clusters, e.status.CurrentWave, e.status.Waves, e.status.Failing, e.status.Blocked = old.Clusters, old.CurrentWave, old.Waves, old.Failing, old.Blocked
	e.status.LastSuccessAt, e.status.BlockedSince = old.LastSuccessAt, old.BlockedSince
}

// requeueAt asks for another decision at a future time; the earliest counts.
func (e *evaluation) requeueAt(at time.Time) {
	if wait := at.Sub(e.Now); wait > 0 && (e.decision.RequeueAfter == 0 || wait < e.decision.RequeueAfter) {
		e.decision.RequeueAfter = wait
	}
}

// requeueAtDeadline asks for another decision when the progressDeadline of what starts now has passed.
func (e *evaluation) requeueAtDeadline() {
	if d := e.Image.Spec.Rollout.ProgressDeadline; d != nil {
		e.requeueAt(e.Now.Add(d.Duration + time.Millisecond))
	}
}

// placeClusters finds the placed clusters, their waves and states.
func (e *evaluation) placeClusters() {
	e.placed = make([]placedCluster, 0, len(e.Clusters))
	for i := range e.Clusters {
		cluster := &e.Clusters[i]
		if !e.placement.matches(cluster.Name, cluster.Labels) {
			continue
		}
		c := placedCluster{Cluster: cluster, wave: e.waveFor(cluster), effective: cluster.Effective}
		if c.effective == nil {
			c.effective = e.overrides.For(cluster.Name, cluster.Labels)
		}
		// Invariant: what is wrong with the spec, and unknown fields, hold back the start and a
		// change of the plan's item. They never undo a start, and what a started cluster does
		// counts as in any other.
		c.started = cluster.PlannedDigest == c.effective.Digest && len(c.effective.MissingLabels) == 0
		c.keepsItem = c.started && len(c.UnknownFields) > 0
		c.obstacle = c.findObstacle()
		c.isApproved = !e.waves[c.wave].requireApproval || e.isApproved(&c)
		// Invariant: it is never ahead: the clock of another hub may have been.
		if c.countsFrom = storedtime.LaterOf(c.PlannedAt, c.Loss.At); c.HadImage || c.countsFrom.After(e.Now) {
			c.countsFrom = e.Now
		}
		e.evaluateState(&c)
		e.evaluateRetry(&c)
		e.placed = append(e.placed, c)
		e.waves[c.wave].counts.addCluster(&c)
	}
	// rest is not in the spec: an empty one is left out.
	if last := len(e.waves) - 1; e.waves[last].counts.Total == 0 {
		e.waves = e.waves[:last]
	}
}

// findCurrentWave sums the counts, and finds which waves are done and since when.
func (e *evaluation) findCurrentWave() {
	e.currentWave = len(e.waves)
	e.restoreFirstDoneAt()
	for i := range e.waves {
		w := &e.waves[i]
		e.counts.addCounts(&w.counts)
		if !w.isDone(e.Image.Spec.Rollout.OfflineClusters) {
			e.currentWave = min(e.currentWave, i)
			continue
		}
		// While none is selected, clusters go on by their plans: their waves are not done by that.
		if w.wasDone || len(e.placed) > 0 {
			if w.firstDoneAt == nil {
				w.awaited = e.offlineInProgress(i)
			}
			w.doneAt, w.firstDoneAt = cmp.Or(w.firstDoneAt, ptr.To(storedtime.Truncate(e.Now))), nil
		}
	}
}

// restoreFirstDoneAt sets since when waves have been done by the last decision.
//
// Invariant: a cluster that was in progress and offline when the wave was done, and comes back,
// however often, does not let minSuccessTime start again. Whatever else is in progress in the wave
// does, such as a cluster that has lost its image.
func (e *evaluation) restoreFirstDoneAt() {
	if e.versionChanged {
		return
	}
	for i := range e.waves {
		w := &e.waves[i]
		before := findWaveStatus(e.Image.Status.Waves, w.name)
		w.wasDone, w.awaited = before.DoneAt != nil, slices.Clone(before.AwaitedClusters)
		w.firstDoneAt = cmp.Or(before.DoneAt, before.FirstDoneAt).DeepCopy()
		// A time that lies ahead is by a clock that was ahead, and would hold the next wave for as long.
		if w.firstDoneAt != nil && w.firstDoneAt.After(e.Now) {
			w.firstDoneAt = ptr.To(storedtime.Truncate(e.Now))
		}
	}
	unfinished := make([][]string, len(e.waves))
	for i := range e.placed {
		c := &e.placed[i]
		w := &e.waves[c.wave]
		isAwaited := slices.Contains(w.awaited, c.Name)
		if isAwaited && c.isUnfinished() {
			unfinished[c.wave] = append(unfinished[c.wave], c.Name)
		}
		if w.firstDoneAt != nil && c.state == v1alpha1.ClusterProgressing && (!isAwaited || c.PlannedAt.After(w.firstDoneAt.Time) || c.retry != c.PlannedRetry) {
			w.firstDoneAt = nil
		}
	}
	for i := range e.waves {
		e.waves[i].awaited = unfinished[i]
	}
}

// isUnfinished reports whether a started cluster has neither succeeded nor failed.
func (c *placedCluster) isUnfinished() bool {
	return c.started && (c.state == v1alpha1.ClusterProgressing || c.state == v1alpha1.ClusterDeferred)
}

// offlineInProgress returns the first clusters of a wave, by name, that are in progress and offline.
func (e *evaluation) offlineInProgress(wave int) (names []string) {
	for i := range e.placed {
		c := &e.placed[i]
		if int(c.wave) == wave && c.started && c.state == v1alpha1.ClusterDeferred && len(names) < v1alpha1.MaxAwaitedClusters {
			names = append(names, c.Name)
		}
	}
	return names
}

// findWaveStatus returns what is stored of a wave; zero for nothing.
func findWaveStatus(waves []v1alpha1.WaveStatus, name string) v1alpha1.WaveStatus {
	for i := range waves {
		if waves[i].Name == name {
			return waves[i]
		}
	}
	return v1alpha1.WaveStatus{}
}

// listPlaced lists the placed clusters by wave, then name.
func (e *evaluation) listPlaced() {
	next := make([]int, len(e.waves)) // the index of the next cluster of each wave
	total := 0
	for i := range e.waves {
		next[i] = total
		total += int(e.waves[i].counts.Total)
	}
	e.decision.Placed = make([]PlacedCluster, len(e.placed))
	for i := range e.placed {
		c := &e.placed[i]
		reason, message := e.explainState(c)
		e.decision.Placed[next[c.wave]] = PlacedCluster{
			Cluster: c.Name, Wave: e.waves[c.wave].name, State: c.state, Effective: c.effective,
			Started: c.started, KeepsItem: c.keepsItem, Retry: c.retry, Reason: reason, Message: message,
		}
		next[c.wave]++
	}
}
