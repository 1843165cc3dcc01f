package inventory

import (
	"slices"
	"sync"
	"unique"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Index counts the images of all members by source. The cost of a changed page depends on
// that page, not on the fleet; only numbers are kept.
//
// A page counts while the root of the member's report lists it. If it is missing, or has
// another sequence than the root says, the member is unknown as well. Meanwhile an image
// that moves between pages can be counted twice, never zero times.
//
// Index is safe for concurrent use.
type Index struct {
	mu              sync.RWMutex
	members         map[string]*indexMember
	sources         map[unique.Handle[string]]*indexSource
	sortedSources   []string       // keys of sources
	unknownByReason map[string]int // number of unknown members by reason
	entryCount      int
	pageCount       int
	onChange        []func(Change)
}

type indexMember struct {
	name            string
	hasRoot         bool
	omittedImages   int32
	staleReason     string
	listedPages     map[string]int64 // sequence of each page that the root lists
	mismatchedPages int              // listed pages that are missing or of another sequence
	pages           map[string]*indexPage
	sum             tally
	unknownReason   string // as it is counted in Index.unknownByReason
	activity        memberActivity
}

// indexSource is one distinct image.
type indexSource struct {
	groupsByMember map[*indexMember][]*indexGroup
	sum            tally
}

// NewIndex returns an Index without members.
func NewIndex() *Index {
	return &Index{members: map[string]*indexMember{}, sources: map[unique.Handle[string]]*indexSource{}, unknownByReason: map[string]int{}}
}

// AddMember adds a member, which is unknown until it reports.
func (x *Index) AddMember(member string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ensureMember(member)
}

func (x *Index) ensureMember(name string) *indexMember {
	m := x.members[name]
	if m == nil {
		m = &indexMember{name: name, pages: map[string]*indexPage{}}
		x.members[name] = m
		x.updateUnknownReason(m)
		x.notify(ChangedImages)
	}
	return m
}

// Forget removes a member.
func (x *Index) Forget(member string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[member]
	if m == nil {
		return
	}
	for _, p := range m.pages {
		x.uncountPage(m, p)
	}
	x.pageCount -= len(m.pages)
	if m.unknownReason != "" {
		x.adjustUnknown(m.unknownReason, -1)
	}
	delete(x.members, member)
	x.notify(ChangedImages)
}

// SetRoot sets the root of a member's report, nil for none, and adds the member.
func (x *Index) SetRoot(member string, root *v1alpha1.ReportRoot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.ensureMember(member)
	m.hasRoot, m.omittedImages, m.listedPages, m.mismatchedPages = root != nil, 0, nil, 0
	m.activity.root = newRootOfActivity(root)
	if root != nil {
		m.omittedImages = root.OmittedImages
		m.listedPages = make(map[string]int64, len(root.Pages))
		for _, ref := range root.Pages {
			m.listedPages[ref.Name] = ref.Sequence
		}
	}
	for name := range m.listedPages {
		m.mismatchedPages += m.pageMismatch(name)
	}
	x.syncCountedPages(m)
	x.updateUnknownReason(m)
}

// isCounted reports whether a page counts. Pages of a cluster that belongs to another
// member are counted there.
func (m *indexMember) isCounted(page string) bool {
	_, listed := m.listedPages[page]
	return listed && m.staleReason != v1alpha1.ReasonDuplicateCluster
}

// syncCountedPages counts the pages that have to count, and no others.
func (x *Index) syncCountedPages(m *indexMember) {
	for name, p := range m.pages {
		switch counts := m.isCounted(name); {
		case counts && !p.counted:
			x.countPage(m, p)
		case !counts && p.counted:
			x.uncountPage(m, p)
		}
	}
}

// pageMismatch is 1 for a listed page that is missing or of another sequence, otherwise
// 0.
func (m *indexMember) pageMismatch(page string) int {
	want, listed := m.listedPages[page]
	if p := m.pages[page]; listed && (p == nil || p.sequence != want) {
		return 1
	}
	return 0
}

// SetPage sets a page of a member's report, and adds the member.
func (x *Index) SetPage(member, page string, sequence int64, images []v1alpha1.ReportedImage) {
	x.mu.RLock()
	p := newIndexPage(sequence, images, x.redactSource)
	x.mu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.ensureMember(member)
	m.mismatchedPages -= m.pageMismatch(page)
	old := m.pages[page]
	m.pages[page] = p
	m.mismatchedPages += m.pageMismatch(page)
	if old == nil {
		x.pageCount++
	}
	if m.isCounted(page) {
		if old != nil {
			x.replacePage(m, old, p)
		} else {
			x.countPage(m, p)
		}
	}
	x.updateUnknownReason(m)
}

// redactSource redacts a source. One that is in the index is redacted, and most are: the clusters of a fleet
// have the same images. The caller holds x.mu.
func (x *Index) redactSource(source string) string {
	if x.sources[unique.Make(source)] != nil {
		return source
	}
	return v1alpha1.RedactSource(source)
}

// DropPage removes a page.
func (x *Index) DropPage(member, page string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[member]
	if m == nil || m.pages[page] == nil {
		return
	}
	m.mismatchedPages -= m.pageMismatch(page)
	x.uncountPage(m, m.pages[page])
	delete(m.pages, page)
	x.pageCount--
	m.mismatchedPages += m.pageMismatch(page)
	x.updateUnknownReason(m)
}

// SetStaleReason marks what is known of a member as possibly out of date, so that the
// member is unknown, and adds the member. An empty reason removes the mark.
func (x *Index) SetStaleReason(member, reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.ensureMember(member)
	m.staleReason = reason
	x.syncCountedPages(m)
	x.updateUnknownReason(m)
}

// updateUnknownReason computes why a member is unknown.
func (x *Index) updateUnknownReason(m *indexMember) {
	reason := m.staleReason
	switch {
	case !m.hasRoot:
		reason = v1alpha1.ReasonNeverReported
	case reason != "":
	case m.mismatchedPages > 0:
		reason = v1alpha1.ReasonPagesMissing
	case m.omittedImages > 0:
		reason = v1alpha1.ReasonPagesOmitted
	}
	if reason == m.unknownReason {
		return
	}
	if m.unknownReason != "" {
		x.adjustUnknown(m.unknownReason, -1)
	}
	if reason != "" {
		x.adjustUnknown(reason, 1)
	}
	m.unknownReason = reason
	x.notify(ChangedImages)
}

func (x *Index) adjustUnknown(reason string, n int) {
	if x.unknownByReason[reason] += n; x.unknownByReason[reason] == 0 {
		delete(x.unknownByReason, reason)
	}
}

// countPage adds a page to the sums.
func (x *Index) countPage(m *indexMember, p *indexPage) {
	p.counted = true
	m.sum.addScaled(&p.sum, 1)
	x.entryCount += int(p.sum.entries)
	for _, g := range p.groups {
		x.countGroup(m, g)
	}
	x.notify(ChangedImages)
}

// uncountPage removes a page from the sums.
func (x *Index) uncountPage(m *indexMember, p *indexPage) {
	if !p.counted {
		return
	}
	p.counted = false
	m.sum.addScaled(&p.sum, -1)
	x.entryCount -= int(p.sum.entries)
	for _, g := range p.groups {
		x.uncountGroup(m, g)
	}
	x.notify(ChangedImages)
}

// replacePage replaces a counted page. Most often one image differs, and the other groups
// are kept.
func (x *Index) replacePage(m *indexMember, old, p *indexPage) {
	p.counted, old.counted = true, false
	m.sum.addScaled(&old.sum, -1)
	m.sum.addScaled(&p.sum, 1)
	x.entryCount += int(p.sum.entries - old.sum.entries)
	gone := make(map[unique.Handle[string]]*indexGroup, len(old.groups))
	for _, g := range old.groups {
		gone[g.source] = g
	}
	changed := len(gone) != len(p.groups) || !slices.Equal(old.unsourced, p.unsourced)
	for i, g := range p.groups {
		if same := gone[g.source]; same != nil && slices.Equal(same.entries, g.entries) {
			p.groups[i] = same
			delete(gone, g.source)
			continue
		}
		changed = true
		x.countGroup(m, g)
	}
	for _, g := range gone {
		x.uncountGroup(m, g)
	}
	if changed {
		x.notify(ChangedImages)
	}
}

func (x *Index) countGroup(m *indexMember, g *indexGroup) {
	s := x.sources[g.source]
	if s == nil {
		s = &indexSource{groupsByMember: map[*indexMember][]*indexGroup{}}
		x.sources[g.source] = s
		i, _ := slices.BinarySearch(x.sortedSources, g.source.Value())
		x.sortedSources = slices.Insert(x.sortedSources, i, g.source.Value())
	}
	s.groupsByMember[m] = append(s.groupsByMember[m], g)
	s.sum.addScaled(&g.sum, 1)
}

func (x *Index) uncountGroup(m *indexMember, g *indexGroup) {
	s := x.sources[g.source]
	s.sum.addScaled(&g.sum, -1)
	if rest := slices.DeleteFunc(s.groupsByMember[m], func(other *indexGroup) bool { return other == g }); len(rest) > 0 {
		s.groupsByMember[m] = rest
		return
	}
	delete(s.groupsByMember, m)
	if len(s.groupsByMember) == 0 {
		delete(x.sources, g.source)
		i, _ := slices.BinarySearch(x.sortedSources, g.source.Value())
		x.sortedSources = slices.Delete(x.sortedSources, i, i+1)
	}
}
