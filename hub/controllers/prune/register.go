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

// Register holds what PruneReports and ImagePrunes ask of each member, and what
// members say of the images that are to go. It is filled in the elected replica. It
// is safe for concurrent use.
//
// An image that a plan does not name any more is not pruned any more. So nothing
// that is asked leaves the Register but by an end that is stored, and before all is
// there that was stored when this process was elected, nobody knows what is asked.
type Register struct {
	mu        sync.Mutex
	members   map[string]*member
	inquiries []*inquiry // in order
	runs      []*run     // in order

	// begun: awaited is known. Those are the PruneReports and ImagePrunes that were
	// stored when this replica was elected and have not been looked at since.
	begun   bool
	awaited map[object]bool

	onAsks []func(member string)
	onTold []func(prune string)
}

// object is a PruneReport or an ImagePrune.
type object struct{ kind, name string }

// Kinds of objects.
const (
	kindReport = "PruneReport"
	kindPrune  = "ImagePrune"
)

// inquiry is a PruneReport that is being made.
type inquiry struct {
	name    string
	uid     types.UID
	since   time.Time
	members map[string]bool
}

// run is an ImagePrune that is running.
type run struct {
	name           string
	uid            types.UID
	generation     int64
	since, created time.Time
	// clusters that it has targets in; planned is what it asks of each that is still
	// the cluster of the report.
	clusters map[string]bool
	planned  map[string][]v1alpha1.PlannedPrune
}

// key is the name of a VMDiskImage.
type key = types.NamespacedName

// NewRegister returns an empty Register.
func NewRegister() *Register { return &Register{members: map[string]*member{}} }

// OnAsks has something done, without blocking, when what is asked of a member may
// have changed. Call it before the controllers start.
func (r *Register) OnAsks(do func(member string)) { r.onAsks = append(r.onAsks, do) }

// OnTold has something done, without blocking, when a member says something else of
// the targets of a running ImagePrune. Call it before the controllers start.
func (r *Register) OnTold(do func(prune string)) { r.onTold = append(r.onTold, do) }

