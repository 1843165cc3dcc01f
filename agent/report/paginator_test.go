package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func testImage(n int) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "farm", Name: fmt.Sprintf("image-%d", n), UID: types.UID(fmt.Sprint(n)),
			CreationTimestamp: metav1.Unix(int64(1000+n), 0),
		},
		Spec:   v1alpha1.VMDiskImageSpec{SourceType: v1alpha1.SourceHTTP, URL: fmt.Sprintf("https://images.example.com/%d", n)},
		Status: v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseQueued},
	}
}

func newTestPaginator(images int, pages ...string) *Paginator {
	p := NewPaginator(pages)
	for n := range images {
		p.SetImage(testImage(n))
	}
	return p
}

func pageNames(p *Paginator) (names []string) {
	for _, page := range p.Pages() {
		names = append(names, page.Name)
	}
	return names
}

func TestFewImagesFitOnePage(t *testing.T) {
	assert.Empty(t, pageNames(newTestPaginator(0)))
	assert.Equal(t, []string{"page"}, pageNames(newTestPaginator(1)))
	assert.Equal(t, []string{"page"}, pageNames(newTestPaginator(32)))
	assert.Equal(t, []string{"page-0", "page-1"}, pageNames(newTestPaginator(33)))
	assert.Len(t, pageNames(newTestPaginator(300)), 16)
}

func TestManyImagesFillPages(t *testing.T) {
	p := NewPaginator(nil)
	for n := range v1alpha1.MaxReportPages * v1alpha1.MaxReportedImages * 3 / 4 {
		p.SetImage(testImage(n))
		if n%100 != 99 {
			continue
		}
		pages := p.Pages()
		for _, page := range pages {
			if len(pages) < maxSmallPages {
				require.LessOrEqual(t, page.Images, int32(smallPageImages), "%d images, page %s", n+1, page.Name)
			}
		}
		require.LessOrEqual(t, len(pages), v1alpha1.MaxReportPages)
		require.Zero(t, p.Totals().Omitted, "%d images, whose division has grown with them", n+1)
	}
}

// An agent that starts keeps the division of the stored pages.
func TestStoredPageNamesRestoreDivision(t *testing.T) {
	before := newTestPaginator(1000)
	want := before.Pages()
	assert.Equal(t, want, newTestPaginator(1000, pageNames(before)...).Pages())

	// A division stays until the pages are small enough to merge.
	assert.Equal(t, []string{"page-0", "page-1"}, pageNames(newTestPaginator(15, "page-0", "page-1")))
	assert.Equal(t, []string{"page"}, pageNames(newTestPaginator(10, "page-0", "page-1")))
	// Names that are invalid, or of pages that overlap.
	assert.Equal(t, []string{"page-0", "page-1"}, pageNames(newTestPaginator(15, "default", "page-", "page-2", "page-0", "page", "page-1", "page-"+strings.Repeat("0", 64))))
}

// largeImage is reported in about 3.3 kB if letter has one byte, 5.3 kB if it has two.
func largeImage(n int, letter string) *v1alpha1.VMDiskImage {
	img := testImage(n)
	img.Spec.URL += strings.Repeat(letter, 2000)
	img.Status.Message = strings.Repeat("y", 5000)
	return img
}

func TestLargePageIsSplit(t *testing.T) {
	p := NewPaginator(nil)
	for n := range 30 {
		p.SetPlanItems(map[Key]v1alpha1.PlanItemReport{})
		p.SetImage(largeImage(n, "x"))
	}
	assert.Equal(t, []string{"page"}, pageNames(p), "30 × 3.3 kB")
	for n := range 30 {
		p.SetImage(largeImage(n, "\u00e9"))
	}
	assert.Equal(t, []string{"page-0", "page-1"}, pageNames(p), "30 × 5.3 kB")
}

func TestReportStaysWithinMaxReportBytes(t *testing.T) {
	const many = 8000
	p := NewPaginator(nil)
	for n := range many {
		p.SetImage(largeImage(n, "\u00e9"))
	}
	size, shown := 0, 0
	for _, page := range p.Pages() {
		images := p.PageImages(page.Name)
		text, err := json.Marshal(images)
		require.NoError(t, err)
		size, shown = size+len(text), shown+len(images)
	}
	assert.LessOrEqual(t, size, v1alpha1.MaxReportBytes)
	assert.Greater(t, size, v1alpha1.MaxReportBytes*3/4)
	assert.Equal(t, int32(many), int32(shown)+p.Totals().Omitted)
}

