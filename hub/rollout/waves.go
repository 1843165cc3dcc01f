package rollout

import (
	"cmp"
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// blocker is why no more clusters start.
type blocker struct {
	reason string
	limit  int       // with ReasonMaxConcurrency
	until  time.Time // with ReasonMinSuccessTime
}

// decideNextWave starts as many clusters of the current wave as allowed, and returns
// what blocks the others.
func (e *evaluation) decideNextWave() blocker {
	if b := e.blockedBy(); b.reason != "" {
		return b
	}
	w := &e.waves[e.currentWave]
	limit := w.concurrencyLimit()
	// Invariant: a cluster that waits for a window holds up no cluster whose window is open.
	// Clusters with closed windows start only within maxConcurrency, so that no more import
	// together when they open.
	freeClosed := limit - int(w.counts.Progressing)
	free := freeClosed + e.countClosed()
	var waiting, unapproved, planFull int
	obstacle := ""
	for i := range e.placed {
		c := &e.placed[i]
		if int(c.wave) != e.currentWave || c.state != v1alpha1.ClusterToApply {
			continue
		}
		switch {
		case c.isUnapproved():
			unapproved++
		case c.obstacle != "":
			obstacle = cmp.Or(obstacle, c.obstacle)
		case c.PlanFull:
			planFull++
		case free > 0 && (freeClosed > 0 || !c.WindowOpensAt.After(e.Now)):
			free--
			freeClosed--
			e.startCluster(c, w)
		default:
			waiting++
		}
	}
	e.setPendingApproval()
	switch {
	case w.counts.ToApply == 0:
		return blocker{reason: v1alpha1.ReasonAwaitingClusters}
	case waiting > 0:
		return blocker{reason: v1alpha1.ReasonMaxConcurrency, limit: limit}
	case unapproved > 0:
		return blocker{reason: v1alpha1.ReasonAwaitingApproval}
	case obstacle != "":
		return blocker{reason: obstacle}
	default:
		return blocker{reason: v1alpha1.ReasonPlanFull}
	}
}

func (e *evaluation) startCluster(c *placedCluster, w *wave) {
	c.started, c.state = true, v1alpha1.ClusterProgressing
	// Another source of a revision that has failed: the report is of the former one until the
	// agent has started over.
	if c.KnowsRetry && c.Report.failedImport(c.effective.Revision) {
		c.retry = storedtime.Truncate(e.Now).Format(time.RFC3339)
	}
	w.firstDoneAt = nil
	w.counts.markStarted()
	e.counts.markStarted()
	e.decision.Start = append(e.decision.Start, c.Name)
	e.requeueAtDeadline()
}

// blockedBy returns what blocks the whole current wave; no reason: nothing.
func (e *evaluation) blockedBy() blocker {
	total := &e.counts
	switch {
	case total.Total == 0:
		return blocker{reason: v1alpha1.ReasonNoClusters}
	case total.failures() > e.allowedFailures():
		return blocker{reason: v1alpha1.ReasonMaxFailures}
	case total.ToApply > 0 && e.Image.Spec.Rollout.Paused:
		return blocker{reason: v1alpha1.ReasonRolloutPaused}
	case e.currentWave == len(e.waves) && total.Deferred == total.Total:
		return blocker{reason: v1alpha1.ReasonOfflineClusters}
	case e.currentWave == len(e.waves):
		return blocker{reason: v1alpha1.ReasonRolledOut}
	}
	w := &e.waves[e.currentWave]
	switch {
	case w.counts.ToApply == 0 && w.counts.Progressing == 0:
		return blocker{reason: v1alpha1.ReasonOfflineClusters}
	case w.counts.ToApply == 0:
		return blocker{reason: v1alpha1.ReasonAwaitingClusters}
	}
	if until := e.minSuccessTimeEnd(); until.After(e.Now) {
		e.requeueAt(until)
		return blocker{reason: v1alpha1.ReasonMinSuccessTime, until: until}
	}
	return blocker{}
}

// minSuccessTimeEnd returns when every wave before the current one has been done for its
// minSuccessTime.
func (e *evaluation) minSuccessTimeEnd() (at time.Time) {
	for i := range e.waves[:e.currentWave] {
		if end := e.waves[i].doneAt.Add(e.waves[i].minSuccessTime); end.After(at) {
			at = end
		}
	}
	return at
}

// allowedFailures is maxFailures as a number of clusters.
func (e *evaluation) allowedFailures() int {
	if e.Image.Spec.Rollout.MaxFailures == nil {
		return 0
	}
	return scaledValue(e.Image.Spec.Rollout.MaxFailures, e.counts.Total, 0)
}

// wave is a wave of the spec, or the last one, rest.
type wave struct {
	name            string
	selector        labels.Selector // nil selects all
	maxConcurrency  *intstr.IntOrString
	minSuccessTime  time.Duration
	requireApproval bool
	counts          stateCounts
	doneAt          *metav1.Time // nil: not done
	firstDoneAt     *metav1.Time // of one that is not done; see the API
	wasDone         bool         // by the last decision
	awaited         []string     // see WaveStatus.AwaitedClusters
}

// isDone reports whether the next wave may follow. A wave without clusters is done.
func (w *wave) isDone(offline v1alpha1.OfflineClusters) bool {
	return w.counts.ToApply == 0 && w.counts.Progressing == 0 && (offline != v1alpha1.OfflineWait || w.counts.Deferred == w.counts.quarantined)
}

// concurrencyLimit is maxConcurrency as a number of clusters, at least one.
func (w *wave) concurrencyLimit() int {
	if w.maxConcurrency == nil {
		return math.MaxInt
	}
	return max(1, scaledValue(w.maxConcurrency, w.counts.Total, 1))
}

// scaledValue reads a number, or a percentage of total rounded down. The fallback is for
// values that the CRD refuses.
func scaledValue(value *intstr.IntOrString, total int32, fallback int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(value, int(total), false)
	if err != nil {
		return fallback
	}
	return n
}

// parseSelectors parses overrides, placement and waves. The error names the invalid field.
func (e *evaluation) parseSelectors() error {
	spec := &e.Image.Spec
	var err error
	if e.overrides, err = override.Parse(e.Image); err != nil {
		return err
	}
	if e.placement, err = parsePlacement(&spec.Placement); err != nil {
		return err
	}
	r := &spec.Rollout
	e.waves = make([]wave, 0, len(r.Waves)+1)
	for i := range r.Waves {
		w := &r.Waves[i]
		selector, err := v1alpha1.ParseSelector(&w.ClusterSelector)
		if err != nil {
			return fmt.Errorf("spec.rollout.waves[%s].clusterSelector: %w", w.Name, err)
		}
		parsed := wave{
			name: w.Name, selector: selector, maxConcurrency: w.MaxConcurrency,
			minSuccessTime: durationOrZero(w.MinSuccessTime), requireApproval: w.RequireApproval,
		}
		if w.MaxConcurrency == nil {
			parsed.maxConcurrency = r.MaxConcurrency
		}
		if w.MinSuccessTime == nil {
			parsed.minSuccessTime = durationOrZero(r.MinSuccessTime)
		}
		e.waves = append(e.waves, parsed)
	}
	e.waves = append(e.waves, wave{name: v1alpha1.WaveRest, maxConcurrency: r.MaxConcurrency, minSuccessTime: durationOrZero(r.MinSuccessTime)})
	return nil
}

func durationOrZero(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}

// waveFor returns the index of the first wave that selects a cluster.
func (e *evaluation) waveFor(c *Cluster) int32 {
	for i := range e.waves {
		if selector := e.waves[i].selector; selector == nil || selector.Matches(labels.Set(c.Labels)) {
			return int32(i)
		}
	}
	return int32(len(e.waves) - 1)
}

// stateCounts counts clusters by state.
type stateCounts struct {
	v1alpha1.ClusterCounts
	// quarantined are the deferred clusters in quarantine. No wave waits for them.
	quarantined int32
	// blocked are those of the clusters in progress that wait until a person acts, paused
	// those of them where nothing is wrong. heldBack are those to apply with an obstacle,
	// keeping those whose plans keep their items.
	blocked, paused, heldBack, keeping int32
	// unapproved are those to apply whose wave needs an approval of their source.
	unapproved int32
	// windowed are those in progress that wait for a window.
	windowed int32
}

func (c *stateCounts) addCluster(cluster *placedCluster) {
	c.Total++
	*c.CountOf(cluster.state)++
	if cluster.isQuarantined() {
		c.quarantined++
	}
	if cluster.keepsItem {
		c.keeping++
	}
	if cluster.state == v1alpha1.ClusterToApply && cluster.isUnapproved() {
		c.unapproved++
	}
	if cluster.waitsForWindow() {
		c.windowed++
	}
	switch {
	case !cluster.blocked:
	case cluster.state == v1alpha1.ClusterToApply:
		c.heldBack++
	default:
		c.blocked++
		if cluster.Report.isPaused() {
			c.paused++
		}
	}
}

func (c *stateCounts) addCounts(other *stateCounts) {
	c.Total += other.Total
	c.quarantined += other.quarantined
	c.blocked += other.blocked
	c.paused += other.paused
	c.heldBack += other.heldBack
	c.keeping += other.keeping
	c.unapproved += other.unapproved
	c.windowed += other.windowed
	for _, state := range v1alpha1.ClusterStates() {
		*c.CountOf(state) += *other.CountOf(state)
	}
}

func (c *stateCounts) markStarted() {
	c.ToApply--
	c.Progressing++
}

// failures counts the clusters that count against maxFailures.
func (c *stateCounts) failures() int { return int(c.Failed + c.TimedOut) }
