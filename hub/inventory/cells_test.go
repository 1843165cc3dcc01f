package inventory_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

func TestCells(t *testing.T) {
	for name, tt := range map[string]struct {
		images []v1alpha1.ReportedImage
		stale  string
		want   readapi.Cell
	}{
		"absent":                        {nil, "", readapi.CellAbsent},
		"absent, as far as it is known": {nil, "Silent", readapi.CellUnknown},
		"ready":                         {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: v1alpha1.PhaseSucceeded}}, "", readapi.CellReady},
		"ready when it was last heard of": {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: v1alpha1.PhaseSucceeded, References: 2}}, "Silent",
			readapi.CellReady | readapi.CellStale | readapi.CellReferenced},
		"failed":                 {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: v1alpha1.PhaseFailed}}, "", readapi.CellFailed | readapi.CellMessage},
		"stalled":                {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: v1alpha1.PhaseQueued, Stalled: true}}, "", readapi.CellQueued | readapi.CellMessage},
		"serves what it was":     {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: v1alpha1.PhaseSyncing, Revision: "2", ServingRevision: "1"}}, "", readapi.CellSyncing | readapi.CellBehind},
		"going":                  {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: v1alpha1.PhasePrunePending}}, "", readapi.CellLeaving},
		"pruned":                 {[]v1alpha1.ReportedImage{{Name: "i", Source: "s", Prune: &v1alpha1.ReportedPrune{ImageUID: "u"}}}, "", readapi.CellAbsent},
		"a phase of a newer one": {[]v1alpha1.ReportedImage{{Name: "i", UID: "u", Source: "s", Phase: "Pondering"}}, "", readapi.CellOther},
	} {
		t.Run(name, func(t *testing.T) {
			x := inventory.NewIndex()
			x.SetPage("a", "page", 1, tt.images)
			x.SetRoot("a", newRoot(pageRef("page", 1)))
			x.SetStaleReason("a", tt.stale)
			bySource, unknown := x.CellsOfSources([]string{"s"}, []string{"a", "never"})
			assert.Equal(t, tt.want, readapi.Cell(bySource[0]))
			assert.Equal(t, readapi.CellUnknown, readapi.Cell(bySource[1]))
			assert.Equal(t, []string{tt.stale, v1alpha1.ReasonNeverReported}, unknown)
			byName, _ := x.CellsOfImages([][2]string{{"", "i"}, {"", "i"}}, []string{"a", "never"})
			assert.Equal(t, []byte{byte(tt.want), 0, byte(tt.want), 0}, byName)
		})
	}
	x := inventory.NewIndex()
	x.SetPage("a", "page", 1, []v1alpha1.ReportedImage{{Name: "planned"}})
	x.SetRoot("a", newRoot(pageRef("page", 1)))
	cells, _ := x.CellsOfImages([][2]string{{"", "planned"}}, []string{"a"})
	assert.Equal(t, []byte{byte(readapi.CellPlanned)}, cells)
	page, found := x.PageOf("a", "", "planned")
	assert.True(t, found)
	assert.Equal(t, "page", page)
	_, found = x.PageOf("b", "", "planned")
	assert.False(t, found)

	pruned := v1alpha1.ReportedImage{Name: "pruned", Prune: &v1alpha1.ReportedPrune{ImageUID: "u"}} // as agents report it, without a source
	wanted := pruned
	wanted.Name, wanted.Plan = "wanted again", &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting}
	x.SetPage("a", "page", 2, []v1alpha1.ReportedImage{pruned, wanted})
	x.SetRoot("a", newRoot(pageRef("page", 2)))
	cells, _ = x.CellsOfImages([][2]string{{"", "pruned"}, {"", "wanted again"}}, []string{"a"})
	assert.Equal(t, []byte{byte(readapi.CellAbsent), byte(readapi.CellPlanned)}, cells)
	_, found = x.PageOf("a", "", "pruned")
	assert.False(t, found)
}

