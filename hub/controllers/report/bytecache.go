package report

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"k8s.io/apimachinery/pkg/types"
)

// byteCache keeps the values that were used last, as many as a bound of entries and one of bytes allow. It
// is not safe for concurrent use.
type byteCache[V any] struct {
	lru             *simplelru.LRU[types.NamespacedName, sizedValue[V]]
	bytes, maxBytes int
}

type sizedValue[V any] struct {
	value V
	bytes int
}

func newByteCache[V any](maxEntries int, maxBytes int) *byteCache[V] {
	c := &byteCache[V]{maxBytes: maxBytes}
	c.lru, _ = simplelru.NewLRU(maxEntries, func(_ types.NamespacedName, dropped sizedValue[V]) { c.bytes -= dropped.bytes })
	return c
}

func (c *byteCache[V]) get(key types.NamespacedName) (value V, found bool) {
	kept, found := c.lru.Get(key)
	return kept.value, found
}

func (c *byteCache[V]) remove(key types.NamespacedName) { c.lru.Remove(key) }

// put keeps a value instead of a former one, and drops the least recently used ones beyond the bounds.
func (c *byteCache[V]) put(key types.NamespacedName, value V, bytes int) {
	c.remove(key)
	c.bytes += bytes
	c.lru.Add(key, sizedValue[V]{value, bytes})
	for c.bytes > c.maxBytes {
		c.lru.RemoveOldest()
	}
}
