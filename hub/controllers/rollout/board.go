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

// FleetState holds what is known of every member with regard to every FleetDiskImage,
// and what was decided of it. What happens touches the FleetDiskImages that it
// concerns and no others, so that a decision costs what one FleetDiskImage costs,
// however many there are.
//
// It is filled in the elected replica. It is safe for concurrent use.
type FleetState struct {
	// ReportsLoaded tells that all stored reports have been read.
	ReportsLoaded func() bool

	mu      sync.Mutex
	members map[string]*member
	// present are the members whose MemberCluster is there and is to stay, by name;
	// fleet is raised when that changes.
	present         []string
	membership      int64
	images          map[string]*imageState
	sorted          []*imageState              // by name
	byImageName     map[imageKey][]*imageState // those that have or had an image of that name
	loading         loadState
	approvalGuarded metav1.Condition      // see rollout.View
	onImageChange   []func(image string)  // has a FleetDiskImage looked at
	onDesiredChange []func(member string) // has a member's plan looked at

	// decideMu keeps two FleetDiskImages from taking the last room in one plan.
	decideMu sync.Mutex
}

// imageKey is the name of a VMDiskImage, small and quick to look up: there are clusters
// × images of them.
type imageKey struct{ namespace, name unique.Handle[string] }

func newImageKey(namespace, name string) imageKey {
	return imageKey{unique.Make(namespace), unique.Make(name)}
}

func imageKeyFor(name types.NamespacedName) imageKey { return newImageKey(name.Namespace, name.Name) }

// member is what is known of one, whether or not there is a MemberCluster.
type member struct {
	name        string
	present     bool
	uid         types.UID
	labels      map[string]string
	offline     string
	onlineSince time.Time

	// listedPages are the pages that the report's root lists, with their sequences.
	listedPages  map[string]int64
	acknowledged *v1alpha1.PlanVersion
	pages        map[string]*reportPage

	// plan as the cache shows it, not to be changed; nil for none.
	plan          *v1alpha1.ClusterPlan
	plannedImages map[imageKey]plannedImage
	// pendingStarts is how many images have been begun that plan does not show yet.
	pendingStarts int
}

// plannedImage is an image of a plan, and the revision that it asks for.
type plannedImage struct {
	*v1alpha1.PlannedImage
	revision string
}

// NewFleetState returns an empty Board.
func NewFleetState(filled func() bool) *FleetState {
	return &FleetState{
		ReportsLoaded: filled,
		members:       map[string]*member{}, images: map[string]*imageState{}, byImageName: map[imageKey][]*imageState{},
		loading: loadState{removedPlans: map[types.UID]bool{}},
	}
}

// OnImageChange has something done, without blocking, when a FleetDiskImage is to be
// looked at. Call it before the Board is filled.
func (b *FleetState) OnImageChange(do func(image string)) {
	b.onImageChange = append(b.onImageChange, do)
}

// OnDesiredChange has something done, without blocking, when what is wanted of a member
// may have changed. Call it before the Board is filled.
func (b *FleetState) OnDesiredChange(do func(member string)) {
	b.onDesiredChange = append(b.onDesiredChange, do)
}

// SetApprovalGuarded says whether the API server checks who approves of waves.
func (b *FleetState) SetApprovalGuarded(c metav1.Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.approvalGuarded = c
	b.enqueueImages(b.sorted...)
}

// enqueueImages has FleetDiskImages looked at. Callers hold b.mu.
func (b *FleetState) enqueueImages(columns ...*imageState) {
	for _, c := range columns {
		for _, do := range b.onImageChange {
			do(c.name)
		}
	}
}

// enqueueMembers has the plans of members looked at. Callers hold b.mu.
func (b *FleetState) enqueueMembers(members ...string) {
	for _, member := range members {
		for _, do := range b.onDesiredChange {
			do(member)
		}
	}
}

func (b *FleetState) ensureMember(name string) *member {
	m := b.members[name]
	if m == nil {
		m = &member{name: name, pages: map[string]*reportPage{}}
		b.members[name] = m
	}
	return m
}

// dropIfUnknown drops a member of which nothing is known.
func (b *FleetState) dropIfUnknown(m *member) {
	if !m.present && m.plan == nil && m.listedPages == nil && len(m.pages) == 0 {
		delete(b.members, m.name)
	}
}

// SetMember takes a MemberCluster as it is stored. One that is to go counts as
// gone: nothing is planned for it any more.
func (b *FleetState) SetMember(stored *v1alpha1.MemberCluster) {
	if !stored.DeletionTimestamp.IsZero() {
		b.RemoveMember(stored.Name)
		return
	}
	offline, since := rollout.Availability(stored)
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.ensureMember(stored.Name)
	if m.present && m.uid == stored.UID && m.offline == offline && m.onlineSince.Equal(since) && maps.Equal(m.labels, stored.Labels) {
		return
	}
	m.labels, m.offline, m.onlineSince = stored.Labels, offline, since
	if !m.present {
		m.present = true
		i, _ := slices.BinarySearch(b.present, m.name)
		b.present = slices.Insert(b.present, i, m.name)
		b.membership++
	}
	if m.uid != stored.UID {
		m.uid = stored.UID
		b.membership++
	}
	b.invalidateMember(m)
}

// RemoveMember says that a MemberCluster is gone.
func (b *FleetState) RemoveMember(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil || !m.present {
		return
	}
	m.present = false
	i, _ := slices.BinarySearch(b.present, name)
	b.present = slices.Delete(b.present, i, i+1)
	b.membership++
	b.invalidateMember(m)
	b.dropIfUnknown(m)
}

func (b *FleetState) invalidateMember(m *member) {
	for _, c := range b.sorted {
		c.dirty[m.name] = true
	}
	b.enqueueImages(b.sorted...)
}

