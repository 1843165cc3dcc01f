// Package report works out what an agent tells the hub: which image stands on
// which page, and what the root says. It knows no client and no clock.
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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of a page. Between splitting and merging lies more than a factor of
// two, so that an image that comes and goes does not move others about.
const (
	maxPageBytes     = 400 << 10
	mergeBelowImages = 48
	mergeBelowBytes  = maxPageBytes / 4
)

// Key names an image.
type Key = types.NamespacedName

// Paginator holds what is reported of every image of a member, and divides it into
// pages. A page holds the images whose key's hash begins with the bits in the
// page's name, so that a change of one image is one of one page.
//
// A page that grows beyond its bounds is split in two by one more bit, two that
// have become small are merged; nothing else moves an image to another page.
// There are at most MaxReportPages. Once there are that many, what a page has no
// room for is omitted and counted: keys spread evenly, but not exactly, so this
// begins at about three quarters of MaxReportPages × MaxReportedImages.
//
// A Book is not safe for concurrent use.
type Paginator struct {
	items        map[Key]*item
	planItems    map[Key]v1alpha1.PlanItemReport
	prunedImages map[Key]v1alpha1.ReportedPrune
	root         *node
}

// item is one image, or one that is not there and that the plan names.
type item struct {
	key     Key
	keyHash uint64
	image   v1alpha1.ReportedImage
	// ownPrune is what the image itself says of one.
	ownPrune  *v1alpha1.ReportedPrune
	created   metav1.Time
	exists    bool
	digest    [sha256.Size]byte
	sizeBytes int
}

// NewPaginator returns an empty book whose pages are divided as those of these names,
// which an earlier agent has left. What is no name of a page is ignored.
func NewPaginator(pages []string) *Paginator {
	b := &Paginator{items: map[Key]*item{}, planItems: map[Key]v1alpha1.PlanItemReport{}, prunedImages: map[Key]v1alpha1.ReportedPrune{}, root: newLeaf("")}
	pages = slices.Clone(pages)
	slices.Sort(pages)
	leaves := 1
	for _, name := range pages {
		prefix, is := parsePageName(name)
		if !is {
			continue
		}
		at := b.root
		for depth := 0; depth < len(prefix) && leaves < v1alpha1.MaxReportPages; depth++ {
			if at.isLeaf() {
				at.split()
				leaves++
			}
			at = at.child(prefix[depth] == '1')
		}
	}
	return b
}

// SetImage takes an image as it is now.
func (b *Paginator) SetImage(img *v1alpha1.VMDiskImage) {
	b.putItem(Key{Namespace: img.Namespace, Name: img.Name}, NewReportedImage(img), img.CreationTimestamp, true)
}

// ReplaceImages takes all images that there are as they are now.
func (b *Paginator) ReplaceImages(images []v1alpha1.VMDiskImage) {
	there := make(map[Key]bool, len(images))
	for i := range images {
		there[Key{Namespace: images[i].Namespace, Name: images[i].Name}] = true
		b.SetImage(&images[i])
	}
	for key, it := range b.items {
		if it.exists && !there[key] {
			b.RemoveImage(key)
		}
	}
}

// RemoveImage takes note that an image is not there any more.
func (b *Paginator) RemoveImage(key Key) {
	_, planned := b.planItems[key]
	_, pruned := b.prunedImages[key]
	if planned || pruned {
		b.putItem(key, v1alpha1.ReportedImage{Namespace: key.Namespace, Name: key.Name}, metav1.Time{}, false)
		return
	}
	if old := b.items[key]; old != nil {
		delete(b.items, key)
		b.findLeaf(old.keyHash).removeItem(old)
	}
}

// SetPlanItems takes what became of each image of the plan.
func (b *Paginator) SetPlanItems(results map[Key]v1alpha1.PlanItemReport) {
	before := b.planItems
	b.planItems = make(map[Key]v1alpha1.PlanItemReport, len(results))
	for key, result := range results {
		result.Message = truncateText(result.Message, maxMessageBytes)
		b.planItems[key] = result
	}
	refreshChanged(b, before, b.planItems, func(was, is v1alpha1.PlanItemReport) bool { return was == is })
}

// SetPrunedImages takes what became of the plan's prunes whose image is not there any more.
func (b *Paginator) SetPrunedImages(gone map[Key]v1alpha1.ReportedPrune) {
	before := b.prunedImages
	b.prunedImages = make(map[Key]v1alpha1.ReportedPrune, len(gone))
	for key, prune := range gone {
		prune.Message = truncateText(prune.Message, maxPruneMessage)
		b.prunedImages[key] = prune
	}
	refreshChanged(b, before, b.prunedImages, func(was, is v1alpha1.ReportedPrune) bool { return equality.Semantic.DeepEqual(was, is) })
}

