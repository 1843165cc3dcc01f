package inventory_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

func reportedImage(name, source string, phase v1alpha1.Phase, references int32, since *metav1.Time) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{
		Namespace: "images", Name: name, UID: types.UID("uid-" + name), Source: source, Phase: phase,
		References: references, UnreferencedSince: since, Bytes: 10,
	}
}

func newRoot(pages ...v1alpha1.PageRef) *v1alpha1.ReportRoot {
	return &v1alpha1.ReportRoot{Pages: pages}
}

func pageRef(name string, sequence int64) v1alpha1.PageRef {
	return v1alpha1.PageRef{Name: name, Sequence: sequence}
}

func TestIndexSumsImagesOfAllMembers(t *testing.T) {
	const ready, failed = v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed
	x := inventory.NewIndex()
	x.AddMember("silent")
	x.SetRoot("a", newRoot(pageRef("page", 1)))
	x.SetPage("a", "page", 1, []v1alpha1.ReportedImage{
		reportedImage("u1", "ubuntu", ready, 0, timeAt(10)), reportedImage("u2", "ubuntu", ready, 0, timeAt(20)), reportedImage("w", "windows", failed, 0, nil),
	})
	x.SetRoot("b", newRoot(pageRef("page", 1)))
	x.SetPage("b", "page", 1, []v1alpha1.ReportedImage{reportedImage("u1", "ubuntu", ready, 0, timeAt(5))})

	images, next := x.Images(10, "")
	assert.Empty(t, next)
	assert.Equal(t, []readapi.Image{
		{Source: "ubuntu", Members: 2, Unknown: 1, UnreferencedSince: timeAt(20),
			Counts: readapi.Counts{Images: 3, Phases: map[v1alpha1.Phase]int{ready: 3}, Unreferenced: 3, Bytes: 30}},
		{Source: "windows", Members: 1, Unknown: 1,
			Counts: readapi.Counts{Images: 1, Phases: map[v1alpha1.Phase]int{failed: 1}, Unreferenced: 1, Bytes: 10}},
	}, images, "who does not know since when leaves it open")

	x.SetPage("b", "page", 2, []v1alpha1.ReportedImage{reportedImage("u1", "ubuntu", ready, 4, nil)})
	detail, found := x.Image("ubuntu")
	require.True(t, found)
	assert.Equal(t, int64(4), detail.References)
	assert.Nil(t, detail.UnreferencedSince, "one needs it")
	assert.Equal(t, []readapi.UnknownMember{{Member: "b", Reason: v1alpha1.ReasonPagesMissing}, {Member: "silent", Reason: v1alpha1.ReasonNeverReported}}, detail.UnknownMembers)
	require.Len(t, detail.PerMember, 2)
	assert.Equal(t, timeAt(20), detail.PerMember[0].UnreferencedSince, "none in this member needs it")
	assert.Equal(t, []string{"u1", "u2"}, []string{detail.PerMember[0].Entries[0].Name, detail.PerMember[0].Entries[1].Name})
	assert.Equal(t, v1alpha1.ReasonPagesMissing, detail.PerMember[1].Unknown)

	x.SetRoot("b", newRoot(pageRef("page", 2)))
	assert.Equal(t, []readapi.UnknownMember{{Member: "silent", Reason: v1alpha1.ReasonNeverReported}}, x.UnknownMembers())
	assert.Equal(t, inventory.Stats{Members: 3, Unknown: map[string]int{v1alpha1.ReasonNeverReported: 1}, Images: 2, Entries: 4, Pages: 2}, x.Stats())

	_, found = x.Image("none")
	assert.False(t, found)
	_, found = x.Totals("none")
	assert.False(t, found)
	assert.Equal(t, []string{"a", "b", "silent"}, memberNames(x.Members()))
	x.Forget("a")
	x.Forget("b")
	x.Forget("silent")
	x.Forget("silent")
	assert.Equal(t, inventory.Stats{Unknown: map[string]int{}}, x.Stats())
}

func memberNames(members []readapi.MemberSummary) (names []string) {
	for _, m := range members {
		names = append(names, m.Member)
	}
	return names
}

