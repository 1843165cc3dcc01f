package mailbox

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// EqualCopies remembers which copies were found, or made, equal to which source. The
// zero value is ready; a nil one remembers nothing. It may be used concurrently.
type EqualCopies struct {
	mu    sync.Mutex
	pairs map[copyKey]copyPair
	// agentBoot of the agent that reads plan and grant.
	agentBoot string
	// droppedByKind of plan and grant, by kind.
	droppedByKind map[string]droppedRecord
}

// droppedRecord is what a source has and its copy does not, though it was written.
type droppedRecord struct {
	source, target objectVersion
	fields         []string
}

type copyKey struct{ kind, name string }

type copyPair struct {
	source, target objectVersion
	// cluster and sequence are what both say, where they are reports.
	cluster  types.UID
	sequence int64
}

// objectVersion is of one state of one object. With the UID, those of two clusters
// differ; the generation tells apart most that bear one resourceVersion because a
// cluster was restored to an older state in between.
type objectVersion struct {
	uid             types.UID
	resourceVersion string
	generation      int64
}

func versionOf(o metav1.Object) objectVersion {
	return objectVersion{uid: o.GetUID(), resourceVersion: o.GetResourceVersion(), generation: o.GetGeneration()}
}

func (s *EqualCopies) recordEqual(kind string, source, target metav1.Object) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pairs == nil {
		s.pairs = map[copyKey]copyPair{}
	}
	pair := copyPair{source: versionOf(source), target: versionOf(target)}
	if report, is := source.(*v1alpha1.ClusterReport); is {
		pair.cluster, pair.sequence = report.ClusterUID, report.Sequence
	}
	s.pairs[copyKey{kind, source.GetName()}] = pair
}

func (s *EqualCopies) isEqual(kind string, source, target metav1.Object) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.pairs[copyKey{kind, source.GetName()}]
	return ok && pair.source == versionOf(source) && pair.target == versionOf(target)
}

// resetForBoot forgets plan and grant where the agent that reads them was started anew: the
// chart that did so may have upgraded the kinds before, and what they did not know, and
// was dropped, is to be written once more.
func (s *EqualCopies) resetForBoot(boot string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agentBoot == boot {
		return
	}
	s.agentBoot, s.droppedByKind = boot, nil
	maps.DeleteFunc(s.pairs, func(key copyKey, _ copyPair) bool { return key.kind == planKind.name || key.kind == grantKind.name })
}

// droppedFields asks once for each state of source and copy what the copy is without.
func (s *EqualCopies) droppedFields(kind string, source, target metav1.Object, ask func() ([]string, error)) ([]string, error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := droppedRecord{source: versionOf(source), target: versionOf(target)}
	if known, is := s.droppedByKind[kind]; is && known.source == next.source && known.target == next.target {
		return known.fields, nil
	}
	var err error
	if next.fields, err = ask(); err != nil {
		return nil, err
	}
	if s.droppedByKind == nil {
		s.droppedByKind = map[string]droppedRecord{}
	}
	s.droppedByKind[kind] = next
	return next.fields, nil
}

// outdatedCopy returns the copy of a report, without root and page, where it is known
// without reading it to be older than its source: it is as it was when it was seen to
// be equal to what the source was then. Else it is nil.
func (s *EqualCopies) outdatedCopy(source *v1alpha1.ClusterReport, at *metav1.PartialObjectMetadata) *v1alpha1.ClusterReport {
	if s == nil || at == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.pairs[copyKey{reportKind.name, source.Name}]
	if !ok || pair.target != versionOf(at) || pair.cluster != source.ClusterUID || pair.sequence >= source.Sequence {
		return nil
	}
	return &v1alpha1.ClusterReport{ObjectMeta: at.DeepCopy().ObjectMeta, ClusterUID: pair.cluster, Sequence: pair.sequence}
}

// forgetExcept forgets all names of a kind but those given.
func (s *EqualCopies) forgetExcept(kind string, kept func(name string) bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pairs, func(key copyKey, _ copyPair) bool { return key.kind == kind && !kept(key.name) })
}
