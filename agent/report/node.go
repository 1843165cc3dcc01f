package report

import (
	"crypto/sha256"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const pageName = "page"

// maxDepth bounds how long a page's name can get, whatever the keys.
const maxDepth = 32

// prefixOf reads the bits in the name of a page.
func prefixOf(name string) (prefix string, is bool) {
	if name == pageName {
		return "", true
	}
	prefix, is = strings.CutPrefix(name, pageName+"-")
	return prefix, is && prefix != "" && len(prefix) <= maxDepth && strings.Trim(prefix, "01") == ""
}

// node of the tree of prefixes: a leaf, which is a page, or one with both
// children.
type node struct {
	prefix    string
	low, high *node

	// Of a leaf only.
	items map[Key]*item
	bytes int
	stale bool // what follows is to be worked out anew

	shown  int // how many of the items, by key, there is room for
	digest string
	totals Totals
}

func newLeaf(prefix string) *node {
	return &node{prefix: prefix, items: map[Key]*item{}, stale: true}
}

func (n *node) isLeaf() bool { return n.low == nil }

func (n *node) name() string {
	if n.prefix == "" {
		return pageName
	}
	return pageName + "-" + n.prefix
}

func (n *node) child(high bool) *node {
	if high {
		return n.high
	}
	return n.low
}

func (n *node) add(it *item) {
	n.items[it.key] = it
	n.bytes += it.size
	n.stale = true
}

func (n *node) remove(it *item) {
	delete(n.items, it.key)
	n.bytes -= it.size
	n.stale = true
}

// mayBeSplit tells whether a leaf is beyond the bounds of a page and more than
// one image causes that.
func (n *node) mayBeSplit() bool {
	return len(n.prefix) < maxDepth && len(n.items) > 1 && (len(n.items) > v1alpha1.MaxReportedImages || n.bytes > maxBytes)
}

func (n *node) fuller(than *node) bool {
	if len(n.items) != len(than.items) {
		return len(n.items) > len(than.items)
	}
	return n.bytes > than.bytes
}

func (n *node) split() {
	low, high := newLeaf(n.prefix+"0"), newLeaf(n.prefix+"1")
	for _, it := range n.items {
		if it.bits>>(63-len(n.prefix))&1 == 1 {
			high.add(it)
		} else {
			low.add(it)
		}
	}
	*n = node{prefix: n.prefix, low: low, high: high}
}

// merge makes one leaf of two that have become small, from the leaves upwards.
func (n *node) merge() {
	if n.isLeaf() {
		return
	}
	n.low.merge()
	n.high.merge()
	if !n.low.isLeaf() || !n.high.isLeaf() ||
		len(n.low.items)+len(n.high.items) >= mergeBelow || n.low.bytes+n.high.bytes >= mergeBelowBytes {
		return
	}
	merged := newLeaf(n.prefix)
	for _, half := range []*node{n.low, n.high} {
		for _, it := range half.items {
			merged.add(it)
		}
	}
	*n = *merged
}

func (n *node) leaves(before []*node) []*node {
	if n.isLeaf() {
		return append(before, n)
	}
	return n.high.leaves(n.low.leaves(before))
}

func (n *node) sorted() []*item { return sortedItems(n.items) }

// refresh works out what a leaf's page says.
func (n *node) refresh() {
	if !n.stale {
		return
	}
	n.stale = false
	n.shown, n.totals = 0, Totals{Phases: map[v1alpha1.Phase]int32{}}
	var digests [][sha256.Size]byte
	full, size := false, 0
	for _, it := range n.sorted() {
		size += it.size
		full = full || n.shown == v1alpha1.MaxReportedImages || (size > maxBytes && n.shown > 0)
		if full {
			n.totals.Omitted++
		} else {
			n.shown++
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
			n.totals.OldestQueued = earlier(n.totals.OldestQueued, &it.created)
		}
	}
	n.digest = digestOf(digests)
}