func TestIndexTellsWhyMembersAreUnknown(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(*inventory.Index)
		want string
	}{
		"never reported":                {func(x *inventory.Index) { x.AddMember("a") }, v1alpha1.ReasonNeverReported},
		"a page without a root":         {func(x *inventory.Index) { x.SetPage("a", "p", 1, nil) }, v1alpha1.ReasonNeverReported},
		"no image at all":               {func(x *inventory.Index) { x.SetRoot("a", newRoot()) }, ""},
		"a page is missing":             {func(x *inventory.Index) { x.SetRoot("a", newRoot(pageRef("p", 1))) }, v1alpha1.ReasonPagesMissing},
		"a page is older than the root": {func(x *inventory.Index) { x.SetPage("a", "p", 1, nil); x.SetRoot("a", newRoot(pageRef("p", 2))) }, v1alpha1.ReasonPagesMissing},
		"a page is newer than the root": {func(x *inventory.Index) { x.SetRoot("a", newRoot(pageRef("p", 1))); x.SetPage("a", "p", 2, nil) }, v1alpha1.ReasonPagesMissing},
		"all is there":                  {func(x *inventory.Index) { x.SetPage("a", "p", 2, nil); x.SetRoot("a", newRoot(pageRef("p", 2))) }, ""},
		"a page is gone": {func(x *inventory.Index) {
			x.SetPage("a", "p", 2, nil)
			x.SetRoot("a", newRoot(pageRef("p", 2)))
			x.DropPage("a", "p")
		}, v1alpha1.ReasonPagesMissing},
		"a page that is not listed": {func(x *inventory.Index) { x.SetPage("a", "q", 2, nil); x.SetRoot("a", newRoot()); x.DropPage("a", "q") }, ""},
		"the root is gone":          {func(x *inventory.Index) { x.SetRoot("a", newRoot()); x.SetRoot("a", nil) }, v1alpha1.ReasonNeverReported},
		"not all images have room":  {func(x *inventory.Index) { x.SetRoot("a", &v1alpha1.ReportRoot{OmittedImages: 1}) }, v1alpha1.ReasonPagesOmitted},
		"in doubt":                  {func(x *inventory.Index) { x.SetRoot("a", newRoot()); x.SetStaleReason("a", v1alpha1.ReasonSilent) }, v1alpha1.ReasonSilent},
		"no longer in doubt": {func(x *inventory.Index) {
			x.SetRoot("a", newRoot())
			x.SetStaleReason("a", "x")
			x.SetStaleReason("a", "")
		}, ""},
		"in doubt, and without a report": {func(x *inventory.Index) { x.SetStaleReason("a", v1alpha1.ReasonSilent) }, v1alpha1.ReasonNeverReported},
	} {
		t.Run(name, func(t *testing.T) {
			x := inventory.NewIndex()
			tt.do(x)
			require.Len(t, x.Members(), 1)
			assert.Equal(t, tt.want, x.Members()[0].Unknown)
			assert.Equal(t, tt.want, x.UnknownReason("a"))
			assert.Equal(t, v1alpha1.ReasonNeverReported, x.UnknownReason("unheard-of"))
			if tt.want == "" {
				assert.Empty(t, x.UnknownMembers())
				assert.Empty(t, x.Stats().Unknown)
				return
			}
			assert.Equal(t, []readapi.UnknownMember{{Member: "a", Reason: tt.want}}, x.UnknownMembers())
			assert.Equal(t, map[string]int{tt.want: 1}, x.Stats().Unknown)
		})
	}
}

func TestIndexCountsPhases(t *testing.T) {
	x := inventory.NewIndex()
	planned := reportedImage("planned", "s", "", 0, nil)
	planned.UID, planned.Plan = "", &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing}
	x.SetRoot("a", newRoot(pageRef("p", 1)))
	x.SetPage("a", "p", 1, []v1alpha1.ReportedImage{planned, reportedImage("new", "s", "", 0, timeAt(1)), reportedImage("later", "s", "Dreaming", 0, timeAt(2)), reportedImage("f", "s", v1alpha1.PhaseFailed, 0, timeAt(3))})
	d, _ := x.Image("s")
	assert.Equal(t, readapi.Counts{
		Images: 3, Absent: 1, Phases: map[v1alpha1.Phase]int{inventory.PhaseUnknown: 2, v1alpha1.PhaseFailed: 1}, Unreferenced: 3, Bytes: 40,
	}, d.Counts)
	assert.Equal(t, timeAt(3), d.UnreferencedSince, "an absent image needs no time")
	assert.Equal(t, v1alpha1.Phase(""), d.PerMember[0].Entries[3].Phase)
	assert.Equal(t, v1alpha1.ReasonNamespaceMissing, d.PerMember[0].Entries[3].Reason)
}

