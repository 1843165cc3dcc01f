package relay

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Seen remembers which copies were found, or made, equal to which source. The
// zero value is ready; a nil one remembers nothing. It may be used concurrently.
type Seen struct {
	mu    sync.Mutex
	pairs map[seenKey]seenPair
}

type seenKey struct{ kind, name string }

type seenPair struct{ source, target stamp }

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
	s.pairs[seenKey{kind, source.GetName()}] = seenPair{stampOf(source), stampOf(target)}
}

func (s *Seen) has(kind string, source, target metav1.Object) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.pairs[seenKey{kind, source.GetName()}]
	return ok && pair == seenPair{stampOf(source), stampOf(target)}
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
