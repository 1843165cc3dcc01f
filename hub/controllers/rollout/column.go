package rollout

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// imageState is one FleetDiskImage on the Board, with a cell for each member.
type imageState struct {
	name string

	// stored is not to be changed. It, and all below that is not said to be under
	// mu, is under Board.mu.
	stored     *v1alpha1.FleetDiskImage
	removed    bool
	imageNames []imageKey
	// dirty are the members whose cells are to be worked out anew.
	dirty map[string]bool
	// generation is raised when stored or the versions in status change: wishes of
	// another one are to be worked out anew.
	generation int64
	// status as it was decided last, written or not; nil where this replica has not
	// decided.
	status *v1alpha1.FleetDiskImageStatus
	// desired are in the order of cells.
	desired     []desiredState
	sharedLists sharedLists // by the wishes of this generation

	// mu lets one decide at a time. It is taken before Board.mu; what follows is
	// changed under both, and may be read under either.
	mu           sync.Mutex
	current      imageKey
	revision     string
	builtFrom    *v1alpha1.FleetDiskImage // what current and revision are of
	membership   int64                    // Board.fleet that cells are of
	clusters     []rollout.Cluster        // by name
	clusterIndex map[string]int           // place in cells
	memberUIDs   []types.UID              // of the MemberClusters that cells are of
}

func compareByName(a, b *imageState) int { return strings.Compare(a.name, b.name) }

// isDeletingImages tells that a FleetDiskImage waits for its images to go.
func (c *imageState) isDeletingImages() bool {
	return !c.stored.DeletionTimestamp.IsZero() && c.stored.Spec.DeletionPolicy == v1alpha1.DeletionDelete
}

// withDecidedStatus is the FleetDiskImage with its last status. It shares with stored and is
// not to be changed.
func (c *imageState) withDecidedStatus() *v1alpha1.FleetDiskImage {
	if c.status == nil {
		return c.stored
	}
	v := *c.stored
	v.Status = *c.status
	return &v
}

// refreshClusters works out the cells that may have changed. Callers hold both locks.
func (b *FleetState) refreshClusters(c *imageState) {
	all := false
	if c.builtFrom != c.stored {
		current, revision := imageKeyFor(rollout.CurrentImage(c.stored)), c.stored.Spec.Template.Revision()
		if current != c.current || revision != c.revision {
			for i := range c.desired {
				b.forgetStarted(c, i)
			}
			c.current, c.revision, all = current, revision, true
		}
		c.builtFrom = c.stored
	}
	if c.membership != b.membership || c.clusterIndex == nil {
		b.rebuildClusters(c)
		all = true
	}
	switch {
	case all:
		for i := range c.clusters {
			c.clusters[i] = b.buildCluster(c, b.members[c.clusters[i].Name])
		}
	default:
		for name := range c.dirty {
			if i, there := c.clusterIndex[name]; there {
				c.clusters[i] = b.buildCluster(c, b.members[name])
			}
		}
	}
	clear(c.dirty)
}

// rebuildClusters makes a cell for each member that is present, and keeps the wishes of
// those that were.
func (b *FleetState) rebuildClusters(c *imageState) {
	cells, wishes, at := make([]rollout.Cluster, len(b.present)), make([]desiredState, len(b.present)), make(map[string]int, len(b.present))
	uids := make([]types.UID, len(b.present))
	for i, name := range b.present {
		cells[i].Name, at[name], uids[i] = name, i, b.members[name].uid
		if old, was := c.clusterIndex[name]; was && c.desired[old].memberUID == uids[i] {
			wishes[i], c.desired[old].started = c.desired[old], false
		}
	}
	for i := range c.desired { // of members that are gone, or others now
		b.forgetStarted(c, i)
	}
	c.clusters, c.desired, c.clusterIndex, c.memberUIDs, c.membership = cells, wishes, at, uids, b.membership
}

// buildCluster is what is known of one member with regard to the current image.
func (b *FleetState) buildCluster(c *imageState, m *member) rollout.Cluster {
	cell := rollout.Cluster{
		Name: m.name, Labels: m.labels, OfflineReason: m.offline, OnlineSince: m.onlineSince,
		Report: m.newestReport(c.current).Report,
	}
	if planned, is := m.plannedImages[c.current]; is {
		cell.PlannedRevision = planned.revision
		if planned.PlannedAt != nil {
			cell.PlannedAt = planned.PlannedAt.Time
		}
	}
	if i, there := c.clusterIndex[m.name]; there && c.desired[i].started && cell.PlannedRevision != c.revision {
		cell.PlannedRevision, cell.PlannedAt = c.revision, c.desired[i].image.plannedAt.Time
	}
	cell.PlanFull = cell.PlannedRevision == "" && m.isPlanFull()
	return cell
}

