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

// pageContents is all that a book says, page by page.
func pageContents(b *Paginator) map[string][]v1alpha1.ReportedImage {
	pages := map[string][]v1alpha1.ReportedImage{}
	for _, page := range b.Pages() {
		pages[page.Name] = b.PageImages(page.Name)
	}
	return pages
}

// Whatever happens, every image stands on exactly one page, as it is, the pages
// keep their bounds, and the sums are those of the images.
func TestPaginatorHoldsEveryImageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewPaginator(rapid.SliceOfN(rapid.StringMatching(`page(-[01]{1,6})?`), 0, 12).Draw(t, "stored pages"))
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
					b.SetImage(img)
				}
			case "remove":
				for i := from; i < from+n; i++ {
					key := Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", i)}
					delete(images, key)
					b.RemoveImage(key)
				}
			case "plan":
				plan = map[Key]v1alpha1.PlanItemReport{}
				for i := from; i < from+n; i++ {
					plan[Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", i)}] = v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Message: fmt.Sprint(i)}
				}
				b.SetPlanItems(plan)
			case "pruned": // images that are gone, that are not, and that others have taken the place of
				pruned = map[Key]v1alpha1.ReportedPrune{}
				for i := from; i < from+n; i++ {
					prune := v1alpha1.ReportedPrune{PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned, Message: strings.Repeat("p", n)}, ImageUID: types.UID(fmt.Sprint(i))}
					if i%2 == 0 {
						prune.ImageUID = "former"
					}
					pruned[Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", i)}] = prune
				}
				b.SetPrunedImages(pruned)
			case "replace": // what there is, all at once
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
				b.ReplaceImages(all)
			}
			checkPaginator(t, b, images, plan, pruned)
		}
	})
}

func checkPaginator(t *rapid.T, b *Paginator, images map[Key]*v1alpha1.VMDiskImage, plan map[Key]v1alpha1.PlanItemReport, pruned map[Key]v1alpha1.ReportedPrune) {
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
	for _, page := range b.Pages() {
		reported := b.PageImages(page.Name)
		require.Len(t, reported, int(page.Images))
		require.LessOrEqual(t, len(reported), v1alpha1.MaxReportedImages)
		require.Equal(t, page.Digest, DigestPage(reported))
		size := 0
		for i := range reported {
			key := Key{Namespace: reported[i].Namespace, Name: reported[i].Name}
			require.NotContains(t, got, key, "it is on two pages")
			got[key] = reported[i]
			_, bytes := digestImage(&reported[i])
			size += bytes
		}
		require.LessOrEqual(t, size, maxPageBytes)
	}
	require.Equal(t, want, got)
	totals := b.Totals()
	require.Equal(t, int32(len(images)), totals.Images)
	require.Equal(t, references, totals.References)
	require.Zero(t, totals.Omitted)
}

// A change of one image is one of its page alone, and an agent that starts anew
// sees the pages as the one before it did.
func TestOneChangeRewritesOnePage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1000).Draw(t, "images")
		b := newTestPaginator(n)
		if gone := rapid.IntRange(0, n-1).Draw(t, "gone"); gone > 0 {
			b.Pages()
			for i := range gone {
				b.RemoveImage(Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", n-1-i)})
			}
			n -= gone
		}
		before := pageContents(b)
		img := testImage(rapid.IntRange(0, n-1).Draw(t, "changed"))
		img.Status.Phase = v1alpha1.PhaseSyncing
		b.SetImage(img)
		after := pageContents(b)
		var changed []string
		for name := range after {
			if !assert.ObjectsAreEqual(before[name], after[name]) {
				changed = append(changed, name)
			}
		}
		require.Len(t, before, len(after))
		require.Len(t, changed, 1)

		again := NewPaginator(pageNames(b))
		for i := range n {
			again.SetImage(testImage(i))
		}
		again.SetImage(img)
		require.Equal(t, after, pageContents(again))
	})
}

// An image that comes and goes at the edge of what a page holds does not have
// the pages split and merged again and again.
func TestAlternatingImageMovesNoOthers(t *testing.T) {
	for _, n := range []int{47, 48, 127, 128, 129, 256, 257} {
		b := newTestPaginator(n)
		b.SetImage(testImage(n))
		want := pageNames(b)
		for range 5 {
			b.RemoveImage(Key{Namespace: "farm", Name: fmt.Sprintf("image-%d", n)})
			require.Equal(t, want, pageNames(b), n)
			b.SetImage(testImage(n))
			require.Equal(t, want, pageNames(b), n)
		}
	}
}

// What a change costs does not grow with the number of images.
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
