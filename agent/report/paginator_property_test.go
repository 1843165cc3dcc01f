package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pageContents returns the images of every page.
func pageContents(p *Paginator) map[string][]v1alpha1.ReportedImage {
	pages := map[string][]v1alpha1.ReportedImage{}
	for _, page := range p.Pages() {
		pages[page.Name] = p.PageImages(page.Name)
	}
	return pages
}

// After any changes every image is on exactly one page in its current state, the pages are
// within their bounds, and the totals are those of the images.
func TestPaginatorHoldsEveryImageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPaginator(rapid.SliceOfN(rapid.StringMatching(`page(-[01]{1,6})?`), 0, 12).Draw(t, "stored pages"))
		images := map[Key]*v1alpha1.VMDiskImage{}
		plan := map[Key]v1alpha1.PlanItemReport{}
		pruned := map[Key]v1alpha1.ReportedPrune{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			from := rapid.IntRange(0, 400).Draw(t, "from")
			n := rapid.SampledFrom([]int{1, 3, 60, 300}).Draw(t, "images")
			switch rapid.SampledFrom([]string{"set", "set", "remove", "plan", "pruned", "replace"}).Draw(t, "what") {
			case "set":
				message := strings.Repeat("m", rapid.SampledFrom([]int{0, 1000}).Draw(t, "message"))
				url := strings.Repeat("\u4e16", rapid.SampledFrom([]int{1, 2000}).Draw(t, "url"))
				for i := from; i < from+n; i++ {
					img := testImage(i)
					img.Status.Message, img.Spec.URL = message, url
					img.Status.References.Count = int32(i % 3)
					if n%2 == 1 {
						img.Status.Prune = &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePending, Message: message}
					}
					images[Key{Namespace: img.Namespace, Name: img.Name}] = img
					p.SetImage(img)
				}
			case "remove":
				for i := from; i < from+n; i++ {
					key := Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", i)}
					delete(images, key)
					p.RemoveImage(key)
				}
			case "plan":
				plan = map[Key]v1alpha1.PlanItemReport{}
				for i := from; i < from+n; i++ {
					plan[Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", i)}] = v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Message: fmt.Sprint(i)}
				}
				p.SetPlanItems(plan)
			case "pruned": // images that are gone, that exist, and that others have replaced
				pruned = map[Key]v1alpha1.ReportedPrune{}
				for i := from; i < from+n; i++ {
					prune := v1alpha1.ReportedPrune{PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned, Message: strings.Repeat("p", n)}, ImageUID: types.UID(fmt.Sprint(i))}
					if i%2 == 0 {
						prune.ImageUID = "former"
					}
					pruned[Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", i)}] = prune
				}
				p.SetPrunedImages(pruned)
			case "replace": // all images at once
				for key := range images {
					if len(key.Name)%2 == n%2 {
						delete(images, key)
					}
				}
				var all []v1alpha1.VMDiskImage
				for _, img := range images {
					img.Status.Attempts++
					all = append(all, *img)
				}
				p.ReplaceImages(all)
			}
			checkPaginator(t, p, images, plan, pruned)
		}
	})
}

func checkPaginator(t *rapid.T, p *Paginator, images map[Key]*v1alpha1.VMDiskImage, plan map[Key]v1alpha1.PlanItemReport, pruned map[Key]v1alpha1.ReportedPrune) {
	want := map[Key]v1alpha1.ReportedImage{}
	references := int32(0)
	for key, img := range images {
		want[key] = NewReportedImage(img)
		references += img.Status.References.Count
	}
	for key, result := range plan {
		reported := want[key]
		reported.Namespace, reported.Name, reported.Plan = key.Namespace, key.Name, &result
		want[key] = reported
	}
	for key, prune := range pruned {
		reported := want[key]
		reported.Namespace, reported.Name = key.Namespace, key.Name
		if reported.UID != prune.ImageUID {
			reported.Prune = &prune
		}
		want[key] = reported
	}
	got := map[Key]v1alpha1.ReportedImage{}
	for _, page := range p.Pages() {
		reported := p.PageImages(page.Name)
		require.Len(t, reported, int(page.Images))
		require.LessOrEqual(t, len(reported), v1alpha1.MaxReportedImages)
		require.Equal(t, page.Digest, DigestPage(reported))
		size := 0
		for i := range reported {
			key := Key{Namespace: reported[i].Namespace, Name: reported[i].Name}
			require.NotContains(t, got, key, "an image is on two pages")
			got[key] = reported[i]
			_, bytes := digestImage(&reported[i])
			size += bytes
		}
		require.LessOrEqual(t, size, maxPageBytes)
	}
	require.Equal(t, want, got)
	totals := p.Totals()
	require.Equal(t, int32(len(images)), totals.Images)
	require.Equal(t, references, totals.References)
	require.Zero(t, totals.Omitted)
}

// A change of one image changes only its page, and a new agent divides the images into the
// same pages.
func TestOneChangeRewritesOnePage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1000).Draw(t, "images")
		p := newTestPaginator(n)
		if gone := rapid.IntRange(0, n-1).Draw(t, "gone"); gone > 0 {
			p.Pages()
			for i := range gone {
				p.RemoveImage(Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", n-1-i)})
			}
			n -= gone
		}
		before := pageContents(p)
		img := testImage(rapid.IntRange(0, n-1).Draw(t, "changed"))
		img.Status.Phase = v1alpha1.PhaseSyncing
		p.SetImage(img)
		after := pageContents(p)
		var changed []string
		for name := range after {
			if !assert.ObjectsAreEqual(before[name], after[name]) {
				changed = append(changed, name)
			}
		}
		require.Len(t, before, len(after))
		require.Len(t, changed, 1)

		again := NewPaginator(pageNames(p))
		for i := range n {
			again.SetImage(testImage(i))
		}
		again.SetImage(img)
		require.Equal(t, after, pageContents(again))
	})
}

// An image that is created and deleted at the bound of a page does not split and merge
// pages each time.
func TestAlternatingImageMovesNoOthers(t *testing.T) {
	for _, n := range []int{11, 12, 31, 32, 33, 64, 65, 127, 128, 129, 2600, 4000} {
		p := newTestPaginator(n)
		p.SetImage(testImage(n))
		want := pageNames(p)
		for range 5 {
			p.RemoveImage(Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", n)})
			require.Equal(t, want, pageNames(p), n)
			p.SetImage(testImage(n))
			require.Equal(t, want, pageNames(p), n)
		}
	}
}

// The cost of a change does not grow with the number of images.
func BenchmarkSetOneImage(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			book := newTestPaginator(n)
			book.Pages()
			img := testImage(1)
			i := int32(0)
			for b.Loop() {
				i++
				img.Status.Attempts = i
				book.SetImage(img)
				book.Pages()
				book.Totals()
			}
		})
	}
}
