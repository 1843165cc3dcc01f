// Package prunetracker keeps what PruneReports and ImagePrunes request from each
// member, and what members report of the images to prune. The controllers of
// prunereport and imageprune fill it; the planner reads it when it writes plans.
package prunetracker

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Tracker holds the requests to each member and the members' prune results. It is
// filled in the elected replica, and safe for concurrent use.
//
// A member stops pruning an image that its plan no longer names. Invariant: a request
// leaves the Tracker only after its end is stored, and ForMember reports known only
// after every object stored at election was seen.
type Tracker struct {
	mu        sync.Mutex
	members   map[string]*member
	inquiries []*inquiry     // sorted by compareInquiries
	prunes    []*activePrune // sorted by compareByStart

	// initialized: ExpectStored was called. awaited are the objects stored at election
	// that were not seen since.
	initialized bool
	awaited     map[Object]bool

	onExpected       map[string]func(name string)
	onRequestsChange []func(member string)
	onReportedChange []func(prune string)
}

// Object names a PruneReport or an ImagePrune.
type Object struct{ Kind, Name string }

// Kinds of objects.
const (
	KindReport = "PruneReport"
	KindPrune  = "ImagePrune"
)

// inquiry is a PruneReport that waits for answers.
type inquiry struct {
	name      string
	uid       types.UID
	startedAt time.Time
	members   map[string]bool
}

// activePrune is an ImagePrune whose stored phase is Running.
type activePrune struct {
	name                 string
	uid                  types.UID
	generation           int64
	startedAt, createdAt time.Time
	// clusters are all clusters with targets; planned has the requests to those that
	// are still the cluster of the report.
	clusters map[string]bool
	planned  map[string][]v1alpha1.PlannedPrune
}

// imageKey is the name of a VMDiskImage.
type imageKey = types.NamespacedName

// New returns an empty Tracker.
func New() *Tracker {
	return &Tracker{members: map[string]*member{}, onExpected: map[string]func(string){}}
}

// OnExpected registers a non-blocking callback per kind for each object that
// ExpectStored names. Call it before the controllers start.
func (t *Tracker) OnExpected(kind string, do func(name string)) { t.onExpected[kind] = do }

// OnRequestsChange registers a non-blocking callback for members whose requests may
// have changed. Call it before the controllers start.
func (t *Tracker) OnRequestsChange(do func(member string)) {
	t.onRequestsChange = append(t.onRequestsChange, do)
}

// OnReportedChange registers a non-blocking callback for running ImagePrunes of which
// a member reports something new. Call it before the controllers start.
func (t *Tracker) OnReportedChange(do func(prune string)) {
	t.onReportedChange = append(t.onReportedChange, do)
}

// ForMember returns what is requested from a member: the UIDs of the PruneReports that
// wait for its answer, which may exceed the room of a plan, and the images to prune,
// by namespace and name. While known is false, a plan keeps the requests it has.
func (t *Tracker) ForMember(name string) (inquiries []types.UID, prunes []v1alpha1.PlannedPrune, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ready() {
		return nil, nil, false
	}
	for _, i := range t.inquiries {
		if i.members[name] {
			inquiries = append(inquiries, i.uid)
		}
	}
	if m := t.members[name]; m != nil {
		prunes = slices.Clone(m.allotted)
	}
	return inquiries, prunes, true
}

// ready requires t.mu.
func (t *Tracker) ready() bool { return t.initialized && len(t.awaited) == 0 }

// Ready reports whether every object stored at election was seen.
func (t *Tracker) Ready() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ready()
}

// ExpectStored names the objects that were stored when this replica was elected.
func (t *Tracker) ExpectStored(stored []Object) {
	t.mu.Lock()
	t.initialized, t.awaited = true, make(map[Object]bool, len(stored))
	for _, o := range stored {
		t.awaited[o] = true
	}
	t.replanIfReady()
	t.mu.Unlock()
	for _, o := range stored {
		if enqueue := t.onExpected[o.Kind]; enqueue != nil {
			enqueue(o.Name)
		}
	}
}

// Initialized reports whether ExpectStored was called. Only an object that is read
// after that counts as seen: before, the former leader may still change it.
func (t *Tracker) Initialized() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.initialized
}

// MarkSeen records that the requests of an object are in the Tracker.
func (t *Tracker) MarkSeen(o Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.awaited[o] {
		delete(t.awaited, o)
		t.replanIfReady()
	}
}

// replanIfReady replans all members once the requests are known, also those without
// requests: their plans may still name some. It requires t.mu.
func (t *Tracker) replanIfReady() {
	if !t.ready() {
		return
	}
	known := map[string]bool{}
	for _, i := range t.inquiries {
		maps.Copy(known, i.members)
	}
	for name, m := range t.members {
		known[name] = true
		t.dropIfUnused(m)
	}
	t.notifyRequestsChanged(slices.Collect(maps.Keys(known))...)
}

func (t *Tracker) notifyRequestsChanged(members ...string) {
	for _, member := range members {
		for _, do := range t.onRequestsChange {
			do(member)
		}
	}
}

