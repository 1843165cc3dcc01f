package mailbox

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/trigger"
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
	// upRecheckedAt and downRecheckedAt are when all copies of a direction were last read live;
	// zero after a failure.
	upRecheckedAt, downRecheckedAt time.Time
	// refused is the activity that the hub's API server refused last, refusedPages the pages by name.
	// rootRefused: it refuses the root, of whatever version.
	refused      refusedActivity
	refusedPages map[string]refusedPage
	rootRefused  bool
	// readWhole: all copies of the report were read at once.
	readWhole bool
	// failingSince is when the copying of a page first failed that has failed since, by name.
	failingSince map[string]time.Time
}

// droppedRecord lists the fields that a source has and its written copy lacks.
type droppedRecord struct {
	source, target objectVersion
	fields         []string
}

type copyKey struct{ kind, name string }

type copyPair struct {
	source, target objectVersion
	recordedAt     time.Time
	// report shares its content with the source, for reports.
	report *v1alpha1.ClusterReport
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

// recheckInterval bounds for how long a stale cache can hide a copy that somebody else has
// changed. Watches and relists find such a copy sooner.
const recheckInterval = 5 * time.Minute

// maxCacheLag is how long after a write a cache may still show the former copy. A hub that was
// restored from a backup shows it for good.
const maxCacheLag = 30 * time.Second

// needsRecheck returns which directions of the next sync have to read every copy live: those of
// the first one, those that have failed, and both each recheckInterval. Where nothing is confirmed,
// both each time, unless the root is refused: then no sync confirms anything.
func (e *EqualCopies) needsRecheck(confirmed bool, now time.Time) Recheck {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !confirmed && !e.rootRefused {
		return Recheck{Up: true, Down: true}
	}
	return Recheck{Up: now.Sub(e.upRecheckedAt) >= recheckInterval, Down: now.Sub(e.downRecheckedAt) >= recheckInterval}
}

// RecordSync records the end of a sync that began at a time. An object that the hub refuses is
// no failure here: it stays refused for long, and what else is copied is known.
func (e *EqualCopies) RecordSync(rechecked Recheck, up UpResult, upErr, downErr error, began time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	recordRecheck(&e.upRecheckedAt, rechecked.Up, upErr != nil && !up.OnlyRefused, began)
	recordRecheck(&e.downRecheckedAt, rechecked.Down, downErr != nil, began)
}

func recordRecheck(recheckedAt *time.Time, rechecked, failed bool, began time.Time) {
	switch {
	case failed:
		*recheckedAt = time.Time{}
	case rechecked:
		*recheckedAt = began
	}
}

func (e *EqualCopies) recordEqual(kind string, source, target metav1.Object) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pairs == nil {
		e.pairs = map[copyKey]copyPair{}
	}
	pair := copyPair{source: versionOf(source), target: versionOf(target), recordedAt: time.Now()}
	if report, ok := source.(*v1alpha1.ClusterReport); ok {
		pair.report = shareContent(report)
	}
	e.pairs[copyKey{kind, source.GetName()}] = pair
}

// isEqual reports whether a copy was found or made equal to this source. The content of a
// report is compared too: a watch from before a change of the CustomResourceDefinition may have
// delivered the same resourceVersion without its new fields.
func (e *EqualCopies) isEqual(kind string, source, target metav1.Object) bool {
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := copyKey{kind, source.GetName()}
	pair, ok := e.pairs[key]
	if !ok || pair.source != versionOf(source) || pair.target != versionOf(target) {
		return false
	}
	report, isReport := source.(*v1alpha1.ClusterReport)
	if !isReport || report.Root == pair.report.Root && report.Page == pair.report.Page && report.Activity == pair.report.Activity {
		return true // it is still the object of the cache
	}
	if !equalReports(report, pair.report) {
		return false
	}
	pair.report = shareContent(report)
	e.pairs[key] = pair
	return true
}

// mayReadWhole reports whether all copies of the report may be read at once: they were not before. Where
// one relay after the other does so and finds nothing equal, as of another cluster, that costs too much.
func (e *EqualCopies) mayReadWhole() bool {
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.readWhole
}

func (e *EqualCopies) recordWholeRead() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.readWhole = true
}

