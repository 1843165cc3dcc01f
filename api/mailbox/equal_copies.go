package mailbox

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// EqualCopies remembers which copies were found or made equal to which source. The zero
// value is ready to use; nil remembers nothing. It is safe for concurrent use.
type EqualCopies struct {
	mu    sync.Mutex
	pairs map[copyKey]copyPair
	// agentBoot is the boot ID of the agent that reads plan and grant.
	agentBoot string
	// droppedByKind has the dropped fields of plan and grant.
	droppedByKind map[string]droppedRecord
}

// droppedRecord lists the fields that a source has and its written copy lacks.
type droppedRecord struct {
	source, target objectVersion
	fields         []string
}

type copyKey struct{ kind, name string }

type copyPair struct {
	source, target objectVersion
	// cluster and sequence of both objects, for reports.
	cluster  types.UID
	sequence int64
}

// objectVersion identifies one state of one object. The UID differs between clusters;
// the generation detects most cases where a restored cluster reuses a resourceVersion.
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

// resetForBoot forgets plan and grant when the agent was restarted: its chart may have
// upgraded the CustomResourceDefinitions, so fields that were dropped before must be
// written again.
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

// droppedFields calls compute once per state of source and copy, and returns the fields
// that the copy lacks.
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

// outdatedCopy returns the copy of a report, without root and page, if it is known to
// be older than its source without reading it: it has not changed since it was equal to
// an older source. Otherwise nil.
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

// forgetExcept forgets all names of a kind except those for which kept returns true.
func (s *EqualCopies) forgetExcept(kind string, kept func(name string) bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pairs, func(key copyKey, _ copyPair) bool { return key.kind == kind && !kept(key.name) })
}