func TestIndexListsFirstFailingImages(t *testing.T) {
	x := inventory.NewIndex()
	x.SetRoot("a", newRoot(pageRef("p", 1), pageRef("q", 1)))
	for i, page := range []string{"p", "q"} {
		var images []v1alpha1.ReportedImage
		for n := range 8 {
			phase := v1alpha1.PhaseFailed
			if n == 0 {
				phase = v1alpha1.PhaseSucceeded
			}
			images = append(images, reportedImage(fmt.Sprint("i", 2*n+i), "s", phase, 0, nil))
		}
		slices.Reverse(images)
		x.SetPage("a", page, 1, images)
	}
	totals, _ := x.Totals("a")
	var names []string
	for _, f := range totals.Failing {
		names = append(names, f.Name)
	}
	assert.Equal(t, []string{"i10", "i11", "i12", "i13", "i14"}, names)
	assert.True(t, totals.Reported)
	assert.Empty(t, totals.MissingPages)
}

func TestIndexImagesInPages(t *testing.T) {
	x := inventory.NewIndex()
	x.SetRoot("a", newRoot(pageRef("p", 1)))
	var images []v1alpha1.ReportedImage
	for i := range 7 {
		images = append(images, reportedImage(fmt.Sprint(i), fmt.Sprint("s", i), v1alpha1.PhaseQueued, 0, nil))
	}
	x.SetPage("a", "p", 1, images)
	var seen []string
	after := ""
	for range 10 {
		page, next := x.Images(3, after)
		for _, img := range page {
			seen = append(seen, img.Source)
		}
		if next == "s2" {
			x.SetPage("a", "p", 2, slices.Delete(slices.Clone(images), 2, 3)) // the source at which the next page starts is gone
		}
		if after = next; next == "" {
			break
		}
	}
	assert.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6"}, seen)
	none, next := x.Images(0, "")
	assert.Empty(t, none)
	assert.Empty(t, next)
}

// naiveIndex stores its input and sums it up anew each time.
type naiveIndex struct {
	roots        map[string]*v1alpha1.ReportRoot
	pages        map[string]map[string]naivePage
	staleReasons map[string]string
	members      map[string]bool
}

type naivePage struct {
	sequence int64
	images   []v1alpha1.ReportedImage
}

func (n *naiveIndex) unknownReason(member string) string {
	root := n.roots[member]
	if root == nil {
		return v1alpha1.ReasonNeverReported
	}
	if d := n.staleReasons[member]; d != "" {
		return d
	}
	for _, r := range root.Pages {
		if p, there := n.pages[member][r.Name]; !there || p.sequence != r.Sequence {
			return v1alpha1.ReasonPagesMissing
		}
	}
	return ""
}

// listedImages returns the images that count.
func (n *naiveIndex) listedImages(member string) (images []v1alpha1.ReportedImage) {
	if root := n.roots[member]; root != nil {
		for _, r := range root.Pages {
			images = append(images, n.pages[member][r.Name].images...)
		}
	}
	return images
}

func countImages(images []v1alpha1.ReportedImage) (c readapi.Counts, since *metav1.Time) {
	open := false
	for _, img := range images {
		c.Bytes += img.Bytes
		c.References += int64(img.References)
		if img.UID == "" {
			c.Absent++
			continue
		}
		c.Images++
		if c.Phases == nil {
			c.Phases = map[v1alpha1.Phase]int{}
		}
		c.Phases[img.Phase]++
		if img.References == 0 {
			c.Unreferenced++
		}
		open = open || img.References > 0 || img.UnreferencedSince == nil
		if t := img.UnreferencedSince; t != nil && (since == nil || since.Before(t)) {
			since = t
		}
	}
	if open {
		since = nil
	}
	return c, since
}