// The hub cuts off a member whose mailbox is larger than MaxMailboxBytes once decoded: no
// report that an agent writes is, whatever the images.
func TestDecodedReportStaysWithinMailbox(t *testing.T) {
	for name, tt := range map[string]struct {
		count    int
		newImage func(int) *v1alpha1.VMDiskImage
	}{
		"large images": {8000, func(n int) *v1alpha1.VMDiskImage { return largeImage(n, "\u00e9") }},
		"many images": {v1alpha1.MaxReportPages * v1alpha1.MaxReportedImages, func(n int) *v1alpha1.VMDiskImage {
			img := testImage(n)
			img.Status.Prune = &v1alpha1.PruneStatus{}
			return img
		}},
	} {
		p := NewPaginator(nil)
		for n := range tt.count {
			p.SetImage(tt.newImage(n))
		}
		var decoded int64
		for _, page := range p.Pages() {
			text, err := json.Marshal(v1alpha1.ClusterReport{Page: &v1alpha1.ReportPage{Images: p.PageImages(page.Name)}})
			require.NoError(t, err)
			report := &v1alpha1.ClusterReport{}
			require.NoError(t, json.Unmarshal(text, report))
			decoded += mailbox.DecodedBytes(report)
		}
		t.Logf("%s: %d MiB", name, decoded>>20)
		assert.LessOrEqual(t, decoded, int64(v1alpha1.MaxMailboxBytes), name)
	}
}

func TestImagesBeyondMaxPagesAreOmitted(t *testing.T) {
	const many = 40000
	p := newTestPaginator(many)
	pages := p.Pages()
	assert.LessOrEqual(t, len(pages), v1alpha1.MaxReportPages)
	shown := int32(0)
	for _, page := range pages {
		assert.LessOrEqual(t, page.Images, int32(v1alpha1.MaxReportedImages))
		shown += page.Images
	}
	totals := p.Totals()
	assert.Equal(t, int32(many), totals.Images)
	assert.Equal(t, int32(many), totals.Phases[v1alpha1.PhaseQueued])
	assert.Equal(t, int32(many), shown+totals.Omitted)
	assert.Greater(t, shown, int32(v1alpha1.MaxReportPages*v1alpha1.MaxReportedImages*95/100), "the pages are nearly full")
	for n := many - 1; n >= 20000; n-- {
		p.RemoveImage(Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", n)})
	}
	p.Pages()
	assert.Zero(t, p.Totals().Omitted)
	assert.Zero(t, newTestPaginator(24000).sumPageTotals().Omitted)
}

func (p *Paginator) sumPageTotals() Totals {
	p.Pages()
	return p.Totals()
}

func TestMissingPlannedImagesAreReported(t *testing.T) {
	p := NewPaginator(nil)
	existing, missing := Key{Namespace: "farm", Name: "image-1"}, Key{Namespace: "farm", Name: "missing"}
	p.SetImage(testImage(1))
	p.SetPlanItems(map[Key]v1alpha1.PlanItemReport{
		existing: {State: v1alpha1.PlanItemApplied},
		missing:  {State: v1alpha1.PlanItemRejected, Message: strings.Repeat("z", 2000)},
	})
	require.Equal(t, []string{"page"}, pageNames(p))
	images := p.PageImages("page")
	require.Len(t, images, 2)
	assert.Equal(t, v1alpha1.PlanItemApplied, images[0].Plan.State)
	assert.Equal(t, "missing", images[1].Name)
	assert.Empty(t, images[1].UID)
	assert.Len(t, images[1].Plan.Message, maxMessageBytes)
	assert.Equal(t, int32(1), p.Totals().Images, "a missing image is not counted")

	p.RemoveImage(existing)
	images = p.PageImages("page")
	require.Len(t, images, 2, "the plan still names the image")
	assert.Empty(t, images[0].UID)
	p.SetPlanItems(nil)
	assert.Empty(t, pageNames(p))
}

// A plan has one prune per name. Its result is in the image's own status, or, once that
// image is gone, set with SetPrunedImages, even if another image has the name.
func TestPrunedImagesAreReported(t *testing.T) {
	key := Key{Namespace: "farm", Name: "image-1"}
	until := metav1.Unix(9000, 0)
	own := &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePending, Reason: "UndoWindow", Message: strings.Repeat("z", 2000), Until: &until}
	gone := func(uid types.UID) map[Key]v1alpha1.ReportedPrune {
		return map[Key]v1alpha1.ReportedPrune{key: {PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned, Message: strings.Repeat("z", 2000)}, ImageUID: uid}}
	}
	pending := &v1alpha1.ReportedPrune{PruneStatus: *own, ImageUID: "1"}
	pending.Message = v1alpha1.SanitizeText(own.Message, maxPruneMessageBytes)
	pruned := gone("1")[key]
	pruned.Message = pending.Message
	former := pruned
	former.ImageUID = "former"
	for _, tt := range []struct {
		name   string
		exists bool
		own    *v1alpha1.PruneStatus
		gone   map[Key]v1alpha1.ReportedPrune
		want   *v1alpha1.ReportedPrune
	}{
		{"no prune", true, nil, nil, nil},
		{"pending", true, own, nil, pending},
		{"pruned", false, nil, gone("1"), &pruned},
		{"reported as pruned while it exists", true, own, gone("1"), pending},
		{"another image has the name", true, nil, gone("former"), &former},
		{"another image, with an older prune", true, own, gone("former"), &former},
	} {
		t.Run(tt.name, func(t *testing.T) {
			img := testImage(1)
			img.Status.Prune = tt.own
			set := func(p *Paginator) {
				if tt.exists {
					p.SetImage(img)
				}
			}
			first, last := NewPaginator(nil), NewPaginator(nil)
			set(first)
			first.SetPrunedImages(tt.gone)
			last.SetPrunedImages(tt.gone)
			set(last)
			for _, p := range []*Paginator{first, last} {
				require.Equal(t, []string{"page"}, pageNames(p))
				got := p.PageImages("page")
				require.Len(t, got, 1)
				assert.Equal(t, tt.want, got[0].Prune)
				assert.Equal(t, tt.exists, got[0].UID != "")
				assert.Equal(t, tt.exists, p.Totals().Images == 1)

				p.SetPrunedImages(nil)
				if !tt.exists {
					assert.Empty(t, pageNames(p))
					continue
				}
				assert.Equal(t, NewReportedImage(img), p.PageImages("page")[0], "its own prune is reported again")
			}
		})
	}
}

