package fleet

import (
	"slices"
	"strings"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Index adds up the images of all members, by what they are downloaded from. A
// change of one page costs work in proportion to that page, however large the
// fleet is; nothing of what it is given is kept but the numbers.
//
// A page counts while the member's root lists it, with what is known of it: if
// it is missing, or of another sequence than the root says, the member is listed
// as unknown beside what it is known to have. While that lasts, an image that
// moved from one page to another can be counted twice, and never is too few.
//
// It is safe for concurrent use.
type Index struct {
	mu      sync.RWMutex
	members map[string]*indexMember
	sources map[unique.Handle[string]]*indexSource
	order   []string       // of sources, sorted
	unknown map[string]int // how many members are unknown, by reason
	entries int
	pages   int
}

type indexMember struct {
	name    string
	root    bool
	omitted int32
	doubt   string
	listed  map[string]int64 // sequence of each page that the root lists
	faulty  int              // of those listed: not there, or of another sequence
	pages   map[string]*indexPage
	sum     tally
	unknown string // the reason that is counted in Index.unknown
}

type indexPage struct {
	sequence int64
	counted  bool
	groups   []*indexGroup
	sum      tally
	failing  []v1alpha1.ImageSummary // the first of them
}

// indexGroup is what one page has of one source.
type indexGroup struct {
	source  unique.Handle[string]
	entries []entry
	sum     tally
}

// indexSource is one distinct image.
type indexSource struct {
	in  map[*indexMember][]*indexGroup
	sum tally
}

// entry is an image of a member, small: there are members × images of them.
type entry struct {
	namespace, name unique.Handle[string]
	reason          unique.Handle[string]
	since           int64 // unreferenced since, in seconds; 0 for not known
	bytes           int64
	references      int32
	phase           uint8 // place in phases
}

// PhaseUnknown is that of an image that has none yet, or one that a later agent
// has and this hub does not know.
const PhaseUnknown v1alpha1.Phase = "Unknown"

// phases that are counted. The first stands for an image that is planned and
// not there, the second for all that the others are not.
var phases = [...]v1alpha1.Phase{
	absent: "", 1: PhaseUnknown, v1alpha1.PhaseQueued, v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed,
	v1alpha1.PhasePrunePending, v1alpha1.PhaseTerminating, v1alpha1.PhaseDeleting,
}

const absent = 0

func phaseOf(img *v1alpha1.ReportedImage) uint8 {
	if img.UID == "" {
		return absent
	}
	return uint8(max(1, slices.Index(phases[:], img.Phase)))
}

// tally adds up entries.
type tally struct {
	phases       [len(phases)]int32
	entries      int32
	unreferenced int32
	references   int64
	bytes        int64
}

func (t *tally) add(other *tally, sign int32) {
	for i := range t.phases {
		t.phases[i] += sign * other.phases[i]
	}
	t.entries += sign * other.entries
	t.unreferenced += sign * other.unreferenced
	t.references += int64(sign) * other.references
	t.bytes += int64(sign) * other.bytes
}

func (t *tally) count(e *entry) {
	t.phases[e.phase]++
	t.entries++
	t.references += int64(e.references)
	t.bytes += e.bytes
	if e.references == 0 && e.phase != absent {
		t.unreferenced++
	}
}

// NewIndex returns the index of an empty fleet.
func NewIndex() *Index {
	return &Index{members: map[string]*indexMember{}, sources: map[unique.Handle[string]]*indexSource{}, unknown: map[string]int{}}
}

// Add says that there is such a member. It is unknown until it reports.
func (x *Index) Add(member string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(member)
}

func (x *Index) add(name string) *indexMember {
	m := x.members[name]
	if m == nil {
		m = &indexMember{name: name, pages: map[string]*indexPage{}}
		x.members[name] = m
		x.judge(m)
	}
	return m
}

// Forget says that there is no such member any more.
func (x *Index) Forget(member string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[member]
	if m == nil {
		return
	}
	for _, p := range m.pages {
		x.discount(m, p)
	}
	x.pages -= len(m.pages)
	if m.unknown != "" {
		x.countUnknown(m.unknown, -1)
	}
	delete(x.members, member)
}

// SetRoot takes the root of a member's report; nil says that it is gone. It adds
// the member.
func (x *Index) SetRoot(member string, root *v1alpha1.ReportRoot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.add(member)
	m.root, m.omitted, m.listed, m.faulty = root != nil, 0, nil, 0
	if root != nil {
		m.omitted = root.OmittedImages
		m.listed = make(map[string]int64, len(root.Pages))
		for _, ref := range root.Pages {
			m.listed[ref.Name] = ref.Sequence
		}
	}
	for name := range m.listed {
		m.faulty += m.fault(name)
	}
	x.settle(m)
	x.judge(m)
}

// counts tells whether a page is to be in the sums. What a member reports of a
// cluster that is another's is there already.
func (m *indexMember) counts(page string) bool {
	_, listed := m.listed[page]
	return listed && m.doubt != v1alpha1.ReasonDuplicateCluster
}

// settle has those pages in the sums that are to be.
func (x *Index) settle(m *indexMember) {
	for name, p := range m.pages {
		switch counts := m.counts(name); {
		case counts && !p.counted:
			x.count(m, p)
		case !counts && p.counted:
			x.discount(m, p)
		}
	}
}

// fault is 1 for a page that the root lists and that is not as it says.
func (m *indexMember) fault(page string) int {
	want, listed := m.listed[page]
	if p := m.pages[page]; listed && (p == nil || p.sequence != want) {
		return 1
	}
	return 0
}

// SetPage takes a page of a member's report. It adds the member.
func (x *Index) SetPage(member, page string, sequence int64, images []v1alpha1.ReportedImage) {
	p := newPage(sequence, images)
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.add(member)
	m.faulty -= m.fault(page)
	old := m.pages[page]
	m.pages[page] = p
	m.faulty += m.fault(page)
	if old == nil {
		x.pages++
	}
	if m.counts(page) {
		if old != nil {
			x.recount(m, old, p)
		} else {
			x.count(m, p)
		}
	}
	x.judge(m)
}

// DropPage says that a page is gone.
func (x *Index) DropPage(member, page string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[member]
	if m == nil || m.pages[page] == nil {
		return
	}
	m.faulty -= m.fault(page)
	x.discount(m, m.pages[page])
	delete(m.pages, page)
	x.pages--
	m.faulty += m.fault(page)
	x.judge(m)
}

// SetDoubt says that what is known of a member may no longer hold, and why: it
// is listed as unknown from now on. An empty reason takes that back. It adds the
// member.
func (x *Index) SetDoubt(member, reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.add(member)
	m.doubt = reason
	x.settle(m)
	x.judge(m)
}

// judge works out why a member is unknown.
func (x *Index) judge(m *indexMember) {
	reason := m.doubt
	switch {
	case !m.root:
		reason = v1alpha1.ReasonNeverReported
	case reason != "":
	case m.faulty > 0:
		reason = v1alpha1.ReasonPagesMissing
	case m.omitted > 0:
		reason = v1alpha1.ReasonPagesOmitted
	}
	if reason == m.unknown {
		return
	}
	if m.unknown != "" {
		x.countUnknown(m.unknown, -1)
	}
	if reason != "" {
		x.countUnknown(reason, 1)
	}
	m.unknown = reason
}

func (x *Index) countUnknown(reason string, n int) {
	if x.unknown[reason] += n; x.unknown[reason] == 0 {
		delete(x.unknown, reason)
	}
}

// count adds a page to the sums.
func (x *Index) count(m *indexMember, p *indexPage) {
	p.counted = true
	m.sum.add(&p.sum, 1)
	x.entries += int(p.sum.entries)
	for _, g := range p.groups {
		x.countGroup(m, g)
	}
}

// discount takes a page out of the sums.
func (x *Index) discount(m *indexMember, p *indexPage) {
	if !p.counted {
		return
	}
	p.counted = false
	m.sum.add(&p.sum, -1)
	x.entries -= int(p.sum.entries)
	for _, g := range p.groups {
		x.discountGroup(m, g)
	}
}

// recount puts a page into the place of one that is counted. Most often a page
// differs in one image, and the rest stays as it is.
func (x *Index) recount(m *indexMember, old, p *indexPage) {
	p.counted, old.counted = true, false
	m.sum.add(&old.sum, -1)
	m.sum.add(&p.sum, 1)
	x.entries += int(p.sum.entries - old.sum.entries)
	gone := make(map[unique.Handle[string]]*indexGroup, len(old.groups))
	for _, g := range old.groups {
		gone[g.source] = g
	}
	for i, g := range p.groups {
		if same := gone[g.source]; same != nil && slices.Equal(same.entries, g.entries) {
			p.groups[i] = same
			delete(gone, g.source)
			continue
		}
		x.countGroup(m, g)
	}
	for _, g := range gone {
		x.discountGroup(m, g)
	}
}

func (x *Index) countGroup(m *indexMember, g *indexGroup) {
	s := x.sources[g.source]
	if s == nil {
		s = &indexSource{in: map[*indexMember][]*indexGroup{}}
		x.sources[g.source] = s
		i, _ := slices.BinarySearch(x.order, g.source.Value())
		x.order = slices.Insert(x.order, i, g.source.Value())
	}
	s.in[m] = append(s.in[m], g)
	s.sum.add(&g.sum, 1)
}

func (x *Index) discountGroup(m *indexMember, g *indexGroup) {
	s := x.sources[g.source]
	s.sum.add(&g.sum, -1)
	if rest := slices.DeleteFunc(s.in[m], func(other *indexGroup) bool { return other == g }); len(rest) > 0 {
		s.in[m] = rest
		return
	}
	delete(s.in, m)
	if len(s.in) == 0 {
		delete(x.sources, g.source)
		i, _ := slices.BinarySearch(x.order, g.source.Value())
		x.order = slices.Delete(x.order, i, i+1)
	}
}

// maxFailing is how many failing images a member's status names.
const maxFailing = 5

func newPage(sequence int64, images []v1alpha1.ReportedImage) *indexPage {
	p := &indexPage{sequence: sequence}
	groups := map[string]*indexGroup{}
	for i := range images {
		img := &images[i]
		e := entryOf(img)
		p.sum.count(&e)
		if phases[e.phase] == v1alpha1.PhaseFailed {
			p.failing = append(p.failing, v1alpha1.ImageSummary{
				Namespace: img.Namespace, Name: img.Name, Reason: img.Reason, Message: Cut(img.Message, 256),
			})
		}
		if img.Source == "" {
			continue // a planned image that is not there, of which no more is known
		}
		g := groups[img.Source]
		if g == nil {
			g = &indexGroup{source: unique.Make(img.Source)}
			groups[img.Source] = g
			p.groups = append(p.groups, g)
		}
		g.entries = append(g.entries, e)
		g.sum.count(&e)
	}
	for _, g := range p.groups {
		g.entries = slices.Clip(g.entries)
	}
	p.failing = firstFailing(p.failing)
	return p
}

func firstFailing(failing []v1alpha1.ImageSummary) []v1alpha1.ImageSummary {
	slices.SortFunc(failing, func(a, b v1alpha1.ImageSummary) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return slices.Clone(failing[:min(len(failing), maxFailing)])
}

func entryOf(img *v1alpha1.ReportedImage) entry {
	e := entry{
		namespace: unique.Make(img.Namespace), name: unique.Make(img.Name), reason: unique.Make(string(img.Reason)),
		bytes: img.Bytes, references: img.References,
		phase: phaseOf(img),
	}
	if img.UnreferencedSince != nil {
		e.since = img.UnreferencedSince.Unix()
	}
	return e
}

// unreferencedSince is when the last of some entries lost its last reference:
// nil while there is one, or where it is not known of one of them.
type unreferencedSince struct {
	latest int64
	never  bool
}

func (u *unreferencedSince) see(groups []*indexGroup) {
	for _, g := range groups {
		for i := range g.entries {
			e := &g.entries[i]
			if e.references > 0 || e.since == 0 && e.phase != absent {
				u.never = true
			}
			u.latest = max(u.latest, e.since)
		}
	}
}

func (u *unreferencedSince) time() *metav1.Time {
	if u.never {
		return nil
	}
	return timeOf(u.latest)
}

func timeOf(seconds int64) *metav1.Time {
	if seconds == 0 {
		return nil
	}
	t := metav1.Unix(seconds, 0)
	t = metav1.NewTime(t.UTC())
	return &t
}
