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

// desiredState is what one FleetDiskImage desires of one member.
type desiredState struct {
	// known: it was decided for the MemberCluster of this UID, from these inputs.
	known     bool
	memberUID types.UID
	inputs    desiredInputs
	// started: image has the source that the member is to have, of this digest and revision. It
	// stays until it is no longer desired: a plan without it may be an older one, or lost it to
	// another writer.
	started          bool
	digest, revision string
	// freeze: the plan keeps what it has.
	freeze bool
	// image is nil where no image is desired.
	image   *desiredImage
	kept    []v1alpha1.KeptImage
	retired []v1alpha1.RetiredImage
}

// desiredInputs are compared: a desired state with the same inputs is not computed again.
type desiredInputs struct {
	rollout.ClusterProgress
	planned               string // digest
	plannedAt             time.Time
	generation            int64
	inConflict, nameTaken bool
}

// desiredImage is a PlannedImage whose spec the members share.
type desiredImage struct {
	namespace, name string
	spec            *v1alpha1.VMDiskImageSpec
	retry           string
	plannedAt       *metav1.Time
}

func (d *desiredImage) toPlannedImage() *v1alpha1.PlannedImage {
	return &v1alpha1.PlannedImage{Namespace: d.namespace, Name: d.name, Spec: *d.spec, Retry: d.retry, PlannedAt: d.plannedAt}
}

// sharedLists are lists that many desired states of one generation have in common.
type sharedLists struct {
	generation int64
	kept       [][]v1alpha1.KeptImage
	retired    [][]v1alpha1.RetiredImage
	// specs are those that waiting members keep, by digest.
	specs map[string]*v1alpha1.VMDiskImageSpec
}

// internSpec returns the equal spec among those that were seen, or spec.
func (s *sharedLists) internSpec(digest string, spec *v1alpha1.VMDiskImageSpec) *v1alpha1.VMDiskImageSpec {
	if same := s.specs[digest]; same != nil && same.Equal(spec) {
		return same
	}
	s.specs[digest] = spec
	return spec
}

// internList returns the equal list among lists, or adds list: there are members ×
// FleetDiskImages lists, and few differ.
func internList[T comparable](lists *[][]T, list []T) []T {
	for _, same := range *lists {
		if slices.Equal(same, list) {
			return same
		}
	}
	*lists = append(*lists, list)
	return list
}

// updateDesired computes what a FleetDiskImage desires of each member, and enqueues the
// members for which that changes. A start is remembered before a plan shows it. It
// requires img.mu and f.mu.
func (f *FleetState) updateDesired(img *imageState, v rollout.View, nameTaken bool, d rollout.Decision) {
	progress := make([]rollout.ClusterProgress, len(img.clusters))
	for i := range d.Placed {
		p := &d.Placed[i]
		img.recordLoss(p, v.Now)
		progress[img.clusterIndex[p.Cluster]] = rollout.ClusterProgress{Placed: true, Started: p.Started, KeepsItem: p.KeepsItem, Retry: p.Retry, Succeeded: p.State == v1alpha1.ClusterSucceeded, Effective: p.Effective}
	}
	decided := img.withDecidedStatus()
	if img.sharedLists.generation != img.generation || len(img.sharedLists.specs) > 2*len(img.clusters) {
		img.sharedLists = sharedLists{generation: img.generation, specs: map[string]*v1alpha1.VMDiskImageSpec{}}
	}
	for i := range img.clusters {
		cluster, former, m := &img.clusters[i], &img.desired[i], f.members[img.clusters[i].Name]
		if m == nil || m.uid != img.memberUIDs[i] {
			continue // it is gone or replaced
		}
		next := desiredState{known: true, memberUID: m.uid, freeze: d.Freeze, inputs: desiredInputs{
			ClusterProgress: progress[i], planned: cluster.PlannedDigest, plannedAt: cluster.PlannedAt,
			generation: img.generation, inConflict: v.Conflict != "" || d.NoneSelected, nameTaken: nameTaken,
		}}
		switch {
		case former.known && former.freeze == next.freeze && former.inputs == next.inputs:
			continue
		case d.Freeze:
			next.started, next.digest, next.revision, next.image = former.started, former.digest, former.revision, former.image
		default:
			img.computeDesired(decided, &next, former, m, v.Now)
		}
		f.replaceDesired(img, i, next)
	}
}

