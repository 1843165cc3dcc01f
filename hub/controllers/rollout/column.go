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

// column is one FleetDiskImage on the Board, with a cell for each member.
type column struct {
	name string

	// stored is not to be changed. It, and all below that is not said to be under
	// mu, is under Board.mu.
	stored *v1alpha1.FleetDiskImage
	gone   bool
	names  []key
	// dirty are the members whose cells are to be worked out anew.
	dirty map[string]bool
	// generation is raised when stored or the versions in status change: wishes of
	// another one are to be worked out anew.
	generation int64
	// status as it was decided last, written or not; nil where this replica has not
	// decided.
	status *v1alpha1.FleetDiskImageStatus
	// wishes are in the order of cells.
	wishes []wish
	shared shared // by the wishes of this generation

	// mu lets one decide at a time. It is taken before Board.mu; what follows is
	// changed under both, and may be read under either.
	mu       sync.Mutex
	current  key
	revision string
	built    *v1alpha1.FleetDiskImage // what current and revision are of
	fleet    int64                    // Board.fleet that cells are of
	cells    []rollout.Cluster        // by name
	at       map[string]int           // place in cells
	uids     []types.UID              // of the MemberClusters that cells are of
}

func byName(a, b *column) int { return strings.Compare(a.name, b.name) }

// leaving tells that a FleetDiskImage waits for its images to go.
func (c *column) leaving() bool {
	return !c.stored.DeletionTimestamp.IsZero() && c.stored.Spec.DeletionPolicy == v1alpha1.DeletionDelete
}

// view is the FleetDiskImage with its last status. It shares with stored and is
// not to be changed.
func (c *column) view() *v1alpha1.FleetDiskImage {
	if c.status == nil {
		return c.stored
	}
	v := *c.stored
	v.Status = *c.status
	return &v
}

// refresh works out the cells that may have changed. Callers hold both locks.
func (b *Board) refresh(c *column) {
	all := false
	if c.built != c.stored {
		current, revision := keyFor(rollout.CurrentImage(c.stored)), c.stored.Spec.Template.Revision()
		if current != c.current || revision != c.revision {
			for i := range c.wishes {
				b.forgetBegun(c, i)
			}
			c.current, c.revision, all = current, revision, true
		}
		c.built = c.stored
	}
	if c.fleet != b.fleet || c.at == nil {
		b.arrange(c)
		all = true
	}
	switch {
	case all:
		for i := range c.cells {
			c.cells[i] = b.cell(c, b.members[c.cells[i].Name])
		}
	default:
		for name := range c.dirty {
			if i, there := c.at[name]; there {
				c.cells[i] = b.cell(c, b.members[name])
			}
		}
	}
	clear(c.dirty)
}

// arrange makes a cell for each member that is present, and keeps the wishes of
// those that were.
func (b *Board) arrange(c *column) {
	cells, wishes, at := make([]rollout.Cluster, len(b.present)), make([]wish, len(b.present)), make(map[string]int, len(b.present))
	uids := make([]types.UID, len(b.present))
	for i, name := range b.present {
		cells[i].Name, at[name], uids[i] = name, i, b.members[name].uid
		if old, was := c.at[name]; was && c.wishes[old].member == uids[i] {
			wishes[i], c.wishes[old].begun = c.wishes[old], false
		}
	}
	for i := range c.wishes { // of members that are gone, or others now
		b.forgetBegun(c, i)
	}
	c.cells, c.wishes, c.at, c.uids, c.fleet = cells, wishes, at, uids, b.fleet
}

// cell is what is known of one member with regard to the current image.
func (b *Board) cell(c *column, m *member) rollout.Cluster {
	cell := rollout.Cluster{
		Name: m.name, Labels: m.labels, Offline: m.offline, OnlineSince: m.onlineSince,
		Report: m.reported(c.current).Report,
	}
	if planned, is := m.planned[c.current]; is {
		cell.Planned = planned.revision
		if planned.PlannedAt != nil {
			cell.PlannedAt = planned.PlannedAt.Time
		}
	}
	if i, there := c.at[m.name]; there && c.wishes[i].begun && cell.Planned != c.revision {
		cell.Planned, cell.PlannedAt = c.revision, c.wishes[i].image.plannedAt.Time
	}
	cell.Full = cell.Planned == "" && m.full()
	return cell
}

