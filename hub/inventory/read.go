package inventory

import (
	"iter"
	"math"
	"slices"
	"strings"
	"unique"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Totals sums up the pages of one member.
type Totals struct {
	// Reported: the root of the report is there.
	Reported bool
	// MissingPages are listed by the root and missing, or of another sequence; sorted.
	MissingPages []string
	// OmittedImages is the number of images that the pages have no room for.
	OmittedImages int32
	readapi.Counts
	// Failing are the first failed images by namespace and name.
	Failing []v1alpha1.ImageSummary
}

// Stats counts the content of an Index.
type Stats struct {
	// Members in total, and the unknown ones by reason.
	Members int
	Unknown map[string]int
	// Images are distinct images, Entries those of all members.
	Images, Entries, Pages int
}

// Totals sums up the pages of a member; false if the member is not in the index.
func (x *Index) Totals(member string) (Totals, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	m := x.members[member]
	if m == nil {
		return Totals{}, false
	}
	t := Totals{Reported: m.hasRoot, OmittedImages: m.omittedImages, Counts: m.sum.toCounts()}
	for name := range m.listedPages {
		if m.pageMismatch(name) > 0 {
			t.MissingPages = append(t.MissingPages, name)
		}
	}
	slices.Sort(t.MissingPages)
	for _, p := range m.pages {
		if p.counted {
			t.Failing = append(t.Failing, p.failingImages...)
		}
	}
	t.Failing = truncateFailing(t.Failing)
	return t, true
}

// Members returns all members by name.
func (x *Index) Members() []readapi.MemberSummary {
	x.mu.RLock()
	defer x.mu.RUnlock()
	list := make([]readapi.MemberSummary, 0, len(x.members))
	for _, m := range x.members {
		list = append(list, readapi.MemberSummary{Member: m.name, Unknown: m.unknownReason, Counts: m.sum.toCounts()})
	}
	slices.SortFunc(list, func(a, b readapi.MemberSummary) int { return strings.Compare(a.Member, b.Member) })
	return list
}

// TotalCounts sums up the images of all members.
func (x *Index) TotalCounts() readapi.Counts {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var sum tally
	for _, m := range x.members {
		sum.addScaled(&m.sum, 1)
	}
	return sum.toCounts()
}

// UnknownMembers returns the members that may have more than is known of them, by name.
func (x *Index) UnknownMembers() []readapi.UnknownMember {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.listUnknown()
}

// UnknownReason returns why a member may have more than is known of it; empty if all is
// known. A member that is not in the index has never reported.
func (x *Index) UnknownReason(member string) (reason string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if m := x.members[member]; m != nil {
		return m.unknownReason
	}
	return v1alpha1.ReasonNeverReported
}

func (x *Index) listUnknown() []readapi.UnknownMember {
	var list []readapi.UnknownMember
	for _, m := range x.members {
		if m.unknownReason != "" {
			list = append(list, readapi.UnknownMember{Member: m.name, Reason: m.unknownReason})
		}
	}
	slices.SortFunc(list, func(a, b readapi.UnknownMember) int { return strings.Compare(a.Member, b.Member) })
	return list
}

func (x *Index) countUnknown() int {
	n := 0
	for _, of := range x.unknownByReason {
		n += of
	}
	return n
}

// Images returns up to limit distinct images by source, after a source. next is the value
// of after for the next call; empty at the end.
func (x *Index) Images(limit int, after string) (images []readapi.Image, next string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	from, found := slices.BinarySearch(x.sortedSources, after)
	if found {
		from++
	}
	to := from + min(len(x.sortedSources)-from, max(0, limit))
	images = make([]readapi.Image, 0, to-from)
	for _, source := range x.sortedSources[from:to] {
		images = append(images, x.summarizeImage(x.sources[unique.Make(source)], source))
	}
	if to < len(x.sortedSources) && to > from {
		next = x.sortedSources[to-1]
	}
	return images, next
}

// AllImages returns all distinct images, by source.
func (x *Index) AllImages() []readapi.Image {
	images, _ := x.Images(math.MaxInt, "")
	return images
}

func (x *Index) summarizeImage(s *indexSource, source string) readapi.Image {
	img := readapi.Image{Source: source, Members: len(s.groupsByMember), Unknown: x.countUnknown(), Counts: s.sum.toCounts()}
	if img.References == 0 {
		var since unreferencedSince
		for _, groups := range s.groupsByMember {
			since.observe(groups)
		}
		img.UnreferencedSince = since.timestamp()
	}
	return img
}

// Image returns one distinct image by member; false if no known member has it.
func (x *Index) Image(source string) (readapi.ImageDetail, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.sources[unique.Make(source)]
	if s == nil {
		return readapi.ImageDetail{}, false
	}
	d := readapi.ImageDetail{Image: x.summarizeImage(s, source), UnknownMembers: x.listUnknown()}
	for m, groups := range s.groupsByMember {
		in := readapi.ImageInMember{Member: m.name, Unknown: m.unknownReason}
		var sum tally
		var since unreferencedSince
		since.observe(groups)
		for _, g := range groups {
			sum.addScaled(&g.sum, 1)
			for i := range g.entries {
				in.Entries = append(in.Entries, g.entries[i].toImageEntry())
			}
		}
		in.Counts, in.UnreferencedSince = sum.toCounts(), since.timestamp()
		slices.SortFunc(in.Entries, func(a, b readapi.ImageEntry) int {
			if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
				return c
			}
			return strings.Compare(a.Name, b.Name)
		})
		d.PerMember = append(d.PerMember, in)
	}
	slices.SortFunc(d.PerMember, func(a, b readapi.ImageInMember) int { return strings.Compare(a.Member, b.Member) })
	return d, true
}

// sourcesAtOnce is how many sources are copied while the index is locked.
const sourcesAtOnce = 1024

// AllSources iterates over all sources, sorted. A single member may report tens of thousands:
// the index is not locked meanwhile. A source that comes or goes meanwhile may be left out.
func (x *Index) AllSources() iter.Seq[string] {
	return func(yield func(string) bool) {
		for after, more := "", true; more; {
			var some []string
			some, more = x.sourcesAfter(after, sourcesAtOnce)
			for _, source := range some {
				if !yield(source) {
					return
				}
				after = source
			}
		}
	}
}

// sourcesAfter returns up to limit sources after one, and whether there are more.
func (x *Index) sourcesAfter(after string, limit int) (sources []string, more bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	from, found := slices.BinarySearch(x.sortedSources, after)
	if found {
		from++
	}
	to := from + min(len(x.sortedSources)-from, limit)
	return slices.Clone(x.sortedSources[from:to]), to < len(x.sortedSources)
}

// SourcesWithURL returns the sources that are downloaded from a URL, of whatever type and
// checksum, sorted.
func (x *Index) SourcesWithURL(url string) (sources []string) {
	if url == "" {
		return nil
	}
	// The pattern is slow, and there may be many sources.
	part, _, _ := strings.Cut(v1alpha1.RedactURL(url), "?")
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, source := range x.sortedSources {
		if strings.Contains(source, part) && v1alpha1.SourceHasURL(source, url) {
			sources = append(sources, source)
		}
	}
	return sources
}

// Stats counts the content of the index.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	stats := Stats{Members: len(x.members), Unknown: make(map[string]int, len(x.unknownByReason)), Images: len(x.sources), Entries: x.entryCount, Pages: x.pageCount}
	for reason, n := range x.unknownByReason {
		stats.Unknown[reason] = n
	}
	return stats
}
