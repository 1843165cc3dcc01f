package report

import (
	"crypto/sha256"
	"strings"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const pageNamePrefix = "page"

// maxPrefixBits bounds the length of a page's name, whatever the keys.
const maxPrefixBits = 32

// parsePageName returns the bits in the name of a page.
func parsePageName(name string) (prefix string, ok bool) {
	if name == pageNamePrefix {
		return "", true
	}
	prefix, ok = strings.CutPrefix(name, pageNamePrefix+"-")
	return prefix, ok && prefix != "" && len(prefix) <= maxPrefixBits && strings.Trim(prefix, "01") == ""
}

// node of the tree of prefixes. A leaf is a page; any other node has both children.
type node struct {
	prefix    string
	low, high *node

	// The fields below are those of a leaf.
	items     map[Key]*item
	sizeBytes int
	stale     bool // the fields below have to be recomputed

	shownItems int // the number of items, by key, that fit on the page
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

// needsSplit: a leaf has more than mostImages, or exceeds maxPageBytes, and a split can help.
func (n *node) needsSplit(mostImages int) bool {
	return len(n.prefix) < maxPrefixBits && len(n.items) > 1 && (len(n.items) > mostImages || n.sizeBytes > maxPageBytes)
}

func (n *node) isFullerThan(other *node) bool {
	if len(n.items) != len(other.items) {
		return len(n.items) > len(other.items)
	}
	return n.sizeBytes > other.sizeBytes
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

// mergeSmallLeaves merges pairs of small leaves, from the bottom up.
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

func (n *node) appendLeaves(leaves []*node) []*node {
	if n.isLeaf() {
		return append(leaves, n)
	}
	return n.high.appendLeaves(n.low.appendLeaves(leaves))
}

func (n *node) sortedItems() []*item { return sortItems(n.items) }

// recomputePage computes what the page of a leaf says.
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
		if it.image.Phase == v1alpha1.PhaseQueued && it.image.Reason != v1alpha1.ReasonWaitingForWindow {
			n.totals.OldestQueued = storedtime.EarlierTime(n.totals.OldestQueued, &it.created)
		}
	}
	n.digest = combineDigests(digests)
}