// SetPlan takes the plan of a member as it is stored; nil says that it is gone.
// The Board keeps it, so it must not be changed any more.
func (b *FleetState) SetPlan(name string, plan *v1alpha1.ClusterPlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.ensureMember(name)
	before, was, full := m.plannedImages, m.plan, m.isPlanFull()
	m.plan, m.plannedImages = plan, nil
	if plan != nil {
		m.plannedImages = make(map[imageKey]plannedImage, len(plan.Spec.Images))
		for i := range plan.Spec.Images {
			p := &plan.Spec.Images[i]
			k := newImageKey(p.Namespace, p.Name)
			next := plannedImage{p, ""}
			if old, was := before[k]; was && sameSpec(&old.Spec, &p.Spec) {
				next.revision = old.revision
				if !old.PlannedAt.Equal(p.PlannedAt) {
					b.invalidateImage(m, k)
				}
			} else {
				next.revision = p.Spec.Revision()
				b.invalidateImage(m, k)
			}
			m.plannedImages[k] = next
		}
	}
	m.pendingStarts = 0
	for k := range before {
		if _, is := m.plannedImages[k]; !is {
			b.invalidateImage(m, k)
		}
	}
	for _, c := range b.sorted {
		if i, there := c.clusterIndex[name]; there && c.desired[i].started && !m.plansImage(c.current) {
			m.pendingStarts++
		}
		if c.isDeletingImages() {
			b.enqueueImages(c)
		}
	}
	if full != m.isPlanFull() {
		b.invalidateMember(m)
	}
	if was != nil && (plan == nil || plan.UID != was.UID) {
		b.observePlanRemoval(was.UID)
	}
	b.observePlan(name)
	b.dropIfUnknown(m)
}

func (m *member) plansImage(k imageKey) bool {
	_, does := m.plannedImages[k]
	return does
}

// isPlanFull tells that a plan has no room for another image.
func (m *member) isPlanFull() bool {
	return len(m.plannedImages)+m.pendingStarts >= v1alpha1.MaxPlannedImages
}

// invalidateImage has those looked at that have an image of a name now, or are leaving.
func (b *FleetState) invalidateImage(m *member, k imageKey) {
	for _, c := range b.byImageName[k] {
		if c.current == k {
			c.dirty[m.name] = true
		}
		if c.current == k || c.isDeletingImages() {
			b.enqueueImages(c)
		}
	}
}

// SetImage takes a FleetDiskImage as it is stored. The Board keeps it, so it must
// not be changed any more.
func (b *FleetState) SetImage(stored *v1alpha1.FleetDiskImage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.images[stored.Name]
	if c != nil && c.stored.UID != stored.UID {
		b.removeImageState(c)
		c = nil
	}
	if c == nil {
		c = &imageState{name: stored.Name, dirty: map[string]bool{}}
		b.images[c.name] = c
		i, _ := slices.BinarySearchFunc(b.sorted, c, compareByName)
		b.sorted = slices.Insert(b.sorted, i, c)
	}
	former := c.stored
	c.stored = stored
	b.indexNames(c)
	leaves := former != nil && former.DeletionTimestamp.IsZero() != stored.DeletionTimestamp.IsZero()
	asked := former == nil || former.Generation != stored.Generation || leaves
	if leaves { // it keeps no image any more that others may wait for
		for _, k := range c.imageNames {
			b.enqueueImages(b.byImageName[k]...)
		}
	}
	if asked {
		c.generation++
	}
	// A status that was written here shows again: that is no reason to look.
	if asked || !slices.Equal(former.Finalizers, stored.Finalizers) {
		b.enqueueImages(c)
	}
}

// RemoveImage says that a FleetDiskImage is gone, with or without a finalizer: it
// asks for nothing any more.
func (b *FleetState) RemoveImage(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.images[name]; c != nil {
		b.removeImageState(c)
		b.enqueueImages(c)
	}
}

func (b *FleetState) removeImageState(c *imageState) {
	c.removed = true
	delete(b.images, c.name)
	i, _ := slices.BinarySearchFunc(b.sorted, c, compareByName)
	b.sorted = slices.Delete(b.sorted, i, i+1)
	b.unindexNames(c)
	for i := range c.desired {
		b.forgetStarted(c, i)
	}
	b.enqueueMembers(b.present...)
}

// indexNames has a FleetDiskImage found by the names that it has or had, and has its
// rivals looked at where these change.
func (b *FleetState) indexNames(c *imageState) {
	view := c.withDecidedStatus()
	var names []imageKey
	for _, name := range rollout.ImageNames(view) {
		names = append(names, imageKeyFor(name))
	}
	if slices.Equal(names, c.imageNames) {
		return
	}
	b.unindexNames(c)
	c.imageNames = names
	for _, k := range names {
		b.enqueueImages(b.byImageName[k]...)
		b.byImageName[k] = append(b.byImageName[k], c)
	}
}

func (b *FleetState) unindexNames(c *imageState) {
	for _, k := range c.imageNames {
		rest := slices.DeleteFunc(b.byImageName[k], func(other *imageState) bool { return other == c })
		if len(rest) == 0 {
			delete(b.byImageName, k)
			continue
		}
		b.byImageName[k] = rest
		b.enqueueImages(rest...)
	}
	c.imageNames = nil
}

// DeclaredBy returns the name of the FleetDiskImage that an image of the members is a
// version of, the first by name; empty for none. It says so of the versions that
// its status has, too, also before anything is decided.
func (b *FleetState) DeclaredBy(namespace, name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := ""
	for _, c := range b.byImageName[newImageKey(namespace, name)] {
		if first == "" || c.name < first {
			first = c.name
		}
	}
	return first
}
