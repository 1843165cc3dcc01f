package rollout

import (
	"fmt"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// placement is spec.placement, read.
type placement struct {
	selector        labels.Selector
	named, excluded []string // sorted
}

// parsePlacement reads a placement. The error says which field is wrong.
func parsePlacement(p *v1alpha1.Placement) (placement, error) {
	selector, err := metav1.LabelSelectorAsSelector(p.ClusterSelector)
	if err != nil {
		return placement{}, fmt.Errorf("spec.placement.clusterSelector: %w", err)
	}
	return placement{
		selector: selector,
		named:    slices.Sorted(slices.Values(p.ClusterNames)),
		excluded: slices.Sorted(slices.Values(p.ExcludedClusters)),
	}, nil
}

func (p *placement) matches(name string, of map[string]string) bool {
	if _, found := slices.BinarySearch(p.excluded, name); found {
		return false
	}
	if p.selector.Matches(labels.Set(of)) {
		return true
	}
	_, found := slices.BinarySearch(p.named, name)
	return found
}

// PlacementMatcher reads spec.placement of any kind: the function tells whether a cluster of
// that name and labels is meant. The error says which field is wrong.
func PlacementMatcher(p *v1alpha1.Placement) (func(name string, of map[string]string) bool, error) {
	read, err := parsePlacement(p)
	if err != nil {
		return nil, err
	}
	return read.matches, nil
}

// stateCounts counts clusters by their state.
type stateCounts struct{ v1alpha1.ClusterCounts }

func (t *stateCounts) addCluster(state v1alpha1.ClusterState) {
	t.Total++
	*t.CountOf(state)++
}

func (t *stateCounts) addCounts(other *stateCounts) {
	t.Total += other.Total
	for _, state := range v1alpha1.ClusterStates() {
		*t.CountOf(state) += *other.CountOf(state)
	}
}

// markStarted counts a cluster that was to begin as one that has.
func (t *stateCounts) markStarted() {
	t.ToApply--
	t.Progressing++
}

// failures are clusters that count against maxFailures.
func (t *stateCounts) failures() int { return int(t.Failed + t.TimedOut) }

// wave is a wave of the spec, or rest.
type wave struct {
	name            string
	selector        labels.Selector // nil selects all
	maxConcurrency  *intstr.IntOrString
	minSuccessTime  time.Duration // minSuccessTime
	requireApproval bool          // required
	counts          stateCounts
	doneAt          *metav1.Time // nil: it is not done
}

// isDone tells whether nothing more is waited for. A wave without clusters is done.
func (w *wave) isDone(offline v1alpha1.OfflineClusters) bool {
	return w.counts.ToApply == 0 && w.counts.Progressing == 0 && (offline != v1alpha1.OfflineWait || w.counts.Deferred == 0)
}

// concurrencyLimit is how many clusters of the wave may be on their way at a time.
func (w *wave) concurrencyLimit() int {
	if w.maxConcurrency == nil {
		return math.MaxInt
	}
	return max(1, scaledValue(w.maxConcurrency, w.counts.Total, 1))
}

// scaledValue reads a number, or a part of all, rounded down; what the API server does
// not take is the fallback.
func scaledValue(of *intstr.IntOrString, all int32, fallback int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(of, int(all), false)
	if err != nil {
		return fallback
	}
	return n
}

// allowedFailures is how many clusters may fail.
func (s *evaluation) allowedFailures() int {
	if s.Image.Spec.Rollout.MaxFailures == nil {
		return 0
	}
	return scaledValue(s.Image.Spec.Rollout.MaxFailures, s.counts.Total, 0)
}

// parseSelectors reads placement and waves. The error says which field is wrong.
func (s *evaluation) parseSelectors() error {
	spec := &s.Image.Spec
	var err error
	if s.placement, err = parsePlacement(&spec.Placement); err != nil {
		return err
	}
	r := &spec.Rollout
	s.waves = make([]wave, 0, len(r.Waves)+1)
	for i := range r.Waves {
		w := &r.Waves[i]
		selector, err := metav1.LabelSelectorAsSelector(&w.ClusterSelector)
		if err != nil {
			return fmt.Errorf("spec.rollout.waves[%s].clusterSelector: %w", w.Name, err)
		}
		read := wave{
			name: w.Name, selector: selector, maxConcurrency: w.MaxConcurrency, minSuccessTime: durationOrZero(w.MinSuccessTime), requireApproval: w.RequireApproval,
		}
		if w.MaxConcurrency == nil {
			read.maxConcurrency = r.MaxConcurrency
		}
		if w.MinSuccessTime == nil {
			read.minSuccessTime = durationOrZero(r.MinSuccessTime)
		}
		s.waves = append(s.waves, read)
	}
	s.waves = append(s.waves, wave{name: v1alpha1.WaveRest, maxConcurrency: r.MaxConcurrency, minSuccessTime: durationOrZero(r.MinSuccessTime)})
	return nil
}

func durationOrZero(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}

// waveFor returns the first wave that selects a cluster.
func (s *evaluation) waveFor(c *Cluster) int32 {
	for i := range s.waves {
		if selector := s.waves[i].selector; selector == nil || selector.Matches(labels.Set(c.Labels)) {
			return int32(i)
		}
	}
	return int32(len(s.waves) - 1)
}

// blocker is why no more clusters begin.
type blocker struct {
	reason string
	limit  int       // of ReasonMaxConcurrency
	until  time.Time // of ReasonMinSuccessTime
}

// blockedBy tells what keeps all clusters of the current wave from beginning; without
// a reason, nothing does.
func (s *evaluation) blockedBy() blocker {
	total := &s.counts
	switch {
	case total.Total == 0:
		return blocker{reason: v1alpha1.ReasonNoClusters}
	case total.failures() > s.allowedFailures():
		return blocker{reason: v1alpha1.ReasonMaxFailures}
	case total.ToApply > 0 && s.Image.Spec.Rollout.Paused:
		return blocker{reason: v1alpha1.ReasonRolloutPaused}
	case s.currentWave == len(s.waves) && total.Deferred == total.Total:
		return blocker{reason: v1alpha1.ReasonOfflineClusters}
	case s.currentWave == len(s.waves):
		return blocker{reason: v1alpha1.ReasonRolledOut}
	}
	w := &s.waves[s.currentWave]
	switch {
	case w.counts.ToApply == 0 && w.counts.Progressing == 0:
		return blocker{reason: v1alpha1.ReasonOfflineClusters}
	case w.counts.ToApply == 0:
		return blocker{reason: v1alpha1.ReasonAwaitingClusters}
	}
	if until := s.soakedAt(); until.After(s.Now) {
		s.requeueAt(until)
		return blocker{reason: v1alpha1.ReasonMinSuccessTime, until: until}
	}
	if w.requireApproval && !s.isApproved(w.name) {
		return blocker{reason: v1alpha1.ReasonAwaitingApproval}
	}
	return blocker{}
}

// soakedAt returns when all waves before the current one have been done for long
// enough.
func (s *evaluation) soakedAt() (at time.Time) {
	for i := range s.waves[:s.currentWave] {
		if end := s.waves[i].doneAt.Add(s.waves[i].minSuccessTime); end.After(at) {
			at = end
		}
	}
	return at
}

func (s *evaluation) isApproved(wave string) bool {
	return slices.ContainsFunc(s.Image.Spec.Approvals, func(a v1alpha1.Approval) bool {
		return a.Wave == wave && a.Version == s.version.Version
	})
}
