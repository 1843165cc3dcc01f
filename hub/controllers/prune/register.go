// Package prune makes PruneReports and carries out ImagePrunes. What either asks of
// each member is decided in the elected replica, by package hub/prune, and read by
// those who write the plans.
package prune

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

// Tracker holds what PruneReports and ImagePrunes ask of each member, and what
// members say of the images that are to go. It is filled in the elected replica. It
// is safe for concurrent use.
//
// An image that a plan does not name any more is not pruned any more. So nothing
// that is asked leaves the Register but by an end that is stored, and before all is
// there that was stored when this process was elected, nobody knows what is asked.
type Tracker struct {
	mu        sync.Mutex
	members   map[string]*member
	inquiries []*inquiry     // in order
	prunes    []*activePrune // in order

	// begun: awaited is known. Those are the PruneReports and ImagePrunes that were
	// stored when this replica was elected and have not been looked at since.
	initialized bool
	awaited     map[Object]bool

	onRequestsChange []func(member string)
	onReportedChange []func(prune string)
}

// Object is a PruneReport or an ImagePrune.
type Object struct{ Kind, Name string }

// Kinds of objects.
const (
	KindReport = "PruneReport"
	KindPrune  = "ImagePrune"
)

// inquiry is a PruneReport that is being made.
type inquiry struct {
	name      string
	uid       types.UID
	startedAt time.Time
	members   map[string]bool
}

// activePrune is an ImagePrune that is running.
type activePrune struct {
	name                 string
	uid                  types.UID
	generation           int64
	startedAt, createdAt time.Time
	// clusters that it has targets in; planned is what it asks of each that is still
	// the cluster of the report.
	clusters map[string]bool
	planned  map[string][]v1alpha1.PlannedPrune
}

// imageKey is the name of a VMDiskImage.
type imageKey = types.NamespacedName

// NewTracker returns an empty Register.
func NewTracker() *Tracker { return &Tracker{members: map[string]*member{}} }

// OnRequestsChange has something done, without blocking, when what is asked of a member may
// have changed. Call it before the controllers start.
func (r *Tracker) OnRequestsChange(do func(member string)) {
	r.onRequestsChange = append(r.onRequestsChange, do)
}

// OnReportedChange has something done, without blocking, when a member says something else of
// the targets of a running ImagePrune. Call it before the controllers start.
func (r *Tracker) OnReportedChange(do func(prune string)) {
	r.onReportedChange = append(r.onReportedChange, do)
}

// ForMember returns what is asked of a member: the PruneReports that are being made, also
// more than a plan has room for, and the images that are to go, by namespace and
// name. While known is false nobody knows: a plan that is written then keeps what it
// has.
func (r *Tracker) ForMember(name string) (inquiries []types.UID, prunes []v1alpha1.PlannedPrune, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ready() {
		return nil, nil, false
	}
	for _, i := range r.inquiries {
		if i.members[name] {
			inquiries = append(inquiries, i.uid)
		}
	}
	if m := r.members[name]; m != nil {
		prunes = slices.Clone(m.allotted)
	}
	return inquiries, prunes, true
}

// ready tells whether all has been looked at that was stored at the start. Callers
// hold r.mu.
func (r *Tracker) ready() bool { return r.initialized && len(r.awaited) == 0 }

// Ready tells whether it is known what is asked.
func (r *Tracker) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready()
}

// ExpectStored says what was stored when this replica was elected.
func (r *Tracker) ExpectStored(stored []Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.initialized, r.awaited = true, make(map[Object]bool, len(stored))
	for _, o := range stored {
		r.awaited[o] = true
	}
	r.replanIfReady()
}

// Initialized tells whether it is known what is awaited. Only what is read afterwards
// has been looked at: before, the replica that was elected formerly may have been
// about to change it.
func (r *Tracker) Initialized() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.initialized
}

// MarkSeen notes that an object has been looked at, and that what it asks is here.
func (r *Tracker) MarkSeen(o Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited[o] {
		delete(r.awaited, o)
		r.replanIfReady()
	}
}

// replanIfReady has all plans looked at once it is known what is asked: also those that are
// asked nothing any more.
func (r *Tracker) replanIfReady() {
	if r.ready() {
		r.notifyRequestsChanged(slices.Collect(maps.Keys(r.members))...)
	}
}

func (r *Tracker) notifyRequestsChanged(members ...string) {
	for _, member := range members {
		for _, do := range r.onRequestsChange {
			do(member)
		}
	}
}

