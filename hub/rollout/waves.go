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

// readPlacement reads a placement. The error says which field is wrong.
func readPlacement(p *v1alpha1.Placement) (placement, error) {
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

func (p *placement) has(name string, of map[string]string) bool {
	if _, found := slices.BinarySearch(p.excluded, name); found {
		return false
	}
	if p.selector.Matches(labels.Set(of)) {
		return true
	}
	_, found := slices.BinarySearch(p.named, name)
	return found
}

// Places reads spec.placement of any kind: the function tells whether a cluster of
// that name and labels is meant. The error says which field is wrong.
func Places(p *v1alpha1.Placement) (func(name string, of map[string]string) bool, error) {
	read, err := readPlacement(p)
	if err != nil {
		return nil, err
	}
	return read.has, nil
}

// tally counts clusters by their state.
type tally struct{ v1alpha1.ClusterCounts }

func (t *tally) add(state v1alpha1.ClusterState) {
	t.Total++
	*t.Of(state)++
}

func (t *tally) sum(other *tally) {
	t.Total += other.Total
	for _, state := range v1alpha1.ClusterStates() {
		*t.Of(state) += *other.Of(state)
	}
}

// begin counts a cluster that was to begin as one that has.
func (t *tally) begin() {
	t.ToApply--
	t.Progressing++
}

// failures are clusters that count against maxFailures.
func (t *tally) failures() int { return int(t.Failed + t.TimedOut) }

// wave is a wave of the spec, or rest.
type wave struct {
	name           string
	selector       labels.Selector // nil selects all
	maxConcurrency *intstr.IntOrString
	soak           time.Duration // minSuccessTime
	approval       bool          // required
	counts         tally
	doneAt         *metav1.Time // nil: it is not done
}

// done tells whether nothing more is waited for. A wave without clusters is done.
func (w *wave) done(offline v1alpha1.OfflineClusters) bool {
	return w.counts.ToApply == 0 && w.counts.Progressing == 0 && (offline != v1alpha1.OfflineWait || w.counts.Deferred == 0)
}

// limit is how many clusters of the wave may be on their way at a time.
func (w *wave) limit() int {
	if w.maxConcurrency == nil {
		return math.MaxInt
	}
	return max(1, part(w.maxConcurrency, w.counts.Total, 1))
}

// part reads a number, or a part of all, rounded down; what the API server does
// not take is the fallback.
func part(of *intstr.IntOrString, all int32, fallback int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(of, int(all), false)
	if err != nil {
		return fallback
	}
	return n
}

// allowed is how many clusters may fail.
func (s *step) allowed() int {
	if s.Image.Spec.Rollout.MaxFailures == nil {
		return 0
	}
	return part(s.Image.Spec.Rollout.MaxFailures, s.counts.Total, 0)
}

// readSelectors reads placement and waves. The error says which field is wrong.
func (s *step) readSelectors() error {
	spec := &s.Image.Spec
	var err error
	if s.placement, err = readPlacement(&spec.Placement); err != nil {
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
			name: w.Name, selector: selector, maxConcurrency: w.MaxConcurrency, soak: duration(w.MinSuccessTime), approval: w.RequireApproval,
		}
		if w.MaxConcurrency == nil {
			read.maxConcurrency = r.MaxConcurrency
		}
		if w.MinSuccessTime == nil {
			read.soak = duration(r.MinSuccessTime)
		}
		s.waves = append(s.waves, read)
	}
	s.waves = append(s.waves, wave{name: v1alpha1.WaveRest, maxConcurrency: r.MaxConcurrency, soak: duration(r.MinSuccessTime)})
	return nil
}

func duration(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}

// waveOf returns the first wave that selects a cluster.
func (s *step) waveOf(c *Cluster) int32 {
	for i := range s.waves {
		if selector := s.waves[i].selector; selector == nil || selector.Matches(labels.Set(c.Labels)) {
			return int32(i)
		}
	}
	return int32(len(s.waves) - 1)
}

// block is why no more clusters begin.
type block struct {
	reason string
	limit  int       // of ReasonMaxConcurrency
	until  time.Time // of ReasonMinSuccessTime
}

// gate tells what keeps all clusters of the current wave from beginning; without
// a reason, nothing does.
func (s *step) gate() block {
	total := &s.counts
	switch {
	case total.Total == 0:
		return block{reason: v1alpha1.ReasonNoClusters}
	case total.failures() > s.allowed():
		return block{reason: v1alpha1.ReasonMaxFailures}
	case total.ToApply > 0 && s.Image.Spec.Rollout.Paused:
		return block{reason: v1alpha1.ReasonRolloutPaused}
	case s.current == len(s.waves) && total.Deferred == total.Total:
		return block{reason: v1alpha1.ReasonOfflineClusters}
	case s.current == len(s.waves):
		return block{reason: v1alpha1.ReasonRolledOut}
	}
	w := &s.waves[s.current]
	switch {
	case w.counts.ToApply == 0 && w.counts.Progressing == 0:
		return block{reason: v1alpha1.ReasonOfflineClusters}
	case w.counts.ToApply == 0:
		return block{reason: v1alpha1.ReasonAwaitingClusters}
	}
	if until := s.soaked(); until.After(s.Now) {
		s.lookAgain(until)
		return block{reason: v1alpha1.ReasonMinSuccessTime, until: until}
	}
	if w.approval && !s.approved(w.name) {
		return block{reason: v1alpha1.ReasonAwaitingApproval}
	}
	return block{}
}

// soaked returns when all waves before the current one have been done for long
// enough.
func (s *step) soaked() (at time.Time) {
	for i := range s.waves[:s.current] {
		if end := s.waves[i].doneAt.Add(s.waves[i].soak); end.After(at) {
			at = end
		}
	}
	return at
}

func (s *step) approved(wave string) bool {
	return slices.ContainsFunc(s.Image.Spec.Approvals, func(a v1alpha1.Approval) bool {
		return a.Wave == wave && a.Version == s.version.Version
	})
}
