package relay

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Seen remembers which copies were found, or made, equal to which source. The
// zero value is ready; a nil one remembers nothing. It may be used concurrently.
type Seen struct {
	mu    sync.Mutex
	pairs map[seenKey]seenPair
	// boot of the agent that reads plan and grant.
	boot string
	// losses of plan and grant, by kind.
	losses map[string]loss
}

// loss is what a source has and its copy does not, though it was written.
type loss struct {
	source, target stamp
	fields         []string
}

type seenKey struct{ kind, name string }

type seenPair struct {
	source, target stamp
	// cluster and sequence are what both say, where they are reports.
	cluster  types.UID
	sequence int64
}

// stamp is of one state of one object. With the UID, those of two clusters
// differ; the generation tells apart most that bear one resourceVersion because a
// cluster was restored to an older state in between.
type stamp struct {
	uid             types.UID
	resourceVersion string
	generation      int64
}

func stampOf(o metav1.Object) stamp {
	return stamp{uid: o.GetUID(), resourceVersion: o.GetResourceVersion(), generation: o.GetGeneration()}
}

func (s *Seen) equal(kind string, source, target metav1.Object) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pairs == nil {
		s.pairs = map[seenKey]seenPair{}
	}
	pair := seenPair{source: stampOf(source), target: stampOf(target)}
	if report, is := source.(*v1alpha1.ClusterReport); is {
		pair.cluster, pair.sequence = report.ClusterUID, report.Sequence
	}
	s.pairs[seenKey{kind, source.GetName()}] = pair
}

func (s *Seen) has(kind string, source, target metav1.Object) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.pairs[seenKey{kind, source.GetName()}]
	return ok && pair.source == stampOf(source) && pair.target == stampOf(target)
}

// readBy forgets plan and grant where the agent that reads them was started anew: the
// chart that did so may have upgraded the kinds before, and what they did not know, and
// was dropped, is to be written once more.
func (s *Seen) readBy(boot string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.boot == boot {
		return
	}
	s.boot, s.losses = boot, nil
	maps.DeleteFunc(s.pairs, func(key seenKey, _ seenPair) bool { return key.kind == plans.name || key.kind == grants.name })
}

// loss asks once for each state of source and copy what the copy is without.
func (s *Seen) loss(kind string, source, target metav1.Object, ask func() ([]string, error)) ([]string, error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := loss{source: stampOf(source), target: stampOf(target)}
	if known, is := s.losses[kind]; is && known.source == next.source && known.target == next.target {
		return known.fields, nil
	}
	var err error
	if next.fields, err = ask(); err != nil {
		return nil, err
	}
	if s.losses == nil {
		s.losses = map[string]loss{}
	}
	s.losses[kind] = next
	return next.fields, nil
}

// outdated returns the copy of a report, without root and page, where it is known
// without reading it to be older than its source: it is as it was when it was seen to
// be equal to what the source was then. Else it is nil.
func (s *Seen) outdated(source *v1alpha1.ClusterReport, at *metav1.PartialObjectMetadata) *v1alpha1.ClusterReport {
	if s == nil || at == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.pairs[seenKey{reports.name, source.Name}]
	if !ok || pair.target != stampOf(at) || pair.cluster != source.ClusterUID || pair.sequence >= source.Sequence {
		return nil
	}
	return &v1alpha1.ClusterReport{ObjectMeta: at.DeepCopy().ObjectMeta, ClusterUID: pair.cluster, Sequence: pair.sequence}
}

// keep forgets all names of a kind but those given.
func (s *Seen) keep(kind string, kept func(name string) bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pairs, func(key seenKey, _ seenPair) bool { return key.kind == kind && !kept(key.name) })
}