// AddReport requests answers from members for a PruneReport whose stored phase is
// Collecting, in place of its former requests.
func (t *Tracker) AddReport(report *v1alpha1.PruneReport, members []string) {
	next := &inquiry{name: report.Name, uid: report.UID, startedAt: report.Status.StartedAt.Time, members: toSet(members)}
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.takeInquiry(report.Name)
	i, _ := slices.BinarySearchFunc(t.inquiries, next, compareInquiries)
	t.inquiries = slices.Insert(t.inquiries, i, next)
	if former == nil || former.uid != next.uid {
		former = &inquiry{}
	}
	for name := range next.members {
		if !former.members[name] {
			t.notifyRequestsChanged(name)
		}
	}
	for name := range former.members {
		if !next.members[name] {
			t.notifyRequestsChanged(name)
		}
	}
}

// RemoveReport withdraws the requests of a PruneReport that is gone, or whose
// completion is stored.
func (t *Tracker) RemoveReport(report string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if former := t.takeInquiry(report); former != nil {
		t.notifyRequestsChanged(slices.Collect(maps.Keys(former.members))...)
	}
}

func (t *Tracker) takeInquiry(name string) *inquiry {
	i := slices.IndexFunc(t.inquiries, func(i *inquiry) bool { return i.name == name })
	if i < 0 {
		return nil
	}
	former := t.inquiries[i]
	t.inquiries = slices.Delete(t.inquiries, i, i+1)
	return former
}

func compareInquiries(a, b *inquiry) int {
	return cmp.Or(a.startedAt.Compare(b.startedAt), strings.Compare(a.name, b.name))
}

// ActiveReports returns the names of the PruneReports that wait for answers.
func (t *Tracker) ActiveReports() (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.inquiries {
		names = append(names, i.name)
	}
	return names
}

// SetPrune requests the targets of an ImagePrune whose stored phase is Running, in
// place of its former requests. planned has the requests by member; clusters are all
// clusters with targets.
func (t *Tracker) SetPrune(prune *v1alpha1.ImagePrune, clusters []string, planned map[string][]v1alpha1.PlannedPrune) {
	next := &activePrune{
		name: prune.Name, uid: prune.UID, generation: prune.Generation,
		startedAt: prune.Status.StartedAt.Time, createdAt: prune.CreationTimestamp.Time,
		clusters: toSet(clusters), planned: planned,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.takePrune(prune.Name)
	i, _ := slices.BinarySearchFunc(t.prunes, next, compareByStart)
	t.prunes = slices.Insert(t.prunes, i, next)
	t.reallotPrunes(former, next)
}

// ConfirmUnchanged reports whether the Tracker already has all requests of a running
// ImagePrune; clusters are those it requests from. Its targets never change. If so,
// places that allotPlan reserved for it become requests.
func (t *Tracker) ConfirmUnchanged(prune *v1alpha1.ImagePrune, clusters []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.prunes, func(p *activePrune) bool { return p.name == prune.Name })
	if i < 0 {
		return false
	}
	p := t.prunes[i]
	if p.uid != prune.UID || p.generation != prune.Generation || !p.startedAt.Equal(prune.Status.StartedAt.Time) || len(p.planned) != len(clusters) {
		return false
	}
	reserved := map[string]bool{}
	for _, name := range clusters {
		if _, ok := p.planned[name]; !ok {
			return false
		}
		if m := t.members[name]; m != nil && len(m.allotted) < len(m.holders) {
			reserved[name] = true
		}
	}
	t.reallotMembers(reserved, p)
	return true
}

// RemovePrune withdraws the requests of an ImagePrune that is gone, or whose end is
// stored.
func (t *Tracker) RemovePrune(prune string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if former := t.takePrune(prune); former != nil {
		t.reallotPrunes(former)
	}
}

// compareByStart orders by start: a request in a plan is never displaced by an
// ImagePrune that was created earlier and starts later. See StartDelay.
func compareByStart(a, b *activePrune) int {
	return cmp.Or(a.startedAt.Compare(b.startedAt), a.createdAt.Compare(b.createdAt), strings.Compare(a.name, b.name))
}

func (t *Tracker) takePrune(name string) *activePrune {
	i := slices.IndexFunc(t.prunes, func(p *activePrune) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	former := t.prunes[i]
	t.prunes = slices.Delete(t.prunes, i, i+1)
	return former
}

// maxClockSkew bounds how far ahead the clock of a former leader may have been.
const maxClockSkew = time.Minute

// StartDelay returns how long an ImagePrune waits before it starts. Invariant: no two
// start in the same second, because stored times have no fractions.
func (t *Tracker) StartDelay(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	delay := time.Duration(0)
	for _, p := range t.prunes {
		if wait := p.startedAt.Add(time.Second).Sub(now); wait <= maxClockSkew {
			delay = max(delay, wait)
		}
	}
	return delay
}

// ActivePrunesIn returns the names of the running ImagePrunes with targets in a member.
func (t *Tracker) ActivePrunesIn(member string) (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.prunes {
		if p.clusters[member] {
			names = append(names, p.name)
		}
	}
	return names
}

// ActivePrunes returns the names of all running ImagePrunes.
func (t *Tracker) ActivePrunes() (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.prunes {
		names = append(names, p.name)
	}
	return names
}

func toSet[T comparable](list []T) map[T]bool {
	set := make(map[T]bool, len(list))
	for _, item := range list {
		set[item] = true
	}
	return set
}