// Of returns what is asked of a member: the PruneReports that are being made, also
// more than a plan has room for, and the images that are to go, by namespace and
// name. While known is false nobody knows: a plan that is written then keeps what it
// has.
func (r *Register) Of(name string) (inquiries []types.UID, prunes []v1alpha1.PlannedPrune, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known() {
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

// known tells whether all has been looked at that was stored at the start. Callers
// hold r.mu.
func (r *Register) known() bool { return r.begun && len(r.awaited) == 0 }

// Known tells whether it is known what is asked.
func (r *Register) Known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known()
}

// await says what was stored when this replica was elected.
func (r *Register) await(stored []object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun, r.awaited = true, make(map[object]bool, len(stored))
	for _, o := range stored {
		r.awaited[o] = true
	}
	r.wake()
}

// awaits tells whether it is known what is awaited. Only what is read afterwards
// has been looked at: before, the replica that was elected formerly may have been
// about to change it.
func (r *Register) awaits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

// seen notes that an object has been looked at, and that what it asks is here.
func (r *Register) seen(o object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited[o] {
		delete(r.awaited, o)
		r.wake()
	}
}

// wake has all plans looked at once it is known what is asked: also those that are
// asked nothing any more.
func (r *Register) wake() {
	if r.known() {
		r.replan(slices.Collect(maps.Keys(r.members))...)
	}
}

func (r *Register) replan(members ...string) {
	for _, member := range members {
		for _, do := range r.onAsks {
			do(member)
		}
	}
}

// ask has members asked for a PruneReport whose stored status says that it is being
// made.
func (r *Register) ask(report *v1alpha1.PruneReport, members []string) {
	next := &inquiry{name: report.Name, uid: report.UID, since: report.Status.StartedAt.Time, members: make(map[string]bool, len(members))}
	for _, name := range members {
		next.members[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.takeInquiry(report.Name)
	i, _ := slices.BinarySearchFunc(r.inquiries, next, func(a, b *inquiry) int {
		return cmp.Or(a.since.Compare(b.since), strings.Compare(a.name, b.name))
	})
	r.inquiries = slices.Insert(r.inquiries, i, next)
	if former == nil || former.uid != next.uid {
		former = &inquiry{}
	}
	for name := range next.members {
		if !former.members[name] {
			r.member(name)
			r.replan(name)
		}
	}
	for name := range former.members {
		if !next.members[name] {
			r.replan(name)
		}
	}
}

// answered has members not asked any more for a PruneReport: that it is there is
// stored, or it is gone.
func (r *Register) answered(report string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if former := r.takeInquiry(report); former != nil {
		r.replan(slices.Collect(maps.Keys(former.members))...)
	}
}

func (r *Register) takeInquiry(name string) *inquiry {
	i := slices.IndexFunc(r.inquiries, func(i *inquiry) bool { return i.name == name })
	if i < 0 {
		return nil
	}
	former := r.inquiries[i]
	r.inquiries = slices.Delete(r.inquiries, i, i+1)
	return former
}

// asking are the PruneReports that are being made.
func (r *Register) asking() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.inquiries {
		names = append(names, i.name)
	}
	return names
}

// start has members asked for the targets of an ImagePrune whose stored status says
// that it runs. planned is what is asked of each; clusters are those that it has
// targets in.
func (r *Register) start(prune *v1alpha1.ImagePrune, clusters []string, planned map[string][]v1alpha1.PlannedPrune) {
	next := &run{
		name: prune.Name, uid: prune.UID, generation: prune.Generation, since: prune.Status.StartedAt.Time, created: prune.CreationTimestamp.Time,
		clusters: make(map[string]bool, len(clusters)), planned: planned,
	}
	for _, name := range clusters {
		next.clusters[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.takeRun(prune.Name)
	i, _ := slices.BinarySearchFunc(r.runs, next, byAge)
	r.runs = slices.Insert(r.runs, i, next)
	r.allotAgain(former, next)
}

// again tells whether all that an ImagePrune which runs asks of members is here as it
// was when it was looked at last; clusters are those that it asks. Its targets do not
// change. If so, it is fresh from a look: it is asked for where its place was kept.
func (r *Register) again(prune *v1alpha1.ImagePrune, clusters []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.runs, func(x *run) bool { return x.name == prune.Name })
	if i < 0 {
		return false
	}
	x := r.runs[i]
	if x.uid != prune.UID || x.generation != prune.Generation || !x.since.Equal(prune.Status.StartedAt.Time) || len(x.planned) != len(clusters) {
		return false
	}
	kept := map[string]bool{}
	for _, name := range clusters {
		if _, asked := x.planned[name]; !asked {
			return false
		}
		if m := r.member(name); len(m.allotted) < len(m.holders) {
			kept[name] = true
		}
	}
	r.allotIn(kept, x)
	return true
}

// ended has nothing asked any more for an ImagePrune: its end is stored, or it is
// gone.
func (r *Register) ended(prune string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if former := r.takeRun(prune); former != nil {
		r.allotAgain(former)
	}
}

// byAge has those first that began first: what is planned is never taken back for
// one that is older, and begins later. See turn.
func byAge(a, b *run) int {
	return cmp.Or(a.since.Compare(b.since), a.created.Compare(b.created), strings.Compare(a.name, b.name))
}

func (r *Register) takeRun(name string) *run {
	i := slices.IndexFunc(r.runs, func(x *run) bool { return x.name == name })
	if i < 0 {
		return nil
	}
	former := r.runs[i]
	r.runs = slices.Delete(r.runs, i, i+1)
	return former
}

// mostSkew is how far ahead the clock of another hub is believed to have been.
const mostSkew = time.Minute

// turn tells how long an ImagePrune is to wait before it begins, so that it is
// younger, by stored times that count seconds, than all that run.
func (r *Register) turn(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait := time.Duration(0)
	for _, x := range r.runs {
		if after := x.since.Add(time.Second).Sub(now); after <= mostSkew {
			wait = max(wait, after)
		}
	}
	return wait
}

// running are the ImagePrunes that run and have targets in a member.
func (r *Register) running(member string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.runs {
		if x.clusters[member] {
			names = append(names, x.name)
		}
	}
	return names
}

// allRunning are all that run.
func (r *Register) allRunning() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.runs {
		names = append(names, x.name)
	}
	return names
}