// AddReport has members asked for a PruneReport whose stored status says that it is being
// made.
func (r *Tracker) AddReport(report *v1alpha1.PruneReport, members []string) {
	next := &inquiry{name: report.Name, uid: report.UID, startedAt: report.Status.StartedAt.Time, members: make(map[string]bool, len(members))}
	for _, name := range members {
		next.members[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.removeInquiry(report.Name)
	i, _ := slices.BinarySearchFunc(r.inquiries, next, func(a, b *inquiry) int {
		return cmp.Or(a.startedAt.Compare(b.startedAt), strings.Compare(a.name, b.name))
	})
	r.inquiries = slices.Insert(r.inquiries, i, next)
	if former == nil || former.uid != next.uid {
		former = &inquiry{}
	}
	for name := range next.members {
		if !former.members[name] {
			r.ensureMember(name)
			r.notifyRequestsChanged(name)
		}
	}
	for name := range former.members {
		if !next.members[name] {
			r.notifyRequestsChanged(name)
		}
	}
}

// RemoveReport has members not asked any more for a PruneReport: that it is there is
// stored, or it is gone.
func (r *Tracker) RemoveReport(report string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if former := r.removeInquiry(report); former != nil {
		r.notifyRequestsChanged(slices.Collect(maps.Keys(former.members))...)
	}
}

func (r *Tracker) removeInquiry(name string) *inquiry {
	i := slices.IndexFunc(r.inquiries, func(i *inquiry) bool { return i.name == name })
	if i < 0 {
		return nil
	}
	former := r.inquiries[i]
	r.inquiries = slices.Delete(r.inquiries, i, i+1)
	return former
}

// ActiveReports are the PruneReports that are being made.
func (r *Tracker) ActiveReports() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.inquiries {
		names = append(names, i.name)
	}
	return names
}

// SetPrune has members asked for the targets of an ImagePrune whose stored status says
// that it runs. planned is what is asked of each; clusters are those that it has
// targets in.
func (r *Tracker) SetPrune(prune *v1alpha1.ImagePrune, clusters []string, planned map[string][]v1alpha1.PlannedPrune) {
	next := &activePrune{
		name: prune.Name, uid: prune.UID, generation: prune.Generation, startedAt: prune.Status.StartedAt.Time, createdAt: prune.CreationTimestamp.Time,
		clusters: make(map[string]bool, len(clusters)), planned: planned,
	}
	for _, name := range clusters {
		next.clusters[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.takePrune(prune.Name)
	i, _ := slices.BinarySearchFunc(r.prunes, next, compareByStart)
	r.prunes = slices.Insert(r.prunes, i, next)
	r.reallotPrunes(former, next)
}

// ConfirmUnchanged tells whether all that an ImagePrune which runs asks of members is here as it
// was when it was looked at last; clusters are those that it asks. Its targets do not
// change. If so, it is fresh from a look: it is asked for where its place was kept.
func (r *Tracker) ConfirmUnchanged(prune *v1alpha1.ImagePrune, clusters []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.prunes, func(x *activePrune) bool { return x.name == prune.Name })
	if i < 0 {
		return false
	}
	x := r.prunes[i]
	if x.uid != prune.UID || x.generation != prune.Generation || !x.startedAt.Equal(prune.Status.StartedAt.Time) || len(x.planned) != len(clusters) {
		return false
	}
	kept := map[string]bool{}
	for _, name := range clusters {
		if _, asked := x.planned[name]; !asked {
			return false
		}
		if m := r.ensureMember(name); len(m.allotted) < len(m.holders) {
			kept[name] = true
		}
	}
	r.reallotMembers(kept, x)
	return true
}

// RemovePrune has nothing asked any more for an ImagePrune: its end is stored, or it is
// gone.
func (r *Tracker) RemovePrune(prune string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if former := r.takePrune(prune); former != nil {
		r.reallotPrunes(former)
	}
}

// compareByStart has those first that began first: what is planned is never taken back for
// one that is older, and begins later. See turn.
func compareByStart(a, b *activePrune) int {
	return cmp.Or(a.startedAt.Compare(b.startedAt), a.createdAt.Compare(b.createdAt), strings.Compare(a.name, b.name))
}

func (r *Tracker) takePrune(name string) *activePrune {
	i := slices.IndexFunc(r.prunes, func(x *activePrune) bool { return x.name == name })
	if i < 0 {
		return nil
	}
	former := r.prunes[i]
	r.prunes = slices.Delete(r.prunes, i, i+1)
	return former
}

// maxClockSkew is how far ahead the clock of another hub is believed to have been.
const maxClockSkew = time.Minute

// StartDelay tells how long an ImagePrune is to wait before it begins, so that it is
// younger, by stored times that count seconds, than all that run.
func (r *Tracker) StartDelay(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait := time.Duration(0)
	for _, x := range r.prunes {
		if after := x.startedAt.Add(time.Second).Sub(now); after <= maxClockSkew {
			wait = max(wait, after)
		}
	}
	return wait
}

// ActivePrunesIn are the ImagePrunes that run and have targets in a member.
func (r *Tracker) ActivePrunesIn(member string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.prunes {
		if x.clusters[member] {
			names = append(names, x.name)
		}
	}
	return names
}

// ActivePrunes are all that run.
func (r *Tracker) ActivePrunes() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.prunes {
		names = append(names, x.name)
	}
	return names
}