// The own prune of an image is tracked while another one is reported.
func TestPruneOfReplacedImageIsReported(t *testing.T) {
	p := NewPaginator(nil)
	img := testImage(1)
	p.SetPrunedImages(map[Key]v1alpha1.ReportedPrune{{Namespace: "farm", Name: "image-1"}: {ImageUID: "former"}})
	p.SetImage(img)
	img.Status.Prune = &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PruneSkipped}
	p.SetImage(img)
	require.Equal(t, types.UID("former"), p.prunedImageUID())
	p.SetPrunedImages(nil)
	assert.Equal(t, img.UID, p.prunedImageUID())
}

func (p *Paginator) prunedImageUID() types.UID {
	return p.PageImages(p.Pages()[0].Name)[0].Prune.ImageUID
}

func TestTotals(t *testing.T) {
	p := NewPaginator(nil)
	oldest, younger, done := testImage(1), testImage(2), testImage(0)
	done.Status.Phase = v1alpha1.PhaseSucceeded
	done.Status.References.Count, younger.Status.References.Count = 2, 3
	fresh := testImage(3)
	fresh.Status.Phase = ""
	for _, img := range []*v1alpha1.VMDiskImage{younger, done, fresh, oldest} {
		p.SetImage(img)
	}
	want := Totals{
		Images: 4, References: 5, OldestQueued: &oldest.CreationTimestamp,
		Phases: map[v1alpha1.Phase]int32{v1alpha1.PhaseQueued: 2, v1alpha1.PhaseSucceeded: 1},
	}
	assert.Equal(t, want, p.sumPageTotals())
	oldest.Status.Phase = v1alpha1.PhaseSyncing
	p.SetImage(oldest)
	assert.Equal(t, younger.CreationTimestamp.Unix(), p.sumPageTotals().OldestQueued.Unix())
	younger.Status.Phase = v1alpha1.PhaseFailed
	p.SetImage(younger)
	assert.Nil(t, p.sumPageTotals().OldestQueued)
}

func TestBuildRoot(t *testing.T) {
	now := time.Unix(5000, 700_000_000)
	v := RootInput{Now: now, Heartbeat: 1500 * time.Millisecond, BootID: "boot", AgentVersion: "v1", Totals: newTestPaginator(2).sumPageTotals()}
	root := BuildRoot(v)
	assert.True(t, root.NoLedger)
	assert.Equal(t, int32(2), root.HeartbeatSeconds)
	assert.Equal(t, int64(5000), root.ObservedAt.Unix())
	assert.Equal(t, int32(2), root.Images)

	v.Ledger = &v1alpha1.SyncLedger{Status: &v1alpha1.SyncLedgerStatus{
		Budget: 4, Slots: make([]v1alpha1.Slot, 3), Policy: map[string]string{"concurrency": "4"},
		Plan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 7}, PlanPolicy: map[string]string{"concurrency": "5"}, PlanPolicySource: "fleet default",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionWithinBudget, Status: metav1.ConditionTrue}},
		OwnWindows: "- cron: 0 22 * * *", InForce: &v1alpha1.InForceConcurrency{Concurrency: 2},
	}}
	root = BuildRoot(v)
	assert.Equal(t, "- cron: 0 22 * * *", root.OwnWindows)
	assert.Equal(t, &v1alpha1.InForceConcurrency{Concurrency: 2}, root.InForce)
	assert.False(t, root.NoLedger)
	assert.Equal(t, int32(4), root.Budget)
	assert.Equal(t, int32(3), root.Slots)
	assert.Equal(t, &v1alpha1.PlanVersion{Epoch: 1, Sequence: 7}, root.Plan)
	assert.Equal(t, "5", root.PlanPolicy["concurrency"])
	assert.Equal(t, "fleet default", root.PlanPolicySource)
	assert.Equal(t, "4", root.Policy["concurrency"])
	assert.Len(t, root.Conditions, 1)

	later := v
	later.Now = now.Add(time.Hour)
	assert.True(t, EqualRoots(root, BuildRoot(later)))
	later.BootID = "another"
	assert.False(t, EqualRoots(root, BuildRoot(later)))
}
