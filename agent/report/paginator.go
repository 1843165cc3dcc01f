// Package report computes what an agent reports to the hub: which image is on which page,
// and what the root says. It is pure.
package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of a page, so that all pages together stay within MaxReportBytes. The factors between
// splitting and merging are above two, so that an image that comes and goes does not move others.
//
// A page is written whole: that costs the API servers of the member and of the hub 3 ms of CPU
// each, and 0.3 ms for each image on it. Pages of smallPageImages are the cheaper ones unless most
// images change at once. The second half of the pages is left for images that fit on no page of
// the first half.
const (
	maxPageBytes     = v1alpha1.MaxReportBytes / v1alpha1.MaxReportPages
	smallPageImages  = 32
	maxSmallPages    = v1alpha1.MaxReportPages / 2
	mergeBelowImages = 12
	mergeBelowBytes  = maxPageBytes / 4
)

// Key names an image.
type Key = types.NamespacedName

// Paginator holds what is reported of every image of a member, and divides it into pages. A
// page holds the images whose key has a hash that begins with the bits in the page's name,
// so that a change of one image changes one page.
//
// A page beyond its bounds is split by one more bit, and two small ones are merged; nothing
// else moves an image to another page. There are at most MaxReportPages. Once there are that
// many, images beyond the bounds of their page are omitted and counted. Since hashes are not
// spread exactly evenly, that begins at about three quarters of MaxReportPages ×
// MaxReportedImages.
//
// A Paginator is not safe for concurrent use.
type Paginator struct {
	items        map[Key]*item
	planItems    map[Key]v1alpha1.PlanItemReport
	prunedImages map[Key]v1alpha1.ReportedPrune
	root         *node
}

// item is an image, or a name in the plan without an image.
type item struct {
	key     Key
	keyHash uint64
	image   v1alpha1.ReportedImage
	// ownPrune is the prune in the image's own status.
	ownPrune  *v1alpha1.ReportedPrune
	created   metav1.Time
	exists    bool
	digest    [sha256.Size]byte
	sizeBytes int
}

// NewPaginator returns an empty Paginator with the division that the names of stored pages
// show. Names that are not those of pages are ignored.
func NewPaginator(pages []string) *Paginator {
	p := &Paginator{items: map[Key]*item{}, planItems: map[Key]v1alpha1.PlanItemReport{}, prunedImages: map[Key]v1alpha1.ReportedPrune{}, root: newLeaf("")}
	pages = slices.Clone(pages)
	slices.Sort(pages)
	leaves := 1
	for _, name := range pages {
		prefix, ok := parsePageName(name)
		if !ok {
			continue
		}
		n := p.root
		for depth := 0; depth < len(prefix) && leaves < v1alpha1.MaxReportPages; depth++ {
			if n.isLeaf() {
				n.split()
				leaves++
			}
			n = n.child(prefix[depth] == '1')
		}
	}
	return p
}

// SetImage sets the current state of an image.
func (p *Paginator) SetImage(img *v1alpha1.VMDiskImage) {
	p.putItem(Key{Namespace: img.Namespace, Name: img.Name}, NewReportedImage(img), img.CreationTimestamp, true)
}

// ReplaceImages sets the current state of all images that exist.
func (p *Paginator) ReplaceImages(images []v1alpha1.VMDiskImage) {
	exists := make(map[Key]bool, len(images))
	for i := range images {
		exists[Key{Namespace: images[i].Namespace, Name: images[i].Name}] = true
		p.SetImage(&images[i])
	}
	for key, it := range p.items {
		if it.exists && !exists[key] {
			p.RemoveImage(key)
		}
	}
}

// RemoveImage removes an image that no longer exists. Its name stays while the plan names
// it.
func (p *Paginator) RemoveImage(key Key) {
	_, planned := p.planItems[key]
	_, pruned := p.prunedImages[key]
	if planned || pruned {
		p.putItem(key, v1alpha1.ReportedImage{Namespace: key.Namespace, Name: key.Name}, metav1.Time{}, false)
		return
	}
	if old := p.items[key]; old != nil {
		delete(p.items, key)
		p.findLeaf(old.keyHash).removeItem(old)
	}
}

// SetPlanItems replaces the results of the plan's images.
func (p *Paginator) SetPlanItems(results map[Key]v1alpha1.PlanItemReport) {
	before := p.planItems
	p.planItems = make(map[Key]v1alpha1.PlanItemReport, len(results))
	for key, result := range results {
		result.Message = v1alpha1.SanitizeText(result.Message, maxMessageBytes)
		p.planItems[key] = result
	}
	refreshChanged(p, before, p.planItems, func(a, b v1alpha1.PlanItemReport) bool { return a == b })
}

// SetPrunedImages replaces the results of the plan's prunes whose image is gone.
func (p *Paginator) SetPrunedImages(gone map[Key]v1alpha1.ReportedPrune) {
	before := p.prunedImages
	p.prunedImages = make(map[Key]v1alpha1.ReportedPrune, len(gone))
	for key, prune := range gone {
		prune.Message = v1alpha1.SanitizeText(prune.Message, maxPruneMessageBytes)
		p.prunedImages[key] = prune
	}
	refreshChanged(p, before, p.prunedImages, func(a, b v1alpha1.ReportedPrune) bool { return equality.Semantic.DeepEqual(a, b) })
}