func (n *naiveIndex) requireSame(t *rapid.T, x *inventory.Index) {
	var members []readapi.MemberSummary
	var unknown []readapi.UnknownMember
	bySource := map[string]map[string][]v1alpha1.ReportedImage{}
	entries, pages := 0, 0
	for _, name := range slices.Sorted(maps.Keys(n.members)) {
		images := n.listedImages(name)
		sum, _ := countImages(images)
		members = append(members, readapi.MemberSummary{Member: name, Unknown: n.unknownReason(name), Counts: sum})
		if reason := n.unknownReason(name); reason != "" {
			unknown = append(unknown, readapi.UnknownMember{Member: name, Reason: reason})
		}
		totals, _ := x.Totals(name)
		require.Equal(t, sum, totals.Counts)
		require.Equal(t, n.unknownReason(name) == v1alpha1.ReasonPagesMissing, len(totals.MissingPages) > 0 && n.staleReasons[name] == "")
		for _, img := range images {
			if bySource[img.Source] == nil {
				bySource[img.Source] = map[string][]v1alpha1.ReportedImage{}
			}
			bySource[img.Source][name] = append(bySource[img.Source][name], img)
		}
		entries += len(images)
		pages += len(n.pages[name])
	}
	require.ElementsMatch(t, members, x.Members())
	require.Equal(t, unknown, x.UnknownMembers())
	stats := x.Stats()
	require.Equal(t, []int{len(members), len(bySource), entries, pages}, []int{stats.Members, stats.Images, stats.Entries, stats.Pages})

	got, next := x.Images(1000, "")
	require.Empty(t, next)
	require.Len(t, got, len(bySource))
	for i, source := range slices.Sorted(maps.Keys(bySource)) {
		var all []v1alpha1.ReportedImage
		d, found := x.Image(source)
		require.True(t, found)
		require.Equal(t, got[i], d.Image)
		require.Len(t, d.PerMember, len(bySource[source]))
		for j, name := range slices.Sorted(maps.Keys(bySource[source])) {
			images := bySource[source][name]
			all = append(all, images...)
			sum, since := countImages(images)
			require.Equal(t, name, d.PerMember[j].Member)
			require.Equal(t, n.unknownReason(name), d.PerMember[j].Unknown)
			require.Equal(t, sum, d.PerMember[j].Counts)
			require.Equal(t, since, d.PerMember[j].UnreferencedSince)
			require.Len(t, d.PerMember[j].Entries, len(images))
		}
		sum, since := countImages(all)
		require.Equal(t, readapi.Image{Source: source, Members: len(bySource[source]), Unknown: len(unknown), Counts: sum, UnreferencedSince: since}, got[i])
	}
}

func TestIndexEqualsNaiveSum(t *testing.T) {
	members, pages := rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"p0", "p1", "p2"})
	sequences := rapid.Int64Range(1, 3)
	images := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) v1alpha1.ReportedImage {
		img := reportedImage(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name"), rapid.SampledFrom([]string{"s", "t", "u", "v"}).Draw(t, "source"), "", 0, nil)
		if rapid.IntRange(0, 9).Draw(t, "absent") == 0 {
			img.UID = ""
			return img
		}
		img.Phase = rapid.SampledFrom([]v1alpha1.Phase{v1alpha1.PhaseQueued, v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed}).Draw(t, "phase")
		img.References = rapid.Int32Range(0, 2).Draw(t, "references")
		if img.References == 0 && rapid.Bool().Draw(t, "since when") {
			img.UnreferencedSince = timeAt(rapid.IntRange(0, 9).Draw(t, "since"))
		}
		return img
	}), 0, 5)

	rapid.Check(t, func(t *rapid.T) {
		x := inventory.NewIndex()
		n := &naiveIndex{roots: map[string]*v1alpha1.ReportRoot{}, pages: map[string]map[string]naivePage{}, staleReasons: map[string]string{}, members: map[string]bool{}}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { n.requireSame(t, x) },
			"root": func(t *rapid.T) {
				m := members.Draw(t, "member")
				var root *v1alpha1.ReportRoot
				if rapid.IntRange(0, 5).Draw(t, "gone") > 0 {
					root = newRoot()
					for _, p := range rapid.SliceOfNDistinct(pages, 0, 3, rapid.ID[string]).Draw(t, "pages") {
						root.Pages = append(root.Pages, pageRef(p, sequences.Draw(t, "sequence")))
					}
				}
				x.SetRoot(m, root)
				n.roots[m], n.members[m] = root, true
			},
			"page": func(t *rapid.T) {
				m, p, s, i := members.Draw(t, "member"), pages.Draw(t, "page"), sequences.Draw(t, "sequence"), images.Draw(t, "images")
				x.SetPage(m, p, s, i)
				if n.pages[m] == nil {
					n.pages[m] = map[string]naivePage{}
				}
				n.pages[m][p], n.members[m] = naivePage{s, i}, true
			},
			"page gone": func(t *rapid.T) {
				m, p := members.Draw(t, "member"), pages.Draw(t, "page")
				x.DropPage(m, p)
				delete(n.pages[m], p)
			},
			"doubt": func(t *rapid.T) {
				m, d := members.Draw(t, "member"), rapid.SampledFrom([]string{"", v1alpha1.ReasonSilent}).Draw(t, "doubt")
				x.SetStaleReason(m, d)
				n.staleReasons[m], n.members[m] = d, true
			},
			"forget": func(t *rapid.T) {
				m := members.Draw(t, "member")
				x.Forget(m)
				delete(n.roots, m)
				delete(n.pages, m)
				delete(n.staleReasons, m)
				delete(n.members, m)
			},
		})
	})
}

