// Package rollout has the clusters of the fleet begin with the versions of
// FleetDiskImages. What each FleetDiskImage asks of each member is decided in the
// elected replica, by package hub/rollout, and read by those who write the plans.
package rollout

import (
	"maps"
	"slices"
	"sync"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// Board holds what is known of every member with regard to every FleetDiskImage,
// and what was decided of it. What happens touches the FleetDiskImages that it
// concerns and no others, so that a decision costs what one FleetDiskImage costs,
// however many there are.
//
// It is filled in the elected replica. It is safe for concurrent use.
type Board struct {
	// Filled tells that all stored reports have been read.
	Filled func() bool

	mu      sync.Mutex
	members map[string]*member
	// present are the members whose MemberCluster is there and is to stay, by name;
	// fleet is raised when that changes.
	present []string
	fleet   int64
	columns map[string]*column
	order   []*column         // by name
	named   map[key][]*column // those that have or had an image of that name
	fill    fill
	guarded metav1.Condition      // see rollout.View
	onImage []func(image string)  // has a FleetDiskImage looked at
	onWants []func(member string) // has a member's plan looked at

	// deciding keeps two FleetDiskImages from taking the last room in one plan.
	deciding sync.Mutex
}

// key is the name of a VMDiskImage, small and quick to look up: there are clusters
// × images of them.
type key struct{ namespace, name unique.Handle[string] }

func keyOf(namespace, name string) key { return key{unique.Make(namespace), unique.Make(name)} }

func keyFor(name types.NamespacedName) key { return keyOf(name.Namespace, name.Name) }

// member is what is known of one, whether or not there is a MemberCluster.
type member struct {
	name        string
	present     bool
	uid         types.UID
	labels      map[string]string
	offline     string
	onlineSince time.Time

	// listed are the pages that the report's root lists, with their sequences.
	listed       map[string]int64
	acknowledged *v1alpha1.PlanVersion
	pages        map[string]*page

	// plan as the cache shows it, not to be changed; nil for none.
	plan    *v1alpha1.ClusterPlan
	planned map[key]planned
	// coming is how many images have been begun that plan does not show yet.
	coming int
}

// planned is an image of a plan, and the revision that it asks for.
type planned struct {
	*v1alpha1.PlannedImage
	revision string
}

// NewBoard returns an empty Board.
func NewBoard(filled func() bool) *Board {
	return &Board{
		Filled:  filled,
		members: map[string]*member{}, columns: map[string]*column{}, named: map[key][]*column{},
		fill: fill{removed: map[types.UID]bool{}},
	}
}

// OnImage has something done, without blocking, when a FleetDiskImage is to be
// looked at. Call it before the Board is filled.
func (b *Board) OnImage(do func(image string)) { b.onImage = append(b.onImage, do) }

// OnWants has something done, without blocking, when what is wanted of a member
// may have changed. Call it before the Board is filled.
func (b *Board) OnWants(do func(member string)) { b.onWants = append(b.onWants, do) }

// SetGuarded says whether the API server checks who approves of waves.
func (b *Board) SetGuarded(c metav1.Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guarded = c
	b.look(b.order...)
}

// look has FleetDiskImages looked at. Callers hold b.mu.
func (b *Board) look(columns ...*column) {
	for _, c := range columns {
		for _, do := range b.onImage {
			do(c.name)
		}
	}
}

// replan has the plans of members looked at. Callers hold b.mu.
func (b *Board) replan(members ...string) {
	for _, member := range members {
		for _, do := range b.onWants {
			do(member)
		}
	}
}

func (b *Board) member(name string) *member {
	m := b.members[name]
	if m == nil {
		m = &member{name: name, pages: map[string]*page{}}
		b.members[name] = m
	}
	return m
}

// tidy drops a member of which nothing is known.
func (b *Board) tidy(m *member) {
	if !m.present && m.plan == nil && m.listed == nil && len(m.pages) == 0 {
		delete(b.members, m.name)
	}
}

// SetMember takes a MemberCluster as it is stored. One that is to go counts as
// gone: nothing is planned for it any more.
func (b *Board) SetMember(stored *v1alpha1.MemberCluster) {
	if !stored.DeletionTimestamp.IsZero() {
		b.RemoveMember(stored.Name)
		return
	}
	offline, since := rollout.Online(stored)
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.member(stored.Name)
	if m.present && m.uid == stored.UID && m.offline == offline && m.onlineSince.Equal(since) && maps.Equal(m.labels, stored.Labels) {
		return
	}
	m.labels, m.offline, m.onlineSince = stored.Labels, offline, since
	if !m.present {
		m.present = true
		i, _ := slices.BinarySearch(b.present, m.name)
		b.present = slices.Insert(b.present, i, m.name)
		b.fleet++
	}
	if m.uid != stored.UID {
		m.uid = stored.UID
		b.fleet++
	}
	b.concernsAll(m)
}

// RemoveMember says that a MemberCluster is gone.
func (b *Board) RemoveMember(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil || !m.present {
		return
	}
	m.present = false
	i, _ := slices.BinarySearch(b.present, name)
	b.present = slices.Delete(b.present, i, i+1)
	b.fleet++
	b.concernsAll(m)
	b.tidy(m)
}

func (b *Board) concernsAll(m *member) {
	for _, c := range b.order {
		c.dirty[m.name] = true
	}
	b.look(b.order...)
}

// SetPlan takes the plan of a member as it is stored; nil says that it is gone.
// The Board keeps it, so it must not be changed any more.
func (b *Board) SetPlan(name string, plan *v1alpha1.ClusterPlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.member(name)
	before, was, full := m.planned, m.plan, m.full()
	m.plan, m.planned = plan, nil
	if plan != nil {
		m.planned = make(map[key]planned, len(plan.Spec.Images))
		for i := range plan.Spec.Images {
			p := &plan.Spec.Images[i]
			k := keyOf(p.Namespace, p.Name)
			next := planned{p, ""}
			if old, was := before[k]; was && sameSpec(&old.Spec, &p.Spec) {
				next.revision = old.revision
				if !old.PlannedAt.Equal(p.PlannedAt) {
					b.concerns(m, k)
				}
			} else {
				next.revision = p.Spec.Revision()
				b.concerns(m, k)
			}
			m.planned[k] = next
		}
	}
	m.coming = 0
	for k := range before {
		if _, is := m.planned[k]; !is {
			b.concerns(m, k)
		}
	}
	for _, c := range b.order {
		if i, there := c.at[name]; there && c.wishes[i].begun && !m.plans(c.current) {
			m.coming++
		}
		if c.leaving() {
			b.look(c)
		}
	}
	if full != m.full() {
		b.concernsAll(m)
	}
	if was != nil && (plan == nil || plan.UID != was.UID) {
		b.planRemoved(was.UID)
	}
	b.planArrived(name)
	b.tidy(m)
}

func (m *member) plans(k key) bool {
	_, does := m.planned[k]
	return does
}

// full tells that a plan has no room for another image.
func (m *member) full() bool { return len(m.planned)+m.coming >= v1alpha1.MaxPlannedImages }

// concerns has those looked at that have an image of a name now, or are leaving.
func (b *Board) concerns(m *member, k key) {
	for _, c := range b.named[k] {
		if c.current == k {
			c.dirty[m.name] = true
		}
		if c.current == k || c.leaving() {
			b.look(c)
		}
	}
}

// SetImage takes a FleetDiskImage as it is stored. The Board keeps it, so it must
// not be changed any more.
func (b *Board) SetImage(stored *v1alpha1.FleetDiskImage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.columns[stored.Name]
	if c != nil && c.stored.UID != stored.UID {
		b.removeColumn(c)
		c = nil
	}
	if c == nil {
		c = &column{name: stored.Name, dirty: map[string]bool{}}
		b.columns[c.name] = c
		i, _ := slices.BinarySearchFunc(b.order, c, byName)
		b.order = slices.Insert(b.order, i, c)
	}
	former := c.stored
	c.stored = stored
	b.rename(c)
	leaves := former != nil && former.DeletionTimestamp.IsZero() != stored.DeletionTimestamp.IsZero()
	asked := former == nil || former.Generation != stored.Generation || leaves
	if leaves { // it keeps no image any more that others may wait for
		for _, k := range c.names {
			b.look(b.named[k]...)
		}
	}
	if asked {
		c.generation++
	}
	// A status that was written here shows again: that is no reason to look.
	if asked || !slices.Equal(former.Finalizers, stored.Finalizers) {
		b.look(c)
	}
}

// RemoveImage says that a FleetDiskImage is gone, with or without a finalizer: it
// asks for nothing any more.
func (b *Board) RemoveImage(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.columns[name]; c != nil {
		b.removeColumn(c)
		b.look(c)
	}
}

func (b *Board) removeColumn(c *column) {
	c.gone = true
	delete(b.columns, c.name)
	i, _ := slices.BinarySearchFunc(b.order, c, byName)
	b.order = slices.Delete(b.order, i, i+1)
	b.unname(c)
	for i := range c.wishes {
		b.forgetBegun(c, i)
	}
	b.replan(b.present...)
}

// rename has a FleetDiskImage found by the names that it has or had, and has its
// rivals looked at where these change.
func (b *Board) rename(c *column) {
	view := c.view()
	var names []key
	for _, name := range rollout.Names(view) {
		names = append(names, keyFor(name))
	}
	if slices.Equal(names, c.names) {
		return
	}
	b.unname(c)
	c.names = names
	for _, k := range names {
		b.look(b.named[k]...)
		b.named[k] = append(b.named[k], c)
	}
}

func (b *Board) unname(c *column) {
	for _, k := range c.names {
		rest := slices.DeleteFunc(b.named[k], func(other *column) bool { return other == c })
		if len(rest) == 0 {
			delete(b.named, k)
			continue
		}
		b.named[k] = rest
		b.look(rest...)
	}
	c.names = nil
}

// Declares returns the name of the FleetDiskImage that an image of the members is a
// version of, the first by name; empty for none. It says so of the versions that
// its status has, too, also before anything is decided.
func (b *Board) Declares(namespace, name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := ""
	for _, c := range b.named[keyOf(namespace, name)] {
		if first == "" || c.name < first {
			first = c.name
		}
	}
	return first
}