// shareContent returns another object with the content of a report: a list that it is part of is
// not held.
func shareContent(report *v1alpha1.ClusterReport) *v1alpha1.ClusterReport {
	return &v1alpha1.ClusterReport{ClusterUID: report.ClusterUID, Sequence: report.Sequence, Root: report.Root, Page: report.Page, Activity: report.Activity}
}

// resetForBoot forgets plan and grant when the agent was restarted: its chart may have
// upgraded the CustomResourceDefinitions, so fields that were dropped before must be
// written again.
func (e *EqualCopies) resetForBoot(boot string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.agentBoot == boot {
		return
	}
	e.agentBoot, e.droppedByKind = boot, nil
	maps.DeleteFunc(e.pairs, func(key copyKey, _ copyPair) bool { return key.kind == planKind.name || key.kind == grantKind.name })
}

// droppedFields calls compute once per state of source and copy, and returns the fields
// that the copy lacks.
func (e *EqualCopies) droppedFields(kind string, source, target metav1.Object, compute func() ([]string, error)) ([]string, error) {
	if e == nil {
		return nil, nil
	}
	record := droppedRecord{source: versionOf(source), target: versionOf(target)}
	e.mu.Lock()
	known, ok := e.droppedByKind[kind]
	e.mu.Unlock()
	if ok && known.source == record.source && known.target == record.target {
		return known.fields, nil
	}
	var err error
	if record.fields, err = compute(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.droppedByKind == nil {
		e.droppedByKind = map[string]droppedRecord{}
	}
	e.droppedByKind[kind] = record
	return record.fields, nil
}

// outdatedCopy returns the copy of a report, without root and page, if it is known to
// be older than its source without reading it: it has not changed since it was equal to
// an older source. Otherwise nil.
func (e *EqualCopies) outdatedCopy(source *v1alpha1.ClusterReport, copied *metav1.PartialObjectMetadata) *v1alpha1.ClusterReport {
	if e == nil || copied == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	pair, ok := e.pairs[copyKey{reportKind.name, source.Name}]
	if !ok || pair.target != versionOf(copied) || pair.report.ClusterUID != source.ClusterUID || pair.report.Sequence >= source.Sequence {
		return nil
	}
	return &v1alpha1.ClusterReport{ObjectMeta: copied.DeepCopy().ObjectMeta, ClusterUID: pair.report.ClusterUID, Sequence: pair.report.Sequence}
}

// findHeartbeat returns what a later root says of a copy that has not changed since it was equal
// to an earlier one; nil if the root says more than that.
func (e *EqualCopies) findHeartbeat(source *v1alpha1.ClusterReport, copied *metav1.PartialObjectMetadata) *Heartbeat {
	if e == nil || copied == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	pair, ok := e.pairs[copyKey{reportKind.name, source.Name}]
	if !ok || pair.target != versionOf(copied) || !IsHeartbeat(pair.report, source) {
		return nil
	}
	return &Heartbeat{CopyVersion: copied.ResourceVersion, Sequence: source.Sequence, ObservedAt: source.Root.ObservedAt}
}

// withOwnWrites replaces the copies of reports that a cache shows as they were before this process
// wrote or read them. Under load a cache lags by seconds, and each copy would be read live
// meanwhile. What somebody else has written since is seen when the cache shows it; until then a
// write over it is refused, and the next sync rechecks.
func (e *EqualCopies) withOwnWrites(cached map[string]*metav1.PartialObjectMetadata) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, shown := range cached {
		pair, ok := e.pairs[copyKey{reportKind.name, name}]
		if !ok || pair.target.uid != shown.UID || time.Since(pair.recordedAt) >= maxCacheLag {
			continue
		}
		if trigger.IsOlderVersion(shown.ResourceVersion, pair.target.resourceVersion) {
			written := *shown
			written.ResourceVersion, written.Generation = pair.target.resourceVersion, pair.target.generation
			cached[name] = &written
		}
	}
}

// forgetExcept forgets all names of a kind except those for which kept returns true.
func (e *EqualCopies) forgetExcept(kind string, kept func(name string) bool) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.pairs, func(key copyKey, _ copyPair) bool { return key.kind == kind && !kept(key.name) })
}
