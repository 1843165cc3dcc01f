package inventory

import (
	"unique"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Flags of an entry.
const (
	entryHasMessage uint8 = 1 << iota
	// entryBehind: machines are cloned from another revision than the spec asks for.
	entryBehind
)

func flagsOf(img *v1alpha1.ReportedImage) (flags uint8) {
	if img.Stalled || img.Phase == v1alpha1.PhaseFailed {
		flags |= entryHasMessage
	}
	if img.ServingRevision != "" && img.Revision != "" && img.ServingRevision != img.Revision {
		flags |= entryBehind
	}
	return flags
}

// imageName is a VMDiskImage within a member.
type imageName struct{ namespace, name unique.Handle[string] }

// cellStates are the states of a cell by the index of a phase, and cellRanks which of two
// states a cell shows that stands for several images: the greater one.
var (
	cellStates = map[v1alpha1.Phase]readapi.Cell{
		"": readapi.CellPlanned, PhaseUnknown: readapi.CellOther,
		v1alpha1.PhaseQueued: readapi.CellQueued, v1alpha1.PhaseSyncing: readapi.CellSyncing,
		v1alpha1.PhaseSucceeded: readapi.CellReady, v1alpha1.PhaseFailed: readapi.CellFailed,
		v1alpha1.PhasePrunePending: readapi.CellLeaving, v1alpha1.PhaseTerminating: readapi.CellLeaving, v1alpha1.PhaseDeleting: readapi.CellLeaving,
	}
	cellRanks = [16]int{
		readapi.CellReady: 1, readapi.CellOther: 2, readapi.CellLeaving: 3, readapi.CellPlanned: 4,
		readapi.CellQueued: 5, readapi.CellSyncing: 6, readapi.CellFailed: 7,
	}
	cellByPhase = func() (cells [len(phases)]readapi.Cell) {
		for i, phase := range phases {
			cells[i] = cellStates[phase]
		}
		return cells
	}()
)

func (e *entry) toCell() readapi.Cell {
	c := cellByPhase[e.phaseIndex]
	if e.references > 0 {
		c |= readapi.CellReferenced
	}
	if e.flags&entryBehind != 0 {
		c |= readapi.CellBehind
	}
	if e.flags&entryHasMessage != 0 {
		c |= readapi.CellMessage
	}
	return c
}

// mergeCells shows the state that matters most of several images, and the flags of all.
func mergeCells(a, b readapi.Cell) readapi.Cell {
	state := a.State()
	if cellRanks[b.State()] > cellRanks[state] {
		state = b.State()
	}
	return state | (a|b)&^0xf
}

// cellGrid is a matrix that is being filled.
type cellGrid struct {
	cells   []byte
	columns int
}

func (g *cellGrid) add(row, column int, c readapi.Cell) {
	at := row*g.columns + column
	if before := readapi.Cell(g.cells[at]); cellRanks[before.State()] > 0 {
		c = mergeCells(before, c)
	}
	g.cells[at] = byte(c)
}

func (g *cellGrid) addAll(rows []int, column int, e *entry) {
	for _, row := range rows {
		g.add(row, column, e.toCell())
	}
}

// CellsOfSources returns the cells of sources × members, by row, and why each member may have
// more than is known.
func (x *Index) CellsOfSources(sources, members []string) (cells []byte, unknown []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	columns := make(map[*indexMember]int, len(members))
	for i, name := range members {
		if m := x.members[name]; m != nil {
			columns[m] = i
		}
	}
	g := cellGrid{make([]byte, len(sources)*len(members)), len(members)}
	for row, source := range sources {
		s := x.sources[unique.Make(source)]
		if s == nil {
			continue
		}
		for m, groups := range s.groupsByMember {
			column, shown := columns[m]
			if !shown {
				continue
			}
			for _, group := range groups {
				for i := range group.entries {
					g.add(row, column, group.entries[i].toCell())
				}
			}
		}
	}
	return g.cells, x.finishCells(&g, members)
}

// CellsOfImages returns the cells of VMDiskImages × members, by row, and why each member may
// have more than is known. An image has its namespace and name.
func (x *Index) CellsOfImages(images [][2]string, members []string) (cells []byte, unknown []string) {
	rows := make(map[imageName][]int, len(images)) // two FleetDiskImages may have a name
	for i, image := range images {
		key := imageName{unique.Make(image[0]), unique.Make(image[1])}
		rows[key] = append(rows[key], i)
	}
	g := cellGrid{make([]byte, len(images)*len(members)), len(members)}
	x.mu.RLock()
	defer x.mu.RUnlock()
	for column, name := range members {
		m := x.members[name]
		if m == nil {
			continue
		}
		for _, p := range m.pages {
			if !p.counted {
				continue
			}
			for _, group := range p.groups {
				for i := range group.entries {
					e := &group.entries[i]
					g.addAll(rows[imageName{e.namespace, e.name}], column, e)
				}
			}
			for i := range p.unsourced {
				e := &p.unsourced[i]
				g.addAll(rows[imageName{e.namespace, e.name}], column, e)
			}
		}
	}
	return g.cells, x.finishCells(&g, members)
}

// finishCells sets the cells of images that are known to be absent, and marks those of
// members that may have changed. Invariant: a cell of an unknown member is never absent.
func (x *Index) finishCells(g *cellGrid, members []string) (unknown []string) {
	unknown = make([]string, len(members))
	for column, name := range members {
		unknown[column] = v1alpha1.ReasonNeverReported
		if m := x.members[name]; m != nil {
			unknown[column] = m.unknownReason
		}
	}
	for at := range g.cells {
		isUnknown := unknown[at%g.columns] != ""
		switch empty := g.cells[at] == byte(readapi.CellUnknown); {
		case empty && !isUnknown:
			g.cells[at] = byte(readapi.CellAbsent)
		case !empty && isUnknown:
			g.cells[at] |= byte(readapi.CellStale)
		}
	}
	return unknown
}

// SourcesOf returns the sources that any of some members reports, sorted; false where there
// are more than limit.
func (x *Index) SourcesOf(members []string, limit int) (sources []string, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	chosen := make(map[*indexMember]bool, len(members))
	for _, name := range members {
		if m := x.members[name]; m != nil {
			chosen[m] = true
		}
	}
	for _, source := range x.sortedSources {
		if !x.sources[unique.Make(source)].isReportedByAny(chosen) {
			continue
		}
		if len(sources) == limit {
			return nil, false
		}
		sources = append(sources, source)
	}
	return sources, true
}

func (s *indexSource) isReportedByAny(members map[*indexMember]bool) bool {
	if len(members) < len(s.groupsByMember) {
		for m := range members {
			if len(s.groupsByMember[m]) > 0 {
				return true
			}
		}
		return false
	}
	for m := range s.groupsByMember {
		if members[m] {
			return true
		}
	}
	return false
}

// PageOf returns the page of a member's report that has an image; false for none.
func (x *Index) PageOf(member, namespace, name string) (page string, found bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	page, e := x.findEntry(member, namespace, name)
	return page, e != nil
}

// References returns how many machines of a member need an image; false if that is unknown.
func (x *Index) References(member, namespace, name string) (references int32, known bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, e := x.findEntry(member, namespace, name)
	if e == nil || x.members[member].unknownReason != "" {
		return 0, false
	}
	return e.references, true
}

// findEntry returns an image of a member on the page that supersedes the others with it; nil for none. x.mu is
// held.
func (x *Index) findEntry(member, namespace, name string) (page string, found *entry) {
	m := x.members[member]
	if m == nil {
		return "", nil
	}
	key := imageName{unique.Make(namespace), unique.Make(name)}
	newest := v1alpha1.PageRef{Sequence: -1}
	for pageName, p := range m.pages {
		ref := v1alpha1.PageRef{Name: pageName, Sequence: p.sequence}
		if !p.counted || !ref.Supersedes(newest) {
			continue
		}
		if e := p.findEntry(key); e != nil {
			newest, found = ref, e
		}
	}
	return newest.Name, found
}

// findEntry returns an image of the page; nil for none.
func (p *indexPage) findEntry(key imageName) *entry {
	find := func(entries []entry) *entry {
		for i := range entries {
			if entries[i].namespace == key.namespace && entries[i].name == key.name {
				return &entries[i]
			}
		}
		return nil
	}
	if e := find(p.unsourced); e != nil {
		return e
	}
	for _, group := range p.groups {
		if e := find(group.entries); e != nil {
			return e
		}
	}
	return nil
}