// forgetBegun takes back that a member has begun, as far as this replica knows of
// it.
func (b *Board) forgetBegun(c *column, i int) {
	if !c.wishes[i].begun {
		return
	}
	c.wishes[i].begun = false
	if m := b.members[c.cells[i].Name]; m != nil && !m.plans(c.current) {
		full := m.full()
		if m.coming--; full {
			b.concernsAll(m)
		}
	}
}

// Placed tells where a FleetDiskImage is placed, and how far each cluster is;
// false where there is none of that name. Nothing comes of it.
func (b *Board) Placed(image string, now time.Time) ([]rollout.Placed, bool) {
	c := b.column(image)
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rollout.Decide(b.gather(c, now)).Placed, true
}

func (b *Board) column(image string) *column {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.columns[image]
}

// gather returns what is decided on. Callers hold c.mu, and use it no longer than
// that.
func (b *Board) gather(c *column, now time.Time) rollout.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(c)
	v := rollout.View{Image: c.view(), Clusters: c.cells, Guarded: b.guarded, Now: now}
	if others := b.namesakes(c); len(others) > 0 {
		v.Rival, v.Taken = rollout.Rival(v.Image, others), rollout.Taken(v.Image, others)
	}
	if c.leaving() && v.Rival == "" {
		alone := b.alone(c)
		for _, name := range b.present {
			if b.members[name].holds(alone) {
				v.Holders = append(v.Holders, name)
			}
		}
	}
	return v
}

// alone returns the names of a FleetDiskImage that no other has which is to stay: a
// younger one keeps its images as long as this one is its rival, and what is kept
// does not go, so that nobody must wait for it.
func (b *Board) alone(c *column) (names []key) {
	for _, k := range c.names {
		if !slices.ContainsFunc(b.named[k], func(other *column) bool { return other != c && other.stored.DeletionTimestamp.IsZero() }) {
			names = append(names, k)
		}
	}
	return names
}

// namesakes are the other FleetDiskImages that share a name with one.
func (b *Board) namesakes(c *column) (others []v1alpha1.FleetDiskImage) {
	var seen []*column
	for _, k := range c.names {
		for _, other := range b.named[k] {
			if other != c && !slices.Contains(seen, other) {
				seen = append(seen, other)
				others = append(others, *other.view())
			}
		}
	}
	return others
}

// Decide decides about a FleetDiskImage and has those who plan go by it. held: it
// is leaving, and a member still has an image of it.
func (b *Board) Decide(image string, now time.Time) (d rollout.Decision, held, found bool) {
	b.deciding.Lock()
	defer b.deciding.Unlock()
	c := b.column(image)
	if c == nil {
		return d, false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := b.gather(c, now)
	d = rollout.Decide(v)
	b.publish(c, v, d)
	return d, len(v.Holders) > 0, true
}

// publish takes a decision over. Callers hold c.mu.
func (b *Board) publish(c *column, v rollout.View, d rollout.Decision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.gone {
		return
	}
	if !slices.Equal(d.Status.Versions, v.Image.Status.Versions) {
		c.generation++
	}
	c.status = &d.Status
	b.rename(c)
	b.wish(c, v, d)
}

// hold has plans keep what they have of a FleetDiskImage that is not decided about
// yet.
func (b *Board) hold(image string) {
	c := b.column(image)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh(c)
	for i := range c.wishes {
		if m := b.members[c.cells[i].Name]; m != nil && !c.wishes[i].known {
			b.replace(c, i, wish{known: true, member: m.uid, hold: true})
		}
	}
}

// image returns a FleetDiskImage as it is stored, to be changed at will; nil for
// none.
func (b *Board) image(name string) *v1alpha1.FleetDiskImage {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.columns[name]; c != nil {
		return c.stored.DeepCopy()
	}
	return nil
}