// refreshChanged recomputes the items whose results differ.
func refreshChanged[T any](p *Paginator, before, after map[Key]T, equal func(a, b T) bool) {
	refresh := func(key Key) {
		if old := p.items[key]; old != nil && old.exists {
			img := old.image
			img.Prune = old.ownPrune
			p.putItem(key, img, old.created, true)
		} else {
			p.RemoveImage(key)
		}
	}
	for key, result := range after {
		if old, ok := before[key]; !ok || !equal(old, result) {
			refresh(key)
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			refresh(key)
		}
	}
}

// putItem stores an item, with img.Prune from the image's own status. A plan has one prune
// per name: if its image is gone, that is reported, even where another image has taken the
// name.
func (p *Paginator) putItem(key Key, img v1alpha1.ReportedImage, created metav1.Time, exists bool) {
	own := img.Prune
	if gone, pruned := p.prunedImages[key]; pruned && (!exists || gone.ImageUID != img.UID) {
		img.Prune = &gone
	}
	img.Plan = nil
	if result, planned := p.planItems[key]; planned {
		img.Plan = &result
	}
	next := &item{key: key, image: img, ownPrune: own, created: created, exists: exists}
	next.digest, next.sizeBytes = digestImage(&img)
	old := p.items[key]
	if old != nil && old.digest == next.digest && old.exists == exists && old.created.Equal(&created) {
		old.ownPrune = own
		return
	}
	p.items[key] = next
	if old != nil {
		next.keyHash = old.keyHash
		leaf := p.findLeaf(next.keyHash)
		leaf.removeItem(old)
		leaf.addItem(next)
		return
	}
	next.keyHash = hashKey(key)
	p.findLeaf(next.keyHash).addItem(next)
}

// hashKey decides on which page an image is. Stored pages depend on it.
func hashKey(key Key) uint64 {
	h := sha256.Sum256([]byte(key.Namespace + "/" + key.Name))
	return binary.BigEndian.Uint64(h[:])
}

func (p *Paginator) findLeaf(keyHash uint64) *node {
	n := p.root
	for depth := 0; !n.isLeaf(); depth++ {
		n = n.child(keyHash>>(63-depth)&1 == 1)
	}
	return n
}

// Page summarizes one page.
type Page struct {
	Name string
	// Images is the number of images on it.
	Images int32
	Digest string
}

// Pages returns the pages that have images, by name, after splitting and merging.
func (p *Paginator) Pages() []Page {
	p.rebalance()
	var pages []Page
	for _, leaf := range p.listLeaves() {
		leaf.recomputePage()
		if leaf.shownItems > 0 {
			pages = append(pages, Page{Name: leaf.pageName(), Images: int32(leaf.shownItems), Digest: leaf.digest})
		}
	}
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.Name, b.Name) })
	return pages
}

// PageImages returns the images of a page, by namespace and name.
func (p *Paginator) PageImages(page string) []v1alpha1.ReportedImage {
	prefix, ok := parsePageName(page)
	n := p.root
	for depth := 0; ok && depth < len(prefix) && !n.isLeaf(); depth++ {
		n = n.child(prefix[depth] == '1')
	}
	if !ok || !n.isLeaf() || n.prefix != prefix {
		return nil
	}
	n.recomputePage()
	var images []v1alpha1.ReportedImage
	for _, it := range n.sortedItems()[:n.shownItems] {
		images = append(images, it.image)
	}
	return images
}

// Totals are sums over all images that exist, omitted ones included.
type Totals struct {
	Images     int32
	Omitted    int32
	References int32
	Phases     map[v1alpha1.Phase]int32
	// OldestQueued is the creation time of the image that has waited longest. Those that wait
	// for a window do not count.
	OldestQueued *metav1.Time
}

// Totals returns the sums over all pages.
func (p *Paginator) Totals() Totals {
	t := Totals{Phases: map[v1alpha1.Phase]int32{}}
	for _, leaf := range p.listLeaves() {
		leaf.recomputePage()
		t.Images += leaf.totals.Images
		t.References += leaf.totals.References
		t.Omitted += leaf.totals.Omitted
		for phase, n := range leaf.totals.Phases {
			t.Phases[phase] += n
		}
		t.OldestQueued = storedtime.EarlierTime(t.OldestQueued, leaf.totals.OldestQueued)
	}
	return t
}

// rebalance merges small pages, then splits large ones, the fullest first, as far as
// MaxReportPages allows.
func (p *Paginator) rebalance() {
	p.root.mergeSmallLeaves()
	leaves := p.listLeaves()
	for len(leaves) < v1alpha1.MaxReportPages {
		mostImages := v1alpha1.MaxReportedImages
		if len(leaves) < maxSmallPages {
			mostImages = smallPageImages
		}
		fullest := -1
		for i, leaf := range leaves {
			if leaf.needsSplit(mostImages) && (fullest < 0 || leaf.isFullerThan(leaves[fullest])) {
				fullest = i
			}
		}
		if fullest < 0 {
			return
		}
		leaf := leaves[fullest]
		leaf.split()
		leaves = slices.Replace(leaves, fullest, fullest+1, leaf.low, leaf.high)
	}
}

// listLeaves returns all leaves, empty ones included, by prefix.
func (p *Paginator) listLeaves() []*node {
	return p.root.appendLeaves(nil)
}

func sortItems(items map[Key]*item) []*item {
	return slices.SortedFunc(maps.Values(items), func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
}