// refreshChanged works out those entries anew of which something else is told than before.
func refreshChanged[T any](b *Paginator, before, now map[Key]T, same func(was, is T) bool) {
	again := func(key Key) {
		if old := b.items[key]; old != nil && old.exists {
			img := old.image
			img.Prune = old.ownPrune
			b.putItem(key, img, old.created, true)
		} else {
			b.RemoveImage(key)
		}
	}
	for key, is := range now {
		if was, there := before[key]; !there || !same(was, is) {
			again(key)
		}
	}
	for key := range before {
		if _, there := now[key]; !there {
			again(key)
		}
	}
}

// putItem takes an entry, img.Prune being what the image itself says. A plan has one prune
// of a name: where its image is gone, that is told, also beside another image that has
// taken the name.
func (b *Paginator) putItem(key Key, img v1alpha1.ReportedImage, created metav1.Time, exists bool) {
	own := img.Prune
	if gone, pruned := b.prunedImages[key]; pruned && (!exists || gone.ImageUID != img.UID) {
		img.Prune = &gone
	}
	img.Plan = nil
	if result, planned := b.planItems[key]; planned {
		img.Plan = &result
	}
	next := &item{key: key, image: img, ownPrune: own, created: created, exists: exists}
	next.digest, next.sizeBytes = digestImage(&img)
	old := b.items[key]
	if old != nil && old.digest == next.digest && old.exists == exists && old.created.Equal(&created) {
		old.ownPrune = own
		return
	}
	b.items[key] = next
	if old != nil {
		next.keyHash = old.keyHash
		leaf := b.findLeaf(next.keyHash)
		leaf.removeItem(old)
		leaf.addItem(next)
		return
	}
	next.keyHash = hashKey(key)
	b.findLeaf(next.keyHash).addItem(next)
}

// hashKey is the hash that decides on which page an image stands. Pages that are
// stored depend on it.
func hashKey(key Key) uint64 {
	h := sha256.Sum256([]byte(key.Namespace + "/" + key.Name))
	return binary.BigEndian.Uint64(h[:])
}

func (b *Paginator) findLeaf(bits uint64) *node {
	at := b.root
	for depth := 0; !at.isLeaf(); depth++ {
		at = at.child(bits>>(63-depth)&1 == 1)
	}
	return at
}

// Page is one page in short.
type Page struct {
	Name string
	// Images on it.
	Images int32
	Digest string
}

// Pages are those that have images, by name. It splits and merges first.
func (b *Paginator) Pages() []Page {
	b.rebalance()
	var pages []Page
	for _, leaf := range b.listLeaves() {
		leaf.recomputePage()
		if leaf.shownItems > 0 {
			pages = append(pages, Page{Name: leaf.pageName(), Images: int32(leaf.shownItems), Digest: leaf.digest})
		}
	}
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.Name, b.Name) })
	return pages
}

// PageImages of a page, by namespace and name.
func (b *Paginator) PageImages(page string) []v1alpha1.ReportedImage {
	prefix, is := parsePageName(page)
	at := b.root
	for depth := 0; is && depth < len(prefix) && !at.isLeaf(); depth++ {
		at = at.child(prefix[depth] == '1')
	}
	if !is || !at.isLeaf() || at.prefix != prefix {
		return nil
	}
	at.recomputePage()
	var images []v1alpha1.ReportedImage
	for _, it := range at.sortedItems()[:at.shownItems] {
		images = append(images, it.image)
	}
	return images
}

// Totals are sums over all images, those included that the pages have no room
// for. Planned images that are not there are on the pages only.
type Totals struct {
	Images     int32
	Omitted    int32
	References int32
	Phases     map[v1alpha1.Phase]int32
	// OldestQueued is when the image was created that waits longest.
	OldestQueued *metav1.Time
}

// Totals sums up, page by page.
func (b *Paginator) Totals() Totals {
	t := Totals{Phases: map[v1alpha1.Phase]int32{}}
	for _, leaf := range b.listLeaves() {
		leaf.recomputePage()
		t.Images += leaf.totals.Images
		t.References += leaf.totals.References
		t.Omitted += leaf.totals.Omitted
		for phase, n := range leaf.totals.Phases {
			t.Phases[phase] += n
		}
		t.OldestQueued = earlierTime(t.OldestQueued, leaf.totals.OldestQueued)
	}
	return t
}

func earlierTime(a, b *metav1.Time) *metav1.Time {
	if a == nil || (b != nil && b.Before(a)) {
		return b
	}
	return a
}

// rebalance merges, then splits. Where there may be no more pages, the fullest are
// split first.
func (b *Paginator) rebalance() {
	b.root.mergeSmallLeaves()
	leaves := b.listLeaves()
	for len(leaves) < v1alpha1.MaxReportPages {
		fullest := -1
		for i, leaf := range leaves {
			if leaf.needsSplit() && (fullest < 0 || leaf.isFullerThan(leaves[fullest])) {
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

// leaves, those without images too, in the order of their prefixes.
func (b *Paginator) listLeaves() []*node {
	return b.root.appendLeaves(nil)
}

// sortItems orders items by key.
func sortItems(items map[Key]*item) []*item {
	return slices.SortedFunc(maps.Values(items), func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
}