func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	x := inventory.NewIndex()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			member := fmt.Sprint("m", w%2)
			for i := range 200 {
				x.SetPage(member, "p", int64(i), []v1alpha1.ReportedImage{reportedImage("x", fmt.Sprint("s", i%3), v1alpha1.PhaseSucceeded, 0, timeAt(i))})
				x.SetRoot(member, newRoot(pageRef("p", int64(i))))
				x.Images(10, "")
				x.Image("s1")
				x.Totals(member)
				x.Members()
				x.Stats()
				if i%50 == 49 {
					x.Forget(member)
				}
			}
		})
	}
	wg.Wait()
	x.Forget("m0")
	x.Forget("m1")
	assert.Equal(t, inventory.Stats{Unknown: map[string]int{}}, x.Stats())
}

// BenchmarkIndexPage changes one page of 128 images whose sources all members have: the
// cost must not depend on the size of the fleet.
func BenchmarkIndexPage(b *testing.B) {
	for _, members := range []int{10, 1000} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			var images []v1alpha1.ReportedImage
			for i := range v1alpha1.MaxReportedImages {
				images = append(images, reportedImage(fmt.Sprint("image-", i), fmt.Sprint("http https://images.example.com/", i), v1alpha1.PhaseSucceeded, 1, nil))
			}
			x := inventory.NewIndex()
			for m := range members {
				x.SetRoot(fmt.Sprint("member-", m), newRoot(pageRef("page", 1)))
				x.SetPage(fmt.Sprint("member-", m), "page", 1, images)
			}
			sequence := int64(1)
			for b.Loop() {
				sequence++
				images[0].References = int32(sequence % 7)
				x.SetPage("member-3", "page", sequence, images)
			}
		})
	}
}

// BenchmarkIndexMemory measures the memory per image of a member.
func BenchmarkIndexMemory(b *testing.B) {
	b.ReportAllocs()
	const members, images = 100, v1alpha1.MaxReportedImages
	for b.Loop() {
		x := inventory.NewIndex()
		for m := range members {
			var page []v1alpha1.ReportedImage
			for i := range images {
				page = append(page, reportedImage(fmt.Sprint("image-", i), fmt.Sprint("http https://images.example.com/", i), v1alpha1.PhaseSucceeded, 1, nil))
			}
			x.SetRoot(fmt.Sprint("member-", m), newRoot(pageRef("page", 1)))
			x.SetPage(fmt.Sprint("member-", m), "page", 1, page)
		}
		b.ReportMetric(measureHeap(x)/(members*images), "heap-B/image")
	}
}

// A cluster that is reported under two names counts once.
func TestIndexCountsNoClusterTwice(t *testing.T) {
	page := []v1alpha1.ReportedImage{{Namespace: "n", Name: "a", UID: "1", Source: "http://images.example.com/a", Phase: v1alpha1.PhaseSucceeded}}
	root := &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: 1}}}
	x := inventory.NewIndex()
	for _, m := range []string{"a", "b"} {
		x.SetRoot(m, root)
		x.SetPage(m, "page", 1, page)
	}
	counted := func() int {
		images, _ := x.Images(10, "")
		require.Len(t, images, 1)
		return images[0].Members
	}
	assert.Equal(t, 2, counted())
	x.SetStaleReason("b", v1alpha1.ReasonDuplicateCluster)
	assert.Equal(t, 1, counted())
	x.SetPage("b", "page", 1, page)
	x.SetRoot("b", root)
	assert.Equal(t, 1, counted())
	assert.Equal(t, []readapi.UnknownMember{{Member: "b", Reason: v1alpha1.ReasonDuplicateCluster}}, x.UnknownMembers())
	x.SetStaleReason("b", "")
	assert.Equal(t, 2, counted())
	x.Forget("b")
	assert.Equal(t, 1, counted())
}
