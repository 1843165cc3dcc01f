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
	s := newStep(v)
	switch err := s.readSelectors(); {
	case v.Image.DeletionTimestamp != nil:
		s.keepCounts()
		s.tell(s.deleting())
	case v.Rival != "":
		s.tell(s.conflict())
	case err != nil:
		s.decision.Hold = true
		s.keepCounts()
		s.tell(unreadable(err))
	default:
		s.place()
		s.settle()
		b := s.start()
		s.list()
		s.count()
		s.tell(s.judge(b))
	}
	s.decision.Status = s.st
	return s.decision
}

// step works out one decision.
type step struct {
	View
	st       v1alpha1.FleetDiskImageStatus
	decision Decision
	// version is what is rolled out; fresh: the stored status is about another one.
	version *v1alpha1.VersionStatus
	fresh   bool

	placement placement
	waves     []wave
	members   []member // in order of name
	counts    tally
	current   int // the first wave that is not done, or the number of waves
}

// member is one cluster that is placed.
type member struct {
	*Cluster
	wave  int32
	begun bool
	state v1alpha1.ClusterState
}

func newStep(v View) *step {
	old := &v.Image.Status
	s := &step{View: v}
	s.st.ObservedGeneration = v.Image.Generation
	s.st.Versions = slices.Clone(nextVersions(v.Image, v.Now))
	s.st.Conditions = slices.Clone(old.Conditions)
	s.version = &s.st.Versions[0]
	s.fresh = len(old.Versions) == 0 || !sameVersion(&old.Versions[0], s.version)
	return s
}

// keepCounts leaves what was counted as it was: it is not counted again.
func (s *step) keepCounts() {
	if s.fresh {
		return
	}
	old := s.Image.Status.DeepCopy()
	s.st.Clusters, s.st.CurrentWave, s.st.Waves, s.st.Failing = old.Clusters, old.CurrentWave, old.Waves, old.Failing
	s.st.LastSuccessAt, s.st.ExpectedAt = old.LastSuccessAt, old.ExpectedAt
}

// lookAgain asks for another look at a time to come.
func (s *step) lookAgain(at time.Time) {
	if wait := at.Sub(s.Now); wait > 0 && (s.decision.After == 0 || wait < s.decision.After) {
		s.decision.After = wait
	}
}

// place finds the clusters that are placed, with their waves and states.
func (s *step) place() {
	clusters := s.Clusters
	s.members = make([]member, 0, len(clusters))
	for i := range clusters {
		c := &clusters[i]
		if !s.placement.has(c.Name, c.Labels) {
			continue
		}
		m := member{Cluster: c, wave: s.waveOf(c), begun: c.Planned == s.version.Revision}
		s.see(&m)
		s.members = append(s.members, m)
		s.waves[m.wave].counts.add(m.state)
	}
	// The last one is rest, which nobody has named.
	if last := len(s.waves) - 1; s.waves[last].counts.Total == 0 {
		s.waves = s.waves[:last]
	}
}

// settle adds the waves up, and finds those that are done, and since when.
func (s *step) settle() {
	s.current = len(s.waves)
	for i := range s.waves {
		w := &s.waves[i]
		s.counts.sum(&w.counts)
		if !w.done(s.Image.Spec.Rollout.OfflineClusters) {
			s.current = min(s.current, i)
			continue
		}
		if !s.fresh {
			w.doneAt = doneAt(s.Image.Status.Waves, w.name)
		}
		if w.doneAt == nil {
			w.doneAt = stamp(s.Now)
		}
	}
}

func doneAt(waves []v1alpha1.WaveStatus, name string) *metav1.Time {
	for i := range waves {
		if waves[i].Name == name {
			return waves[i].DoneAt.DeepCopy()
		}
	}
	return nil
}

// start has as many clusters of the current wave begin as may, and says what
// keeps the others from it.
func (s *step) start() block {
	if b := s.gate(); b.reason != "" {
		return b
	}
	w := &s.waves[s.current]
	limit := w.limit()
	free := limit - int(w.counts.Progressing)
	full := 0
	for i := range s.members {
		m := &s.members[i]
		if int(m.wave) != s.current || m.state != v1alpha1.ClusterToApply {
			continue
		}
		switch {
		case m.Full:
			full++
		case free > 0:
			free--
			m.begun, m.state = true, v1alpha1.ClusterProgressing
			w.counts.begin()
			s.counts.begin()
			s.decision.Start = append(s.decision.Start, m.Name)
			if d := s.Image.Spec.Rollout.ProgressDeadline; d != nil {
				s.lookAgain(s.Now.Add(d.Duration + time.Millisecond))
			}
		}
	}
	switch int(w.counts.ToApply) {
	case 0:
		return block{reason: v1alpha1.ReasonAwaitingClusters}
	case full:
		return block{reason: v1alpha1.ReasonPlanFull}
	default:
		return block{reason: v1alpha1.ReasonMaxConcurrency, limit: limit}
	}
}

// list lists the clusters wave by wave.
func (s *step) list() {
	next := make([]int, len(s.waves)) // where the next cluster of each wave goes
	at := 0
	for i := range s.waves {
		next[i] = at
		at += int(s.waves[i].counts.Total)
	}
	s.decision.Placed = make([]Placed, len(s.members))
	for i := range s.members {
		m := &s.members[i]
		reason, message := s.why(m)
		s.decision.Placed[next[m.wave]] = Placed{
			Cluster: m.Name, Wave: s.waves[m.wave].name, State: m.state, Begun: m.begun, Reason: reason, Message: message,
		}
		next[m.wave]++
	}
}