// recordLoss records whether a cluster has the image, and when it was found to have lost it. What an
// offline cluster has is not known.
func (img *imageState) recordLoss(p *rollout.PlacedCluster, now time.Time) {
	cluster := &img.clusters[img.clusterIndex[p.Cluster]]
	if p.State == v1alpha1.ClusterDeferred {
		return
	}
	hasImage := p.State == v1alpha1.ClusterSucceeded
	if cluster.HadImage && !hasImage {
		cluster.RecordLoss(now)
	}
	cluster.HadImage = hasImage
}

// computeDesired fills next for one member. decided is the result of withDecidedStatus.
func (img *imageState) computeDesired(decided *v1alpha1.FleetDiskImage, next, former *desiredState, m *member, now time.Time) {
	current := m.plannedImages[img.current].PlannedImage
	if former.started {
		current = former.image.toPlannedImage()
	}
	started, effective := next.inputs.Started, next.inputs.Effective
	var desired rollout.DesiredImages
	if next.inputs.inConflict {
		if next.inputs.nameTaken {
			current = nil
		}
		desired, started = rollout.ComputeDesiredInConflict(decided, current, now), former.started
	} else {
		desired = rollout.ComputeDesiredImages(decided, next.inputs.ClusterProgress, current, now)
	}
	next.kept, next.retired = internList(&img.sharedLists.kept, desired.Kept), internList(&img.sharedLists.retired, desired.Retired)
	if len(desired.Images) == 0 {
		return
	}
	planned := &desired.Images[0] // a FleetDiskImage has one current image
	next.image = &desiredImage{planned.Namespace, planned.Name, &planned.Spec, planned.Retry, planned.PlannedAt}
	if started && planned.PlannedAt != nil {
		next.started, next.digest, next.revision = true, former.digest, former.revision
		if effective != nil {
			next.digest, next.revision = effective.Digest, effective.Revision
		}
	}
	if effective != nil && planned.Spec.Equal(&effective.Spec) {
		next.image.spec = &effective.Spec
	} else {
		next.image.spec = img.sharedLists.internSpec(next.inputs.planned, &planned.Spec)
	}
}

// replaceDesired stores a desired state and updates what depends on it.
func (f *FleetState) replaceDesired(img *imageState, i int, next desiredState) {
	former, m := img.desired[i], f.members[img.clusters[i].Name]
	if former.started != next.started {
		img.dirty[m.name] = true
	}
	if former.started && !next.started {
		f.forgetStarted(img, i)
	}
	img.desired[i] = next
	if next.started && !former.started && !m.plansImage(img.current) {
		if m.pendingStarts++; m.isPlanFull() {
			f.invalidateMember(m)
		}
	}
	if former.differsFrom(&next) {
		f.enqueueMembers(m.name)
	}
}

// differsFrom reports whether two desired states lead to different plans.
func (d *desiredState) differsFrom(other *desiredState) bool {
	return !d.known || d.freeze != other.freeze || !slices.Equal(d.kept, other.kept) || !slices.Equal(d.retired, other.retired) ||
		(d.image == nil) != (other.image == nil) || d.image != nil && (d.image.namespace != other.image.namespace ||
		d.image.name != other.image.name || d.image.retry != other.image.retry || !d.image.plannedAt.Equal(other.image.plannedAt) || !d.image.spec.Equal(other.image.spec))
}

