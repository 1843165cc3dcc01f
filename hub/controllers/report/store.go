package report

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Root is the root of a member's report on the hub, and when this process received it.
type Root struct {
	// Report is nil if the hub has none.
	Report *v1alpha1.ReportRoot
	// UID is that of the ClusterReport on the hub. Sequences of another one say nothing of its.
	UID        types.UID
	ClusterUID types.UID
	Sequence   int64
	// ReceivedAt is when this process last saw the copy change; nil if it has only seen
	// what was stored when it was elected.
	ReceivedAt *time.Time
	// IncompleteSince is since when pages are missing; nil if none is, or if it is
	// unknown.
	IncompleteSince *time.Time
	// Excess is what the member's namespace has beyond the limits.
	Excess memberstatus.ReportExcess
	// TwoAgentsAt is when this process last saw an agent report again after another one had; zero
	// if it has not.
	TwoAgentsAt time.Time
	// formerBoots are the boot IDs before that of Report, the latest first.
	formerBoots [maxFormerBoots]string
}

// maxFormerBoots is how many boot IDs are remembered: more agents than have one credential, with
// restarts between.
const maxFormerBoots = 4

// recordBoot compares the agent of a report with those before it. A process that has ended does not
// report again: a boot ID that comes back is of one of two agents that both run.
func (r *Root) recordBoot(before *Root, now time.Time) {
	if before == nil || before.Report == nil || before.UID != r.UID || before.ClusterUID != r.ClusterUID {
		return
	}
	r.TwoAgentsAt, r.formerBoots = before.TwoAgentsAt, before.formerBoots
	last := before.Report.BootID
	if r.Report == nil || last == r.Report.BootID {
		return
	}
	if r.Report.BootID != "" && slices.Contains(r.formerBoots[:], r.Report.BootID) {
		r.TwoAgentsAt = now
	}
	copy(r.formerBoots[1:], r.formerBoots[:])
	r.formerBoots[0] = last
}

// Store has the roots of all members' reports.
type Store struct {
	mu        sync.Mutex
	roots     map[string]*Root
	listed    bool
	startedAt time.Time // time of expectMembers
	pending   map[string]bool
	readEarly map[string]bool
	onChange  []func(member string)
	onBeat    []func(member string)
	onSynced  []func()
	// synced is closed once HasSynced is true. awaitedSince is when SyncWait was first called.
	synced       chan struct{}
	awaitedSince time.Time
}

// MaxSyncWait bounds how long what can wait leaves the API servers to what reads the reports.
const MaxSyncWait = 30 * time.Second

// NewStore returns an empty Store.
func NewStore() *Store {
	return &Store{roots: map[string]*Root{}, pending: map[string]bool{}, readEarly: map[string]bool{}, synced: make(chan struct{})}
}

// Root returns the root of a member; the zero Root if there is none.
func (s *Store) Root(member string) Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rootLocked(member)
}

func (s *Store) rootLocked(member string) Root {
	if r := s.roots[member]; r != nil {
		return *r
	}
	return Root{}
}

// ReceivedAt returns when a member's report last changed; false if this process has not
// seen it change.
func (s *Store) ReceivedAt(member string) (time.Time, bool) {
	if r := s.Root(member); r.ReceivedAt != nil {
		return *r.ReceivedAt, true
	}
	return time.Time{}, false
}

// HasSynced reports whether the reports of all members have been read that existed when this
// replica was elected. Before, an unknown report means nothing. In other replicas it stays false.
func (s *Store) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasSynced()
}

// StartedAt returns when this process began to read reports; zero if it has not.
func (s *Store) StartedAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startedAt
}

func (s *Store) hasSynced() bool { return s.listed && len(s.pending) == 0 }

// OnChange registers a function that is called when what is known of a member changes,
// heartbeats apart. The first one of a member that was silent is a change. It must not
// block. Call OnChange before the controller starts.
func (s *Store) OnChange(do func(member string)) { s.onChange = append(s.onChange, do) }

// OnHeartbeat registers a function that is called when a member's report is later and says
// the same. It must not block. Call OnHeartbeat before the controller starts.
func (s *Store) OnHeartbeat(do func(member string)) { s.onBeat = append(s.onBeat, do) }

