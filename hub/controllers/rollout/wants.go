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

// desiredState is what one FleetDiskImage asks of one member, and what that rests on.
type desiredState struct {
	// known: it was decided. Before, nobody knows what is wanted of the member.
	known     bool
	memberUID types.UID // the MemberCluster that it is of
	inputs    desiredInputs
	// begun: image is of the current revision, and stays until it is not wanted any
	// more. That the plan is seen without it says nothing: what is seen may be an
	// older one, and what somebody else takes out of a plan is put back.
	started bool
	// hold: the plan keeps what it has.
	freeze bool
	// image is nil where none is asked for.
	image   *desiredImage
	kept    []v1alpha1.KeptImage
	retired []v1alpha1.RetiredImage
}

// desiredInputs tells whether a wish is to be worked out anew.
type desiredInputs struct {
	rollout.ClusterProgress
	planned    string
	plannedAt  time.Time
	generation int64
	// rival: it has one. taken: and the current name is an older one's.
	inConflict, nameTaken bool
}

// desiredImage is a PlannedImage whose parts are shared by the members.
type desiredImage struct {
	namespace, name string
	spec            *v1alpha1.VMDiskImageSpec
	plannedAt       *metav1.Time
}

// sharedLists are lists that many members are asked the same by.
type sharedLists struct {
	generation int64
	kept       [][]v1alpha1.KeptImage
	retired    [][]v1alpha1.RetiredImage
}

// internList returns a list of those that equals list: there are members ×
// FleetDiskImages of them, and few differ.
func internList[T comparable](lists *[][]T, list []T) []T {
	for _, same := range *lists {
		if slices.Equal(same, list) {
			return same
		}
	}
	*lists = append(*lists, list)
	return list
}

// updateDesired works out what a FleetDiskImage asks of each member, and has those planned
// anew for which that changes. What begins is remembered before a plan shows it.
// Callers hold both locks.
func (b *FleetState) updateDesired(c *imageState, v rollout.View, d rollout.Decision) {
	standing := make([]rollout.ClusterProgress, len(c.clusters))
	for i := range d.Placed {
		p := &d.Placed[i]
		standing[c.clusterIndex[p.Cluster]] = rollout.ClusterProgress{Placed: true, Started: p.Started, Succeeded: p.State == v1alpha1.ClusterSucceeded}
	}
	if c.sharedLists.generation != c.generation {
		c.sharedLists = sharedLists{generation: c.generation}
	}
	for i := range c.clusters {
		cell, former, m := &c.clusters[i], &c.desired[i], b.members[c.clusters[i].Name]
		if m == nil || m.uid != c.memberUIDs[i] {
			continue // it has gone since, or is another
		}
		next := desiredState{known: true, memberUID: m.uid, freeze: d.Freeze, inputs: desiredInputs{
			ClusterProgress: standing[i], planned: cell.PlannedRevision, plannedAt: cell.PlannedAt,
			generation: c.generation, inConflict: v.Conflict != "", nameTaken: v.NameTaken,
		}}
		switch {
		case former.known && former.freeze == next.freeze && former.inputs == next.inputs:
			continue
		case d.Freeze:
			next.started, next.image = former.started, former.image
		default:
			b.computeDesired(c, &next, former, m, v.Now)
		}
		b.replaceDesired(c, i, next)
	}
}

// computeDesired works out what one member is asked for.
func (b *FleetState) computeDesired(c *imageState, next, former *desiredState, m *member, now time.Time) {
	current := m.plannedImages[c.current].PlannedImage
	if former.started {
		current = former.image.toPlannedImage()
	}
	begun := next.inputs.Started
	var w rollout.DesiredImages
	if next.inputs.inConflict {
		if next.inputs.nameTaken {
			current = nil
		}
		w, begun = rollout.ComputeDesiredInConflict(c.withDecidedStatus(), current, now), former.started
	} else {
		w = rollout.ComputeDesiredImages(c.withDecidedStatus(), next.inputs.ClusterProgress, current, now)
	}
	next.kept, next.retired = internList(&c.sharedLists.kept, w.Kept), internList(&c.sharedLists.retired, w.Retired)
	if len(w.Images) == 0 {
		return
	}
	p := &w.Images[0] // there is one current image
	next.image = &desiredImage{p.Namespace, p.Name, &p.Spec, p.PlannedAt}
	next.started = begun && p.PlannedAt != nil
	if template := &c.stored.Spec.Template; sameSpec(&p.Spec, template) {
		next.image.spec = template
	}
}