// ForMember returns what all FleetDiskImages together desire of a member, sorted, no
// image twice: an image that is to exist is not kept or retired, and one that is kept is
// not retired. While known is false, because a FleetDiskImage is undecided for that
// member, a plan keeps what it has.
func (f *FleetState) ForMember(name string) (desired rollout.DesiredImages, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || !m.present || !f.ready() {
		return desired, false
	}
	for _, img := range f.sorted {
		i, ok := img.clusterIndex[name]
		if !ok || !img.desired[i].known {
			return rollout.DesiredImages{}, false
		}
		d := &img.desired[i]
		if d.freeze {
			m.addAsPlanned(&desired, img)
			continue
		}
		if d.image != nil {
			desired.Images = append(desired.Images, *d.image.toPlannedImage())
		}
		desired.Kept = append(desired.Kept, d.kept...)
		desired.Retired = append(desired.Retired, d.retired...)
	}
	m.normalize(&desired)
	return desired, true
}

// addAsPlanned adds the items that the plan has of a FleetDiskImage.
func (m *member) addAsPlanned(desired *rollout.DesiredImages, img *imageState) {
	if m.plan == nil {
		return
	}
	isOwn := func(namespace, name string) bool {
		return slices.Contains(img.imageNames, newImageKey(namespace, name))
	}
	for _, item := range m.plan.Spec.Images {
		if isOwn(item.Namespace, item.Name) {
			desired.Images = append(desired.Images, item)
		}
	}
	for _, item := range m.plan.Spec.Kept {
		if isOwn(item.Namespace, item.Name) {
			desired.Kept = append(desired.Kept, item)
		}
	}
	for _, item := range m.plan.Spec.Retired {
		if isOwn(item.Namespace, item.Name) {
			desired.Retired = append(desired.Retired, item)
		}
	}
}

// normalize sorts the lists, removes duplicates, and limits each list to the room of a
// plan. Images that the plan has, or the member reports, are preferred.
func (m *member) normalize(desired *rollout.DesiredImages) {
	seen := make(map[types.NamespacedName]bool, len(desired.Images)+len(desired.Kept))
	isPlanned := func(namespace, name string) bool { return m.plansImage(newImageKey(namespace, name)) }
	isReported := func(namespace, name string) bool { return m.newestReport(newImageKey(namespace, name)).Exists }
	desired.Images = dedupeAndLimit(desired.Images, seen, v1alpha1.MaxPlannedImages, func(i *v1alpha1.PlannedImage) (string, string) { return i.Namespace, i.Name }, isPlanned)
	desired.Kept = dedupeAndLimit(desired.Kept, seen, v1alpha1.MaxKeptImages, func(i *v1alpha1.KeptImage) (string, string) { return i.Namespace, i.Name }, isReported)
	desired.Retired = dedupeAndLimit(desired.Retired, seen, v1alpha1.MaxRetiredImages, func(i *v1alpha1.RetiredImage) (string, string) { return i.Namespace, i.Name }, isReported)
}

// dedupeAndLimit removes names that were seen, and sorts the rest. Over the limit,
// non-preferred entries are dropped first.
func dedupeAndLimit[T any](list []T, seen map[types.NamespacedName]bool, limit int, nameOf func(*T) (namespace, name string), isPreferred func(namespace, name string) bool) []T {
	unique := list[:0]
	for i := range list {
		namespace, name := nameOf(&list[i])
		if key := (types.NamespacedName{Namespace: namespace, Name: name}); !seen[key] {
			seen[key] = true
			unique = append(unique, list[i])
		}
	}
	compareNames := func(a, b T) int {
		namespaceA, nameA := nameOf(&a)
		namespaceB, nameB := nameOf(&b)
		return cmp.Or(strings.Compare(namespaceA, namespaceB), strings.Compare(nameA, nameB))
	}
	slices.SortFunc(unique, compareNames)
	if len(unique) > limit {
		slices.SortStableFunc(unique, func(a, b T) int {
			return cmp.Compare(preferenceRank(isPreferred(nameOf(&a))), preferenceRank(isPreferred(nameOf(&b))))
		})
		unique = unique[:limit]
		slices.SortFunc(unique, compareNames)
	}
	return unique
}

func preferenceRank(preferred bool) int {
	if preferred {
		return 0
	}
	return 1
}
