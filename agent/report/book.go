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
	maxBytes        = 400 << 10
	mergeBelow      = 48
	mergeBelowBytes = maxBytes / 4
)

// Key names an image.
type Key = types.NamespacedName

// Book holds what is reported of every image of a member, and divides it into
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
type Book struct {
	items  map[Key]*item
	plan   map[Key]v1alpha1.PlanItemReport
	pruned map[Key]v1alpha1.ReportedPrune
	top    *node
}

// item is one image, or one that is not there and that the plan names.
type item struct {
	key   Key
	bits  uint64
	image v1alpha1.ReportedImage
	// prune is what the image itself says of one.
	prune   *v1alpha1.ReportedPrune
	created metav1.Time
	exists  bool
	digest  [sha256.Size]byte
	size    int
}

// New returns an empty book whose pages are divided as those of these names,
// which an earlier agent has left. What is no name of a page is ignored.
func New(pages []string) *Book {
	b := &Book{items: map[Key]*item{}, plan: map[Key]v1alpha1.PlanItemReport{}, pruned: map[Key]v1alpha1.ReportedPrune{}, top: newLeaf("")}
	pages = slices.Clone(pages)
	slices.Sort(pages)
	leaves := 1
	for _, name := range pages {
		prefix, is := prefixOf(name)
		if !is {
			continue
		}
		at := b.top
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

// Set takes an image as it is now.
func (b *Book) Set(img *v1alpha1.VMDiskImage) {
	b.put(Key{Namespace: img.Namespace, Name: img.Name}, Image(img), img.CreationTimestamp, true)
}

// SetAll takes all images that there are as they are now.
func (b *Book) SetAll(images []v1alpha1.VMDiskImage) {
	there := make(map[Key]bool, len(images))
	for i := range images {
		there[Key{Namespace: images[i].Namespace, Name: images[i].Name}] = true
		b.Set(&images[i])
	}
	for key, it := range b.items {
		if it.exists && !there[key] {
			b.Remove(key)
		}
	}
}

// Remove takes note that an image is not there any more.
func (b *Book) Remove(key Key) {
	_, planned := b.plan[key]
	_, pruned := b.pruned[key]
	if planned || pruned {
		b.put(key, v1alpha1.ReportedImage{Namespace: key.Namespace, Name: key.Name}, metav1.Time{}, false)
		return
	}
	if old := b.items[key]; old != nil {
		delete(b.items, key)
		b.leafOf(old.bits).remove(old)
	}
}

// SetPlan takes what became of each image of the plan.
func (b *Book) SetPlan(results map[Key]v1alpha1.PlanItemReport) {
	before := b.plan
	b.plan = make(map[Key]v1alpha1.PlanItemReport, len(results))
	for key, result := range results {
		result.Message = cut(result.Message, maxMessage)
		b.plan[key] = result
	}
	retell(b, before, b.plan, func(was, is v1alpha1.PlanItemReport) bool { return was == is })
}

// SetPruned takes what became of the plan's prunes whose image is not there any more.
func (b *Book) SetPruned(gone map[Key]v1alpha1.ReportedPrune) {
	before := b.pruned
	b.pruned = make(map[Key]v1alpha1.ReportedPrune, len(gone))
	for key, prune := range gone {
		prune.Message = cut(prune.Message, maxPruneMessage)
		b.pruned[key] = prune
	}
	retell(b, before, b.pruned, func(was, is v1alpha1.ReportedPrune) bool { return equality.Semantic.DeepEqual(was, is) })
}

// retell works out those entries anew of which something else is told than before.
func retell[T any](b *Book, before, now map[Key]T, same func(was, is T) bool) {
	again := func(key Key) {
		if old := b.items[key]; old != nil && old.exists {
			img := old.image
			img.Prune = old.prune
			b.put(key, img, old.created, true)
		} else {
			b.Remove(key)
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

// put takes an entry, img.Prune being what the image itself says. A plan has one prune
// of a name: where its image is gone, that is told, also beside another image that has
// taken the name.
func (b *Book) put(key Key, img v1alpha1.ReportedImage, created metav1.Time, exists bool) {
	own := img.Prune
	if gone, pruned := b.pruned[key]; pruned && (!exists || gone.ImageUID != img.UID) {
		img.Prune = &gone
	}
	img.Plan = nil
	if result, planned := b.plan[key]; planned {
		img.Plan = &result
	}
	next := &item{key: key, image: img, prune: own, created: created, exists: exists}
	next.digest, next.size = sum(&img)
	old := b.items[key]
	if old != nil && old.digest == next.digest && old.exists == exists && old.created.Equal(&created) {
		old.prune = own
		return
	}
	b.items[key] = next
	if old != nil {
		next.bits = old.bits
		leaf := b.leafOf(next.bits)
		leaf.remove(old)
		leaf.add(next)
		return
	}
	next.bits = bitsOf(key)
	b.leafOf(next.bits).add(next)
}

// bitsOf is the hash that decides on which page an image stands. Pages that are
// stored depend on it.
func bitsOf(key Key) uint64 {
	h := sha256.Sum256([]byte(key.Namespace + "/" + key.Name))
	return binary.BigEndian.Uint64(h[:])
}

func (b *Book) leafOf(bits uint64) *node {
	at := b.top
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
func (b *Book) Pages() []Page {
	b.settle()
	var pages []Page
	for _, leaf := range b.leaves() {
		leaf.refresh()
		if leaf.shown > 0 {
			pages = append(pages, Page{Name: leaf.name(), Images: int32(leaf.shown), Digest: leaf.digest})
		}
	}
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.Name, b.Name) })
	return pages
}

// Images of a page, by namespace and name.
func (b *Book) Images(page string) []v1alpha1.ReportedImage {
	prefix, is := prefixOf(page)
	at := b.top
	for depth := 0; is && depth < len(prefix) && !at.isLeaf(); depth++ {
		at = at.child(prefix[depth] == '1')
	}
	if !is || !at.isLeaf() || at.prefix != prefix {
		return nil
	}
	at.refresh()
	var images []v1alpha1.ReportedImage
	for _, it := range at.sorted()[:at.shown] {
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
func (b *Book) Totals() Totals {
	t := Totals{Phases: map[v1alpha1.Phase]int32{}}
	for _, leaf := range b.leaves() {
		leaf.refresh()
		t.Images += leaf.totals.Images
		t.References += leaf.totals.References
		t.Omitted += leaf.totals.Omitted
		for phase, n := range leaf.totals.Phases {
			t.Phases[phase] += n
		}
		t.OldestQueued = earlier(t.OldestQueued, leaf.totals.OldestQueued)
	}
	return t
}

func earlier(a, b *metav1.Time) *metav1.Time {
	if a == nil || (b != nil && b.Before(a)) {
		return b
	}
	return a
}

// settle merges, then splits. Where there may be no more pages, the fullest are
// split first.
func (b *Book) settle() {
	b.top.merge()
	leaves := b.leaves()
	for len(leaves) < v1alpha1.MaxReportPages {
		fullest := -1
		for i, leaf := range leaves {
			if leaf.mayBeSplit() && (fullest < 0 || leaf.fuller(leaves[fullest])) {
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
func (b *Book) leaves() []*node {
	return b.top.leaves(nil)
}

// sortedItems orders items by key.
func sortedItems(items map[Key]*item) []*item {
	return slices.SortedFunc(maps.Values(items), func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
}