// replaceDesired takes a wish over.
func (b *FleetState) replaceDesired(c *imageState, i int, next desiredState) {
	former, m := c.desired[i], b.members[c.clusters[i].Name]
	if former.started != next.started {
		c.dirty[m.name] = true
	}
	if former.started && !next.started {
		b.forgetStarted(c, i)
	}
	c.desired[i] = next
	if next.started && !former.started && !m.plansImage(c.current) {
		if m.pendingStarts++; m.isPlanFull() {
			b.invalidateMember(m)
		}
	}
	if former.differsFrom(&next) {
		b.enqueueMembers(m.name)
	}
}

func (w *desiredImage) toPlannedImage() *v1alpha1.PlannedImage {
	return &v1alpha1.PlannedImage{Namespace: w.namespace, Name: w.name, Spec: *w.spec, PlannedAt: w.plannedAt}
}

// differsFrom tells whether two wishes make different plans.
func (w *desiredState) differsFrom(other *desiredState) bool {
	return !w.known || w.freeze != other.freeze || !slices.Equal(w.kept, other.kept) || !slices.Equal(w.retired, other.retired) ||
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

// ForMember returns what all FleetDiskImages ask of a member together, sorted, no image
// twice: what is to be there is not kept or retired, and what is kept is not
// retired. While one of them has not been decided about for that member, nobody
// knows: a plan that is written then keeps what it has.
func (b *FleetState) ForMember(name string) (w rollout.DesiredImages, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil || !m.present || !b.ready() {
		return w, false
	}
	for _, c := range b.sorted {
		i, there := c.clusterIndex[name]
		if !there || !c.desired[i].known {
			return rollout.DesiredImages{}, false
		}
		wish := &c.desired[i]
		if wish.freeze {
			m.addAsPlanned(&w, c)
			continue
		}
		if img := wish.image; img != nil {
			w.Images = append(w.Images, *img.toPlannedImage())
		}
		w.Kept = append(w.Kept, wish.kept...)
		w.Retired = append(w.Retired, wish.retired...)
	}
	m.normalize(&w)
	return w, true
}

// addAsPlanned adds what the plan has of a FleetDiskImage.
func (m *member) addAsPlanned(w *rollout.DesiredImages, c *imageState) {
	if m.plan == nil {
		return
	}
	of := func(namespace, name string) bool { return slices.Contains(c.imageNames, newImageKey(namespace, name)) }
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

// normalize sorts, has each image named once, and has each list fit into a plan.
func (m *member) normalize(w *rollout.DesiredImages) {
	taken := make(map[types.NamespacedName]bool, len(w.Images)+len(w.Kept))
	w.Images = dedupeAndLimit(w.Images, taken, v1alpha1.MaxPlannedImages,
		func(i *v1alpha1.PlannedImage) (string, string) { return i.Namespace, i.Name },
		func(namespace, name string) bool { return m.plansImage(newImageKey(namespace, name)) })
	w.Kept = dedupeAndLimit(w.Kept, taken, v1alpha1.MaxKeptImages, func(i *v1alpha1.KeptImage) (string, string) { return i.Namespace, i.Name }, m.reportsImage)
	w.Retired = dedupeAndLimit(w.Retired, taken, v1alpha1.MaxRetiredImages, func(i *v1alpha1.RetiredImage) (string, string) { return i.Namespace, i.Name }, m.reportsImage)
}

// reportsImage tells whether a member reports an image.
func (m *member) reportsImage(namespace, name string) bool {
	return m.newestReport(newImageKey(namespace, name)).Exists
}

// dedupeAndLimit takes what is taken already out of a list, and sorts it. Of what there
// is no room for, that goes first which is not first in its kind.
func dedupeAndLimit[T any](list []T, taken map[types.NamespacedName]bool, most int, of func(*T) (namespace, name string), first func(namespace, name string) bool) []T {
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
			return cmp.Compare(preferenceRank(first(of(&a))), preferenceRank(first(of(&b))))
		})
		kept = kept[:most]
		slices.SortFunc(kept, order)
	}
	return kept
}

func preferenceRank(first bool) int {
	if first {
		return 0
	}
	return 1
}