// OnSynced registers a function that is called once HasSynced is true. It must not block.
// Call OnSynced before the controller starts.
func (s *Store) OnSynced(do func()) { s.onSynced = append(s.onSynced, do) }

// expectMembers sets the members that existed when this replica was elected.
func (s *Store) expectMembers(members []string) {
	s.mu.Lock()
	for _, member := range members {
		if !s.readEarly[member] {
			s.pending[member] = true
		}
	}
	s.listed, s.readEarly, s.startedAt = true, nil, time.Now()
	filled := s.hasSynced()
	s.mu.Unlock()
	if filled {
		s.notifySynced()
	}
}

// markRead records that a member's report was read, or that the member is gone.
func (s *Store) markRead(member string) {
	s.mu.Lock()
	before := s.hasSynced()
	if !s.listed {
		s.readEarly[member] = true
	}
	delete(s.pending, member)
	filled := !before && s.hasSynced()
	s.mu.Unlock()
	if filled {
		s.notifySynced()
	}
}

// SyncWait returns for how long what can wait is to wait until HasSynced is true: it ends MaxSyncWait
// after the first call.
func (s *Store) SyncWait() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hasSynced() {
		return 0
	}
	now := time.Now()
	if s.awaitedSince.IsZero() {
		s.awaitedSince = now
	}
	return max(0, MaxSyncWait-now.Sub(s.awaitedSince))
}

// AwaitSync waits for SyncWait.
func (s *Store) AwaitSync(ctx context.Context) {
	if wait := s.SyncWait(); wait > 0 {
		select {
		case <-s.synced:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// notifySynced is called once.
func (s *Store) notifySynced() {
	close(s.synced)
	for _, do := range s.onSynced {
		do()
	}
}

// setRoot sets the root of a member; nil deletes it.
func (s *Store) setRoot(member string, report *v1alpha1.ClusterReport, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if report == nil {
		delete(s.roots, member)
		return
	}
	next := &Root{Report: report.Root, UID: report.UID, ClusterUID: report.ClusterUID, Sequence: report.Sequence}
	before := s.roots[member]
	switch {
	case (before == nil || before.Report == nil) && !s.hasSynced():
	case before != nil && before.Sequence == report.Sequence && before.ClusterUID == report.ClusterUID && before.UID == report.UID:
		next.ReceivedAt = before.ReceivedAt
	default:
		next.ReceivedAt = &now
	}
	if before != nil {
		next.IncompleteSince, next.Excess = before.IncompleteSince, before.Excess
	}
	next.recordBoot(before, now)
	s.roots[member] = next
}

// setFindings records whether pages of a member are missing, and what exceeds the limits.
// It returns whether that differs from before.
func (s *Store) setFindings(member string, missing bool, excess memberstatus.ReportExcess, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.rootLocked(member)
	changed = next.Excess != excess || missing != (next.IncompleteSince != nil)
	next.Excess = excess
	switch {
	case !missing:
		next.IncompleteSince = nil
	case next.IncompleteSince == nil:
		next.IncompleteSince = &now
	}
	if next.Report == nil && excess == (memberstatus.ReportExcess{}) {
		delete(s.roots, member)
		return changed
	}
	s.roots[member] = &next
	return changed
}

// notify calls what is registered for a change of a member, or for its heartbeats.
func (s *Store) notify(member string, heartbeat bool) {
	registered := s.onChange
	if heartbeat {
		registered = s.onBeat
	}
	for _, do := range registered {
		do(member)
	}
}

// isSilent reports whether a member has not reported for longer than it should, or not
// since this process reads reports.
func (r *Root) isSilent(now time.Time) bool {
	return r.Report == nil || r.ReceivedAt == nil || now.Sub(*r.ReceivedAt) > memberstatus.SilenceTimeout(r.Report)
}

// MemberForNamespace returns the member that a namespace on the hub belongs to.
func MemberForNamespace(namespace string) (member string, ok bool) {
	member, ok = strings.CutPrefix(namespace, v1alpha1.MemberNamespacePrefix)
	return member, ok && member != ""
}

// PageNames returns the names of the pages that the root lists, sorted.
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