func TestSourcesOfMembers(t *testing.T) {
	x := inventory.NewIndex()
	setSources := func(member string, sources ...string) {
		var images []v1alpha1.ReportedImage
		for i, source := range sources {
			images = append(images, reportedImage(fmt.Sprint(i), source, v1alpha1.PhaseSucceeded, 0, nil))
		}
		x.SetPage(member, "page", 1, images)
		x.SetRoot(member, newRoot(pageRef("page", 1)))
	}
	setSources("a", "s3", "s1")
	setSources("b", "s2", "s3")
	setSources("c", "s4", "s3")
	setSources("flood", "f1", "f2", "f3")
	x.SetPage("unlisted", "page", 1, []v1alpha1.ReportedImage{reportedImage("0", "s9", v1alpha1.PhaseSucceeded, 0, nil)})
	for _, tt := range []struct {
		members []string
		limit   int
		want    []string
		wantOK  bool
	}{
		{[]string{"a"}, 2, []string{"s1", "s3"}, true},
		{[]string{"a"}, 1, nil, false},
		{[]string{"b", "a", "c"}, 4, []string{"s1", "s2", "s3", "s4"}, true},
		{[]string{"b", "a", "c"}, 3, nil, false},
		{[]string{"flood", "b"}, 9, []string{"f1", "f2", "f3", "s2", "s3"}, true},
		{[]string{"unlisted", "nobody"}, 0, nil, true},
		{nil, 0, nil, true},
	} {
		got, ok := x.SourcesOf(tt.members, tt.limit)
		assert.Equal(t, tt.want, got, "%v", tt.members)
		assert.Equal(t, tt.wantOK, ok, "%v", tt.members)
	}
}

// All sources are iterated over, however many, and the index may change meanwhile.
func TestAllSources(t *testing.T) {
	x := inventory.NewIndex()
	var want []string
	var images []v1alpha1.ReportedImage
	for i := range 3000 {
		want = append(want, fmt.Sprintf("s%04d", i))
		images = append(images, reportedImage(fmt.Sprint(i), want[i], v1alpha1.PhaseSucceeded, 0, nil))
	}
	report := func(member string, sequence int64, images []v1alpha1.ReportedImage) {
		x.SetPage(member, "page", sequence, images)
		x.SetRoot(member, newRoot(pageRef("page", sequence)))
	}
	assert.Empty(t, slices.Collect(x.AllSources()))
	report("a", 1, images)
	assert.Equal(t, want, slices.Collect(x.AllSources()))
	for source := range x.AllSources() {
		assert.Equal(t, want[0], source)
		break
	}
	// Another member reports sources in front of those that come next, and takes them back. Every
	// 64th source is removed as soon as it is yielded, and so each at which the index is unlocked.
	const interval = 64
	var got []string
	remaining := images
	for source := range x.AllSources() {
		got = append(got, source)
		report("b", int64(len(got)), []v1alpha1.ReportedImage{reportedImage("b", fmt.Sprintf("r%d", len(got)%3), v1alpha1.PhaseSucceeded, 0, nil)}[:len(got)%2])
		if len(got)%interval == 0 {
			remaining = slices.DeleteFunc(slices.Clone(remaining), func(img v1alpha1.ReportedImage) bool { return img.Source == source })
			report("a", int64(1+len(got)), remaining)
		}
	}
	assert.Equal(t, want, got)
	assert.Len(t, slices.Collect(x.AllSources()), len(want)-len(want)/interval, "those that were removed are gone")
}