// forgetStarted takes back that a member has begun, as far as this replica knows of
// it.
func (b *FleetState) forgetStarted(c *imageState, i int) {
	if !c.desired[i].started {
		return
	}
	c.desired[i].started = false
	if m := b.members[c.clusters[i].Name]; m != nil && !m.plansImage(c.current) {
		full := m.isPlanFull()
		if m.pendingStarts--; full {
			b.invalidateMember(m)
		}
	}
}

// PlacedClusters tells where a FleetDiskImage is placed, and how far each cluster is;
// false where there is none of that name. Nothing comes of it.
func (b *FleetState) PlacedClusters(image string, now time.Time) ([]rollout.PlacedCluster, bool) {
	c := b.lookupImage(image)
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rollout.Decide(b.gatherView(c, now)).Placed, true
}

func (b *FleetState) lookupImage(image string) *imageState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.images[image]
}

// gatherView returns what is decided on. Callers hold c.mu, and use it no longer than
// that.
func (b *FleetState) gatherView(c *imageState, now time.Time) rollout.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refreshClusters(c)
	v := rollout.View{Image: c.withDecidedStatus(), Clusters: c.clusters, ApprovalGuarded: b.approvalGuarded, Now: now}
	if others := b.conflicts(c); len(others) > 0 {
		v.Conflict, v.NameTaken = rollout.FindConflict(v.Image, others), rollout.CurrentNameTaken(v.Image, others)
	}
	if c.isDeletingImages() && v.Conflict == "" {
		alone := b.exclusiveNames(c)
		for _, name := range b.present {
			if b.members[name].mayHoldAny(alone) {
				v.Holders = append(v.Holders, name)
			}
		}
	}
	return v
}

// exclusiveNames returns the names of a FleetDiskImage that no other has which is to stay: a
// younger one keeps its images as long as this one is its rival, and what is kept
// does not go, so that nobody must wait for it.
func (b *FleetState) exclusiveNames(c *imageState) (names []imageKey) {
	for _, k := range c.imageNames {
		if !slices.ContainsFunc(b.byImageName[k], func(other *imageState) bool { return other != c && other.stored.DeletionTimestamp.IsZero() }) {
			names = append(names, k)
		}
	}
	return names
}

// conflicts are the other FleetDiskImages that share a name with one.
func (b *FleetState) conflicts(c *imageState) (others []v1alpha1.FleetDiskImage) {
	var seen []*imageState
	for _, k := range c.imageNames {
		for _, other := range b.byImageName[k] {
			if other != c && !slices.Contains(seen, other) {
				seen = append(seen, other)
				others = append(others, *other.withDecidedStatus())
			}
		}
	}
	return others
}

// Decide decides about a FleetDiskImage and has those who plan go by it. held: it
// is leaving, and a member still has an image of it.
func (b *FleetState) Decide(image string, now time.Time) (d rollout.Decision, held, found bool) {
	b.decideMu.Lock()
	defer b.decideMu.Unlock()
	c := b.lookupImage(image)
	if c == nil {
		return d, false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := b.gatherView(c, now)
	d = rollout.Decide(v)
	b.applyDecision(c, v, d)
	return d, len(v.Holders) > 0, true
}

// applyDecision takes a decision over. Callers hold c.mu.
func (b *FleetState) applyDecision(c *imageState, v rollout.View, d rollout.Decision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.removed {
		return
	}
	if !slices.Equal(d.Status.Versions, v.Image.Status.Versions) {
		c.generation++
	}
	c.status = &d.Status
	b.indexNames(c)
	b.updateDesired(c, v, d)
}

// freezeUndecided has plans keep what they have of a FleetDiskImage that is not decided about
// yet.
func (b *FleetState) freezeUndecided(image string) {
	c := b.lookupImage(image)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refreshClusters(c)
	for i := range c.desired {
		if m := b.members[c.clusters[i].Name]; m != nil && !c.desired[i].known {
			b.replaceDesired(c, i, desiredState{known: true, memberUID: m.uid, freeze: true})
		}
	}
}

// copyStoredImage returns a FleetDiskImage as it is stored, to be changed at will; nil for
// none.
func (b *FleetState) copyStoredImage(name string) *v1alpha1.FleetDiskImage {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.images[name]; c != nil {
		return c.stored.DeepCopy()
	}
	return nil
}
