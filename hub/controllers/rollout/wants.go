package rollout

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// wish is what one FleetDiskImage asks of one member, and what that rests on.
type wish struct {
	// known: it was decided. Before, nobody knows what is wanted of the member.
	known  bool
	member types.UID // the MemberCluster that it is of
	basis  basis
	// begun: image is of the current revision, and stays until it is not wanted any
	// more. That the plan is seen without it says nothing: what is seen may be an
	// older one, and what somebody else takes out of a plan is put back.
	begun bool
	// hold: the plan keeps what it has.
	hold bool
	// image is nil where none is asked for.
	image   *imageWish
	kept    []v1alpha1.KeptImage
	retired []v1alpha1.RetiredImage
}

// basis tells whether a wish is to be worked out anew.
type basis struct {
	rollout.Standing
	planned    string
	plannedAt  time.Time
	generation int64
	// rival: it has one. taken: and the current name is an older one's.
	rival, taken bool
}

// imageWish is a PlannedImage whose parts are shared by the members.
type imageWish struct {
	namespace, name string
	spec            *v1alpha1.VMDiskImageSpec
	plannedAt       *metav1.Time
}

// shared are lists that many members are asked the same by.
type shared struct {
	generation int64
	kept       [][]v1alpha1.KeptImage
	retired    [][]v1alpha1.RetiredImage
}

// oneOf returns a list of those that equals list: there are members ×
// FleetDiskImages of them, and few differ.
func oneOf[T comparable](lists *[][]T, list []T) []T {
	for _, same := range *lists {
		if slices.Equal(same, list) {
			return same
		}
	}
	*lists = append(*lists, list)
	return list
}

// wish works out what a FleetDiskImage asks of each member, and has those planned
// anew for which that changes. What begins is remembered before a plan shows it.
// Callers hold both locks.
func (b *Board) wish(c *column, v rollout.View, d rollout.Decision) {
	standing := make([]rollout.Standing, len(c.cells))
	for i := range d.Placed {
		p := &d.Placed[i]
		standing[c.at[p.Cluster]] = rollout.Standing{Placed: true, Begun: p.Begun, Has: p.State == v1alpha1.ClusterSucceeded}
	}
	if c.shared.generation != c.generation {
		c.shared = shared{generation: c.generation}
	}
	for i := range c.cells {
		cell, former, m := &c.cells[i], &c.wishes[i], b.members[c.cells[i].Name]
		if m == nil || m.uid != c.uids[i] {
			continue // it has gone since, or is another
		}
		next := wish{known: true, member: m.uid, hold: d.Hold, basis: basis{
			Standing: standing[i], planned: cell.Planned, plannedAt: cell.PlannedAt,
			generation: c.generation, rival: v.Rival != "", taken: v.Taken,
		}}
		switch {
		case former.known && former.hold == next.hold && former.basis == next.basis:
			continue
		case d.Hold:
			next.begun, next.image = former.begun, former.image
		default:
			b.wishOne(c, &next, former, m, v.Now)
		}
		b.replace(c, i, next)
	}
}

// wishOne works out what one member is asked for.
func (b *Board) wishOne(c *column, next, former *wish, m *member, now time.Time) {
	current := m.planned[c.current].PlannedImage
	if former.begun {
		current = former.image.planned()
	}
	begun := next.basis.Begun
	var w rollout.Wants
	if next.basis.rival {
		if next.basis.taken {
			current = nil
		}
		w, begun = rollout.WantsBeside(c.view(), current, now), former.begun
	} else {
		w = rollout.WantsOf(c.view(), next.basis.Standing, current, now)
	}
	next.kept, next.retired = oneOf(&c.shared.kept, w.Kept), oneOf(&c.shared.retired, w.Retired)
	if len(w.Images) == 0 {
		return
	}
	p := &w.Images[0] // there is one current image
	next.image = &imageWish{p.Namespace, p.Name, &p.Spec, p.PlannedAt}
	next.begun = begun && p.PlannedAt != nil
	if template := &c.stored.Spec.Template; sameSpec(&p.Spec, template) {
		next.image.spec = template
	}
}

// replace takes a wish over.
func (b *Board) replace(c *column, i int, next wish) {
	former, m := c.wishes[i], b.members[c.cells[i].Name]
	if former.begun != next.begun {
		c.dirty[m.name] = true
	}
	if former.begun && !next.begun {
		b.forgetBegun(c, i)
	}
	c.wishes[i] = next
	if next.begun && !former.begun && !m.plans(c.current) {
		if m.coming++; m.full() {
			b.concernsAll(m)
		}
	}
	if former.differs(&next) {
		b.replan(m.name)
	}
}