// An answer changes only with a
// notification, and most reports of a quiet fleet cause none.
func TestChangesAreNotified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := inventory.NewIndex()
		told := 0
		x.OnChange(func(inventory.Change) { told++ })
		names := []string{"a", "b"}
		answer := func() string {
			cells, unknown := x.CellsOfImages([][2]string{{"images", "0"}, {"images", "1"}}, names)
			images, _ := x.Images(10, "")
			return fmt.Sprintf("%v %v %v %v %v", cells, unknown, images, x.TotalCounts(), x.UnknownMembers())
		}
		before := answer()
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			member, sequence, toldBefore := rapid.SampledFrom(names).Draw(t, "member"), int64(rapid.IntRange(1, 2).Draw(t, "sequence")), told
			switch rapid.SampledFrom([]string{"root", "page", "drop", "stale", "forget", "add"}).Draw(t, "step") {
			case "root":
				x.SetRoot(member, newRoot(pageRef("page", sequence)))
			case "page":
				var images []v1alpha1.ReportedImage
				for i := range rapid.IntRange(0, 2).Draw(t, "images") {
					image := reportedImage(fmt.Sprint(i), rapid.SampledFrom([]string{"x", "y", ""}).Draw(t, "source"), v1alpha1.PhaseSucceeded, int32(rapid.IntRange(0, 1).Draw(t, "references")), nil)
					images = append(images, image)
				}
				x.SetPage(member, "page", sequence, images)
			case "drop":
				x.DropPage(member, "page")
			case "stale":
				x.SetStaleReason(member, rapid.SampledFrom([]string{"", v1alpha1.ReasonSilent, v1alpha1.ReasonDuplicateCluster}).Draw(t, "reason"))
			case "forget":
				x.Forget(member)
			case "add":
				x.AddMember(member)
			}
			after := answer()
			if before != after {
				assert.Greater(t, told, toldBefore, "%s\n%s", before, after)
			}
			before = after
		}
		was := told
		for _, m := range slices.Clone(x.Members()) {
			x.AddMember(m.Member)
		}
		assert.Equal(t, was, told, "nothing changed")
	})
	x := inventory.NewIndex()
	images := []v1alpha1.ReportedImage{reportedImage("0", "x", v1alpha1.PhaseSucceeded, 1, nil)}
	x.SetPage("a", "page", 1, images)
	x.SetRoot("a", newRoot(pageRef("page", 1)))
	told := 0
	x.OnChange(func(inventory.Change) { told++ })
	x.SetRoot("a", newRoot(pageRef("page", 1)))
	x.SetPage("a", "page", 1, images)
	x.SetStaleReason("a", "")
	assert.Zero(t, told, "a heartbeat")
}

// An image that moved, or that a member lists twice, is shown from one page, whatever the order in which pages
// are looked through.
func TestImageOnTwoPages(t *testing.T) {
	for name, tt := range map[string]struct {
		sequenceA, sequenceB int64
		unlisted             bool
		want                 string // the page that is shown
	}{
		"the newer":                          {sequenceA: 1, sequenceB: 2, want: "b"},
		"the newer, which is first by name":  {sequenceA: 2, sequenceB: 1, want: "a"},
		"of one sequence, the first by name": {sequenceA: 2, sequenceB: 2, want: "a"},
		"the newer is not listed":            {sequenceA: 1, sequenceB: 2, unlisted: true, want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			x := inventory.NewIndex()
			x.SetPage("m", "a", tt.sequenceA, []v1alpha1.ReportedImage{reportedImage("i", "", v1alpha1.PhaseQueued, 1, nil)})
			x.SetPage("m", "b", tt.sequenceB, []v1alpha1.ReportedImage{reportedImage("i", "s", v1alpha1.PhaseSucceeded, 2, nil)})
			root := newRoot(pageRef("a", tt.sequenceA))
			if !tt.unlisted {
				root.Pages = append(root.Pages, pageRef("b", tt.sequenceB))
			}
			x.SetRoot("m", root)
			for range 50 {
				page, found := x.PageOf("m", "images", "i")
				require.True(t, found)
				require.Equal(t, tt.want, page)
				references, known := x.References("m", "images", "i")
				require.True(t, known)
				require.Equal(t, map[string]int32{"a": 1, "b": 2}[tt.want], references)
			}
		})
	}
}

func TestReferencesAreUnknownOfStaleMembers(t *testing.T) {
	x := inventory.NewIndex()
	setPage := func(member string) {
		x.SetPage(member, "page", 1, []v1alpha1.ReportedImage{{Namespace: "farm", Name: "a", UID: "u", Source: "http a", References: 3}, {Namespace: "farm", Name: "unused", UID: "u", Source: "http b"}})
		x.SetRoot(member, &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: 1}}})
	}
	setPage("current")
	setPage("silent")
	x.SetStaleReason("silent", v1alpha1.ReasonSilent)
	for _, tt := range []struct {
		member, image string
		want          int32
		wantKnown     bool
	}{
		{"current", "a", 3, true},
		{"current", "unused", 0, true},
		{"current", "missing", 0, false},
		{"silent", "a", 0, false},
		{"nobody", "a", 0, false},
	} {
		got, known := x.References(tt.member, "farm", tt.image)
		assert.Equal(t, tt.want, got, "%s of %s", tt.image, tt.member)
		assert.Equal(t, tt.wantKnown, known, "%s of %s", tt.image, tt.member)
	}
}
