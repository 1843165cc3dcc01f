package report

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Root is what the hub's copy of a member's report says in short, and how this
// process came by it.
type Root struct {
	// Report is nil where the hub has none.
	Report     *v1alpha1.ReportRoot
	ClusterUID types.UID
	Sequence   int64
	// ReceivedAt is when this process saw the copy get newer last; nil where it has
	// only seen what was there when it was elected.
	ReceivedAt *time.Time
	// IncompleteSince is since when pages are missing; nil for no page missing, or
	// where that is not known.
	IncompleteSince *time.Time
}

// Store holds the roots of all members' reports.
type Store struct {
	mu        sync.Mutex
	roots     map[string]*Root
	listed    bool
	startedAt time.Time // when it began
	pending   map[types.NamespacedName]bool
	readEarly map[types.NamespacedName]bool
	onChange  []func(member string)
	onSynced  []func()
}

// NewStore returns an empty Store.
func NewStore() *Store {
	return &Store{roots: map[string]*Root{}, pending: map[types.NamespacedName]bool{}, readEarly: map[types.NamespacedName]bool{}}
}

// Root of a member; the zero Root where there is none.
func (s *Store) Root(member string) Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.roots[member]; r != nil {
		return *r
	}
	return Root{}
}

// ReceivedAt is when a member's report was last seen to change.
func (s *Store) ReceivedAt(member string) (time.Time, bool) {
	if r := s.Root(member); r.ReceivedAt != nil {
		return *r.ReceivedAt, true
	}
	return time.Time{}, false
}

// HasSynced tells that all reports have been read that the hub had stored when this
// replica was elected. Before, that a report is not known says nothing; in the other
// replicas it never does.
func (s *Store) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasSynced()
}

// StartedAt is when this process began to read reports; zero where it has not.
func (s *Store) StartedAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startedAt
}

func (s *Store) hasSynced() bool { return s.listed && len(s.pending) == 0 }

// OnChange has something done, without blocking, when what is known of a member
// has changed. Call it before the controller starts.
func (s *Store) OnChange(do func(member string)) { s.onChange = append(s.onChange, do) }

// OnSynced has something done, without blocking, once Filled is true. Call it
// before the controller starts.
func (s *Store) OnSynced(do func()) { s.onSynced = append(s.onSynced, do) }

// expectReports says which reports there were when this replica was elected.
func (s *Store) expectReports(stored []types.NamespacedName) {
	s.mu.Lock()
	for _, key := range stored {
		if !s.readEarly[key] {
			s.pending[key] = true
		}
	}
	s.listed, s.readEarly, s.startedAt = true, nil, time.Now()
	filled := s.hasSynced()
	s.mu.Unlock()
	if filled {
		s.notifySynced()
	}
}

// markRead notes that a report was read, or is gone.
func (s *Store) markRead(key types.NamespacedName) {
	s.mu.Lock()
	before := s.hasSynced()
	if !s.listed {
		s.readEarly[key] = true
	}
	delete(s.pending, key)
	filled := !before && s.hasSynced()
	s.mu.Unlock()
	if filled {
		s.notifySynced()
	}
}

func (s *Store) notifySynced() {
	for _, do := range s.onSynced {
		do()
	}
}

// setRoot takes a root over; nil for one that is gone.
func (s *Store) setRoot(member string, report *v1alpha1.ClusterReport, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if report == nil {
		delete(s.roots, member)
		return
	}
	next := &Root{Report: report.Root, ClusterUID: report.ClusterUID, Sequence: report.Sequence}
	before := s.roots[member]
	switch {
	case before == nil && !s.hasSynced():
	case before != nil && before.Sequence == report.Sequence && before.ClusterUID == report.ClusterUID:
		next.ReceivedAt = before.ReceivedAt
	default:
		next.ReceivedAt = &now
	}
	if before != nil {
		next.IncompleteSince = before.IncompleteSince
	}
	s.roots[member] = next
}

// setIncomplete notes whether pages of a member are missing.
func (s *Store) setIncomplete(member string, missing bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roots[member]
	if r == nil {
		return
	}
	next := *r
	switch {
	case !missing:
		next.IncompleteSince = nil
	case r.IncompleteSince == nil:
		next.IncompleteSince = &now
	}
	s.roots[member] = &next
}

func (s *Store) notify(member string) {
	for _, do := range s.onChange {
		do(member)
	}
}

// MemberForNamespace tells which member a namespace on the hub is for.
func MemberForNamespace(namespace string) (member string, is bool) {
	member, is = strings.CutPrefix(namespace, v1alpha1.MemberNamespacePrefix)
	return member, is && member != ""
}

// PageNames lists the names of a member's pages as its root has them, sorted.
func (r *Root) PageNames() []string {
	if r.Report == nil {
		return nil
	}
	names := make([]string, len(r.Report.Pages))
	for i, page := range r.Report.Pages {
		names[i] = page.Name
	}
	slices.Sort(names)
	return names
}