func (w *imageWish) planned() *v1alpha1.PlannedImage {
	return &v1alpha1.PlannedImage{Namespace: w.namespace, Name: w.name, Spec: *w.spec, PlannedAt: w.plannedAt}
}

// differs tells whether two wishes make different plans.
func (w *wish) differs(other *wish) bool {
	return !w.known || w.hold != other.hold || !slices.Equal(w.kept, other.kept) || !slices.Equal(w.retired, other.retired) ||
		(w.image == nil) != (other.image == nil) || w.image != nil && (w.image.namespace != other.image.namespace ||
		w.image.name != other.image.name || !sameSpec(w.image.spec, other.image.spec))
}

func sameSpec(a, b *v1alpha1.VMDiskImageSpec) bool {
	if a == b {
		return true
	}
	x, y := *a, *b
	same := x.DiskSize.Cmp(y.DiskSize) == 0
	x.DiskSize = y.DiskSize
	return same && x == y
}

// Of returns what all FleetDiskImages ask of a member together, sorted, no image
// twice: what is to be there is not kept or retired, and what is kept is not
// retired. While one of them has not been decided about for that member, nobody
// knows: a plan that is written then keeps what it has.
func (b *Board) Of(name string) (w rollout.Wants, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil || !m.present || !b.ready() {
		return w, false
	}
	for _, c := range b.order {
		i, there := c.at[name]
		if !there || !c.wishes[i].known {
			return rollout.Wants{}, false
		}
		wish := &c.wishes[i]
		if wish.hold {
			m.keepAsPlanned(&w, c)
			continue
		}
		if img := wish.image; img != nil {
			w.Images = append(w.Images, *img.planned())
		}
		w.Kept = append(w.Kept, wish.kept...)
		w.Retired = append(w.Retired, wish.retired...)
	}
	m.settle(&w)
	return w, true
}

// keepAsPlanned adds what the plan has of a FleetDiskImage.
func (m *member) keepAsPlanned(w *rollout.Wants, c *column) {
	if m.plan == nil {
		return
	}
	of := func(namespace, name string) bool { return slices.Contains(c.names, keyOf(namespace, name)) }
	for _, img := range m.plan.Spec.Images {
		if of(img.Namespace, img.Name) {
			w.Images = append(w.Images, img)
		}
	}
	for _, img := range m.plan.Spec.Kept {
		if of(img.Namespace, img.Name) {
			w.Kept = append(w.Kept, img)
		}
	}
	for _, img := range m.plan.Spec.Retired {
		if of(img.Namespace, img.Name) {
			w.Retired = append(w.Retired, img)
		}
	}
}

// settle sorts, has each image named once, and has each list fit into a plan.
func (m *member) settle(w *rollout.Wants) {
	taken := make(map[types.NamespacedName]bool, len(w.Images)+len(w.Kept))
	w.Images = settled(w.Images, taken, v1alpha1.MaxPlannedImages,
		func(i *v1alpha1.PlannedImage) (string, string) { return i.Namespace, i.Name },
		func(namespace, name string) bool { return m.plans(keyOf(namespace, name)) })
	w.Kept = settled(w.Kept, taken, v1alpha1.MaxKeptImages, func(i *v1alpha1.KeptImage) (string, string) { return i.Namespace, i.Name }, m.has)
	w.Retired = settled(w.Retired, taken, v1alpha1.MaxRetiredImages, func(i *v1alpha1.RetiredImage) (string, string) { return i.Namespace, i.Name }, m.has)
}

// has tells whether a member reports an image.
func (m *member) has(namespace, name string) bool { return m.reported(keyOf(namespace, name)).There }

// settled takes what is taken already out of a list, and sorts it. Of what there
// is no room for, that goes first which is not first in its kind.
func settled[T any](list []T, taken map[types.NamespacedName]bool, most int, of func(*T) (namespace, name string), first func(namespace, name string) bool) []T {
	kept := list[:0]
	for i := range list {
		namespace, name := of(&list[i])
		if k := (types.NamespacedName{Namespace: namespace, Name: name}); !taken[k] {
			taken[k] = true
			kept = append(kept, list[i])
		}
	}
	order := func(a, b T) int {
		namespaceA, nameA := of(&a)
		namespaceB, nameB := of(&b)
		return cmp.Or(strings.Compare(namespaceA, namespaceB), strings.Compare(nameA, nameB))
	}
	slices.SortFunc(kept, order)
	if len(kept) > most {
		slices.SortStableFunc(kept, func(a, b T) int {
			return cmp.Compare(rank(first(of(&a))), rank(first(of(&b))))
		})
		kept = kept[:most]
		slices.SortFunc(kept, order)
	}
	return kept
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}
