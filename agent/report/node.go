package report

import (
	"crypto/sha256"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const pageNamePrefix = "page"

// maxPrefixBits bounds how long a page's name can get, whatever the keys.
const maxPrefixBits = 32

// parsePageName reads the bits in the name of a page.
func parsePageName(name string) (prefix string, is bool) {
	if name == pageNamePrefix {
		return "", true
	}
	prefix, is = strings.CutPrefix(name, pageNamePrefix+"-")
	return prefix, is && prefix != "" && len(prefix) <= maxPrefixBits && strings.Trim(prefix, "01") == ""
}

// node of the tree of prefixes: a leaf, which is a page, or one with both
// children.
type node struct {
	prefix    string
	low, high *node

	// Of a leaf only.
	items     map[Key]*item
	sizeBytes int
	stale     bool // what follows is to be worked out anew

	shownItems int // how many of the items, by key, there is room for
	digest     string
	totals     Totals
}

func newLeaf(prefix string) *node {
	return &node{prefix: prefix, items: map[Key]*item{}, stale: true}
}

func (n *node) isLeaf() bool { return n.low == nil }

func (n *node) pageName() string {
	if n.prefix == "" {
		return pageNamePrefix
	}
	return pageNamePrefix + "-" + n.prefix
}

func (n *node) child(high bool) *node {
	if high {
		return n.high
	}
	return n.low
}

func (n *node) addItem(it *item) {
	n.items[it.key] = it
	n.sizeBytes += it.sizeBytes
	n.stale = true
}

func (n *node) removeItem(it *item) {
	delete(n.items, it.key)
	n.sizeBytes -= it.sizeBytes
	n.stale = true
}

// needsSplit tells whether a leaf is beyond the bounds of a page and more than
// one image causes that.
func (n *node) needsSplit() bool {
	return len(n.prefix) < maxPrefixBits && len(n.items) > 1 && (len(n.items) > v1alpha1.MaxReportedImages || n.sizeBytes > maxPageBytes)
}

func (n *node) isFullerThan(than *node) bool {
	if len(n.items) != len(than.items) {
		return len(n.items) > len(than.items)
	}
	return n.sizeBytes > than.sizeBytes
}

func (n *node) split() {
	low, high := newLeaf(n.prefix+"0"), newLeaf(n.prefix+"1")
	for _, it := range n.items {
		if it.keyHash>>(63-len(n.prefix))&1 == 1 {
			high.addItem(it)
		} else {
			low.addItem(it)
		}
	}
	*n = node{prefix: n.prefix, low: low, high: high}
}

// mergeSmallLeaves makes one leaf of two that have become small, from the leaves upwards.
func (n *node) mergeSmallLeaves() {
	if n.isLeaf() {
		return
	}
	n.low.mergeSmallLeaves()
	n.high.mergeSmallLeaves()
	if !n.low.isLeaf() || !n.high.isLeaf() ||
		len(n.low.items)+len(n.high.items) >= mergeBelowImages || n.low.sizeBytes+n.high.sizeBytes >= mergeBelowBytes {
		return
	}
	merged := newLeaf(n.prefix)
	for _, half := range []*node{n.low, n.high} {
		for _, it := range half.items {
			merged.addItem(it)
		}
	}
	*n = *merged
}

func (n *node) appendLeaves(before []*node) []*node {
	if n.isLeaf() {
		return append(before, n)
	}
	return n.high.appendLeaves(n.low.appendLeaves(before))
}

func (n *node) sortedItems() []*item { return sortItems(n.items) }

// recomputePage works out what a leaf's page says.
func (n *node) recomputePage() {
	if !n.stale {
		return
	}
	n.stale = false
	n.shownItems, n.totals = 0, Totals{Phases: map[v1alpha1.Phase]int32{}}
	var digests [][sha256.Size]byte
	full, size := false, 0
	for _, it := range n.sortedItems() {
		size += it.sizeBytes
		full = full || n.shownItems == v1alpha1.MaxReportedImages || (size > maxPageBytes && n.shownItems > 0)
		if full {
			n.totals.Omitted++
		} else {
			n.shownItems++
			digests = append(digests, it.digest)
		}
		if !it.exists {
			continue
		}
		n.totals.Images++
		n.totals.References += it.image.References
		if it.image.Phase != "" {
			n.totals.Phases[it.image.Phase]++
		}
		if it.image.Phase == v1alpha1.PhaseQueued {
			n.totals.OldestQueued = earlierTime(n.totals.OldestQueued, &it.created)
		}
	}
	n.digest = combineDigests(digests)
}
